package registries

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/oci/client"
)

func TestKeychain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.json")
	k, err := OpenKeychain(file)
	if err != nil {
		t.Fatal(err)
	}
	app, other := Reference{Host: "r.example", Repo: "team/app"}, Reference{Host: "r.example", Repo: "team/other"}
	cred := client.Credential{Username: "alice", Password: "hunter2"}
	for range 2 {
		if _, err := k.Try(app, cred); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, error %v, want 0600", st.Mode(), err)
	}
	again, err := OpenKeychain(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := again.Credential(app); !ok || got != cred {
		t.Errorf("the credential was not kept (%v)", ok)
	}
	if _, ok := again.Credential(other); ok {
		t.Error("another repository has a credential too")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); err != nil || len(left) != 1 {
		t.Errorf("files left: %q, error %v", left, err)
	}
	if err := os.WriteFile(file, []byte(`{"keys":[{"repository":"hunter2`), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := OpenKeychain(file)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a damaged file gives the error %v", err)
	}
	if _, err := damaged.Try(other, cred); err != nil {
		t.Errorf("behind a damaged file nothing can be kept: %v", err)
	}
}

func TestKeychainIsBounded(t *testing.T) {
	k := &Keychain{file: filepath.Join(t.TempDir(), "k"), keys: map[string]client.Credential{}}
	for i := range maxKeys + 10 {
		k.put(strings.Repeat("x", i+1), client.Credential{Username: "u"})
	}
	if len(k.keys) != maxKeys || len(k.order) != maxKeys {
		t.Errorf("%d credentials in %d places are kept, want at most %d", len(k.keys), len(k.order), maxKeys)
	}
	if _, ok := k.keys["x"]; ok {
		t.Error("the oldest is still there")
	}
}

func FuzzKeychain(f *testing.F) {
	f.Add([]byte(`{"keys":[{"repository":"r/x","credential":{"Username":"u"}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		k, _ := OpenKeychain(file)
		if _, err := k.Try(Reference{Host: "h", Repo: "r"}, client.Credential{Username: "u"}); err != nil {
			t.Error(err)
		}
	})
}

// TestRefusedPulls checks that a failed pull does not replace the credential of an earlier
// successful pull, and leaves no credential if there was none.
func TestRefusedPulls(t *testing.T) {
	keys, err := OpenKeychain(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	ref := Reference{Host: "r.example", Repo: "team/app"}
	alice, bob := client.Credential{Username: "alice", Password: "a"}, client.Credential{Username: "bob", Password: "b"}
	want := func(when string, c client.Credential, ok bool) {
		t.Helper()
		again, err := OpenKeychain(keys.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []*Keychain{keys, again} {
			if got, had := k.Credential(ref); got != c || had != ok || len(k.order) != len(k.keys) {
				t.Errorf("%s: the credential is %q, %v; %d of %d in order", when, got.Username, had, len(k.order), len(k.keys))
			}
		}
	}
	try := func(c client.Credential) func() error {
		t.Helper()
		back, err := keys.Try(ref, c)
		if err != nil {
			t.Fatal(err)
		}
		return back
	}
	if err := try(bob)(); err != nil {
		t.Error(err)
	}
	want("a first pull was refused", client.Credential{}, false)
	try(alice)
	if err := try(bob)(); err != nil {
		t.Error(err)
	}
	want("a later pull was refused", alice, true)
	if err := try(alice)(); err != nil {
		t.Error(err)
	}
	want("the same pull was refused", alice, true)
	refused := try(bob)
	try(alice)
	if err := refused(); err != nil {
		t.Error(err)
	}
	want("somebody else pulled before the refusal", alice, true)
}

// TestMoveKeychain moves credentials between the places of two configurations.
func TestMoveKeychain(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	app, cred := Reference{Host: "r.example", Repo: "team/app"}, client.Credential{Username: "alice", Password: "hunter2"}
	write := func(file string, c client.Credential) {
		t.Helper()
		k, err := OpenKeychain(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Try(app, c); err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string, want client.Credential) {
		t.Helper()
		if err := MoveKeychain(from, to); err != nil {
			t.Fatal(err)
		}
		k, err := OpenKeychain(to)
		if got, _ := k.Credential(app); err != nil || got != want {
			t.Errorf("after the move the credential is that of %q, error %v", got.Username, err)
		}
		if _, err := os.Stat(from); err == nil {
			t.Errorf("%s is still there", from)
		}
		if st, err := os.Stat(to); err == nil && st.Mode().Perm() != 0o600 {
			t.Errorf("the file's mode is %v, want 0600", st.Mode())
		}
	}
	move(a, b, client.Credential{})
	write(a, cred)
	move(a, b, cred)
	move(b, a, cred)
	newer := client.Credential{Username: "bob", Password: "secret"}
	write(b, newer)
	move(a, b, newer)
}
