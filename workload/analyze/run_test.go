package analyze_test

import (
	"context"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace/store"
)

// memSource is a source of miniature traces.
type memSource struct {
	names []string
	reqs  map[string][]req
	// cut returns where batches end. A nil cut gives one batch.
	cut func(n int) []int
}

func (m *memSource) Zones() []store.Zone {
	var out []store.Zone
	for _, n := range m.names {
		out = append(out, zoneOf(n, m.reqs[n]))
	}
	return out
}

func (m *memSource) Scan(ctx context.Context, q store.Query, fn func(*store.Batch) error) error {
	reqs := m.reqs[q.Zone]
	from := 0
	var cuts []int
	if m.cut != nil {
		cuts = m.cut(len(reqs))
	}
	for _, to := range append(cuts, len(reqs)) {
		if err := fn(batch(q.Zone, reqs[from:to])); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func oneZone(name string, reqs []req) *memSource {
	return &memSource{names: []string{name}, reqs: map[string][]req{name: reqs}}
}

var _ = analyze.Run
