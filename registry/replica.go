package registry

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync/atomic"
	"time"

	"example.org/slipway/registry/cache"
	"example.org/slipway/registry/catalog/engine"
)

// These are the names of leases. One replica at a time does each job.
const (
	LeaseCollect = "gc" // also held for other jobs that would disturb a collection
	LeaseRetain  = "retention"
	leaseUploads = "uploads"
)

// replica is the additional state of a registry whose catalogue other processes also
// change. DESIGN.md, "Several replicas", describes the protocol.
type replica struct {
	// owner names this process in claims and leases. No other process ever has the same
	// name.
	owner string
	// lease is how long a claim or lease lasts without being renewed.
	lease  time.Duration
	steady func() time.Duration
	// ahead is by how many nanoseconds the catalogue's clock is ahead of steady.
	ahead atomic.Int64
	// lost is when this process stopped receiving changes, in nanoseconds of steady, plus
	// one. It is 0 while the process receives all changes.
	lost     atomic.Int64
	promised promises
	// swept is when this process last swept the store. Only keepHouse uses it.
	swept time.Duration
}

// deletingFor is how many leases the right to delete an object lasts. One of them is used
// for the deletion. Whatever part of the request is still in progress then has the rest
// of the time to end.
const deletingFor = 5

// staleFor is how long RAM that no longer receives changes serves blobs and manifests by
// digest. It does not serve tags at all then.
const staleFor = 5 * time.Second

func newReplica(o *Options) *replica {
	var id [8]byte
	rand.Read(id[:]) // never fails
	p := &replica{owner: hex.EncodeToString(id[:]), lease: o.Lease, steady: o.Steady}
	if o.Replica != "" {
		p.owner = o.Replica + "/" + p.owner
	}
	p.lost.Store(1) // until the catalogue says otherwise
	return p
}

// now returns the time by the catalogue's clock. Everything that replicas agree on is
// judged by that clock. Only the speed of this machine's clock matters.
func (r *Registry) now() time.Time {
	if r.replica == nil {
		return r.opts.Clock()
	}
	return time.Unix(0, r.replica.ahead.Load()+int64(r.replica.steady()))
}

// readClock compares the catalogue's clock with the steady clock. The catalogue read its
// time before the answer arrived, so the result is late rather than early.
func (r *Registry) readClock(ctx context.Context) error {
	at, err := r.cat.DB.Now(ctx)
	if err == nil {
		r.replica.ahead.Store(at.UnixNano() - int64(r.replica.steady()))
	}
	return err
}

// alone begins a job that only one replica may do at a time. mine is false if another
// replica is doing it. Otherwise the job ends when release is called, and at the latest
// when held ends.
func (r *Registry) alone(ctx context.Context, name, as string) (held context.Context, release func(), mine bool, err error) {
	if r.replica == nil {
		return ctx, func() {}, true, nil
	}
	held, release, err = r.cat.DB.Hold(ctx, name, r.replica.owner+"/"+as, r.replica.lease)
	if errors.Is(err, engine.ErrLeased) {
		return ctx, func() {}, false, nil
	}
	if err != nil {
		return ctx, func() {}, false, err
	}
	return held, release, true, nil
}

// LeaseError returns err, or an error that a lease was lost if that is the only cause of
// err.
func LeaseError(held context.Context, err error) error {
	if cause := context.Cause(held); err != nil && errors.Is(cause, engine.ErrLeaseLost) {
		return cause
	}
	return err
}

// aloneSoon is alone, but waits until no other replica does the job.
func (r *Registry) aloneSoon(ctx context.Context, name, as string) (held context.Context, release func(), err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		held, release, mine, err := r.alone(ctx, name, as)
		if mine || err != nil {
			return held, release, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// watch follows the changes of other replicas until the registry is closed.
func (r *Registry) watch() {
	defer r.background.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-r.stop
		cancel()
	}()
	w := watcher{r}
	for {
		err := r.cat.DB.Watch(ctx, w)
		if ctx.Err() != nil {
			return
		}
		w.Lost()
		r.log.Error("follow what other replicas change", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// watcher makes RAM follow the changes of other replicas.
type watcher struct{ r *Registry }

var _ engine.Watcher = watcher{}

// Changed implements engine.Watcher. Drop changes the epoch of a key's slot even if the
// key is not in RAM. A reader that is about to put the value from before the change
// therefore cannot do so.
func (w watcher) Changed(list []engine.Change) {
	for _, c := range list {
		switch c.Kind {
		case engine.ChangeTag:
			w.r.ram.Drop(tagKey(c.Repo, c.Ref))
		case engine.ChangeManifest:
			w.r.ram.Drop(manifestKey(c.Repo, c.Ref))
		case engine.ChangeBlob:
			w.r.ram.Drop(cache.Key{Kind: kindBlob, Repo: c.Repo, Ref: c.Ref})
		}
	}
	if next := w.r.opts.Watcher; next != nil {
		next.Changed(list)
	}
}

// Lost implements engine.Watcher.
func (w watcher) Lost() {
	w.r.replica.lost.CompareAndSwap(0, int64(w.r.replica.steady())+1)
	if next := w.r.opts.Watcher; next != nil {
		next.Lost()
	}
}

// Again implements engine.Watcher.
func (w watcher) Again() {
	w.r.ram.Clear()
	w.r.replica.lost.Store(0)
	if next := w.r.opts.Watcher; next != nil {
		next.Again()
	}
}

// hot returns the value that RAM has, if RAM may be believed.
func (r *Registry) hot(k cache.Key) ([]byte, bool) {
	if r.replica != nil && !r.believes(k.Kind) {
		return nil, false
	}
	return r.ram.Get(k)
}

// believes reports whether RAM may answer for keys of a kind.
func (r *Registry) believes(kind uint8) bool {
	if kind == kindTag && r.opts.StrictTags {
		return false
	}
	lost := r.replica.lost.Load()
	return lost == 0 || kind != kindTag && int64(r.replica.steady())-lost < int64(staleFor)
}

// remember puts values that were read from the catalogue into RAM.
func (r *Registry) remember(k cache.Key, epoch uint64, value ...[]byte) {
	if r.replica == nil || r.replica.lost.Load() == 0 {
		r.ram.Put(k, epoch, value...)
	}
}
