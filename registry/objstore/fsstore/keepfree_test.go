package fsstore_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
)

// TestKeepFree checks that uploads and Puts of any size and announcement leave the reserved bytes
// free, and that the space they held is returned.
func TestKeepFree(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	const size, keep = 32 << 20, 8 << 20
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, err := fsstore.New(root, &fsstore.Options{KeepFree: keep})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	free := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(root, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	for _, hint := range []int64{-1, size, size - keep/2, 4 << 20} {
		for _, piece := range []int{1000, 256 << 10, 3 << 20} {
			u, err := s.NewUpload(t.Context(), hint)
			if err != nil {
				t.Fatal(err)
			}
			for err == nil && u.Size() < size {
				_, err = u.Write(make([]byte, piece))
			}
			if !errors.Is(err, objstore.ErrNoSpace) {
				t.Errorf("hint %d, pieces of %d: got %v after %d bytes, want ErrNoSpace", hint, piece, err, u.Size())
			}
			if free := free(); free < keep-2<<20 { // it checks once a MiB
				t.Errorf("hint %d, pieces of %d: %d bytes are left, %d were to be", hint, piece, free, keep)
			}
			if err := u.Cancel(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if err := s.Put(t.Context(), "a/b", make([]byte, size-keep/2), false); !errors.Is(err, objstore.ErrNoSpace) {
		t.Errorf("Put: got %v, want ErrNoSpace", err)
	}
	if err := s.Put(t.Context(), "a/b", make([]byte, 1<<20), false); err != nil {
		t.Errorf("Put with room: %v", err)
	}
}
