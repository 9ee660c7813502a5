package file_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/block"
	"example.org/slipway/block/blocktest"
	"example.org/slipway/block/file"
)

// TestHang: a directory that hangs makes methods fail in time; when it is back, all
// goes on, and no write that came late lies over a later one.
func TestHang(t *testing.T) {
	t.Parallel()
	dir := disk(t, 64<<20)
	s := open(t, dir, &file.Options{Timeout: time.Second})
	committed(t, s, "v", "", blocktest.Content(1, 1<<20))
	w := created(t, s, "w", "v", 1<<20)
	_, err := w.WriteAt(blocktest.Content(2, 10_000), 0)
	must(t, err)
	must(t, w.Flush())

	run(t, "fsfreeze", "-f", filepath.Dir(dir))
	thawed := false
	thaw := func() {
		if !thawed {
			run(t, "fsfreeze", "-u", filepath.Dir(dir))
			thawed = true
		}
	}
	t.Cleanup(thaw)
	begun := time.Now()
	_, err = s.Create(t.Context(), "x", "", 4096)
	wants(t, err, block.ErrAway)
	_, err = s.Open(t.Context(), "v")
	wants(t, err, block.ErrAway)
	_, err = w.WriteAt(blocktest.Content(3, 10_000), 0)
	wants(t, err, block.ErrAway)
	_, err = w.WriteAt(blocktest.Content(4, 10_000), 0)
	wants(t, err, block.ErrAway)
	if d := time.Since(begun); d > 15*time.Second {
		t.Errorf("it took %v", d)
	}
	thaw()
	for {
		_, err = w.WriteAt(blocktest.Content(5, 10_000), 0)
		if err == nil {
			break
		}
		wants(t, err, block.ErrAway)
		if time.Since(begun) > 20*time.Second {
			t.Fatal("it does not go on")
		}
	}
	got := make([]byte, 10_000)
	if _, err := w.ReadAt(got, 0); err != nil || !bytes.Equal(got, blocktest.Content(5, 10_000)) {
		t.Errorf("other bytes than the last ones, or %v", err)
	}
	must(t, w.Close())
	must(t, s.Commit(t.Context(), "w"))
	must(t, s.Remove(t.Context(), "w"))
	// What was begun and not waited for is closed again.
	for {
		err := errors.Join(s.Remove(t.Context(), "v"), s.Remove(t.Context(), "x"))
		if err == nil {
			break
		}
		wants(t, err, block.ErrInUse)
		if time.Since(begun) > 20*time.Second {
			t.Fatal("something is open for ever")
		}
	}
}

// TestFullDisk: as the suite's case with a real file system, and a commit that has no
// room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := disk(t, 32<<20)
	s := open(t, dir, nil)
	committed(t, s, "a", "", blocktest.Content(1, 1<<20))
	w := created(t, s, "w", "a", 64<<20)
	var err error
	off := int64(1 << 20)
	for ; err == nil && off < 64<<20; off += 1 << 20 {
		_, err = w.WriteAt(blocktest.Content(2, 1<<20), off)
	}
	wants(t, err, block.ErrFull)
	must(t, w.Close())
	v, err := s.Open(t.Context(), "a")
	must(t, err)
	got := make([]byte, 1<<20)
	if _, err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, blocktest.Content(1, 1<<20)) {
		t.Errorf("other bytes, or %v", err)
	}
	must(t, v.Close())
	must(t, s.Remove(t.Context(), "w"))
	committed(t, s, "b", "a", blocktest.Content(3, 1<<20))
}
