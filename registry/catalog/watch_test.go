package catalog

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

// take returns the notifications since the last call.
func (w *watcher) take() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.changes
	w.changes = nil
	return out
}

// watching starts a watcher that ends with the test.
func watching(t *testing.T, c *Catalog) *watcher {
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

// TestWatch checks that each process learns the changes of the others and not its own.
func TestWatch(t *testing.T) {
	r := replicas(t, postgresBed(t), nil)
	a, b := watching(t, r[0]), watching(t, r[1])
	ctx := t.Context()
	content, d := contentOf(1)
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step(r[0].putBlob(ctx, "r", Blob{Digest: d, Size: int64(len(content)), Content: content}, ""))
	one, two := manifestOf("one", 1, 2, "t", "u"), manifestOf("two", 1, 2, "t")
	for _, m := range []NewManifest{one, two} {
		_, err := r[0].PutManifest(ctx, "r", m)
		step(err)
	}
	_, err := r[0].DeleteManifest(ctx, "r", one.Digest, nil)
	step(err)
	step(r[0].DeleteTag(ctx, "r", "t", nil))
	_, err = r[0].SetContent(ctx, d, content)
	step(err)
	step(r[1].Sync(ctx))
	want := []Change{{ChangeTag, "r", "t"}, {ChangeTag, "r", "u"}, {ChangeTag, "r", "t"},
		{ChangeTag, "r", "u"}, {ChangeManifest, "r", string(one.Digest)}, {ChangeTag, "r", "t"}, {ChangeBlob, "r", string(d)}}
	if got := b.take(); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	step(r[0].Sync(ctx))
	if got := a.take(); len(got) > 0 {
		t.Errorf("told of its own changes: %v", got)
	}
	// A failed change is not announced. A change larger than one notification is.
	err = r[0].db.write(ctx, func(t *tx) error { t.changed(ChangeTag, "r", "failed"); return ErrNotFound })
	if !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	var many []Change
	for i := range 1000 {
		many = append(many, Change{ChangeTag, strings.Repeat("r", 200), fmt.Sprint("t", i)})
	}
	step(r[0].db.write(ctx, func(t *tx) error { t.changes = append(t.changes, many...); return count(t) }))
	step(r[1].Sync(ctx))
	if got := b.take(); !slices.Equal(got, many) {
		t.Errorf("told %d changes, want %d", len(got), len(many))
	}
	lost := b.lost
	step(r[0].db.write(ctx, func(t *tx) error { t.changes = make([]Change, maxTold+1); return count(t) }))
	step(r[1].Sync(ctx))
	if got := b.take(); len(got) > 0 || b.lost != lost+1 || !b.trust() {
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
	near := (&bed{dsn: s.DSN(db)}).open(t, nil)
	far := (&bed{dsn: s.DSNThrough(p.listener.Addr().String(), db)}).open(t, nil)
	w := watching(t, far)
	change := func(tag string) {
		t.Helper()
		err := near.db.write(t.Context(), func(t *tx) error { t.changed(ChangeTag, "r", tag); return count(t) })
		if err != nil {
			t.Fatal(err)
		}
	}
	told := func(tag string) bool { return slices.Contains(w.take(), Change{ChangeTag, "r", tag}) }
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
	c := (&bed{dsn: s.DSNThrough(p.listener.Addr().String(), db)}).open(t, nil)
	c.db.pg.patience = time.Second
	w := watching(t, c)
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
			_, err := other.PgConn().Exec(t.Context(), c.db.pg.beginAs[0]).ReadAll()
			locked <- err
		}()
		eventually(t, 10*time.Second, "another writer waits", func() bool {
			var n int
			err := looking.QueryRow(t.Context(), `SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`).Scan(&n)
			return err == nil && n > 0
		})
	})
	err := c.db.write(t.Context(), func(tx *tx) error {
		queue()
		tx.changed(ChangeTag, "r", "t")
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
	eventually(t, 10*time.Second, "a change", func() bool { return c.db.write(t.Context(), count) == nil })
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

func TestRebind(t *testing.T) {
	for in, want := range map[string]string{
		`SELECT a FROM b WHERE c = ? AND d IN (?, ?)`:           `SELECT a FROM b WHERE c = $1 AND d IN ($2, $3)`,
		`UPDATE a SET b = ?1 WHERE b < ?1 AND c = ?2`:           `UPDATE a SET b = $1 WHERE b < $1 AND c = $2`,
		`SELECT '?' || ? || 'it''s ?'`:                          `SELECT '?' || $1 || 'it''s ?'`,
		`SELECT 1 FROM a CROSS JOIN b ON b.i = a.i WHERE a = ?`: `SELECT 1 FROM a JOIN b ON b.i = a.i WHERE a = $1`,
	} {
		if got := rebind(in); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
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
