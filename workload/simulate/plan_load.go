package simulate

import (
	"context"
	"fmt"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Arrivals are all requests of a zone by the minute, of whatever kind.
type Arrivals struct {
	// minutes holds the minutes by their number since 1970.
	minutes map[int64]*minute
	// Requests counts requests of every kind, including requests whose size is not known.
	Requests int64
	// First and Last are the times of the first and the last request, in microseconds
	// since 1970.
	First, Last int64
}

// minute is what happened in a minute.
type minute struct {
	// requests counts requests of every kind. other is how many bytes were sent for
	// requests that are not for layers, and pushed how many were received.
	requests, other, pushed int64
}

// LoadArrivals reads when requests came, and how much was sent and pushed.
func LoadArrivals(ctx context.Context, src Source, w Window) (*Arrivals, error) {
	a := &Arrivals{minutes: map[int64]*minute{}}
	columns := store.ColSize | store.ColMethod | store.ColKind | store.ColStatus
	w.Progress = nil // the same requests are read for the caches
	if err := w.scan(ctx, src, columns, a.batch); err != nil {
		return nil, fmt.Errorf("read arrivals of zone %s: %w", w.Zone, err)
	}
	return a, nil
}

const (
	minuteMicros = 60 * 1e6
	hourMicros   = 60 * minuteMicros
)

func (a *Arrivals) batch(b *store.Batch) {
	for i := range b.Len() {
		at := b.Time[i]
		if a.Requests == 0 {
			a.First = at
		}
		a.Requests++
		a.Last = max(a.Last, at)
		m := a.minutes[at/minuteMicros]
		if m == nil {
			m = &minute{}
			a.minutes[at/minuteMicros] = m
		}
		m.requests++
		size := max(0, b.Size[i])
		switch {
		case stored(b, i):
			m.pushed += size
		case b.Method[i] == store.GET && b.Kind[i] != trace.Blob && served(b, i):
			m.other += size
		}
	}
}

// spanSeconds returns how long the trace is, at least a second.
func (a *Arrivals) spanSeconds() float64 { return max(1, float64(a.Last-a.First)/1e6) }

// peak returns how many requests came in the busiest minute.
func (a *Arrivals) peak() (requests int64) {
	for _, m := range a.minutes {
		requests = max(requests, m.requests)
	}
	return requests
}
