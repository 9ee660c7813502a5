package blockfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/integration/internal/blockfs"
)

// TestCut checks that a copy is what a loss of power leaves: it has what was synced, and lacks what
// was only written.
func TestCut(t *testing.T) {
	disk := blockfs.NewLab(t).NewDisk(t, 64<<20)
	write := func(name string, sync bool) {
		t.Helper()
		f, err := os.Create(filepath.Join(disk.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("content of " + name); err != nil {
			t.Fatal(err)
		}
		if sync {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("synced", true)
	write("written", false)
	after := disk.Cut(t)
	if b, err := os.ReadFile(filepath.Join(after.Dir, "synced")); err != nil || string(b) != "content of synced" {
		t.Errorf("the synced file after the cut: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(after.Dir, "written")); !errors.Is(err, fs.ErrNotExist) && len(b) > 0 {
		t.Errorf("the file that was not synced survived the cut: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(disk.Dir, "written")); err != nil || string(b) != "content of written" {
		t.Errorf("on the disk itself: %q, %v", b, err)
	}
	after.Discard(t)
	disk.Discard(t)
}
