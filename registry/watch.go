package registry

import (
	"context"
	"time"

	"example.org/slipway/registry/cache"
	"example.org/slipway/registry/catalog/engine"
)

// staleFor is how long RAM that no longer receives changes serves blobs and manifests by
// digest. It does not serve tags at all then.
const staleFor = 5 * time.Second

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

// watcher updates RAM after changes of other replicas.
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
	w.r.lost.CompareAndSwap(0, int64(w.r.replica.Steady())+1)
	if next := w.r.opts.Watcher; next != nil {
		next.Lost()
	}
}

// Again implements engine.Watcher.
func (w watcher) Again() {
	w.r.ram.Clear()
	w.r.lost.Store(0)
	if next := w.r.opts.Watcher; next != nil {
		next.Again()
	}
}

// hot returns the value that RAM has, if RAM may be believed.
func (r *Registry) hot(k cache.Key) ([]byte, bool) {
	if r.replica.Shared && !r.believes(k.Kind) {
		return nil, false
	}
	return r.ram.Get(k)
}

// believes reports whether RAM may answer for keys of a kind.
func (r *Registry) believes(kind uint8) bool {
	if kind == kindTag && r.opts.StrictTags {
		return false
	}
	lost := r.lost.Load()
	return lost == 0 || kind != kindTag && int64(r.replica.Steady())-lost < int64(staleFor)
}

// remember puts values that were read from the catalogue into RAM.
func (r *Registry) remember(k cache.Key, epoch uint64, value ...[]byte) {
	if !r.replica.Shared || r.lost.Load() == 0 {
		r.ram.Put(k, epoch, value...)
	}
}
