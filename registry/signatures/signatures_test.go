package signatures_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/signatures"
)

// hostile has an image to which somebody has attached as much as possible. It counts what is
// read.
type hostile struct {
	layer oci.Descriptor
	fails error
	reads int
}

var _ signatures.Source = (*hostile)(nil)

// Attached implements signatures.Source.
func (h *hostile) Attached(_ context.Context, _ string, _ oci.Digest, n int) (list []oci.Descriptor, more bool, err error) {
	for i := range n {
		list = append(list, oci.Descriptor{ArtifactType: "application/vnd.dev.cosign.artifact.sig.v1+json", Digest: oci.SHA256([]byte(fmt.Sprint(i)))})
	}
	return list, true, nil
}

// Tag implements signatures.Source.
func (h *hostile) Tag(ctx context.Context, repo, tag string) (catalog.Manifest, error) {
	return h.Manifest(ctx, repo, oci.SHA256([]byte(tag)))
}

// Manifest implements signatures.Source.
func (h *hostile) Manifest(_ context.Context, _ string, d oci.Digest) (m catalog.Manifest, err error) {
	layers := make([]oci.Descriptor, 2000)
	for i := range layers {
		layers[i] = h.layer
	}
	m.Digest = d
	m.Content, err = json.Marshal(map[string]any{"layers": layers})
	return m, err
}

// Content implements signatures.Source.
func (h *hostile) Content(context.Context, string, oci.Digest, int64) ([]byte, error) {
	h.reads++
	return []byte("{}"), h.fails
}

// newVerifier returns a verifier with one key for all repositories.
func newVerifier(t *testing.T) *signatures.Verifier {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	v, err := signatures.New([]signatures.Key{{Name: "release", PEM: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), Match: func(string) bool { return true }}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var kinds = []string{"application/vnd.dev.cosign.simplesigning.v1+json", "application/vnd.dev.sigstore.bundle.v0.3+json"}

// TestWorkIsBounded has everything attached to an image that somebody with the right to push
// can attach. The page of an image must not read all of it.
func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		h := &hostile{layer: oci.Descriptor{MediaType: kind, Digest: oci.SHA256(nil), Size: 2}}
		list, err := newVerifier(t).Image(t.Context(), h, "team/app", oci.SHA256([]byte("image")))
		if err != nil || h.reads == 0 || h.reads > 100 {
			t.Errorf("%s: %d reads, %v", kind, h.reads, err)
		}
		for _, s := range list {
			if len(s.Keys) > 0 {
				t.Errorf("%s: signed by %v", kind, s.Keys)
			}
		}
	}
}

// TestUnreadableIsNotBad checks that a storage that fails makes no signature bad.
func TestUnreadableIsNotBad(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		h := &hostile{layer: oci.Descriptor{MediaType: kind, Digest: oci.SHA256(nil), Size: 2}, fails: errors.New("the storage is away")}
		list, err := newVerifier(t).Image(t.Context(), h, "team/app", oci.SHA256([]byte("image")))
		if err != nil || len(list) == 0 {
			t.Errorf("%s: got %v, %v", kind, list, err)
		}
		for _, s := range list {
			if s.Bad || len(s.Keys) > 0 {
				t.Errorf("%s: got %+v", kind, s)
			}
		}
	}
}
