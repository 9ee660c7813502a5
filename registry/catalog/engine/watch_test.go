package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.org/slipway/internal/backendtest"

	"example.org/slipway/registry/catalog/catalogtest"
)

// watcher records the notifications it gets.
type watcher struct {
	mu      sync.Mutex
	trusted bool
	lost    int
	changes []Change
}

func (w *watcher) Changed(list []Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, list...)
}

func (w *watcher) Lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trusted = false
	w.lost++
}

func (w *watcher) Again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trusted = true
}

func (w *watcher) trust() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trusted
}

// Take returns the notifications since the last call.
func (w *watcher) Take() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.changes
	w.changes = nil
	return out
}

// Watching starts a watcher that ends with the test.
func Watching(t *testing.T, c *DB) *watcher {
	t.Helper()
	w := &watcher{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Watch(ctx, w) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("watch ended with %v", err)
		}
	})
	eventually(t, 10*time.Second, "watching", w.trust)
	return w
}

// TestWatch checks what a process is told of the changes of another.
func TestWatch(t *testing.T) {
	r := replicas(t, servers.Bed(t), nil)
	b := Watching(t, r[1])
	ctx := t.Context()
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// A failed change is not announced. A change larger than one notification is.
	err := r[0].Write(ctx, func(t *Tx) error { t.Changed(ChangeTag, "r", "failed"); return ErrNotFound })
	if !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	var many []Change
	for i := range 1000 {
		many = append(many, Change{ChangeTag, strings.Repeat("r", 200), fmt.Sprint("t", i)})
	}
	step(r[0].Write(ctx, func(t *Tx) error { t.changes = append(t.changes, many...); return count(t) }))
	step(r[1].Sync(ctx))
	if got := b.Take(); !slices.Equal(got, many) {
		t.Errorf("told %d changes, want %d", len(got), len(many))
	}
	lost := b.lost
	step(r[0].Write(ctx, func(t *Tx) error { t.changes = make([]Change, maxTold+1); return count(t) }))
	step(r[1].Sync(ctx))
	if got := b.Take(); len(got) > 0 || b.lost != lost+1 || !b.trust() {
		t.Errorf("too many changes: told %d, lost %d times", len(got), b.lost-lost)
	}
}

// TestWatchLost checks that a trusted watcher never misses anything for longer than 4 s, whatever
// happens to its connection.
func TestWatchLost(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t)
	db := s.CreateDatabase(t)
	p := newProxy(t, s.Addr)
	near := open(t, &catalogtest.Bed{DSN: s.DSN(db)}, nil)
	far := open(t, &catalogtest.Bed{DSN: s.DSNThrough(p.listener.Addr().String(), db)}, nil)
	w := Watching(t, far)
	change := func(tag string) {
		t.Helper()
		err := near.Write(t.Context(), func(t *Tx) error { t.Changed(ChangeTag, "r", tag); return count(t) })
		if err != nil {
			t.Fatal(err)
		}
	}
	told := func(tag string) bool { return slices.Contains(w.Take(), Change{ChangeTag, "r", tag}) }
	// busy is what a machine that is busy with other tests may add to each bound.
	const busy = 10 * time.Second
	for name, fault := range map[string]struct {
		begin, end func()
		within     time.Duration
	}{
		"killed":    {func() { killBackends(t, s, db) }, func() {}, busy},
		"cut":       {p.cut, func() {}, busy},
		"partition": {func() { p.swallow.Store(true) }, func() { p.swallow.Store(false); p.cut() }, 4*time.Second + busy},
	} {
		t.Run(name, func(t *testing.T) {
			change("before")
			eventually(t, busy, "told", func() bool { return told("before") })
			times := func() int {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.lost
			}
			lost := times()
			fault.begin()
			change("meanwhile")
			eventually(t, fault.within, "lost, or told", func() bool { return times() > lost })
			fault.end()
			eventually(t, 15*time.Second+busy, "again", w.trust)
			change("after")
			eventually(t, busy, "told", func() bool { return told("after") })
		})
	}
}

// TestWatchDoubt checks that a process forgets its knowledge after a commit with unknown outcome.
// This holds although the commit is its own and the connection for notifications is intact.
func TestWatchDoubt(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t)
	db := s.CreateDatabase(t)
	p := newProxy(t, s.Addr)
	c := open(t, &catalogtest.Bed{DSN: s.DSNThrough(p.listener.Addr().String(), db)}, nil)
	c.pg.patience = time.Second
	w := Watching(t, c)
	direct := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), s.DSN(db))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	other, looking := direct(), direct()
	locked := make(chan error, 1)
	queue := sync.OnceFunc(func() { // another writer is next and keeps everybody from finding out
		go func() {
			_, err := other.PgConn().Exec(t.Context(), c.pg.beginAs[0]).ReadAll()
			locked <- err
		}()
		eventually(t, 10*time.Second, "another writer waits", func() bool {
			var n int
			err := looking.QueryRow(t.Context(), `SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`).Scan(&n)
			return err == nil && n > 0
		})
	})
	err := c.Write(t.Context(), func(tx *Tx) error {
		queue()
		tx.Changed(ChangeTag, "r", "t")
		err := count(tx)
		p.cutAfter.Store(0)
		return err
	})
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("the change: %v", err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "it is lost and found again", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.trusted && w.lost == 2 // including the one at the beginning
	})
	if _, err := other.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "a change", func() bool { return c.Write(t.Context(), count) == nil })
}

// killBackends ends the server's processes that serve watchers of a database.
func killBackends(t *testing.T, s *backendtest.PostgresServer, db string) {
	t.Helper()
	s.SQL(t, db, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
		AND query LIKE 'LISTEN%'`)
}

// TestConnectionString checks that no part of an invalid connection string is shown.
func TestConnectionString(t *testing.T) {
	for _, dsn := range []string{"host=x password = hush port=x", "postgres://u:hush:b@h:port/x", "hush", "password='hush", "postgres://u:hush@h:1:2/x"} {
		if _, err := OpenPostgres(t.Context(), dsn, nil); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

// FuzzNotice checks that no notification from anybody ends the watcher.
func FuzzNotice(f *testing.F) {
	f.Add(encodeNotice(notice{Writer: "w", Changes: []Change{{ChangeTag, "r", "t"}}}))
	f.Add(`{"w":"","c":[[1,"a"],[300,"","",""],{}]}`)
	f.Add(`{"s":"x"}`)
	f.Fuzz(func(t *testing.T, payload string) {
		p := &postgres{syncs: map[string]chan struct{}{}}
		p.rename()
		w := &watcher{trusted: true}
		p.deliver(w, payload)
		if !w.trusted {
			t.Errorf("%q left the watcher lost", payload)
		}
		for _, c := range w.changes {
			out := encodeChanges("w", []Change{c})
			if len(out) != 1 || len(out[0]) > maxPayload {
				t.Errorf("%v became %q", c, out)
			}
		}
	})
}
