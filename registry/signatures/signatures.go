// Package signatures verifies the signatures of images with public keys.
//
// It knows the three forms in which cosign attaches a signature: below a tag such as
// sha256-….sig, as a referrer with the same content, and as a referrer that is a Sigstore
// bundle. Certificates, transparency logs and timestamps are not looked at, so signatures
// without a key of their own count as unknown, neither good nor bad. The cryptography is
// that of package signature of Sigstore.
package signatures

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// Key is a public key, and the repositories whose images it signs.
type Key struct {
	Name string
	// PEM holds an ECDSA, Ed25519 or RSA key.
	PEM   []byte
	Match func(repo string) bool
}

type key struct {
	Key
	verifiers []signature.Verifier
}

// Verifier verifies signatures. A nil Verifier has no keys. All methods may run
// concurrently.
type Verifier struct{ keys []key }

// New returns a verifier, or nil if there are no keys.
func New(keys []Key) (*Verifier, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	v := &Verifier{}
	for _, k := range keys {
		pub, err := cryptoutils.UnmarshalPEMToPublicKey(k.PEM)
		if err != nil {
			return nil, fmt.Errorf("public key %s: %w", k.Name, err)
		}
		loaded := key{Key: k}
		for _, hash := range hashes(pub) {
			verifier, err := signature.LoadVerifier(pub, hash)
			if err != nil {
				return nil, fmt.Errorf("public key %s: %w", k.Name, err)
			}
			loaded.verifiers = append(loaded.verifiers, verifier)
		}
		v.keys = append(v.keys, loaded)
	}
	return v, nil
}

// hashes returns what a key may sign: a SHA-256, which is cosign's default, or a longer hash
// if the curve of the key is longer.
func hashes(pub crypto.PublicKey) []crypto.Hash {
	list := []crypto.Hash{crypto.SHA256}
	if ec, ok := pub.(*ecdsa.PublicKey); ok {
		switch ec.Curve {
		case elliptic.P384():
			list = append(list, crypto.SHA384)
		case elliptic.P521():
			list = append(list, crypto.SHA512)
		}
	}
	return list
}

// Source has the images and what is attached to them.
type Source interface {
	Attached(ctx context.Context, repo string, d oci.Digest, n int) (list []oci.Descriptor, more bool, err error)
	Tag(ctx context.Context, repo, tag string) (catalog.Manifest, error)
	Manifest(ctx context.Context, repo string, d oci.Digest) (catalog.Manifest, error)
	// Content returns a blob of at most the given number of bytes.
	Content(ctx context.Context, repo string, d oci.Digest, most int64) ([]byte, error)
}

// Signature is what is known of a manifest with signatures.
type Signature struct {
	Manifest oci.Digest
	// Keys are the names of the keys whose signatures it has.
	Keys []string
	// Bad reports that it has signatures, all of them made with a key, and that no key of
	// the repository verifies any.
	Bad bool
}

const (
	// maxSignatures bounds how many manifests with signatures of an image are looked at,
	// and how many signatures in all, because everybody who may push can attach some.
	maxSignatures = 32
	// maxContent bounds a signature or what is signed, in bytes.
	maxContent = 1 << 20

	simpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	cosignSig     = "application/vnd.dev.cosign.artifact.sig.v1+json"
	bundlePrefix  = "application/vnd.dev.sigstore.bundle"
	// signPredicate is what cosign states of an image that it signs in a bundle. Bundles
	// also have attestations, which state something else.
	signPredicate = "https://sigstore.dev/cosign/sign/v1"
)

// Image returns the signatures of an image, or nothing if there is no key for the
// repository.
func (v *Verifier) Image(ctx context.Context, src Source, repo string, d oci.Digest) (list []Signature, err error) {
	keys := v.of(repo)
	if len(keys) == 0 {
		return nil, nil
	}
	attached, _, err := src.Attached(ctx, repo, d, maxSignatures)
	if err != nil {
		return nil, err
	}
	left := maxSignatures
	look := func(m catalog.Manifest) {
		s := &looking{ctx: ctx, src: src, repo: repo, image: d, keys: keys, left: &left}
		s.manifest(m)
		if s.seen > 0 {
			list = append(list, Signature{m.Digest, s.names, len(s.names) == 0 && s.unknown == 0})
		}
	}
	for _, a := range attached {
		if a.ArtifactType != cosignSig && !strings.HasPrefix(a.ArtifactType, bundlePrefix) {
			continue
		}
		m, err := src.Manifest(ctx, repo, a.Digest)
		if err != nil {
			return nil, err
		}
		look(m)
	}
	m, err := src.Tag(ctx, repo, strings.Replace(string(d), ":", "-", 1)+".sig")
	switch {
	case err == nil:
		look(m)
	case !errors.Is(err, catalog.ErrNotFound) && !errors.Is(err, catalog.ErrNoRepository):
		return nil, err
	}
	return list, nil
}

// of returns the keys of a repository.
func (v *Verifier) of(repo string) (keys []key) {
	if v == nil {
		return nil
	}
	for _, k := range v.keys {
		if k.Match(repo) {
			keys = append(keys, k)
		}
	}
	return keys
}

// looking looks at one manifest with signatures of an image.
type looking struct {
	ctx   context.Context
	src   Source
	repo  string
	image oci.Digest
	keys  []key
	// left is how many signatures of the image may still be looked at.
	left *int

	names         []string
	seen, unknown int
}

// manifest looks at each layer of a manifest that is a signature.
func (s *looking) manifest(m catalog.Manifest) {
	var doc struct {
		Layers []oci.Descriptor `json:"layers"`
	}
	if json.Unmarshal(m.Content, &doc) != nil {
		return
	}
	for _, l := range doc.Layers {
		isBundle := strings.HasPrefix(l.MediaType, bundlePrefix)
		if l.MediaType != simpleSigning && !isBundle || isBundle && l.Size > maxContent {
			continue // such a large bundle is an attestation
		}
		if *s.left == 0 {
			return
		}
		*s.left--
		content, err := s.src.Content(s.ctx, s.repo, l.Digest, maxContent)
		switch {
		case err != nil: // that says nothing about the signature
			s.seen++
			s.unknown++
		case l.MediaType == simpleSigning:
			s.simple(l, content)
		default:
			s.bundle(content)
		}
	}
}

// verified notes the keys with which a signature verifies.
func (s *looking) verified(verify func(signature.Verifier) error) {
	for _, k := range s.keys {
		for _, v := range k.verifiers {
			if !slices.Contains(s.names, k.Name) && verify(v) == nil {
				s.names = append(s.names, k.Name)
			}
		}
	}
}

// simple looks at a signature whose payload names the image. The signature itself is an
// annotation of the payload's descriptor.
func (s *looking) simple(l oci.Descriptor, payload []byte) {
	s.seen++
	if l.Annotations["dev.sigstore.cosign/certificate"] != "" {
		s.unknown++
		return
	}
	var doc struct {
		Critical struct {
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	sig, err := base64.StdEncoding.DecodeString(l.Annotations["dev.cosignproject.cosign/signature"])
	if err != nil || json.Unmarshal(payload, &doc) != nil || doc.Critical.Image.Digest != string(s.image) || doc.Critical.Type != "cosign container image signature" {
		return
	}
	s.verified(func(v signature.Verifier) error {
		return v.VerifySignature(bytes.NewReader(sig), bytes.NewReader(payload))
	})
}

// bundle looks at a Sigstore bundle: a signature of the image's manifest, or of a statement
// about the image.
func (s *looking) bundle(content []byte) {
	var b struct {
		Material struct {
			PublicKey *json.RawMessage `json:"publicKey"`
		} `json:"verificationMaterial"`
		Message *struct {
			Signature []byte `json:"signature"`
		} `json:"messageSignature"`
		Envelope json.RawMessage `json:"dsseEnvelope"`
	}
	if json.Unmarshal(content, &b) != nil {
		s.seen++
		return
	}
	var signed int
	if b.Envelope != nil {
		var about bool
		if signed, about = s.aboutImage(b.Envelope); !about {
			return // an attestation
		}
	}
	s.seen++
	switch {
	case b.Material.PublicKey == nil:
		s.unknown++
	case b.Envelope != nil && signed != 1:
		// Bundles have one signature. For each, all of the payload would be hashed.
	case b.Envelope != nil:
		s.verified(func(v signature.Verifier) error {
			return dsse.WrapVerifier(v).VerifySignature(bytes.NewReader(b.Envelope), nil)
		})
	case b.Message != nil:
		m, err := s.src.Manifest(s.ctx, s.repo, s.image)
		if err != nil {
			return
		}
		s.verified(func(v signature.Verifier) error {
			return v.VerifySignature(bytes.NewReader(b.Message.Signature), bytes.NewReader(m.Content))
		})
	}
}

// aboutImage reports whether an envelope states that the image is signed, and how many
// signatures the envelope has. Nothing has been verified yet.
func (s *looking) aboutImage(envelope []byte) (signed int, about bool) {
	var e struct {
		Payload    []byte            `json:"payload"`
		Signatures []json.RawMessage `json:"signatures"`
	}
	var st struct {
		Subject []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
		Predicate string `json:"predicateType"`
	}
	if json.Unmarshal(envelope, &e) != nil || json.Unmarshal(e.Payload, &st) != nil || st.Predicate != signPredicate {
		return 0, false
	}
	for _, sub := range st.Subject {
		if sub.Digest[string(s.image.Algorithm())] == s.image.Encoded() {
			return len(e.Signatures), true
		}
	}
	return 0, false
}
