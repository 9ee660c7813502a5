package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// servers are the servers that the tests of several replicas share. TestMain ends them.
var servers backendtest.Shared

// replica is one of several registries over one catalogue and one store.
type replica struct {
	*registry.Registry
	cat  *catalog.Catalog
	stop func()
}

// cluster holds what replicas share.
type cluster struct {
	t     testing.TB
	pg    *backendtest.PostgresServer
	db    string
	store objstore.Store
	grace time.Duration
}

func newCluster(t testing.TB, store objstore.Store, grace time.Duration) *cluster {
	t.Helper()
	pg := servers.Postgres(t)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return &cluster{t: t, pg: pg, db: emptyCatalog(t, pg), store: store, grace: grace}
}

// template is the name of a database with an empty catalogue. The others are copies of it, because
// making one takes a second.
var template = struct {
	sync.Mutex
	name string
	n    int
}{}

// emptyCatalog makes a database with an empty catalogue.
func emptyCatalog(t testing.TB, pg *backendtest.PostgresServer) string {
	t.Helper()
	template.Lock()
	defer template.Unlock()
	if template.name == "" {
		name := pg.CreateDatabase(t)
		cat, err := catalog.OpenPostgres(t.Context(), pg.DSN(name), nil)
		if err == nil {
			err = cat.Close()
		}
		if err != nil {
			t.Fatalf("make an empty catalogue: %v", err)
		}
		template.name = name
	}
	template.n++
	name := fmt.Sprintf("replicas%d", template.n)
	pg.SQL(t, "postgres", "CREATE DATABASE "+name+" TEMPLATE "+template.name+"")
	return name
}

// add makes a replica. It may have another store, and reach its catalogue by another address, if
// they lead to the same.
func (c *cluster) add(o registry.Options, store objstore.Store, through *cable) *replica {
	c.t.Helper()
	dsn := c.pg.DSN(c.db)
	if through != nil {
		dsn = c.pg.DSNThrough(through.addr(), c.db)
	}
	if store == nil {
		store = c.store
	}
	cat, err := catalog.OpenPostgres(c.t.Context(), dsn, &catalog.Options{Grace: c.grace})
	if err != nil {
		c.t.Fatalf("open the catalogue: %v", err)
	}
	o.Grace = c.grace
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	reg, err := registry.New(c.t.Context(), cat, store, &o)
	if err != nil {
		c.t.Fatalf("open a replica: %v", err)
	}
	r := &replica{Registry: reg, cat: cat}
	r.stop = sync.OnceFunc(func() {
		if through != nil {
			through.mend()
		}
		if err := reg.Close(context.Background()); err != nil {
			c.t.Errorf("close a replica: %v", err)
		}
		if err := cat.Close(); err != nil {
			c.t.Errorf("close the catalogue of a replica: %v", err)
		}
	})
	c.t.Cleanup(r.stop)
	return r
}

// cable leads to a server and can be cut. Then nothing passes and nothing breaks, as if packets
// were dropped.
type cable struct {
	ln net.Listener
	to string

	mu   sync.Mutex
	cond *sync.Cond
	off  bool
	done bool
	open []net.Conn
	busy sync.WaitGroup
}

func (c *cluster) cable() *cable {
	c.t.Helper()
	u, err := url.Parse(c.pg.DSN(c.db))
	if err != nil {
		c.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	w := &cable{ln: ln, to: u.Host}
	w.cond = sync.NewCond(&w.mu)
	w.busy.Go(w.serve)
	c.t.Cleanup(w.close)
	return w
}

func (w *cable) addr() string { return w.ln.Addr().String() }

func (w *cable) serve() {
	for {
		from, err := w.ln.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.to)
		if err != nil {
			from.Close()
			continue
		}
		w.mu.Lock()
		w.open = append(w.open, from, to)
		w.mu.Unlock()
		w.busy.Go(func() { w.carry(from, to) })
		w.busy.Go(func() { w.carry(to, from) })
	}
}

func (w *cable) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		for w.off && !w.done {
			w.cond.Wait()
		}
		w.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut stops everything. mend lets it continue.
func (w *cable) cut() { w.set(true) }

func (w *cable) mend() { w.set(false) }

func (w *cable) set(off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off = off
	w.cond.Broadcast()
}

func (w *cable) close() {
	w.ln.Close()
	w.mu.Lock()
	w.off, w.done = false, true
	w.cond.Broadcast()
	for _, c := range w.open {
		c.Close()
	}
	w.mu.Unlock()
	w.busy.Wait()
}
