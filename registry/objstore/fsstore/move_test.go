package fsstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/registry/objstore"
)

// TestMove moves an object to another key, over another object and into a new directory. Move must
// also remove the empty directories behind it.
func TestMove(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	const aside, other = "quarantine/sha256/abcdef", "quarantine/other"
	for _, to := range []string{aside, other} {
		must(t, s.Put(t.Context(), other, []byte("before"), false))
		must(t, s.Put(t.Context(), blobKey, []byte(to), false))
		must(t, s.Move(t.Context(), blobKey, to))
		if got := string(read(t, s, to)); got != to {
			t.Errorf("%s holds %q", to, got)
		}
		if _, err := s.Stat(t.Context(), blobKey); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("stat of the old key: %v, want ErrNotExist", err)
		}
		if _, err := os.Stat(filepath.Join(root, "docker")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the old directories: %v, want none", err)
		}
	}
	for _, from := range []string{blobKey, "quarantine", "nothing/here"} {
		if err := s.Move(t.Context(), from, "elsewhere/x"); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("move %s: %v, want ErrNotExist", from, err)
		}
	}
	for _, keys := range [][2]string{{"../x", "y"}, {aside, "_staging/x"}, {aside, ""}} {
		if err := s.Move(t.Context(), keys[0], keys[1]); err == nil || errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("move %q to %q: %v, want the key refused", keys[0], keys[1], err)
		}
	}
	wantTree(t, root, "_staging/", "quarantine/", other, "quarantine/sha256/", aside)
}
