package engine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// These tests examine single steps. The integration tests run on a failing disk and show that the
// steps together keep what was acknowledged.

// TestRewrite checks that a file of any size has the same bytes afterwards.
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

// TestMend checks that the batch after a failed commit first mends the log and then succeeds. The
// catalogue's file waits for the next checkpoint.
func TestMend(t *testing.T) {
	c := openTest(t, nil)
	for i := range 3 {
		err := c.Write(t.Context(), func(x *Tx) error {
			e := c.lite
			if e.torn || i > 0 && !e.fileTorn {
				t.Errorf("batch %d: torn %t, file torn %t", i, e.torn, e.fileTorn)
			}
			e.torn, e.fileTorn = true, true // for the next one
			return put(x, i)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := len(c.testRows(t)); got != 3 {
		t.Errorf("%d changes, want 3", got)
	}
}

// fsyncFailed is the driver's error for a failed fsync of the log.
type fsyncFailed struct{}

func (fsyncFailed) Error() string { return "disk I/O error" }
func (fsyncFailed) Code() int     { return 10 | 4<<8 } // SQLITE_IOERR_FSYNC

// TestNoRoomInFsync checks that a commit whose fsync found no room says so, and that the next one
// succeeds when there is room again.
func TestNoRoomInFsync(t *testing.T) {
	c := openTest(t, nil)
	for full, want := range map[string]bool{"/dev/full": true, c.lite.log: false} {
		writer := c.lite
		log := writer.log
		err := c.Write(t.Context(), func(x *Tx) error {
			writer.torn, writer.log = true, full
			x.dirty = true
			return fsyncFailed{}
		})
		if !errors.As(err, new(fsyncFailed)) || errors.Is(err, syscall.ENOSPC) != want {
			t.Errorf("log at %s: got %v, want ENOSPC %t", full, err, want)
		}
		writer.log = log // it waits for the next change
		if err := c.Write(t.Context(), func(x *Tx) error { return put(x, 1) }); err != nil {
			t.Errorf("with room again: %v", err)
		}
	}
}

// TestSettled checks that a synced commit overwrites refused changes once.
func TestSettled(t *testing.T) {
	c := openTest(t, nil)
	size := func() int64 {
		t.Helper()
		fi, err := os.Stat(c.lite.log)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	before := size()
	if err := c.Settled(t.Context()); err != nil || size() != before {
		t.Errorf("with no doubt the log grew from %d to %d bytes; %v", before, size(), err)
	}
	for range 2 { // the second time the value in the file does not change
		c.lite.doubt.Store(true)
		if err := c.WriteLazy(t.Context(), func(t *Tx) error { return put(t, 1) }); err != nil || !c.lite.doubt.Load() {
			t.Errorf("a commit that is not synced has ended the doubt; %v", err)
		}
		before = size()
		if err := c.Settled(t.Context()); err != nil || c.lite.doubt.Load() || size() <= before {
			t.Errorf("doubt %t, the log grew from %d to %d bytes; %v", c.lite.doubt.Load(), before, size(), err)
		}
	}
}

// TestCheckpoint checks that the log does not grow for ever. It must not be copied before it is
// synced: a checkpoint syncs it too, and a failure there would be final.
func TestCheckpoint(t *testing.T) {
	c := openTest(t, nil)
	large := make([]byte, 1<<20)
	fill := func(write func(context.Context, func(*Tx) error) error, batches int) (pages, copied int) {
		t.Helper()
		for range batches {
			err := write(t.Context(), func(t *Tx) error {
				_, err := t.Exec(`INSERT INTO queue (name, payload) VALUES ('large', ?)`, large)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		// When there is another change, the writer has finished its checkpoint.
		err := c.WriteLazy(t.Context(), func(*Tx) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		var busy int
		if err := c.Row(t.Context(), "PRAGMA wal_checkpoint(NOOP)", nil, &busy, &pages, &copied); err != nil {
			t.Fatal(err)
		}
		return pages, copied
	}
	if pages, copied := fill(c.WriteLazy, 2*checkpointEvery); copied > 0 || pages <= 2*checkpointEvery*250 {
		t.Errorf("of %d pages that were not synced %d were copied", pages, copied)
	}
	const most = checkpointPages + checkpointEvery*300 // a batch is a little less
	for range 3 {
		if pages, _ := fill(c.Write, 2*checkpointEvery); pages > most {
			t.Errorf("the log has %d pages, want at most %d", pages, most)
		}
	}
}

// TestCloseTorn checks that a catalogue which cannot be mended leaves its log to the next process.
func TestCloseTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c, err := Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Write(t.Context(), func(x *Tx) error {
		c.lite.torn, c.lite.log = true, filepath.Dir(path) // a path that cannot be written to
		return put(x, 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err == nil {
		t.Error("closed as if nothing had happened")
	}
	if fi, err := os.Stat(path + "-wal"); err != nil || fi.Size() == 0 {
		t.Errorf("the log: %v, %v", fi, err)
	}
	t.Cleanup(func() { c.lite.conn.Close(); c.lite.writer.Close(); c.lite.file.Close() })
	again, err := Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := len(again.testRows(t)); got != 1 {
		t.Errorf("%d changes, want 1", got)
	}
}

// TestLazyLogIsBounded checks that the log stays bounded while nobody asks for a durable change.
func TestLazyLogIsBounded(t *testing.T) {
	for name, writes := range map[string]struct{ calls, rows int }{
		"many small": {2000, 1}, "few large": {40, 50},
	} {
		t.Run(name, func(t *testing.T) {
			c := openTest(t, nil)
			for i := range writes.calls {
				err := c.WriteLazy(t.Context(), func(t *Tx) error {
					for k := range writes.rows {
						// SQLite does not write unchanged values.
						_, err := t.Exec(`INSERT INTO queue (id, name, payload) VALUES (?, 'lazy', ?) ON CONFLICT (id) DO UPDATE SET payload = excluded.payload`,
							k, bytes.Repeat([]byte{byte(i)}, 15_000))
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			size := func() int64 {
				t.Helper()
				fi, err := os.Stat(c.lite.log)
				if err != nil {
					t.Fatal(err)
				}
				return fi.Size()
			}
			if n := size(); n > 32<<20 {
				t.Errorf("the log has %d bytes after %d lazy changes", n, writes.calls)
			}
			// Everything is copied. The next change restarts the log.
			var busy, pages, copied int
			if err := c.Row(t.Context(), "PRAGMA wal_checkpoint(PASSIVE)", nil, &busy, &pages, &copied); err != nil || copied != pages {
				t.Fatalf("%d of %d pages were copied, %v", copied, pages, err)
			}
			if err := c.Write(t.Context(), c.lite.touch); err != nil {
				t.Fatal(err)
			}
			if n := size(); n > 16<<20 {
				t.Errorf("the log's file keeps %d bytes that it does not need", n)
			}
		})
	}
}

// TestSyncNext checks that the batch after a series of lazy ones is synced, even if its changes
// have nothing to commit.
func TestSyncNext(t *testing.T) {
	c := openTest(t, nil)
	lazily := func(fn func(*sqlite)) int64 {
		t.Helper()
		if err := c.WriteLazy(t.Context(), func(*Tx) error { fn(c.lite); return nil }); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(c.lite.log)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	before := lazily(func(x *sqlite) { x.syncNext = true })
	after := lazily(func(x *sqlite) {
		if x.lazy {
			t.Error("the next batch is lazy")
		}
	})
	if after <= before {
		t.Errorf("nothing was committed: the log has %d bytes, before %d", after, before)
	}
	lazily(func(x *sqlite) {
		if !x.lazy || x.syncNext {
			t.Error("the one after it is not lazy")
		}
	})
}
