package fsstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore/objtest"
)

// TestAdoptMoves checks that the object is the same file, with no more permissions than the store's
// own files.
func TestAdoptMoves(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	path := filepath.Join(t.TempDir(), "spool")
	must(t, os.WriteFile(path, objtest.Content(1, 100_000), 0o600))
	must(t, os.Chmod(path, 0o644))
	before, err := os.Stat(path)
	must(t, err)
	must(t, s.AdoptFile(t.Context(), blobKey, path))
	after, err := os.Stat(filepath.Join(root, blobKey))
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("the object is a copy")
	}
	if got := after.Mode().Perm(); got != 0o600 {
		t.Errorf("the object has mode %v, want 0600", got)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

// TestAdoptCopies checks that a file which somebody else could write to, or which is on another
// file system, is copied and stays where it is.
func TestAdoptCopies(t *testing.T) {
	data := objtest.Content(1, 700_000)
	second := filepath.Join(t.TempDir(), "spool")
	must(t, os.WriteFile(second, data, 0o600))
	must(t, os.Link(second, second+".too"))
	paths := map[string]string{"a second name": second}
	if dir, ok := otherFileSystem(t); ok {
		path := filepath.Join(dir, "spool")
		must(t, os.WriteFile(path, data, 0o600))
		paths["another file system"] = path
	}
	for what, path := range paths {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			s := open(t, root)
			must(t, s.AdoptFile(t.Context(), blobKey, path))
			must(t, os.WriteFile(path, []byte("changed"), 0o600))
			if got := read(t, s, blobKey); string(got) != string(data) {
				t.Errorf("the object has %d other bytes", len(got))
			}
			wantTree(t, root, append([]string{"_staging/"}, dirsOf(blobKey)...)...)
		})
	}
}

// dirsOf returns a key and its directories.
func dirsOf(key string) (out []string) {
	for i := range key {
		if key[i] == '/' {
			out = append(out, key[:i+1])
		}
	}
	return append(out, key)
}

// otherFileSystem returns a directory on a file system other than that of TempDir, if there is one.
func otherFileSystem(t *testing.T) (string, bool) {
	var here, there unix.Stat_t
	must(t, unix.Stat(t.TempDir(), &here))
	const shm = "/dev/shm"
	if unix.Stat(shm, &there) != nil || here.Dev == there.Dev || strings.HasPrefix(t.TempDir(), shm) {
		t.Logf("%s is no other file system", shm)
		return "", false
	}
	dir, err := os.MkdirTemp(shm, "fsstore-test-")
	if err != nil {
		t.Logf("no directory in %s: %v", shm, err)
		return "", false
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir, true
}
