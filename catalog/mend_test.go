package catalog

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// These look at single steps. That together they keep what was acknowledged is
// shown on a disk that fails, by the integration tests.

// TestRewrite: a file has the same bytes afterwards, whatever its size.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := rewrite(path); err != nil {
		t.Errorf("without a file: %v", err)
	}
	for _, size := range []int{0, 1, 256 << 10, 600_000} {
		want := bytes.Repeat([]byte("0123456"), size/7+1)[:size]
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := rewrite(path); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes became %d others, %v", size, len(got), err)
		}
	}
}

// TestMend: a batch after a failed commit mends the log first, and goes through.
func TestMend(t *testing.T) {
	c := openTest(t, nil)
	var seen *tx
	for i := range 3 {
		if err := c.db.write(t.Context(), func(t *tx) error { seen = t; return put(t, i) }); err != nil {
			t.Fatal(err)
		}
		if seen.torn {
			t.Error("the log is not mended after a batch")
		}
		seen.torn = true // the writer waits for the next batch
	}
	if got := len(c.testRows(t)); got != 3 {
		t.Errorf("%d changes, want 3", got)
	}
}

// TestSettled: what was refused is committed over, once, by a commit that is
// synced.
func TestSettled(t *testing.T) {
	c := openTest(t, nil)
	size := func() int64 {
		t.Helper()
		fi, err := os.Stat(c.db.log)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	before := size()
	if err := c.db.settled(t.Context()); err != nil || size() != before {
		t.Errorf("with no doubt the log grew from %d to %d bytes; %v", before, size(), err)
	}
	for range 2 { // the second time the value in the file stays the same
		before = size()
		c.db.doubt.Store(true)
		if err := c.db.writeLazy(t.Context(), func(t *tx) error { return put(t, 1) }); err != nil || !c.db.doubt.Load() {
			t.Errorf("a commit that is not synced has ended the doubt; %v", err)
		}
		before = size()
		if _, err := c.Known(t.Context(), "sha256:none"); err != nil || c.db.doubt.Load() || size() <= before {
			t.Errorf("doubt %t, the log grew from %d to %d bytes; %v", c.db.doubt.Load(), before, size(), err)
		}
	}
}

// TestNoCheckpointWhileLazy: a checkpoint hides that it could not sync the log,
// so it must find nothing in it that is not synced.
func TestNoCheckpointWhileLazy(t *testing.T) {
	c := openTest(t, nil)
	for _, lazy := range []bool{false, true, true, false} {
		var pages int
		look := func(t *tx) error { return t.row("PRAGMA wal_autocheckpoint", nil, &pages) }
		write := c.db.write
		if lazy {
			write = c.db.writeLazy
		}
		if err := write(t.Context(), look); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 2000, true: 0}[lazy]; pages != want {
			t.Errorf("lazy %t: a checkpoint after %d pages, want %d", lazy, pages, want)
		}
	}
}
