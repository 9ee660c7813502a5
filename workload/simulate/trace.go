// Package simulate tries out caches and prefetchers on a trace: what a cache of some size
// and policy would have kept, what a prefetcher would have fetched ahead, and how much of
// that would have been in vain. It runs the product's own policies (package policy), and
// also bounds: policies that know the future.
//
// [LoadCache] and [LoadPrefetch] read the needed columns of a zone of a store into
// memory: about 16 bytes for each request for a layer. [Caches] and [Prefetch] then run
// any number of configurations over them, on all cores.
package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Writes says what a PUT does to the cache.
type Writes uint8

// These are the kinds of writes.
const (
	// NoWrites leaves PUTs out: the cache serves reads only.
	NoWrites Writes = iota
	// WriteThrough takes in what is pushed, without counting it as a request. If the
	// trace lacks the digest of a push, it takes the digest of the next GET of the same
	// size in the same repository.
	WriteThrough
	// CompatWrites counts PUTs as requests under the name in their URI, as the FAST'18
	// replayer does: the id of an upload, which nobody ever asks for again.
	CompatWrites
)

// ParseWrites returns a kind of writes by its name.
func ParseWrites(s string) (Writes, error) {
	switch s {
	case "", "none":
		return NoWrites, nil
	case "through":
		return WriteThrough, nil
	case "compat":
		return CompatWrites, nil
	}
	return 0, fmt.Errorf("no kind of writes is called %q; there are none, through and compat", s)
}

// String returns the name.
func (w Writes) String() string { return [...]string{"none", "through", "compat"}[w] }

// MarshalText writes the name.
func (w Writes) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Requests are the requests for layers of a zone in the order of time, by column. A layer
// is a number from 0 on. Without writes, layers are numbered in the order of their first
// request.
type Requests struct {
	// Time is the time of each request in microseconds since 1970. It is nil if the
	// source lacks the times.
	Time []int64
	// Layer is the requested layer.
	Layer []uint32
	// Host is the server that answered, numbered from 0 in the order of the first
	// request; nil if the source does not say.
	Host []uint32
	// Write is true for a push that fills the cache and is not a request. It is nil if
	// there is none.
	Write []bool
	// Size is the size of each layer in bytes.
	Size []int64
	// Ingress is the sum of the sizes of all that was pushed, including manifests, in
	// bytes. It lacks Unsized pushes, whose size is not known.
	Ingress int64
	Unsized int64
	// Skipped counts the requests for layers whose size is not known.
	Skipped int64
}

// Len returns the number of requests, including pushes that only fill the cache.
func (r *Requests) Len() int { return len(r.Layer) }

// Pushes returns the number of pushes that only fill the cache.
func (r *Requests) Pushes() int {
	n := 0
	for _, w := range r.Write {
		if w {
			n++
		}
	}
	return n
}

// Footprint returns the sum of the sizes of all layers.
func (r *Requests) Footprint() int64 {
	var n int64
	for _, s := range r.Size {
		n += s
	}
	return n
}

// Servers returns how many servers answered, or 0 if the source does not say.
func (r *Requests) Servers() int {
	n := 0
	for _, h := range r.Host {
		n = max(n, int(h)+1)
	}
	return n
}

// Counts returns how often each layer was requested.
func (r *Requests) Counts() []int64 {
	n := make([]int64, len(r.Size))
	for i, l := range r.Layer {
		if r.Write == nil || !r.Write[i] {
			n[l]++
		}
	}
	return n
}

// Source has a zone's requests. [store.Store] is one.
type Source interface {
	Scan(ctx context.Context, q store.Query, fn func(*store.Batch) error) error
}

// Window is the part of a store that is simulated.
type Window struct {
	Zone string
	// From and To bound the time; To is excluded. Zero is unbounded.
	From, To time.Time
	// Progress, if not nil, is called with the number of requests read so far.
	Progress func(read int64)
}

func (w *Window) scan(ctx context.Context, src Source, columns store.Columns, fn func(*store.Batch)) error {
	var read int64
	q := store.Query{Zone: w.Zone, From: w.From, To: w.To, Columns: columns}
	return src.Scan(ctx, q, func(b *store.Batch) error {
		fn(b)
		read += int64(b.Len())
		if w.Progress != nil {
			w.Progress(read)
		}
		return nil
	})
}

// served reports whether request i was answered with content. If the source lacks the
// status, all requests count as answered.
func served(b *store.Batch, i int) bool {
	return b.Status[i] == 0 || b.Status[i] == 200 || b.Status[i] == 206
}

// stored reports whether request i is a push that was accepted.
func stored(b *store.Batch, i int) bool {
	return b.Push(i) && (b.Status[i] == 0 || b.Status[i] >= 200 && b.Status[i] < 300)
}

// isLayerPut reports whether request i ends the push of a layer.
func isLayerPut(b *store.Batch, i int) bool {
	return stored(b, i) && (b.Kind[i] == trace.Upload || b.Kind[i] == trace.Blob)
}

// repoSize is the key by which a PUT without a digest is paired with a GET.
type repoSize struct {
	repo store.Symbol
	size int64
}

// LoadCache reads the requests for layers. With model it ignores the sizes of the trace,
// because sizes will be modelled.
func LoadCache(ctx context.Context, src Source, w Window, writes Writes, model bool) (*Requests, error) {
	l := cacheLoader{writes: writes, model: model, open: map[repoSize][]openPut{},
		layers: map[store.Symbol]uint32{}, uploads: map[store.Symbol]uint32{}, hosts: map[store.Symbol]uint32{}, patched: map[store.Symbol]int64{}}
	columns := store.ColSize | store.ColMethod | store.ColKind | store.ColStatus |
		store.ColHost | store.ColRepo | store.ColRef | store.ColDigest
	if err := w.scan(ctx, src, columns, l.batch); err != nil {
		return nil, fmt.Errorf("read requests of zone %s: %w", w.Zone, err)
	}
	return l.finish(), nil
}

type cacheLoader struct {
	writes Writes
	model  bool
	r      Requests
	// layers numbers layers by digest. uploads numbers layers of which only the upload's
	// id is known. An id may look like a digest.
	layers, uploads map[store.Symbol]uint32
	hosts           map[store.Symbol]uint32
	// open are the pushes without digest that no GET has been paired with yet.
	open map[repoSize][]openPut
	// patched is how many bytes have come by PATCH for the uploads that are under way.
	patched map[store.Symbol]int64
}

// openPut is a push whose layer is not known yet: its index in the requests and the id of
// its upload.
type openPut struct {
	at int
	id store.Symbol
}

func (l *cacheLoader) batch(b *store.Batch) {
	for i := range b.Len() {
		switch {
		case b.Method[i] == store.GET && b.Kind[i] == trace.Blob && served(b, i):
			l.get(b, i)
		case stored(b, i):
			l.put(b, i)
		case b.Method[i] == store.PATCH && b.Kind[i] == trace.Upload && b.Status[i] < 300 && len(l.patched) < maxUploads:
			l.patched[b.Ref[i]] += max(0, b.Size[i])
		}
	}
}

// maxUploads bounds how many uploads have their PATCHes remembered, because a trace may
// have uploads that never end.
const maxUploads = 1 << 20

// pushed returns the size of what a push brought. Slipway's log records the size of the whole
// blob in the request that ends an upload. Other logs record only the size of that request's
// own body, which is mostly 0; the size is then the sum of the PATCHes before it.
func (l *cacheLoader) pushed(b *store.Batch, i int) int64 {
	size := b.Size[i]
	if b.Kind[i] != trace.Upload || b.Method[i] != store.PUT {
		return size
	}
	before := l.patched[b.Ref[i]]
	delete(l.patched, b.Ref[i])
	if before > max(0, size) { // the size is not the size of the whole content
		return before + max(0, size)
	}
	return size
}

func (l *cacheLoader) get(b *store.Batch, i int) {
	size := b.Size[i]
	if l.model {
		size = 1
	}
	if size <= 0 {
		l.r.Skipped++
		return
	}
	digest := b.Digest[i]
	if digest == store.None {
		digest = b.Ref[i]
	}
	layer := l.number(l.layers, digest, size)
	if pushed := (repoSize{b.Repo[i], size}); l.open[pushed] != nil {
		for _, p := range l.open[pushed] {
			l.r.Layer[p.at] = layer
		}
		delete(l.open, pushed)
	}
	l.add(b, i, layer, false)
}

func (l *cacheLoader) put(b *store.Batch, i int) {
	size := l.pushed(b, i)
	if l.r.Ingress += max(0, size); size < 0 {
		l.r.Unsized++
	}
	if l.writes == NoWrites || !isLayerPut(b, i) {
		return
	}
	if size <= 0 {
		l.r.Skipped++
		return
	}
	switch {
	case l.writes == CompatWrites:
		l.add(b, i, l.number(l.uploads, b.Ref[i], size), false)
	case b.Digest[i] != store.None:
		l.add(b, i, l.number(l.layers, b.Digest[i], size), true)
	default:
		name := repoSize{b.Repo[i], size}
		l.open[name] = append(l.open[name], openPut{at: l.r.Len(), id: b.Ref[i]})
		l.add(b, i, 0, true) // until it is known
	}
}

// number returns the number of a layer. The layer's size is the largest that was seen.
func (l *cacheLoader) number(numbers map[store.Symbol]uint32, name store.Symbol, size int64) uint32 {
	n, ok := numbers[name]
	if !ok {
		n = uint32(len(l.r.Size))
		numbers[name] = n
		l.r.Size = append(l.r.Size, 0)
	}
	l.r.Size[n] = max(l.r.Size[n], size)
	return n
}

func (l *cacheLoader) add(b *store.Batch, i int, layer uint32, write bool) {
	l.r.Time = append(l.r.Time, b.Time[i])
	l.r.Layer = append(l.r.Layer, layer)
	// Symbols are numbered over the whole store. Only numbers of the zone's own servers
	// spread evenly over shards.
	host, ok := l.hosts[b.Host[i]]
	if !ok {
		host = uint32(len(l.hosts))
		l.hosts[b.Host[i]] = host
	}
	l.r.Host = append(l.r.Host, host)
	if l.writes == WriteThrough {
		l.r.Write = append(l.r.Write, write)
	}
}

// finish names each layer that was pushed and never requested by the id of its upload.
func (l *cacheLoader) finish() *Requests {
	type lone struct {
		openPut
		size int64
	}
	var rest []lone
	for name, puts := range l.open {
		for _, p := range puts {
			rest = append(rest, lone{p, name.size})
		}
	}
	slices.SortFunc(rest, func(a, b lone) int { return cmp.Compare(a.at, b.at) })
	for _, p := range rest {
		l.r.Layer[p.at] = l.number(l.uploads, p.id, p.size)
	}
	if _, none := l.hosts[store.None]; none && len(l.hosts) == 1 {
		l.r.Host = nil
	}
	return &l.r
}

// UseModel gives the layers the sizes of [ModelSizes].
func (r *Requests) UseModel(seed uint64, rho float64) { r.Size = ModelSizes(r.Counts(), seed, rho) }
