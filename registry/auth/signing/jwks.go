package signing

import (
	"cmp"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/go-jose/go-jose/v4"
)

// minRSABits is the length of the shortest RSA modulus that is trusted.
const minRSABits = 2048

// ReadJWKS returns the public keys in the file that the configuration gives as jwks.
func ReadJWKS(file string) (map[string]crypto.PublicKey, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read jwks: %w", err)
	}
	keys, err := parseJWKS(b)
	if err != nil {
		return nil, fmt.Errorf("jwks %s: %w", file, err)
	}
	return keys, nil
}

// parseJWKS returns the public keys of a key set by their kid. A key without a kid is
// returned under its thumbprint. Keys for encryption and keys of unknown types are left
// out. It is an error if no key remains.
func parseJWKS(b []byte) (map[string]crypto.PublicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, fmt.Errorf("parse key set: %w", err)
	}
	keys := map[string]crypto.PublicKey{}
	for i, raw := range set.Keys {
		k, err := parseJWK(raw)
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		keys[cmp.Or(k.KeyID, Thumbprint(k.Key))] = k.Key
	}
	if len(keys) == 0 {
		return nil, errors.New("no key for signatures in the key set")
	}
	return keys, nil
}

// parseJWK returns the public key of a JSON web key. The error is errors.ErrUnsupported
// if the key is for encryption, or if its type or curve is unknown.
func parseJWK(raw []byte) (k jose.JSONWebKey, err error) {
	var kind struct {
		Use string `json:"use"`
		Kty string `json:"kty"`
		Crv string `json:"crv"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return k, err
	}
	if kind.Use != "" && kind.Use != "sig" {
		return k, errors.ErrUnsupported
	}
	switch kind.Kty + " " + kind.Crv {
	case "RSA ", "OKP Ed25519", "EC P-256", "EC P-384", "EC P-521":
	default:
		return k, errors.ErrUnsupported
	}
	if err := k.UnmarshalJSON(raw); err != nil {
		return k, err
	}
	k = k.Public()
	if r, ok := k.Key.(*rsa.PublicKey); ok && (r.N.BitLen() < minRSABits || r.E < 3 || r.E&1 == 0) {
		return k, fmt.Errorf("RSA key with %d bits, at least %d are required", r.N.BitLen(), minRSABits)
	}
	return k, nil
}

// Thumbprint returns a key's RFC 7638 thumbprint, or "" if that is not defined for the
// key's type.
func Thumbprint(key crypto.PublicKey) string {
	k := jose.JSONWebKey{Key: key}
	sum, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(sum)
}
