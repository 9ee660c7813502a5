package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"

	"example.org/slipway/registry/catalog/catalogtest"
)

// proxy stands between a catalogue and its server. It can drop packets in both directions and cut
// connections.
type proxy struct {
	listener net.Listener
	to       string
	swallow  atomic.Bool
	// cutAfter is how many more packets of a client pass before its connection is cut. A negative
	// value means all.
	cutAfter atomic.Int64

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, conns: map[net.Conn]bool{}}
	p.cutAfter.Store(-1)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(client, server, true) })
		p.wg.Go(func() { p.pass(server, client, false) })
	}
}

// pass copies packets until one side ends.
func (p *proxy) pass(from, to net.Conn, fromClient bool) {
	defer func() {
		from.Close()
		to.Close()
		p.mu.Lock()
		delete(p.conns, from)
		delete(p.conns, to)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if p.swallow.Load() {
			n = 0
		}
		last := false
		if n > 0 && fromClient && p.cutAfter.Load() >= 0 {
			last = p.cutAfter.Add(-1) < 0
			if last && rand.IntN(2) == 0 {
				return // the packet never arrives; otherwise its answer does not
			}
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
		if last {
			// The last packet must reach the server, and its answer nobody.
			if c, ok := to.(*net.TCPConn); ok {
				_ = c.CloseWrite() // it may be closed already
			}
			from.Close()
			_, _ = io.Copy(io.Discard, to) // until the server has finished
			return
		}
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); {
		if time.Since(begin) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		pause(t.Context(), 5*time.Millisecond)
	}
}

// TestCommitOutcomes checks that every acknowledged change has happened exactly once, while
// connections break at any moment, even between a commit and its answer.
func TestCommitOutcomes(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t)
	db := s.CreateDatabase(t)
	p := newProxy(t, s.Addr)
	c := open(t, &catalogtest.Bed{DSN: s.DSNThrough(p.listener.Addr().String(), db)}, nil)
	var stop atomic.Bool
	var cuts int
	var faults sync.WaitGroup
	faults.Go(func() {
		for !stop.Load() {
			p.cutAfter.Store(int64(rand.IntN(30)))
			cuts++
			for p.cutAfter.Load() >= 0 && !stop.Load() {
				pause(context.Background(), time.Millisecond)
			}
		}
		p.cutAfter.Store(-1)
	})
	const writers, rounds = 4, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				err := c.Write(context.Background(), func(t *Tx) error {
					if err := count(t); err != nil {
						return err
					}
					return put(t, w*rounds+i)
				})
				if err != nil {
					t.Errorf("change: %v", err)
				}
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	faults.Wait()
	if got := counted(t, c); got != writers*rounds {
		t.Errorf("counted to %d, want %d", got, writers*rounds)
	}
	for i, n := range c.testRows(t) {
		if n != 1 {
			t.Errorf("change %s is there %d times", i, n)
		}
	}
	if cuts < 5 {
		t.Errorf("only %d connections were cut", cuts)
	}
	t.Logf("%d connections were cut", cuts)
}

// TestServerGone stops a server, briefly and for long.
func TestServerGone(t *testing.T) {
	t.Parallel()
	s := backendtest.Postgres(t, "fsync=on", "full_page_writes=on")
	t.Run("killed", func(t *testing.T) { testServerKilled(t, s) })
	t.Run("unavailable", func(t *testing.T) { testUnavailable(t, s) })
}

// testServerKilled checks that acknowledged changes survive a kill of the server, and that changes
// continue when it is back.
func testServerKilled(t *testing.T, s *backendtest.PostgresServer) {
	db := s.CreateDatabase(t)
	r := replicas(t, &catalogtest.Bed{DSN: s.DSN(db)}, nil)
	for _, c := range r { // recovery takes long on a busy disk
		c.pg.patience = 2 * time.Minute
	}
	var next, done atomic.Int64
	var stop atomic.Bool
	var mu sync.Mutex
	acknowledged := map[int]bool{}
	var wg sync.WaitGroup
	defer func() {
		stop.Store(true)
		if t.Failed() { // nobody needs to wait for the server any more
			r[0].Close()
			r[1].Close()
		}
		wg.Wait()
	}()
	for w := range 6 {
		wg.Go(func() {
			for !stop.Load() {
				i := int(next.Add(1))
				err := r[w%2].Write(context.Background(), func(t *Tx) error { return put(t, i) })
				if err != nil {
					t.Errorf("change %d: %v", i, err)
					return
				}
				mu.Lock()
				acknowledged[i] = true
				mu.Unlock()
				done.Add(1)
			}
		})
	}
	for range 3 {
		from := done.Load()
		eventually(t, time.Minute, "some changes", func() bool { return done.Load() > from+30 })
		s.Restart()
	}
	from := done.Load()
	eventually(t, time.Minute, "some changes", func() bool { return done.Load() > from+30 })
	stop.Store(true)
	wg.Wait()
	rows := r[0].testRows(t)
	for i := range acknowledged {
		if rows[fmt.Sprint(i)] != 1 {
			t.Errorf("change %d, which was acknowledged, is there %d times", i, rows[fmt.Sprint(i)])
		}
	}
}

// TestWriterStandsStill checks that a process which stops in the middle of a change, or becomes
// unreachable, does not block the others' writes for long.
func TestWriterStandsStill(t *testing.T) {
	t.Parallel()
	s := servers.Postgres(t)
	db := s.CreateDatabase(t)
	p := newProxy(t, s.Addr)
	near := open(t, &catalogtest.Bed{DSN: s.DSN(db)}, nil)
	far := open(t, &catalogtest.Bed{DSN: s.DSNThrough(p.listener.Addr().String(), db)}, nil)
	held, free := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(held) })
	var wg sync.WaitGroup
	wg.Go(func() {
		err := far.Write(context.Background(), func(t *Tx) error {
			if err := put(t, 1); err != nil {
				return err
			}
			once()
			<-free
			return nil
		})
		if err != nil {
			t.Errorf("the change that was held up: %v", err)
		}
	})
	<-held
	p.swallow.Store(true)
	begin := time.Now()
	if err := near.Write(t.Context(), func(t *Tx) error { return put(t, 2) }); err != nil {
		t.Errorf("the change of another: %v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("another had to wait for %v", took)
	}
	p.swallow.Store(false)
	p.cut()
	close(free)
	wg.Wait()
	if rows := near.testRows(t); rows["1"] != 1 || rows["2"] != 1 {
		t.Errorf("changes: %v", rows)
	}
}

// testUnavailable checks that changes and reads report a long absence of the server, and that they
// continue when it is back.
func testUnavailable(t *testing.T, s *backendtest.PostgresServer) {
	c := open(t, &catalogtest.Bed{DSN: s.DSN(s.CreateDatabase(t))}, nil)
	const patience = 3 * time.Second
	ping := func() error {
		var n int
		return c.Row(t.Context(), `SELECT COUNT(*) FROM queue`, nil, &n)
	}
	c.pg.patience = patience
	s.Kill()
	begin := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Write(t.Context(), count); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a change: %v", err)
		}
	})
	wg.Go(func() {
		if err := ping(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a read: %v", err)
		}
	})
	wg.Wait()
	if took := time.Since(begin); took < patience/2 || took > patience+5*time.Second {
		t.Errorf("said so after %v", took)
	}
	begin = time.Now()
	if err := c.Write(t.Context(), count); !errors.Is(err, ErrUnavailable) || time.Since(begin) > 5*time.Second {
		t.Errorf("the next change: %v after %v", err, time.Since(begin))
	}
	s.Start(s.Ready)
	eventually(t, 10*time.Second, "a change", func() bool { return c.Write(t.Context(), count) == nil })
	if err := ping(); err != nil {
		t.Error(err)
	}
}

// TestFailover has a standby replace a server that is gone or whose machine no longer answers. It
// needs nobody's help and loses nothing.
func TestFailover(t *testing.T) {
	for name, silent := range map[string]bool{"killed": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := backendtest.Postgres(t)
			db := primary.CreateDatabase(t)
			standby := primary.Standby(t)
			p := newProxy(t, primary.Addr)
			r := replicas(t, &catalogtest.Bed{DSN: primary.DSNThrough(p.listener.Addr().String()+","+standby.Addr, db)}, nil)
			var done atomic.Int64
			var stop atomic.Bool
			var mu sync.Mutex
			acknowledged := map[int]bool{}
			var wg sync.WaitGroup
			end := func() {
				stop.Store(true)
				wg.Wait()
			}
			defer end()
			for w := range 4 {
				wg.Go(func() {
					for i := w; !stop.Load(); i += 4 {
						if err := r[w%2].Write(context.Background(), func(t *Tx) error { return put(t, i) }); err != nil {
							t.Errorf("change %d: %v", i, err)
							return
						}
						mu.Lock()
						acknowledged[i] = true
						mu.Unlock()
						done.Add(1)
					}
				})
			}
			from := done.Load()
			eventually(t, time.Minute, "some changes", func() bool { return done.Load() > from+100 })
			if silent {
				p.swallow.Store(true)
			} else {
				primary.Kill()
			}
			pause(t.Context(), 100*time.Millisecond)
			standby.Promote(t)
			begin := time.Now()
			from = done.Load()
			eventually(t, time.Minute, "some changes", func() bool { return done.Load() > from+100 })
			t.Logf("changes went on %v after the standby was ready", time.Since(begin).Round(time.Millisecond))
			end()
			for i, c := range r { // readers have found the new server, too
				rows := c.testRows(t)
				for n := range acknowledged {
					if rows[fmt.Sprint(n)] != 1 {
						t.Errorf("change %d, which was acknowledged, is there %d times for replica %d", n, rows[fmt.Sprint(n)], i)
					}
				}
			}
		})
	}
}

// TestStandbyAway checks that a change is not acknowledged before the standby has it. That holds
// even if the change is visible because somebody ended the server's wait for the standby.
func TestStandbyAway(t *testing.T) {
	t.Parallel()
	s := backendtest.Postgres(t)
	db := s.CreateDatabase(t)
	standby := s.Standby(t)
	c := open(t, &catalogtest.Bed{DSN: s.DSN(db)}, nil)
	c.pg.patience = time.Second
	for i, end := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		standby.Kill()
		var failed error
		var wg sync.WaitGroup
		wg.Go(func() { failed = c.Write(context.Background(), func(t *Tx) error { return put(t, i) }) })
		eventually(t, time.Minute, "a commit that waits", func() bool {
			return s.SQL(t, db, "SELECT "+end+"(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "t"
		})
		eventually(t, time.Minute, "the change on the server", func() bool {
			return s.SQL(t, db, fmt.Sprintf("SELECT count(*) FROM queue WHERE payload = '%d'", i)) == "1"
		})
		wg.Wait()
		if !errors.Is(failed, ErrUnavailable) {
			t.Errorf("%s: the change: %v", end, failed)
		}
		standby.Start(standby.Ready)
		eventually(t, time.Minute, "a change", func() bool { return c.Write(t.Context(), count) == nil })
	}
}

// TestOpenPostgres checks that unsuitable databases are refused, and that several processes may
// create the schema at once.
func TestOpenPostgres(t *testing.T) {
	s := servers.Postgres(t)
	latin := (&catalogtest.Bed{DSN: s.DSN(s.CreateDatabase(t, "ENCODING 'SQL_ASCII'"))})
	if _, err := try(t, latin, nil); err == nil || !strings.Contains(err.Error(), "UTF8") {
		t.Errorf("another encoding: %v", err)
	}
	begin := time.Now()
	if _, err := try(t, &catalogtest.Bed{DSN: s.DSN("absent")}, nil); err == nil || time.Since(begin) > 10*time.Second {
		t.Errorf("no database: %v after %v", err, time.Since(begin))
	}
	if _, err := OpenPostgres(t.Context(), "postgres://u:hush@127.0.0.1:1/%zz", nil); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("a wrong connection string: %v", err)
	}
	db := s.CreateDatabase(t)
	base := &catalogtest.Bed{DSN: s.DSN(db)}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			c, err := try(t, base, nil)
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			if err := c.Write(context.Background(), count); err != nil {
				t.Errorf("change: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	wg.Wait()
	version := func(v int, oldest string) {
		s.SQL(t, db, fmt.Sprintf(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (%d, true); UPDATE settings SET value = '%s' WHERE name = 'min_reader'`, v, oldest))
	}
	known, err := newestSchema()
	if err != nil {
		t.Fatal(err)
	}
	next := int(known) + 1
	version(next, "3")
	c, err := try(t, base, nil)
	if err != nil {
		t.Fatalf("a schema that is one version newer: %v", err)
	}
	if got := counted(t, c); got != 5 {
		t.Errorf("counted to %d", got)
	}
	c.Close()
	version(next, fmt.Sprint(next))
	if _, err := try(t, base, nil); err == nil || !strings.Contains(err.Error(), "newer slipway") {
		t.Errorf("a schema that the version before cannot use: %v", err)
	}
	version(next+1, "3")
	if _, err := try(t, base, nil); err == nil || !strings.Contains(err.Error(), "newer slipway") {
		t.Errorf("a schema that is two versions newer: %v", err)
	}
}

// TestOpenNewest checks a process that finds its schema up to date. It waits for nobody who is
// changing the schema, and it does not mistake a schema further down the search path for its own.
func TestOpenNewest(t *testing.T) {
	s := servers.Postgres(t)
	db := s.CreateDatabase(t)
	c := open(t, &catalogtest.Bed{DSN: s.DSN(db)}, nil)
	var key uint64
	if _, err := fmt.Sscanf(c.pg.channel, "slipway_%x", &key); err != nil {
		t.Fatal(err)
	}
	conn, err := c.pg.readers.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), `SELECT pg_advisory_lock($1)`, int64(key)^1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	other, err := OpenPostgres(ctx, s.DSN(db), nil)
	if err != nil {
		t.Fatalf("while the schema is locked: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	s.SQL(t, db, `CREATE SCHEMA front`)
	open(t, &catalogtest.Bed{DSN: s.DSN(db) + "&search_path=front,public"}, nil)
	if got := s.SQL(t, db, `SELECT COUNT(*) FROM front.blobs`); got != "0" {
		t.Errorf("the front schema has %s contents", got)
	}
}

// TestSchemas checks that catalogues in two schemas of one database do not interfere.
func TestSchemas(t *testing.T) {
	s := servers.Postgres(t)
	db := s.CreateDatabase(t)
	s.SQL(t, db, `CREATE SCHEMA one; CREATE SCHEMA two`)
	var c [2]*DB
	for i, schema := range []string{"one", "two"} {
		c[i] = open(t, &catalogtest.Bed{DSN: s.DSN(db) + "&search_path=" + schema}, nil)
	}
	w := Watching(t, c[1])
	release := c[0].HoldWriter(t)
	if err := c[1].Write(t.Context(), count); err != nil {
		t.Errorf("beside a writer of another schema: %v", err)
	}
	release()
	err := c[0].Write(t.Context(), func(t *Tx) error { t.Changed(ChangeTag, "r", "t"); return count(t) })
	if err != nil {
		t.Error(err)
	}
	if err := c[1].Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if got := w.Take(); len(got) > 0 {
		t.Errorf("told of another catalogue: %v", got)
	}
	for i := range c {
		if got := counted(t, c[i]); got != 1 {
			t.Errorf("catalogue %d counted to %d", i, got)
		}
	}
}

// TestServerClock checks that time is the server's if the options set no clock.
func TestServerClock(t *testing.T) {
	c := open(t, servers.Bed(t), nil)
	var at time.Time
	if err := c.Write(t.Context(), func(t *Tx) error { at = FromMillis(t.Now()); return nil }); err != nil {
		t.Fatal(err)
	}
	now, err := c.Now(t.Context())
	if err != nil || at.After(now) || now.Sub(at) > 10*time.Second {
		t.Errorf("changed at %v, now it is %v; %v", at, now, err)
	}
	if off := time.Since(now); off < -time.Minute || off > time.Minute {
		t.Errorf("the clock is %v off", off)
	}
}
