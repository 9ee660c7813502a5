package node

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"testing"
)

// Announcement returns what the node with a key says to a registry about an image, as
// docs/formats/gear-api.md has it.
func Announcement(t testing.TB, key ed25519.PrivateKey, manifest, address string, complete bool) []byte {
	t.Helper()
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%x", sha256.Sum256(public))
	proof := ed25519.Sign(key, fmt.Appendf(nil, "slipway peer announcement v1\x00%s\n%s\n%s\n\n\n%v\nfalse", manifest, name, address, complete))
	b, err := json.Marshal(map[string]any{"manifest": manifest, "key": name, "address": address, "complete": complete, "public": public, "proof": proof})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
