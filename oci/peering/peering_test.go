package peering_test

import (
	"crypto/ed25519"
	"errors"
	"reflect"
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

// TestProof changes each field of an announcement. Only what the holder of the key said is taken.
func TestProof(t *testing.T) {
	_, private := keys(t)
	said := peering.Announcement{Manifest: "sha256:m", Address: ":5003", Zone: "z", Rack: "r"}
	if err := said.Sign(private); err != nil {
		t.Fatal(err)
	}
	if err := said.Check(); err != nil {
		t.Fatal(err)
	}
	other := peering.Announcement{Manifest: "sha256:n", Address: "10.0.0.1:1", Zone: "y", Rack: "s", Complete: true, Leaving: true}
	if err := other.Sign(ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize)))); err != nil {
		t.Fatal(err)
	}
	fields := reflect.TypeFor[peering.Announcement]()
	for i := range fields.NumField() {
		for _, with := range []reflect.Value{reflect.ValueOf(other).Field(i), reflect.Zero(fields.Field(i).Type)} {
			changed := said
			field := reflect.ValueOf(&changed).Elem().Field(i)
			if reflect.DeepEqual(field.Interface(), with.Interface()) {
				continue
			}
			field.Set(with)
			if err := changed.Check(); err == nil {
				t.Errorf("%s is %v in what somebody else announces, and that is taken", fields.Field(i).Name, with)
			}
		}
	}
	// Fields do not run into each other.
	moved := said
	moved.Zone, moved.Rack = "", said.Zone+"\n"+said.Rack
	if err := moved.Check(); err == nil {
		t.Error("a text with a line break is taken")
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
