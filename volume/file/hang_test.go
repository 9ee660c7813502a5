package file_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
)

// TestHang checks that methods fail in time while a directory hangs. When it is back everything
// continues, and no late write overwrites a later one.
func TestHang(t *testing.T) {
	t.Parallel()
	dir := disk(t, 64<<20)
	s := open(t, dir, nil)
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
	s.SetTimeout(300 * time.Millisecond)
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
	// The bound is still short, and what was begun may end later.
	until := func(what string, do func() error) {
		t.Helper()
		for err := do(); err != nil; err = do() {
			if !errors.Is(err, block.ErrAway) && !errors.Is(err, block.ErrInUse) || time.Since(begun) > 30*time.Second {
				t.Fatalf("%s: %v", what, err)
			}
			time.Sleep(5 * time.Millisecond) // between two attempts
		}
	}
	until("it does not go on", func() error {
		_, err := w.WriteAt(blocktest.Content(5, 10_000), 0)
		return err
	})
	got := make([]byte, 10_000)
	until("read", func() error {
		_, err := w.ReadAt(got, 0)
		return err
	})
	if !bytes.Equal(got, blocktest.Content(5, 10_000)) {
		t.Error("other bytes than the last ones")
	}
	until("close", w.Close)
	until("commit", func() error { return s.Commit(t.Context(), "w") })
	// What was begun and given up is closed again.
	for _, id := range []string{"w", "v", "x"} {
		until("remove "+id, func() error { return s.Remove(t.Context(), id) })
	}
}

// TestFullDisk runs the suite's case with a real file system, and a commit that has no room.
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
