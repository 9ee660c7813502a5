package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
)

// minRSABits is the shortest RSA modulus that is trusted.
const minRSABits = 2048

// jwk is a JSON web key, RFC 7517, as far as signatures need it.
type jwk struct {
	Kty string `json:"kty"`
	Kid string `json:"kid"`
	Use string `json:"use"`
	Crv string `json:"crv"`
	N   string `json:"n"`
	E   string `json:"e"`
	X   string `json:"x"`
	Y   string `json:"y"`
}

// parseJWKS returns the public keys of a key set by their kid; a key without
// one goes by its thumbprint. Keys for encryption and of unknown types are
// left out, at least one must remain.
func parseJWKS(b []byte) (map[string]crypto.PublicKey, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, fmt.Errorf("parse key set: %w", err)
	}
	keys := map[string]crypto.PublicKey{}
	for i, k := range set.Keys {
		if k.Use != "" && k.Use != "sig" {
			continue
		}
		key, err := k.public()
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		keys[or(k.Kid, thumbprint(key))] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("no key for signatures in the key set")
	}
	return keys, nil
}

// public returns the key. Errors: errors.ErrUnsupported for a key type or
// curve that is not known.
func (k *jwk) public() (crypto.PublicKey, error) {
	switch {
	case k.Kty == "RSA":
		n, errN := base64.RawURLEncoding.DecodeString(k.N)
		e, errE := base64.RawURLEncoding.DecodeString(k.E)
		if errN != nil || errE != nil || len(e) == 0 || len(e) > 4 {
			return nil, errors.New("malformed RSA key")
		}
		key := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
		if key.N.BitLen() < minRSABits || key.E < 3 || key.E&1 == 0 {
			return nil, fmt.Errorf("RSA key with %d bits, at least %d are required", key.N.BitLen(), minRSABits)
		}
		return key, nil
	case k.Kty == "OKP" && k.Crv == "Ed25519":
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("malformed Ed25519 key")
		}
		return ed25519.PublicKey(x), nil
	case k.Kty == "EC":
		return k.ecdsa()
	}
	return nil, errors.ErrUnsupported
}

func (k *jwk) ecdsa() (crypto.PublicKey, error) {
	var curve elliptic.Curve
	switch k.Crv {
	case "P-256":
		curve = elliptic.P256()
	case "P-384":
		curve = elliptic.P384()
	case "P-521":
		curve = elliptic.P521()
	default:
		return nil, errors.ErrUnsupported
	}
	x, errX := base64.RawURLEncoding.DecodeString(k.X)
	y, errY := base64.RawURLEncoding.DecodeString(k.Y)
	size := (curve.Params().BitSize + 7) / 8
	if errX != nil || errY != nil || len(x) != size || len(y) != size {
		return nil, errors.New("malformed EC key")
	}
	point := append(append([]byte{4}, x...), y...) // 4: uncompressed
	key, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return nil, errors.New("EC key that is not on its curve")
	}
	return key, nil
}

// thumbprint is a key's RFC 7638 id, or "" for a key type it is not defined for.
func thumbprint(key crypto.PublicKey) string {
	enc := base64.RawURLEncoding.EncodeToString
	var text string
	switch k := key.(type) {
	case *rsa.PublicKey:
		text = fmt.Sprintf(`{"e":%q,"kty":"RSA","n":%q}`, enc(big.NewInt(int64(k.E)).Bytes()), enc(k.N.Bytes()))
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			return ""
		}
		half := (len(point) - 1) / 2
		text = fmt.Sprintf(`{"crv":%q,"kty":"EC","x":%q,"y":%q}`, k.Curve.Params().Name, enc(point[1:1+half]), enc(point[1+half:]))
	case ed25519.PublicKey:
		text = fmt.Sprintf(`{"crv":"Ed25519","kty":"OKP","x":%q}`, enc(k))
	default:
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return enc(sum[:])
}
