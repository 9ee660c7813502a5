package rebuild

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// access is a pull of a layer.
type access struct {
	at    time.Duration // since the beginning of the day
	layer int
}

// standIn is a blob of a trace for which a layer of the images stands.
type standIn struct {
	name string
	size int64
	// cold says that nobody asked for the blob before the day, as far as the trace knows.
	cold bool
	at   []time.Duration // when it is pulled
}

// dayOf reads what a trace has on a day, of the given length, and before it.
func dayOf(ctx context.Context, dir string, begin time.Time, length time.Duration) ([]*standIn, error) {
	s, err := store.Open(dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	warm, pulled := map[store.Symbol]bool{}, map[store.Symbol]*standIn{}
	from := begin.UnixMicro()
	for _, zone := range s.Zones() {
		err := s.Scan(ctx, store.Query{Zone: zone.Name, To: begin.Add(length)}, func(b *store.Batch) error {
			for i, at := range b.Time {
				switch {
				case b.Kind[i] != trace.Blob:
				case at < from:
					warm[b.Digest[i]] = true
				case b.Method[i] == store.GET && b.Status[i] == 200:
					p := pulled[b.Digest[i]]
					if p == nil {
						p = &standIn{name: s.Name(store.Refs, b.Digest[i]), cold: !warm[b.Digest[i]]}
						pulled[b.Digest[i]] = p
					}
					p.size = max(p.size, b.Size[i])
					p.at = append(p.at, time.Duration(at-from)*time.Microsecond)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	out := make([]*standIn, 0, len(pulled))
	for _, p := range pulled {
		out = append(out, p)
	}
	return out, nil
}

// choose takes as many blobs of a day as there are layers: the k-th for the k-th smallest
// layer. All blobs, sorted by size, are divided into so many parts of equal number. Of each
// part the blob is taken whose name has the least hash, and so any blob may be taken,
// however often it is pulled.
func choose(day []*standIn, layers int) ([]*standIn, error) {
	if len(day) < layers {
		return nil, fmt.Errorf("the day has %d blobs, and there are %d layers", len(day), layers)
	}
	slices.SortFunc(day, func(a, b *standIn) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name)) })
	out := make([]*standIn, layers)
	for k := range out {
		part := day[k*len(day)/layers : (k+1)*len(day)/layers]
		out[k] = slices.MinFunc(part, func(a, b *standIn) int {
			return cmp.Or(cmp.Compare(hashOf(a.name), hashOf(b.name)), cmp.Compare(a.name, b.name))
		})
	}
	return out, nil
}

func hashOf(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// pulls returns the accesses of all layers, in order of time.
func pulls(of []*standIn) (out []access) {
	for k, p := range of {
		for _, at := range p.at {
			out = append(out, access{at, k})
		}
	}
	slices.SortFunc(out, func(a, b access) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.layer, b.layer)) })
	return out
}
