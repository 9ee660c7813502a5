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

// Names of leases: each job is done by one replica at a time.
const (
	LeaseCollect = "gc" // and whatever else would meet a collection
	LeaseRetain  = "retention"
	leaseUploads = "uploads"
)

// replica is what a registry has in addition whose catalogue other processes
// change too. DESIGN.md, "Several replicas", has the protocol.
type replica struct {
	// owner names this process in claims and leases, and no other one ever.
	owner string
	// lease is how long a claim or lease lasts without being prolonged.
	lease  time.Duration
	steady func() time.Duration
	// ahead is by how many nanoseconds the catalogue's clock is ahead of steady.
	ahead atomic.Int64
	// lost is one more than when, in nanoseconds of steady, this process ceased to
	// be told of changes; 0 while it is told of all.
	lost     atomic.Int64
	promised promises
	// swept is when this process last swept the store; of keepHouse only.
	swept time.Duration
}

// deletingFor is how many leases the right to delete an object lasts, of which one
// is used: whatever of the request is still under way then has the rest to end in.
const deletingFor = 5

// staleFor is how long blobs and manifests are served by digest from RAM that is
// not told of changes any more. Tags are not at all.
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

// now is the time by the catalogue's clock, by which all that replicas agree on is
// judged: of this machine's clock only the speed matters.
func (r *Registry) now() time.Time {
	if r.replica == nil {
		return r.opts.Clock()
	}
	return time.Unix(0, r.replica.ahead.Load()+int64(r.replica.steady()))
}

// readClock compares the catalogue's clock with the one that nobody sets. The
// catalogue told its time before the answer came, so the result is late rather
// than early.
func (r *Registry) readClock(ctx context.Context) error {
	at, err := r.cat.DB.Now(ctx)
	if err == nil {
		r.replica.ahead.Store(at.UnixNano() - int64(r.replica.steady()))
	}
	return err
}

// alone begins a job that one replica does at a time. mine is false where another
// one does it. Else the job ends with held at the latest, and with a call of
// release.
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

// LeaseError returns err or, where that is only that a lease was lost, says so.
func LeaseError(held context.Context, err error) error {
	if cause := context.Cause(held); err != nil && errors.Is(cause, engine.ErrLeaseLost) {
		return cause
	}
	return err
}

// aloneSoon is alone that waits until nobody else does the job.
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

// watch follows what other replicas change, until the registry is closed.
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

// watcher makes RAM follow what other replicas change.
type watcher struct{ r *Registry }

var _ engine.Watcher = watcher{}

// Changed implements engine.Watcher. Drop changes the epoch of a key's slot also
// where the key is not in RAM, so that a reader who is about to put what was true
// before the change cannot.
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

// hot returns what RAM has, if that may be believed.
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

// remember puts what was read from the catalogue into RAM.
func (r *Registry) remember(k cache.Key, epoch uint64, value ...[]byte) {
	if r.replica == nil || r.replica.lost.Load() == 0 {
		r.ram.Put(k, epoch, value...)
	}
}
