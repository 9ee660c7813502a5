package policy

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// Layer is a content that is part of an image.
type Layer struct {
	Key Key
	// Size is the size in bytes.
	Size int64
}

// Algorithm1Options are the settings of Algorithm1. Without the thresholds, nothing is
// ever prefetched.
type Algorithm1Options struct {
	// LM is how long a pushed layer counts as new (LMthresh). ML is how long a prefetched
	// layer is kept without a request for its manifest (MLthresh).
	LM, ML time.Duration
	// MaxEntries bounds the pushed layers that are remembered, and MaxClients the clients
	// that are noted for each layer. Default 1<<20 and 1<<10. The oldest layer is
	// forgotten first. For a client that is not noted, a layer may be prefetched again.
	MaxEntries, MaxClients int
}

// Algorithm1 is the prefetcher of FAST'18. It assumes that a client that asks for the
// manifest of a repository will ask for the layers that others recently pushed to the
// repository. It only decides. Times must not go back.
type Algorithm1 struct {
	o       Algorithm1Options
	repos   map[uint64][]*pushedLayer
	pushed  dueHeap[*pushedLayer]
	fetched Prefetched
}

// pushedLayer is an entry of the paper's RepoMap.
type pushedLayer struct {
	repo    uint64
	layer   Layer
	due     time.Time
	place   int
	clients map[uint64]struct{}
}

// NewAlgorithm1 returns an empty prefetcher.
func NewAlgorithm1(o *Algorithm1Options) *Algorithm1 {
	a := &Algorithm1{repos: map[uint64][]*pushedLayer{}}
	if o != nil {
		a.o = *o
	}
	if a.o.MaxEntries <= 0 {
		a.o.MaxEntries = 1 << 20
	}
	if a.o.MaxClients <= 0 {
		a.o.MaxClients = 1 << 10
	}
	return a
}

// Prefetched returns the layers that were prefetched and are still kept.
func (a *Algorithm1) Prefetched() *Prefetched { return &a.fetched }

// PutLayer notes that a client has pushed a layer. Repositories and clients are
// identified by numbers, such as a hash of the name.
func (a *Algorithm1) PutLayer(now time.Time, repo, client uint64, l Layer) {
	a.Advance(now)
	for _, p := range a.repos[repo] {
		if p.layer.Key == l.Key {
			a.forget(p)
			break
		}
	}
	if len(a.pushed) >= a.o.MaxEntries {
		a.forget(a.pushed[0])
	}
	p := &pushedLayer{repo: repo, layer: l, due: now.Add(a.o.LM), clients: map[uint64]struct{}{client: {}}}
	a.repos[repo] = append(a.repos[repo], p)
	heap.Push(&a.pushed, p)
}

// GetManifest notes that a client asks for a manifest, and returns what to fetch for it.
// The returned layers count as prefetched from now on.
func (a *Algorithm1) GetManifest(now time.Time, repo, client uint64) []Layer {
	a.Advance(now)
	var fetch []Layer
	for _, p := range a.repos[repo] {
		if _, ok := p.clients[client]; ok {
			continue
		}
		if len(p.clients) < a.o.MaxClients {
			p.clients[client] = struct{}{}
		}
		if a.fetched.Add(p.layer, repo, now.Add(a.o.ML)) {
			fetch = append(fetch, p.layer)
		}
	}
	return fetch
}

// GetLayer notes a request for a layer and reports whether it was prefetched.
func (a *Algorithm1) GetLayer(now time.Time, k Key) bool {
	a.Advance(now)
	return a.fetched.Use(k)
}

// Advance forgets what is too old and returns the prefetched layers to drop. The other
// methods do so, too, but they report the layers to drop only through the option OnDrop
// of [Prefetched].
func (a *Algorithm1) Advance(now time.Time) []Layer {
	for len(a.pushed) > 0 && !a.pushed[0].due.After(now) {
		a.forget(a.pushed[0])
	}
	return a.fetched.Expire(now)
}

func (a *Algorithm1) forget(p *pushedLayer) {
	heap.Remove(&a.pushed, p.place)
	list := slices.DeleteFunc(a.repos[p.repo], func(q *pushedLayer) bool { return q == p })
	if len(list) == 0 {
		delete(a.repos, p.repo)
	} else {
		a.repos[p.repo] = list
	}
}

func (p *pushedLayer) when() time.Time { return p.due }
func (p *pushedLayer) at(i int)        { p.place = i }

// Prefetched holds the layers that were prefetched and are kept for some time, and counts
// how useful they were. The zero value is empty and ready.
type Prefetched struct {
	// OnDrop, if not nil, is called for every layer that is no longer kept. used reports
	// whether the layer was ever requested.
	OnDrop func(l Layer, used bool)

	index map[Key]*fetchedLayer
	order dueHeap[*fetchedLayer]
	stats PrefetchStats
}

// PrefetchStats counts how useful prefetching was.
type PrefetchStats struct {
	// Prefetches counts the prefetched layers. Bytes adds up their sizes.
	Prefetches, Bytes int64
	// Refreshes counts the decisions to prefetch a layer that is already kept. Nothing is
	// fetched, and the layer is kept longer.
	Refreshes int64
	// Hits counts the requests that prefetched layers served.
	Hits int64
	// Used counts the prefetched layers with at least one hit. WastedBytes adds up the
	// sizes of layers that were dropped without a hit.
	Used, WastedBytes int64
	// Resident is how many bytes are kept now. Peak is the maximum so far.
	Resident, Peak int64
}

// fetchedLayer is a prefetched layer. repo is the repository for which it was fetched.
type fetchedLayer struct {
	layer Layer
	repo  uint64
	due   time.Time
	place int
	used  bool
}

func (f *fetchedLayer) when() time.Time { return f.due }
func (f *fetchedLayer) at(i int)        { f.place = i }

// Stats returns the counts. A layer that is still kept and was never requested does not
// count as wasted yet.
func (p *Prefetched) Stats() PrefetchStats { return p.stats }

// Has reports whether a layer is kept.
func (p *Prefetched) Has(k Key) bool { return p.index[k] != nil }

// Add notes that a layer is fetched for a repository and kept until a time. It reports
// whether the layer is to be fetched. A layer that is already kept is kept longer.
func (p *Prefetched) Add(l Layer, repo uint64, until time.Time) bool {
	if f := p.index[l.Key]; f != nil {
		f.due = until
		heap.Fix(&p.order, f.place)
		p.stats.Refreshes++
		return false
	}
	if p.index == nil {
		p.index = map[Key]*fetchedLayer{}
	}
	f := &fetchedLayer{layer: l, repo: repo, due: until}
	p.index[l.Key] = f
	heap.Push(&p.order, f)
	p.stats.Prefetches++
	p.stats.Bytes += l.Size
	p.stats.Resident += l.Size
	p.stats.Peak = max(p.stats.Peak, p.stats.Resident)
	return true
}

// Use notes a request for a layer and reports whether it is kept.
func (p *Prefetched) Use(k Key) bool {
	f := p.index[k]
	if f == nil {
		return false
	}
	if !f.used {
		f.used = true
		p.stats.Used++
	}
	p.stats.Hits++
	return true
}

// Drop forgets a layer.
func (p *Prefetched) Drop(k Key) {
	if f := p.index[k]; f != nil {
		p.drop(f)
	}
}

// Expire drops layers that were kept long enough.
func (p *Prefetched) Expire(now time.Time) []Layer {
	var out []Layer
	for len(p.order) > 0 && !p.order[0].due.After(now) {
		out = append(out, p.order[0].layer)
		p.drop(p.order[0])
	}
	return out
}

func (p *Prefetched) drop(f *fetchedLayer) {
	heap.Remove(&p.order, f.place)
	delete(p.index, f.layer.Key)
	p.stats.Resident -= f.layer.Size
	if !f.used {
		p.stats.WastedBytes += f.layer.Size
	}
	if p.OnDrop != nil {
		p.OnDrop(f.layer, f.used)
	}
}

// due is something that ends at a time and knows its place in a heap.
type due interface {
	when() time.Time
	at(place int)
}

// dueHeap is a heap of items, ordered by when they end, the earliest first.
type dueHeap[T due] []T

func (h dueHeap[T]) Len() int           { return len(h) }
func (h dueHeap[T]) Less(i, j int) bool { return h[i].when().Before(h[j].when()) }

func (h dueHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at(i)
	h[j].at(j)
}

// Push implements heap.Interface.
func (h *dueHeap[T]) Push(x any) {
	v := x.(T)
	v.at(len(*h))
	*h = append(*h, v)
}

// Pop implements heap.Interface.
func (h *dueHeap[T]) Pop() any {
	n := len(*h) - 1
	v := (*h)[n]
	var zero T
	(*h)[n] = zero
	*h = (*h)[:n]
	return v
}

// bySize sorts layers, the smallest first.
func bySize(layers []Layer) {
	slices.SortStableFunc(layers, func(a, b Layer) int { return cmp.Compare(a.Size, b.Size) })
}
