package catalog

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// These look at single steps. That together they keep what was acknowledged is
// shown on a disk that fails, by the integration tests.

// TestRewrite: a file has the same bytes afterwards, whatever its size.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := rewriteLog(path); err != nil {
		t.Errorf("without a file: %v", err)
	}
	for _, size := range []int{0, 1, 256 << 10, 600_000} {
		want := bytes.Repeat([]byte("0123456"), size/7+1)[:size]
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := rewriteLog(path); err != nil {
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
		seen.torn, seen.fileTorn = true, true // the writer waits for the next batch
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

// TestCheckpoint: the log does not grow for ever, and is not copied while it is
// not synced: a checkpoint syncs it too, and its failure there would be final.
func TestCheckpoint(t *testing.T) {
	c := openTest(t, nil)
	large := make([]byte, 1<<20)
	fill := func(write func(context.Context, func(*tx) error) error, batches int) (pages, copied int) {
		t.Helper()
		for range batches {
			err := write(t.Context(), func(t *tx) error {
				_, err := t.exec(`INSERT INTO queue (name, payload) VALUES ('large', ?)`, large)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		// In a change of its own, after the writer has made its checkpoint.
		err := c.db.writeLazy(t.Context(), func(t *tx) (err error) {
			pages, copied, err = t.walCheckpoint("NOOP")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return pages, copied
	}
	if pages, copied := fill(c.db.writeLazy, 2*checkpointEvery); copied > 0 || pages < checkpointPages {
		t.Errorf("of %d pages that were not synced %d were copied", pages, copied)
	}
	for range 3 {
		if pages, copied := fill(c.db.write, 2*checkpointEvery); copied == 0 || pages > 4*checkpointEvery*300 {
			t.Errorf("of %d pages %d were copied", pages, copied)
		}
	}
}

// TestCloseTorn: a catalogue that cannot be mended leaves its log to the next
// process.
func TestCloseTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c, err := Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var seen *tx
	if err := c.db.write(t.Context(), func(t *tx) error { seen = t; return put(t, 1) }); err != nil {
		t.Fatal(err)
	}
	seen.torn, seen.log = true, filepath.Dir(path) // which cannot be written to
	if err := c.Close(); err == nil {
		t.Error("closed as if nothing had happened")
	}
	if fi, err := os.Stat(path + "-wal"); err != nil || fi.Size() == 0 {
		t.Errorf("the log: %v, %v", fi, err)
	}
	t.Cleanup(func() { c.db.conn.Close(); c.db.writer.Close(); c.db.file.Close() })
	again, err := Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := len(again.testRows(t)); got != 1 {
		t.Errorf("%d changes, want 1", got)
	}
}
