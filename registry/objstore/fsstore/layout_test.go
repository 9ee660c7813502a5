package fsstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore/fsstore"
)

// TestLayout checks that a store with a part elsewhere is refused and the part is named, however it
// got there.
func TestLayout(t *testing.T) {
	const objects = "blobs/sha256"
	parts := []string{"_staging", "blobs", "blobs/sha256", "blobs/sha256/ab"}
	ways := map[string]func(t *testing.T, path string) error{
		"link": func(t *testing.T, path string) error {
			elsewhere := filepath.Join(t.TempDir(), "x")
			if err := os.Rename(path, elsewhere); err != nil {
				return err
			}
			return os.Symlink(elsewhere, path)
		},
		"dangling link": func(_ *testing.T, path string) error {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return os.Symlink("nowhere", path)
		},
		"other device": func(t *testing.T, path string) error {
			return mount(t, "tmpfs", path, "tmpfs", 0)
		},
		"same device": func(t *testing.T, path string) error {
			return mount(t, t.TempDir(), path, "", unix.MS_BIND)
		},
	}
	for way, do := range ways {
		for _, part := range parts {
			t.Run(way+"/"+part, func(t *testing.T) {
				if os.Getuid() != 0 && strings.Contains(way, "device") {
					t.Skip("mounting needs root")
				}
				root := t.TempDir()
				for _, dir := range []string{"_staging", "blobs/sha256/ab"} {
					if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				open := func() error {
					s, err := fsstore.New(root, &fsstore.Options{Dirs: []string{objects, "packs"}})
					if err == nil {
						s.Close()
					}
					return err
				}
				if err := open(); err != nil {
					t.Fatalf("as it should be: %v", err)
				}
				if err := do(t, filepath.Join(root, part)); err != nil {
					t.Fatal(err)
				}
				if err := open(); err == nil || !strings.Contains(err.Error(), filepath.Join(root, part)) {
					t.Errorf("got %v, want an error that names %s", err, part)
				}
			})
		}
	}
}

func mount(t *testing.T, source, target, fstype string, flags uintptr) error {
	t.Helper()
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return nil
}
