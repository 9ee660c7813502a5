package view_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/view"
)

// TestForget makes an overlay forget where it found the data of a file that is deleted below it.
// The inode is freed unless somebody has the file open. What was written stays, and so do the
// options of the mount.
func TestForget(t *testing.T) {
	for _, writable := range []bool{false, true} {
		r := newRig(t)
		x, c := index(t, file("one", "1"), file("two", "22"))
		r.image(x, "erofs", nil)
		r.store(c, "cache")
		o := view.OverlayOptions{Lower: []string{r.in("erofs")}, Data: []string{r.in("cache"), r.mkdir("pool")}}
		if writable {
			o.Upper, o.Work = r.mkdir("upper"), r.mkdir("work")
		}
		in := r.overlay("merged", o)
		before, _, err := view.Mounted(in(""))
		must(t, err)
		if writable {
			must(t, os.WriteFile(in("new"), []byte("new"), 0o600))
		}
		if got := read(t, in("one")); got != "1" {
			t.Fatalf("one: %q", got)
		}
		open, err := os.Open(in("two"))
		must(t, err)
		handles := map[string]unix.FileHandle{}
		must(t, filepath.WalkDir(r.in("cache"), func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
			st, _ := e.Info()
			handles[map[int64]string{1: "one", 2: "two"}[st.Size()]] = h
			return errors.Join(err, os.Remove(path))
		}))
		lives := func(name string) bool {
			dir, err := unix.Open(r.in("cache"), unix.O_RDONLY, 0)
			must(t, err)
			defer unix.Close(dir)
			fd, err := unix.OpenByHandleAt(dir, handles[name], unix.O_PATH)
			if err == nil {
				must(t, unix.Close(fd))
			}
			return err == nil
		}
		if !lives("one") || !lives("two") {
			t.Error("an overlay does not hold what it has read: there is nothing to forget")
		}
		must(t, view.Forget(in("")))
		if lives("one") || !lives("two") {
			t.Errorf("writable %v: the closed file lives %v, the open one %v", writable, lives("one"), lives("two"))
		}
		if b := make([]byte, 2); readAt(open, b) != nil || string(b) != "22" {
			t.Errorf("the open file holds %q", b)
		}
		must(t, open.Close())
		if writable && read(t, in("new")) != "new" {
			t.Error("what was written is lost")
		}
		if after, _, err := view.Mounted(in("")); err != nil || after.ReadOnly != before.ReadOnly || len(after.Options) != len(before.Options) {
			t.Errorf("mounted as %+v, then %+v: %v", before, after, err)
		}
	}
}

func readAt(f *os.File, b []byte) error {
	_, err := f.ReadAt(b, 0)
	return err
}
