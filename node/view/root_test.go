package view_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/view"
)

// TestRootAt compares with mountinfo and stat(2), and distinguishes mounts that follow one another
// at the same place.
func TestRootAt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	dir := filepath.Join(t.TempDir(), "d")
	must(t, os.Mkdir(dir, 0o755))
	if _, mounted, err := view.RootAt(dir); err != nil || mounted {
		t.Errorf("a plain directory is mounted: %v, error %v", mounted, err)
	}
	if _, _, err := view.RootAt(dir + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	seen := map[view.Root]bool{}
	for range 3 {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		r, mounted, err := view.RootAt(dir)
		must(t, err)
		again, _, err := view.RootAt(dir)
		must(t, err)
		_, listed, err := view.Mounted(dir)
		must(t, err)
		if !mounted || !listed || r != again {
			t.Errorf("mounted %v, in mountinfo %v, %+v and then %+v", mounted, listed, r, again)
		}
		var st unix.Stat_t
		must(t, unix.Stat(dir, &st))
		dev, ino, err := view.Identity(dir)
		if err != nil || dev != st.Dev || ino != st.Ino || r.Dev != st.Dev || r.Ino != st.Ino {
			t.Errorf("identity %d:%d, error %v, root %+v, stat has %d:%d", dev, ino, err, r, st.Dev, st.Ino)
		}
		seen[r] = true
		must(t, unix.Unmount(dir, 0))
	}
	var st unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID_UNIQUE, &st))
	if unique := st.Mask&unix.STATX_MNT_ID_UNIQUE != 0; unique && len(seen) != 3 { // Linux 6.8
		t.Errorf("three mounts have the identities %v", seen)
	}
}
