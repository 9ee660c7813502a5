package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Pair says how a pushed layer is recognized among the layers that are pulled.
type Pair uint8

// These are the ways to pair.
const (
	// PairDigest compares the digest. The log must have the digest of a push.
	PairDigest Pair = iota
	// PairSize compares the repository and the exact size.
	PairSize
	// PairNear compares the repository and takes the nearest size within 1000 bytes, as
	// the FAST'18 replayer does.
	PairNear
)

// nearBytes is how far apart sizes may be: 1000 B, as in the FAST'18 replayer.
const nearBytes = 1000

// ParsePair returns a Pair by its name.
func ParsePair(s string) (Pair, error) {
	switch s {
	case "", "digest":
		return PairDigest, nil
	case "size":
		return PairSize, nil
	case "near":
		return PairNear, nil
	}
	return 0, fmt.Errorf("no way to pair is called %q; there are digest, size and near", s)
}

// String returns the way's name.
func (p Pair) String() string { return [...]string{"digest", "size", "near"}[p] }

// event is a request from which a prefetcher learns.
type event uint8

const (
	putLayer event = iota
	putManifest
	getManifest
	getLayer
)

// Pulls are the requests from which a prefetcher learns, in the order of time, by column.
type Pulls struct {
	time   []int64 // microseconds
	event  []event
	repo   []uint32
	client []uint32
	// what has the number of the layer, or of the manifest.
	what []uint32
	// size is the size of each layer.
	size []int64
	// sets are the known layers of each manifest.
	sets [][]learnt
	// layerGets counts the requests for layers.
	layerGets int64
	// Skipped counts the requests for manifests and layers without a client, or for a
	// layer without a size.
	Skipped int64
	// NoDigest counts the pushes of a layer whose digest the trace lacks. PairDigest does
	// not pair them.
	NoDigest int64
}

// learnt is a layer of a manifest, and since when it is known, in microseconds.
type learnt struct {
	layer uint32
	since int64
}

// maxSet bounds the layers of one manifest: 127 is the limit of overlayfs and Docker.
const maxSet = 127

// Len returns the number of requests.
func (p *Pulls) Len() int { return len(p.time) }

// Manifests returns the number of manifests with known layers.
func (p *Pulls) Manifests() int {
	n := 0
	for _, s := range p.sets {
		if len(s) > 0 {
			n++
		}
	}
	return n
}

// LoadPrefetch reads the requests for manifests and layers. A trace does not have the
// layers of a manifest. They are taken to be the layers that a client requests in the
// same repository within session (default 60 s) after the manifest. A tag that is pushed
// again counts as another manifest.
func LoadPrefetch(ctx context.Context, src Source, w Window, pair Pair, session time.Duration) (*Pulls, error) {
	if session <= 0 {
		session = time.Minute
	}
	l := pullLoader{
		pair: pair, session: session.Microseconds(),
		layers: map[layerName]uint32{}, manifests: map[manifestName]uint32{}, version: map[manifestName]uint32{},
		open: map[clientRepo]openSession{}, pushed: map[uint32][]int64{},
	}
	columns := store.ColSize | store.ColMethod | store.ColKind | store.ColStatus | store.ColClient |
		store.ColRepo | store.ColRef | store.ColDigest
	if err := w.scan(ctx, src, columns, l.batch); err != nil {
		return nil, fmt.Errorf("read requests of zone %s: %w", w.Zone, err)
	}
	l.finish()
	return &l.p, nil
}

// layerName identifies a layer: by the digest, or by repository and size.
type layerName struct {
	digest, repo uint32
	size         int64
}

type manifestName struct{ repo, ref, version uint32 }

type clientRepo struct{ client, repo uint32 }

type openSession struct {
	manifest uint32
	since    int64
}

type pullLoader struct {
	p         Pulls
	pair      Pair
	session   int64
	layers    map[layerName]uint32
	manifests map[manifestName]uint32
	version   map[manifestName]uint32 // of a repository and reference, version 0
	open      map[clientRepo]openSession
	pushed    map[uint32][]int64 // sizes by repository, ascending, for PairNear
}

// eventOf returns what a prefetcher learns from request i. ok is false if it learns
// nothing.
func eventOf(b *store.Batch, i int) (e event, ok bool) {
	got := b.Method[i] == store.GET && served(b, i)
	switch {
	case isLayerPut(b, i):
		return putLayer, true
	case stored(b, i) && b.Kind[i] == trace.Manifest:
		return putManifest, true
	case got && b.Kind[i] == trace.Manifest:
		return getManifest, true
	case got && b.Kind[i] == trace.Blob:
		return getLayer, true
	}
	return 0, false
}

func (l *pullLoader) batch(b *store.Batch) {
	for i := range b.Len() {
		e, ok := eventOf(b, i)
		isLayer := e == putLayer || e == getLayer
		switch {
		case !ok:
		case b.Client[i] == store.None || isLayer && b.Size[i] <= 0:
			// Without a client, pullers cannot be distinguished.
			l.p.Skipped++
		case isLayer:
			l.layer(b, i, e)
		default:
			l.manifest(b, i, e)
		}
	}
}

func (l *pullLoader) add(b *store.Batch, i int, e event, what uint32) {
	p := &l.p
	p.time = append(p.time, b.Time[i])
	p.event = append(p.event, e)
	p.repo = append(p.repo, uint32(b.Repo[i]))
	p.client = append(p.client, uint32(b.Client[i]))
	p.what = append(p.what, what)
}

func (l *pullLoader) manifest(b *store.Batch, i int, e event) {
	name := manifestName{repo: uint32(b.Repo[i]), ref: uint32(b.Ref[i])}
	if e == putManifest {
		l.version[name]++
	}
	name.version = l.version[name]
	n, ok := l.manifests[name]
	if !ok {
		n = uint32(len(l.p.sets))
		l.manifests[name] = n
		l.p.sets = append(l.p.sets, nil)
	}
	if e == getManifest {
		l.open[clientRepo{uint32(b.Client[i]), name.repo}] = openSession{n, b.Time[i]}
	}
	l.add(b, i, e, n)
}

func (l *pullLoader) layer(b *store.Batch, i int, e event) {
	n := l.number(b, i, e)
	l.p.size[n] = max(l.p.size[n], b.Size[i])
	switch {
	case e == getLayer:
		l.p.layerGets++
		l.learn(b, i, n)
	case l.pair == PairDigest && b.Digest[i] == store.None:
		l.p.NoDigest++
	case l.pair == PairNear:
		repo := uint32(b.Repo[i])
		if at, ok := slices.BinarySearch(l.pushed[repo], b.Size[i]); !ok {
			l.pushed[repo] = slices.Insert(l.pushed[repo], at, b.Size[i])
		}
	}
	l.add(b, i, e, n)
}

// number returns the number of a layer.
func (l *pullLoader) number(b *store.Batch, i int, e event) uint32 {
	bySize := layerName{repo: uint32(b.Repo[i]), size: b.Size[i]}
	byDigest := layerName{digest: uint32(b.Digest[i])}
	if b.Digest[i] == store.None {
		byDigest.digest = uint32(b.Ref[i])
		if e == putLayer {
			byDigest.size = -1 // the id of an upload may look like a digest and is none
		}
	}
	name := bySize
	if l.pair == PairDigest {
		name = byDigest
	}
	if l.pair == PairNear && e == getLayer {
		var ok bool
		if name.size, ok = nearest(l.pushed[name.repo], name.size); !ok {
			name = byDigest
		}
	}
	n, ok := l.layers[name]
	if !ok {
		n = uint32(len(l.p.size))
		l.layers[name] = n
		l.p.size = append(l.p.size, 0)
	}
	return n
}

// nearest returns the size in an ascending list that is nearest to size and at most
// nearBytes away; of two, the larger.
func nearest(sizes []int64, size int64) (int64, bool) {
	at, _ := slices.BinarySearch(sizes, size)
	best, found := int64(0), false
	dist := int64(nearBytes)
	for _, s := range sizes[max(at-1, 0):min(at+1, len(sizes))] {
		if d := max(s-size, size-s); d <= dist {
			best, dist, found = s, d, true
		}
	}
	return best, found
}

// learn adds a layer to the set of the manifest that the client asked for last.
func (l *pullLoader) learn(b *store.Batch, i int, layer uint32) {
	key := clientRepo{uint32(b.Client[i]), uint32(b.Repo[i])}
	s, ok := l.open[key]
	if !ok {
		return
	}
	if b.Time[i]-s.since > l.session {
		delete(l.open, key)
		return
	}
	set := l.p.sets[s.manifest]
	if len(set) < maxSet && !slices.ContainsFunc(set, func(x learnt) bool { return x.layer == layer }) {
		l.p.sets[s.manifest] = append(set, learnt{layer, b.Time[i]})
	}
}

// finish frees what only loading needs.
func (l *pullLoader) finish() {
	l.layers, l.manifests, l.version, l.open, l.pushed = nil, nil, nil, nil, nil
}

// layers returns the layers of a manifest that were known before a time. If before is
// never, it returns all of them.
func (p *Pulls) layers(manifest uint32, before int64) []policy.Layer {
	set := p.sets[manifest]
	out := make([]policy.Layer, 0, len(set))
	for _, x := range set {
		if x.since < before {
			out = append(out, policy.Layer{Key: policy.NumberKey(uint64(x.layer) + 1), Size: p.size[x.layer]})
		}
	}
	return out
}
