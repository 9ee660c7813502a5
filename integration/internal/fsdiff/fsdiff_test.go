package fsdiff_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/fsdiff"
	"example.org/slipway/integration/internal/tool"
)

// lower makes a small tree.
func lower(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"a/a", "a/b", "b/a/c", "c/c/c"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(strings.Repeat(name, 3000)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func overlay(t *testing.T, lower string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+dir+"/upper,workdir="+dir+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	})
	return merged
}

// TestEqual checks that two of the kernel's overlays answer alike, so that a difference found
// elsewhere is not the kernel's.
func TestEqual(t *testing.T) {
	tool.NeedRoot(t)
	for seed := range uint64(12) {
		lower := lower(t)
		if err := fsdiff.Run(overlay(t, lower), overlay(t, lower), fsdiff.Options{Seed: seed, Ops: 2000}); err != nil {
			t.Error(err)
		}
	}
}

// TestDifferent checks that differences are found.
func TestDifferent(t *testing.T) {
	tool.NeedRoot(t)
	harms := map[string]func(lower string) error{
		"content": func(dir string) error { return os.WriteFile(filepath.Join(dir, "a/b"), []byte("other"), 0o644) },
		"mode":    func(dir string) error { return os.Chmod(filepath.Join(dir, "a/b"), 0o600) },
		"link":    func(dir string) error { return os.Link(filepath.Join(dir, "a/b"), filepath.Join(dir, "a/d")) },
		"xattr":   func(dir string) error { return unix.Setxattr(filepath.Join(dir, "a/b"), "user.x", nil, 0) },
	}
	for name, harm := range harms {
		a, b := lower(t), lower(t)
		if err := harm(b); err != nil {
			t.Fatal(err)
		}
		if err := fsdiff.Run(overlay(t, a), overlay(t, b), fsdiff.Options{Seed: 1, Ops: 50}); err == nil {
			t.Errorf("%s: no difference is found", name)
		}
	}
}
