package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"example.org/slipway/oci"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth/signing"
)

// oidcPrefix begins the names of OIDC users.
const oidcPrefix = "oidc:"

const (
	// issuerTimeout bounds one request to an issuer.
	issuerTimeout = 10 * time.Second
	// issuerInterval is the least time between two requests for the same document of an
	// issuer. It keeps tokens with invented key ids from causing more requests.
	issuerInterval = 10 * time.Second
	// maxIssuerDocument bounds discovery documents and key sets, in bytes.
	maxIssuerDocument = 1 << 20
)

// oidcIssuer verifies the tokens of one OpenID Connect issuer. It is safe for concurrent
// use.
type oidcIssuer struct {
	cfg       OIDCConfig // with defaults filled in
	audiences []string
	clock     func() time.Time
	client    *http.Client
	documents *documents

	mu       sync.Mutex // discovery is done once
	verifier *oidc.IDTokenVerifier
	endpoint oauth2.Endpoint // set with verifier
}

// newOIDCIssuer checks the configuration. It does not contact the issuer.
func newOIDCIssuer(cfg OIDCConfig, o Options) (*oidcIssuer, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Name = cfg.name()
	cfg.UsernameClaim = cmp.Or(cfg.UsernameClaim, "sub")
	cfg.GroupsClaim = cmp.Or(cfg.GroupsClaim, "groups")
	next := o.HTTPClient.Transport
	switch {
	case cfg.CA != "":
		t, err := trusting(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("issuer %q: ca: %w", cfg.Issuer, err)
		}
		next = t
	case next == nil:
		next = http.DefaultTransport
	}
	d := &documents{next: next, clock: o.Clock, kept: map[string]document{}}
	client := *o.HTTPClient
	client.Transport = d
	if client.Timeout == 0 {
		client.Timeout = issuerTimeout
	}
	i := &oidcIssuer{cfg: cfg, audiences: cfg.audiences(), clock: o.Clock, client: &client, documents: d}
	if cfg.JWKS != "" {
		keys, err := signing.ReadJWKS(cfg.JWKS)
		if err != nil {
			return nil, fmt.Errorf("issuer %q: %w", cfg.Issuer, err)
		}
		set := &oidc.StaticKeySet{PublicKeys: slices.Collect(maps.Values(keys))}
		i.verifier = oidc.NewVerifier(cfg.Issuer, set, &oidc.Config{
			SkipClientIDCheck: true, SupportedSigningAlgs: signingAlgorithms(), Now: o.Clock,
		})
	}
	return i, nil
}

// trusting returns a transport that trusts only the authorities in a PEM file.
func trusting(file string) (*http.Transport, error) {
	roots, err := wire.Pool(file)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{}
	if d, ok := http.DefaultTransport.(*http.Transport); ok {
		t = d.Clone()
	}
	t.TLSClientConfig = &tls.Config{RootCAs: roots}
	return t, nil
}

// verify implements verifier. The error is UNAVAILABLE if the issuer cannot be reached.
// Any other error means that the token is not valid.
func (i *oidcIssuer) verify(ctx context.Context, token string) (*Identity, error) {
	id, _, err := i.verifyFor(ctx, token, i.audiences)
	return id, err
}

// verifyFor verifies a token that is meant for one of audiences, and also returns its
// nonce.
func (i *oidcIssuer) verifyFor(ctx context.Context, token string, audiences []string) (id *Identity, nonce string, err error) {
	v, err := i.discovered(ctx)
	if err != nil {
		return nil, "", i.unavailable(err)
	}
	t, err := v.Verify(ctx, token)
	if err != nil {
		if i.documents.failing.Load() {
			return nil, "", i.unavailable(err)
		}
		return nil, "", err
	}
	if !slices.ContainsFunc(t.Audience, func(a string) bool { return slices.Contains(audiences, a) }) {
		return nil, "", errors.New("the token is meant for another audience")
	}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return nil, "", errors.New("the token's claims are malformed")
	}
	id, err = i.identity(claims, t.Expiry)
	return id, t.Nonce, err
}

func (i *oidcIssuer) unavailable(err error) error {
	return &oci.Error{
		Code:    oci.CodeUnavailable,
		Message: "the identity provider " + i.cfg.Name + " cannot be asked at the moment; try again",
		// Only the beginning is kept, because the text may quote a whole error page.
		Err: fmt.Errorf("ask issuer %s: %.300s", i.cfg.Issuer, err.Error()),
	}
}

// discovered returns the verifier. The first call does the discovery. A failure is not
// remembered here, but documents keeps the issuer from being asked again too soon.
func (i *oidcIssuer) discovered(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil {
		return i.verifier, nil
	}
	// All requests use the result, so discovery must not stop when this request ends.
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), i.client)
	p, err := oidc.NewProvider(ctx, i.cfg.Issuer)
	if err != nil {
		return nil, err
	}
	i.endpoint = p.Endpoint()
	i.verifier = p.VerifierContext(ctx, &oidc.Config{
		SkipClientIDCheck: true, // there may be several audiences: see verify
		Now:               i.clock,
	})
	return i.verifier, nil
}

// identity makes an Identity of verified claims.
func (i *oidcIssuer) identity(claims map[string]any, expires time.Time) (*Identity, error) {
	for name, want := range i.cfg.RequiredClaims {
		if !slices.Contains(texts(claim(claims, name)), want) {
			return nil, fmt.Errorf("the token's claim %q is not as required", name)
		}
	}
	name, _ := claim(claims, i.cfg.UsernameClaim).(string)
	if !printable(name) {
		return nil, fmt.Errorf("the token has no usable claim %q", i.cfg.UsernameClaim)
	}
	// If the issuer lets people enter any e-mail address, they could take another
	// person's name.
	if verified, ok := claims["email_verified"]; ok && i.cfg.UsernameClaim == "email" && verified != true && verified != "true" {
		return nil, errors.New("the token's email address is not verified")
	}
	return &Identity{
		Name:   oidcPrefix + i.cfg.Name + ":" + name,
		Groups: groupsOf(i.cfg.Name, texts(claim(claims, i.cfg.GroupsClaim))), Method: MethodOIDC, Expires: expires,
	}, nil
}

// claim returns the claim with a name, or the value at a JSON pointer into the claims. It
// returns nil if there is none.
func claim(claims map[string]any, name string) any {
	path, ok := strings.CutPrefix(name, "/")
	if !ok {
		return claims[name]
	}
	var at any = claims
	for step := range strings.SplitSeq(path, "/") {
		object, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
	}
	return at
}

// texts returns the strings of a claim that is a string or a list of strings.
func texts(claim any) []string {
	switch c := claim.(type) {
	case string:
		return []string{c}
	case []any:
		var out []string
		for _, e := range c {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}

// printable reports whether s can be a subject's name.
func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= 512
}

// documents is a RoundTripper for the few documents of an issuer. It requests each
// document at most once per issuerInterval, and repeats the last answer or error in
// between. Bodies are bounded.
type documents struct {
	next    http.RoundTripper
	clock   func() time.Time
	failing atomic.Bool // the last request for any document failed

	mu   sync.Mutex // held during a request: all who wait want the same answer
	kept map[string]document
}

type document struct {
	asked  time.Time
	status int
	header http.Header
	body   []byte
	err    error
}

// RoundTrip implements http.RoundTripper.
func (d *documents) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := r.URL.String()
	doc, ok := d.kept[key]
	if now := d.clock(); !ok || now.Sub(doc.asked) >= issuerInterval {
		doc = d.fetch(r)
		doc.asked = now
		d.failing.Store(doc.err != nil || doc.status >= 400)
		d.kept[key] = doc
	}
	if doc.err != nil {
		return nil, doc.err
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", doc.status, http.StatusText(doc.status)), StatusCode: doc.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: doc.header.Clone(), Body: io.NopCloser(bytes.NewReader(doc.body)),
		ContentLength: int64(len(doc.body)), Request: r,
	}, nil
}

func (d *documents) fetch(r *http.Request) document {
	resp, err := d.next.RoundTrip(r)
	if err != nil {
		return document{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxIssuerDocument+1))
	if err == nil && len(body) > maxIssuerDocument {
		err = fmt.Errorf("the document has more than %d bytes", maxIssuerDocument)
	}
	return document{status: resp.StatusCode, header: resp.Header, body: body, err: err}
}
