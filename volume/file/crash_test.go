package file_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/file"
)

// clock is a clock that tests set.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ns.Store(time.Now().UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// machines opens two stores of one directory as if on two machines that share nothing but time.
func machines(t *testing.T) (a, b *file.Store, c *clock, dir string) {
	dir, c = t.TempDir(), newClock()
	o := &file.Options{Clock: c.now, LeaseTime: time.Hour} // no renewal during a test
	a, b = open(t, dir, o), open(t, dir, o)
	a.SetBoot("one")
	b.SetBoot("two")
	return a, b, c, dir
}

func created(t *testing.T, s block.Store, id, parent string, size int64) block.Volume {
	t.Helper()
	v, err := s.Create(t.Context(), id, parent, size)
	must(t, err)
	return v
}

func committed(t *testing.T, s block.Store, id, parent string, b []byte) {
	t.Helper()
	v := created(t, s, id, parent, 1<<20)
	_, err := v.WriteAt(b, 0)
	must(t, err)
	must(t, v.Close())
	must(t, s.Commit(t.Context(), id))
}

func wants(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// TestLeasesBetweenMachines checks that a dead machine keeps a volume for the time of its lease,
// and that one which was only thought dead writes nothing more.
func TestLeasesBetweenMachines(t *testing.T) {
	t.Parallel()
	a, b, c, _ := machines(t)
	ctx := t.Context()
	committed(t, a, "v", "", blocktest.Content(1, 5000))
	r, err := a.Open(ctx, "v")
	must(t, err)
	w := created(t, a, "w", "", 1<<20)
	_, err = w.WriteAt(blocktest.Content(2, 5000), 0)
	must(t, err)
	must(t, w.Flush())
	for range 3 {
		wants(t, b.Remove(ctx, "v"), block.ErrInUse)
		_, err = b.OpenWriter(ctx, "w")
		wants(t, err, block.ErrInUse)
		c.advance(29 * time.Minute)
	}
	// The lease was not renewed in time. The other machine waits a little longer.
	_, err = w.WriteAt(blocktest.Content(3, 5000), 0)
	wants(t, err, block.ErrAway)
	wants(t, w.Flush(), block.ErrAway)
	wants(t, b.Remove(ctx, "v"), block.ErrInUse)
	c.advance(4 * time.Minute)
	must(t, b.Remove(ctx, "v"))
	w2, err := b.OpenWriter(ctx, "w")
	must(t, err)
	got := make([]byte, 5000)
	if _, err := w2.ReadAt(got, 0); err != nil || !bytes.Equal(got, blocktest.Content(2, 5000)) {
		t.Errorf("what was flushed on the other machine: other bytes, or %v", err)
	}
	_, err = w.WriteAt(blocktest.Content(3, 5000), 0)
	wants(t, err, block.ErrAway)
	if _, err := r.ReadAt(got, 0); err == nil && !bytes.Equal(got, blocktest.Content(1, 5000)) {
		t.Error("a reader whose volume was removed reads other bytes")
	}
	must(t, errors.Join(r.Close(), w.Close(), w2.Close()))
	must(t, b.Commit(ctx, "w"))
}

// TestUnflushedOnAnotherMachine checks that only flushed data of a stopped machine counts.
// Unflushed blocks are the parent's.
func TestUnflushedOnAnotherMachine(t *testing.T) {
	t.Parallel()
	a, b, c, _ := machines(t)
	committed(t, a, "p", "", blocktest.Content(1, 1<<20))
	w := created(t, a, "w", "p", 1<<20)
	_, err := w.WriteAt(blocktest.Content(2, 8192), 4096)
	must(t, err)
	must(t, w.Flush())
	_, err = w.WriteAt(blocktest.Content(3, 8192), 40960)
	must(t, err)
	c.advance(2 * time.Hour)
	w2, err := b.OpenWriter(t.Context(), "w")
	must(t, err)
	want := blocktest.Content(1, 1<<20)
	copy(want[4096:], blocktest.Content(2, 8192))
	got := make([]byte, 1<<20)
	if _, err := w2.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes, or %v", err)
	}
	must(t, errors.Join(w.Close(), w2.Close()))
}

// TestLockBetweenMachines checks that machines without a common flock take turns.
func TestLockBetweenMachines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	var made atomic.Int32
	for i := range 4 {
		s := open(t, dir, nil)
		s.SetBoot(string(rune('a' + i)))
		s.WithoutFlock()
		wg.Go(func() {
			for k := range 10 {
				v, err := s.Create(context.Background(), "v"+string(rune('0'+k)), "", 4096)
				if errors.Is(err, block.ErrExists) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				made.Add(1)
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if made.Load() != 10 {
		t.Errorf("%d volumes of 10 names were made", made.Load())
	}
	if left, err := os.ReadDir(filepath.Join(dir, "locks")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLockOfDeadMachine checks that the lock of a machine that died while holding it expires in
// time.
func TestLockOfDeadMachine(t *testing.T) {
	t.Parallel()
	a, b, c, dir := machines(t)
	must(t, errors.Join(a.Remove(t.Context(), "none")))
	left, err := os.ReadDir(filepath.Join(dir, "locks"))
	must(t, err)
	path := filepath.Join(dir, "locks", left[0].Name())
	must(t, os.Remove(path))
	must(t, os.Symlink("one.1.lock.3600000", path))
	at := unix.NsecToTimespec(c.now().UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	must(t, a.Remove(t.Context(), "none")) // a lock of the same machine: dead at once
	must(t, os.Remove(filepath.Join(dir, "locks", next(t, dir))))
	must(t, os.Symlink("one.1.lock.3600000", path))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	b.SetTimeout(200 * time.Millisecond)
	wants(t, b.Remove(t.Context(), "none"), block.ErrAway)
	b.SetTimeout(30 * time.Second)
	c.advance(2 * time.Hour)
	must(t, b.Remove(t.Context(), "none"))
}

func next(t *testing.T, dir string) string {
	left, err := os.ReadDir(filepath.Join(dir, "locks"))
	must(t, err)
	return left[0].Name()
}

// TestLeftovers checks that what a dead process left unfinished hinders nobody.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, nil)
	committed(t, s, "p", "", blocktest.Content(1, 5000))
	for _, d := range []string{"tmp/removed", "tmp/made/leases"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	// These are the name of a child that was never made, and the lease of a reader that is
	// gone.
	must(t, os.WriteFile(filepath.Join(dir, "volumes/p/children/never"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "volumes/p/leases/r-0.other.1.time.60000"), nil, 0o600))
	must(t, os.Chtimes(filepath.Join(dir, "volumes/p/leases/r-0.other.1.time.60000"), time.Unix(1, 0), time.Unix(1, 0)))
	open(t, dir, nil)
	if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	must(t, s.Remove(t.Context(), "p"))
	if left, err := os.ReadDir(filepath.Join(dir, "volumes")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestDamaged checks that wrong bytes in the directory are errors.
func TestDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, b := range map[string]string{"volume.json": "{", "extents": "SLVEXT\x00\x01nonsense", "data": ""} {
		id := "v" + name[:1]
		s := open(t, dir, nil)
		committed(t, s, id, "", blocktest.Content(1, 5000))
		must(t, os.WriteFile(filepath.Join(dir, "volumes", id, name), []byte(b), 0o600))
		v, err := s.Open(t.Context(), id)
		if err == nil {
			_, err = v.ReadAt(make([]byte, 5000), 0)
			must(t, v.Close())
		}
		if err == nil || errors.Is(err, block.ErrNotFound) {
			t.Errorf("%s is damaged: got error %v", name, err)
		}
		if infos, err := s.List(t.Context(), ""); err != nil || len(infos) != 1 || infos[0].ID != id {
			t.Errorf("%s is damaged: List: %v, %v", name, infos, err)
		}
		must(t, s.Remove(t.Context(), id))
	}
}

func FuzzExtents(f *testing.F) {
	f.Add(file.EncodeExtents(nil))
	f.Add(file.EncodeExtents(file.SomeExtents()))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := file.DecodeExtents(b, 1000)
		if err != nil {
			return
		}
		again, err := file.DecodeExtents(file.EncodeExtents(list), 1000)
		if err != nil || !slices.Equal(again, list) {
			t.Errorf("%v became %v, %v", list, again, err)
		}
	})
}
