package auth

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"example.org/slipway/registry/auth/signing"
)

// externalLeeway is the tolerated difference between our clock and that of an external
// token service. Distribution also tolerates 60 s.
const externalLeeway = time.Minute

// maxChain bounds the number of certificates in an x5c header.
const maxChain = 8

// external verifies the tokens of an external token service. It is immutable.
type external struct {
	issuer, service string
	algorithms      []string
	keys            map[string]crypto.PublicKey // by kid
	roots           *x509.CertPool              // nil without a bundle
	clock           func() time.Time
}

// newExternal reads the trusted certificates and keys.
func newExternal(c *TokenConfig, o Options) (*external, error) {
	e := &external{
		issuer: c.Issuer, service: c.Service, clock: o.Clock,
		algorithms: signingAlgorithms(), keys: map[string]crypto.PublicKey{},
	}
	if len(c.SigningAlgorithms) > 0 {
		for _, alg := range c.SigningAlgorithms {
			if !slices.Contains(e.algorithms, alg) {
				return nil, mistake("auth.token.signingalgorithms", "%q is not one of %s", alg, strings.Join(e.algorithms, ", "))
			}
		}
		e.algorithms = c.SigningAlgorithms
	}
	if c.RootCertBundle != "" {
		if err := e.loadBundle(c.RootCertBundle); err != nil {
			return nil, err
		}
	}
	if c.JWKS != "" {
		keys, err := signing.ReadJWKS(c.JWKS)
		if err != nil {
			return nil, err
		}
		for kid, key := range keys {
			e.keys[kid] = key
		}
	}
	return e, nil
}

// signingAlgorithms returns the algorithms that a token may be signed with. Neither
// "none" nor an algorithm with a shared secret is among them.
func signingAlgorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

func (e *external) loadBundle(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read rootcertbundle: %w", err)
	}
	e.roots = x509.NewCertPool()
	n := 0
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("rootcertbundle %s: certificate %d: %w", path, n+1, err)
		}
		n++
		e.roots.AddCert(cert)
		e.keys[libtrustID(cert)] = cert.PublicKey
		if id := signing.Thumbprint(cert.PublicKey); id != "" {
			e.keys[id] = cert.PublicKey
		}
	}
	if n == 0 {
		return fmt.Errorf("rootcertbundle %s: no certificate in the file", path)
	}
	return nil
}

// libtrustID returns the key id that token services written for Distribution 2 put into
// kid. It is the first 240 bits of the public key's SHA-256 in base32, in twelve groups
// of four letters with colons between them.
func libtrustID(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	text := base32.StdEncoding.EncodeToString(sum[:30])
	var groups []string
	for chunk := range slices.Chunk([]byte(text), 4) {
		groups = append(groups, string(chunk))
	}
	return strings.Join(groups, ":")
}

// verify implements verifier.
func (e *external) verify(_ context.Context, token string) (*Identity, error) {
	var c accessClaims
	p := jwt.NewParser(
		jwt.WithValidMethods(e.algorithms),
		jwt.WithIssuer(e.issuer),
		jwt.WithAudience(e.service),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(externalLeeway),
		jwt.WithTimeFunc(e.clock),
	)
	if _, err := p.ParseWithClaims(token, &c, e.key); err != nil {
		return nil, err
	}
	return &Identity{
		Name: c.Subject, Method: MethodToken, Expires: c.ExpiresAt.Add(externalLeeway),
		limited: true, foreign: true, scopes: compileAccess(c.Access),
	}, nil
}

// key returns the key of a token: the key of its certificate chain, or the key that its
// kid names.
func (e *external) key(t *jwt.Token) (any, error) {
	if chain, ok := t.Header["x5c"].([]any); ok && len(chain) > 0 {
		return e.chainKey(chain)
	}
	kid, _ := t.Header["kid"].(string)
	if key, ok := e.keys[kid]; ok && kid != "" {
		return key, nil
	}
	return nil, errUnknownKey
}

var errChain = errors.New("the token's certificate chain is malformed")

// chainKey verifies an x5c chain and returns the key of its first certificate.
func (e *external) chainKey(chain []any) (crypto.PublicKey, error) {
	if e.roots == nil || len(chain) > maxChain {
		return nil, errUnknownKey
	}
	var leaf *x509.Certificate
	intermediates := x509.NewCertPool()
	for _, c := range chain {
		text, _ := c.(string)
		der, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errChain
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil || !bytes.Equal(cert.Raw, der) {
			return nil, errChain
		}
		if leaf == nil {
			leaf = cert
		} else {
			intermediates.AddCert(cert)
		}
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: e.roots, Intermediates: intermediates, CurrentTime: e.clock(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, fmt.Errorf("verify the token's certificate chain: %w", err)
	}
	return leaf.PublicKey, nil
}
