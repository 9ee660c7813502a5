package peering_test

import (
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"example.org/slipway/oci/peering"
)

func keys(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	k := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	return k.Public().(ed25519.PublicKey), k
}

// TestGrant changes each character of a grant. Only the grant itself is valid.
func TestGrant(t *testing.T) {
	public, private := keys(t)
	want := peering.Grant{Repo: "team/app", Holder: peering.Key{1, 2, 3}, Ends: 1234567890}
	text, err := peering.Sign(&want, private)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := peering.Verify(text, public); err != nil || *got != want {
		t.Errorf("got %+v, error %v, want %+v", got, err, want)
	}
	for i := range text {
		for _, c := range []string{"A", "b", "0", "_", ".", ""} {
			changed := text[:i] + c + text[i+1:]
			if changed == text {
				continue
			}
			if g, err := peering.Verify(changed, public); !errors.Is(err, peering.ErrGrant) {
				t.Errorf("with %q at %d it is still a grant: %+v, %v", c, i, g, err)
			}
		}
	}
	other := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize)))
	if _, err := peering.Verify(text, other.Public().(ed25519.PublicKey)); !errors.Is(err, peering.ErrGrant) {
		t.Errorf("another key signs, too: %v", err)
	}
	if _, err := peering.Verify(text, nil); !errors.Is(err, peering.ErrGrant) {
		t.Errorf("without a key: %v", err)
	}
}

func FuzzVerify(f *testing.F) {
	public, private := keys(f)
	text, err := peering.Sign(&peering.Grant{Repo: "a", Ends: 1}, private)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(".")
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := peering.Verify(s, public); err == nil && s != text {
			t.Errorf("%q is taken for %+v", s, g)
		}
	})
}
