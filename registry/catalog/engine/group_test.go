package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"example.org/slipway/registry/catalog/catalogtest"
)

// HoldWriter makes the writer busy until the returned function is called.
func (db *DB) HoldWriter(t *testing.T) (release func()) {
	t.Helper()
	held, free := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := db.Write(t.Context(), func(*Tx) error { close(held); <-free; return nil }); err != nil {
			t.Errorf("the change that holds the writer: %v", err)
		}
	})
	<-held
	return func() { close(free); wg.Wait() }
}

// Queued waits until n changes are queued.
func (db *DB) Queued(n int) {
	for len(db.writes) < n {
		// The others need the processor, and nothing signals that they have queued their
		// changes.
		ch := make(chan struct{})
		go close(ch)
		<-ch
	}
}

// put makes a change that can be seen afterwards.
func put(t *Tx, i int) error {
	_, err := t.Exec(`INSERT INTO queue (name, payload) VALUES ('test', ?)`, []byte(fmt.Sprint(i)))
	return err
}

// testRows counts what put put.
func (db *DB) testRows(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{}
	err := db.Rows(t.Context(), `SELECT payload FROM queue WHERE name = 'test' LIMIT 10000`, nil, func(r *sql.Rows) error {
		var payload []byte
		err := r.Scan(&payload)
		out[string(payload)]++
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestGroupCommit checks that waiting changes are committed together.
func TestGroupCommit(t *testing.T) { servers.OnBoth(t, testGroupCommit) }

func testGroupCommit(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	const n = 200
	release := c.HoldWriter(t)
	var ran, early atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			err := c.Write(t.Context(), func(t *Tx) error { ran.Add(1); return put(t, i) })
			if err != nil {
				t.Errorf("change %d: %v", i, err)
			}
			if ran.Load() < n { // answered before the others had their turn
				early.Add(1)
			}
		})
	}
	c.Queued(n)
	release()
	wg.Wait()
	if early.Load() > 0 || ran.Load() != n {
		t.Errorf("%d of %d changes were committed before the rest; %d ran", early.Load(), n, ran.Load())
	}
	if got := len(c.testRows(t)); got != n {
		t.Errorf("%d of %d changes are there", got, n)
	}
}

// TestGroupCommitFailures checks that a failed change undoes what it wrote and nothing else,
// whether it fails before or after it wrote.
func TestGroupCommitFailures(t *testing.T) { servers.OnBoth(t, testGroupCommitFailures) }

func testGroupCommitFailures(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	const n = 60
	sentinel := errors.New("this change fails")
	release := c.HoldWriter(t)
	var wg sync.WaitGroup
	var runs [n]atomic.Int64
	for i := range n {
		wg.Go(func() {
			err := c.Write(t.Context(), func(t *Tx) error {
				runs[i].Add(1)
				if i%10 == 3 {
					return sentinel
				}
				if err := put(t, i); err != nil {
					return err
				}
				if i%10 == 7 {
					return sentinel
				}
				if i%10 == 8 { // a statement that SQLite rejects
					_, err := t.Exec(`INSERT INTO repositories (name, created_at) VALUES (NULL, 0)`)
					return err
				}
				return nil
			})
			switch bad := i%10 == 3 || i%10 == 7; {
			case bad && !errors.Is(err, sentinel):
				t.Errorf("change %d: got %v", i, err)
			case i%10 == 8 && err == nil:
				t.Errorf("change %d: got no error", i)
			case !bad && i%10 != 8 && err != nil:
				t.Errorf("change %d: %v", i, err)
			}
		})
	}
	c.Queued(n)
	release()
	wg.Wait()
	rows := c.testRows(t)
	for i := range n {
		want := 1
		if r := i % 10; r == 3 || r == 7 || r == 8 {
			want = 0
		}
		if got := rows[fmt.Sprint(i)]; got != want {
			t.Errorf("change %d is there %d times, want %d", i, got, want)
		}
		if got := runs[i].Load(); got > 2 {
			t.Errorf("change %d ran %d times", i, got)
		}
	}
}

// TestCloseWaits checks that an accepted change is durable and that a refused one left nothing.
func TestCloseWaits(t *testing.T) { servers.OnBoth(t, testCloseWaits) }

func testCloseWaits(t *testing.T, base *catalogtest.Bed) {
	c, err := try(t, base, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 200
	var wg sync.WaitGroup
	var accepted [n]bool
	release := c.HoldWriter(t)
	for i := range n {
		wg.Go(func() {
			err := c.Write(context.Background(), func(t *Tx) error { return put(t, i) })
			accepted[i] = err == nil
			if err != nil && !errors.Is(err, errClosed) {
				t.Errorf("change %d: %v", i, err)
			}
		})
	}
	c.Queued(n / 2)
	var closed sync.WaitGroup
	for range 2 {
		closed.Go(func() {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	release()
	wg.Wait()
	closed.Wait()
	if err := c.Write(context.Background(), func(t *Tx) error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("a change after Close: got %v", err)
	}
	if c, err = try(t, base, nil); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rows := c.testRows(t)
	count := 0
	for i := range n {
		if got := rows[fmt.Sprint(i)] == 1; got != accepted[i] {
			t.Errorf("change %d: accepted %v, there %v", i, accepted[i], got)
		}
		if accepted[i] {
			count++
		}
	}
	if count < n/2 {
		t.Errorf("only %d changes were accepted, %d were in line before Close", count, n/2)
	}
}

// TestWriteCancelled checks that a change whose context ended before it does not happen, and that a
// context which ends meanwhile does not make the outcome unknown.
func TestWriteCancelled(t *testing.T) { servers.OnBoth(t, testWriteCancelled) }

func testWriteCancelled(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	ctx, cancel := context.WithCancel(t.Context())
	release := c.HoldWriter(t)
	done := make(chan error)
	go func() { done <- c.Write(ctx, func(t *Tx) error { return put(t, 1) }) }()
	c.Queued(1)
	cancel()
	release()
	if err := <-done; err != nil {
		t.Errorf("a change under way when the context ended: %v", err)
	}
	if err := c.Write(ctx, func(t *Tx) error { return put(t, 2) }); !errors.Is(err, context.Canceled) {
		t.Errorf("a change after the context ended: got %v", err)
	}
	if rows := c.testRows(t); rows["1"] != 1 || rows["2"] != 0 {
		t.Errorf("got %v", rows)
	}
}
