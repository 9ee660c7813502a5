// Package signing manages the keys of tokens: the private keys that the built-in token
// service signs with, and the public keys of other token services.
package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/golang-jwt/jwt/v5"
)

// Key signs and verifies the tokens of the built-in service.
type Key struct {
	ID      string // the kid header
	Method  jwt.SigningMethod
	Private crypto.Signer
	bind    []byte // the HMAC key that binds refresh tokens to a password
}

// newSigningKey wraps an Ed25519 or P-256 key.
func newSigningKey(private any) (*Key, error) {
	k := &Key{}
	switch p := private.(type) {
	case ed25519.PrivateKey:
		k.Private, k.Method = p, jwt.SigningMethodEdDSA
	case *ecdsa.PrivateKey:
		if p.Curve != elliptic.P256() {
			return nil, fmt.Errorf("the key is on %s, only P-256 is used", p.Curve.Params().Name)
		}
		k.Private, k.Method = p, jwt.SigningMethodES256
	default:
		return nil, fmt.Errorf("a %T cannot sign tokens, use Ed25519 or P-256", private)
	}
	public, err := x509.MarshalPKIXPublicKey(k.Private.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	sum := sha256.Sum256(public)
	k.ID = base64.RawURLEncoding.EncodeToString(sum[:16])
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("slipway refresh token binding"))
	k.bind = mac.Sum(nil)
	return k, nil
}

// Binding returns a value that ties a refresh token to a user's password hash without
// revealing the hash.
func (k *Key) Binding(name string, hash []byte) string {
	mac := hmac.New(sha256.New, k.bind)
	fmt.Fprintf(mac, "%d:%s%s", len(name), name, hash)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// LoadKeys reads the keys of a PEM file. It creates the file if there is none. If path is
// empty, it makes a key that lives as long as the process. what says in the log and in errors
// which key it is, as in "token key".
func LoadKeys(what, path string, log *slog.Logger) ([]*Key, error) {
	if path == "" {
		log.Info(what + " is kept in memory only: what it signs ends with the process")
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", what, err)
		}
		k, err := newSigningKey(private)
		return []*Key{k}, err
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := createKey(path); err != nil {
			return nil, fmt.Errorf("create %s: %w", what, err)
		}
		log.Info(what+" created", "path", path)
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		log.Warn(what+" is accessible to others than its owner", "path", path, "mode", info.Mode().Perm().String())
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, path, err)
	}
	return keys, nil
}

// parseKeys returns the private keys of PEM data. It is an error if there are none.
func parseKeys(b []byte) ([]*Key, error) {
	var keys []*Key
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		var private any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			private, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			private, err = x509.ParseECPrivateKey(block.Bytes)
		default: // EC PARAMETERS, certificates
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key %d cannot be parsed", len(keys)+1)
		}
		k, err := newSigningKey(private)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("no private key in the file")
	}
	return keys, nil
}

// createKey writes a new Ed25519 key. The file appears complete or not at all. If another
// process has created the file meanwhile, that file stays.
func createKey(path string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".token-key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = pem.Encode(f, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
