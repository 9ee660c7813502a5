package dataroot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/registry"
)

// TestLockRoot checks that one process holds a root until it lets go, even if somebody removes the
// lock file.
func TestLockRoot(t *testing.T) {
	dir := t.TempDir()
	l, err := lockRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		other, err := lockRoot(dir)
		if err == nil {
			other.release()
		}
		if !errors.Is(err, ErrInUse) {
			t.Errorf("%s: got %v, want ErrInUse", when, err)
		}
	}
	refused("while it is held")
	if err := os.Remove(filepath.Join(dir, registry.LockFile)); err != nil {
		t.Fatal(err)
	}
	refused("without the file")
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
	if l, err = lockRoot(dir); err != nil {
		t.Fatalf("after the release: %v", err)
	}
	if err := l.release(); err != nil {
		t.Error(err)
	}
}
