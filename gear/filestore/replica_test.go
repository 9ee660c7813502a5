package filestore_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// servers are shared by the tests with several processes. TestMain stops them.
var servers backendtest.Shared

// withServers stops the servers of the package after its tests.
type withServers struct{ *testing.M }

func (m withServers) Run() int {
	defer servers.Close()
	return m.M.Run()
}

// processes returns stores that act as several processes over one catalogue and one
// object store. If real is set, they use the system's clock, otherwise the clock of the
// first.
func processes(t *testing.T, n int, real bool, o filestore.Options) []*bed {
	t.Helper()
	pg := servers.Postgres(t)
	dsn, objs := pg.DSN(pg.CreateDatabase(t)), memstore.New(nil)
	var list []*bed
	for range n {
		b := &bed{t: t, ctx: t.Context(), objs: objs, opts: o, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		co := &catalog.Options{Grace: time.Millisecond}
		if list = append(list, b); !real {
			co.Clock = list[0].clock
		}
		var err error
		if b.cat, err = catalog.OpenPostgres(t.Context(), dsn, co); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.cat.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		b.newStore()
	}
	return list
}

// take removes a layer's blob and uses the system's clock.
func (b *bed) take(layer string) error {
	d := oci.Digest("sha256:" + hex.EncodeToString(sum([]byte(layer))))
	if err := b.cat.DeleteBlob(b.ctx, repo, d); err != nil {
		return err
	}
	_, _, err := b.cat.Garbage.Collect(b.ctx, catalog.CollectOptions{Before: time.Now().Add(time.Hour), Keep: func(_ string, other oci.Digest) (time.Time, bool) {
		return time.Now(), other != d
	}})
	return err
}

// TestProcesses has two processes convert layers that share contents and remove some of
// them, while both clean up and settle. In the end, both can read everything that is
// left, and nothing else is left.
func TestProcesses(t *testing.T) {
	list := processes(t, 2, true, filestore.Options{PackSize: 40_000, DeleteAfter: 20 * time.Millisecond, Lease: time.Second, Workers: 1})
	const layers = 12
	contents := func(i int) [][]byte { return append(many(uint64(i%5), 8), many(uint64(100+i), 4)...) }
	stop := make(chan struct{})
	var writers, cleaners sync.WaitGroup
	for k, b := range list {
		writers.Go(func() {
			for i := range layers {
				// Both processes convert each layer, at about the same time.
				layer := fmt.Sprintf("layer %d", i)
				d := b.push(layer)
				for try := 0; ; try++ {
					err := b.convert(d, layer, contents(i))
					if err == nil {
						break
					}
					if !errors.Is(err, filestore.ErrRetry) && !errors.Is(err, catalog.ErrNotStored) || try == 20 {
						t.Errorf("convert layer %d: %v", i, err)
						break
					}
				}
				own := fmt.Sprintf("layer %d of %d", i, k)
				if err := b.convert(b.push(own), own, contents(i)); err != nil && !errors.Is(err, filestore.ErrRetry) {
					t.Errorf("convert %s: %v", own, err)
				} else if err := b.take(own); err != nil {
					t.Errorf("remove %s: %v", own, err)
				}
			}
		})
		cleaners.Go(func() {
			for {
				if err := b.s.Housekeep(b.ctx); err != nil {
					t.Errorf("clean up: %v", err)
				}
				if _, err := b.s.Settle(b.ctx, filestore.SettleOptions{All: true}); err != nil && !errors.Is(err, engine.ErrLeased) {
					t.Errorf("settle: %v", err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	cleaners.Wait()
	for i := range layers {
		for _, b := range list {
			b.check(contents(i)...)
		}
	}
	for _, b := range list {
		must(t, b.s.Housekeep(b.ctx))
		if _, err := b.s.Settle(b.ctx, filestore.SettleOptions{All: true}); err != nil {
			t.Error(err)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		must(t, list[0].s.Housekeep(t.Context()))
		if n, err := gearfacts.NewFiles(list[0].cat.DB).Counts(t.Context()); err != nil || int64(len(list[0].keys())) == n.Packs || time.Now().After(deadline) {
			break
		}
	}
	list[1].verify()
	for i := range layers { // look for contents whose places were cached before the last packs
		list[1].check(contents(i)...)
	}
}

// TestProcessDies checks that the packs of a process that died during a conversion are
// reclaimed when its lease has expired, and not before. If the process is alive after
// all, its conversion fails, and a second attempt succeeds.
func TestProcessDies(t *testing.T) {
	list := processes(t, 2, false, filestore.Options{PackSize: 10_000, Workers: 1})
	a, b := list[0], list[1]
	a.opts.Clock, b.opts.Clock = a.clock, a.clock
	var contents [][]byte // enough for several packs
	for i := range 30 {
		contents = append(contents, noise(uint64(i), 2000))
	}
	d := b.push("layer")
	w, err := b.s.NewWriter(b.ctx)
	must(t, err)
	defer w.Abort(b.ctx)
	must(t, write(b.ctx, w, contents))
	_, err = w.PutIndex(b.ctx, index("layer", contents))
	must(t, err)
	began := time.Now()
	for len(b.keys()) < 2 { // the packs are made in the background
		if time.Since(began) > 10*time.Second {
			t.Fatalf("only %d packs were made", len(b.keys()))
		}
	}
	must(t, a.s.Housekeep(a.ctx))
	if n := len(a.keys()); n < 2 {
		t.Fatalf("the packs of a living process were deleted, %d are left", n)
	}
	a.pass(2 * time.Minute)
	must(t, a.s.Housekeep(a.ctx))
	if list := a.keys(); len(list) > 1 { // one may have been made since
		t.Errorf("packs of a dead process are left over: %v", list)
	}
	if err := w.Commit(b.ctx, gearfacts.Layer{Digest: d}); err == nil {
		t.Error("the conversion that had been given up was recorded")
	}
	must(t, b.convert(d, "layer", contents))
	a.check(contents...)
	must(t, a.s.Housekeep(a.ctx))
	a.verify()
}

// TestProcessUnannounced checks a process that was taken for dead while one of its
// writers is still open. A further writer, which cannot be announced, fails alone.
func TestProcessUnannounced(t *testing.T) {
	list := processes(t, 2, false, filestore.Options{Lease: 200 * time.Millisecond, Workers: 1})
	a, b := list[0], list[1]
	w, err := b.s.NewWriter(b.ctx)
	must(t, err)
	names, err := a.cat.DB.Leases(a.ctx, "gear-writers/")
	must(t, err)
	for name := range names {
		for taken, began := false, time.Now(); !taken; {
			a.pass(time.Minute) // unless the process renews the lease just now
			taken, err = a.cat.DB.Lease(a.ctx, name, "another", time.Hour)
			must(t, err)
			if !taken && time.Since(began) > 10*time.Second {
				t.Fatalf("the lease %s cannot be taken", name)
			}
		}
	}
	for began := time.Now(); ; {
		late, err := b.s.NewWriter(b.ctx)
		if errors.Is(err, engine.ErrLeased) {
			break
		}
		must(t, err)
		late.Abort(b.ctx) // the process has not noticed the loss yet
		if time.Since(began) > 10*time.Second {
			t.Fatal("writers are announced though another process has the lease")
		}
	}
	w.Abort(b.ctx)
	for name := range names {
		must(t, a.cat.DB.Unlease(a.ctx, name, "another"))
	}
	must(t, b.convert(b.push("layer"), "layer", many(1, 3)))
	b.check(many(1, 3)...)
}

// TestProcessDeletesSome checks that a failed deletion does not undo the ones before it.
func TestProcessDeletesSome(t *testing.T) {
	b := processes(t, 1, false, filestore.Options{})[0]
	deleted := 0
	b.objs = objtest.Faulty(b.objs, objtest.Faults{Before: func(op, _ string) error {
		if op == objtest.OpDelete {
			if deleted++; deleted > 1 {
				return errors.New("too slow")
			}
		}
		return nil
	}})
	b.newStore()
	for i := range byte(3) {
		must(t, gearfacts.NewFiles(b.cat.DB).Intend(b.ctx, "dead-1", gear.Name{i + 1}))
	}
	must(t, gearfacts.NewFiles(b.cat.DB).EndIntents(b.ctx, "dead-1"))
	if err := b.s.Housekeep(b.ctx); err == nil {
		t.Error("a deletion that failed went unnoticed")
	}
	if left, err := gearfacts.NewFiles(b.cat.DB).Deleting(b.ctx, 10); err != nil || len(left) != 2 {
		t.Errorf("%d packs are left to be deleted, %v, want 2", len(left), err)
	}
}
