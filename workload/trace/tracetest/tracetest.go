// Package tracetest makes records for tests, and reads them back from a store.
package tracetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Start is the time of the earliest record.
var Start = time.Date(2017, 6, 20, 0, 0, 0, 0, time.UTC)

// Records returns n records spread over a time, roughly in the mix of a real registry.
func Records(n int, over time.Duration, seed uint64) []trace.Record {
	rnd := rand.New(rand.NewPCG(seed, 1))
	out := make([]trace.Record, n)
	for i := range out {
		ns := int(rnd.ExpFloat64() * 100)
		repo := fmt.Sprintf("%08x/%08x", ns, ns+rnd.IntN(5))
		r := trace.Record{
			Host: fmt.Sprintf("host%d", rnd.IntN(6)), Duration: time.Duration(rnd.ExpFloat64()*1e5) * time.Microsecond,
			Method: "GET", RemoteAddr: fmt.Sprintf("%08x", int(rnd.ExpFloat64()*50)),
			UserAgent: `docker/17.03.1-ce go/go1.7.5 git-commit/c6d412e UpstreamClient(Docker-Client/17.03.1-ce \(linux\))`,
			Status:    200, Written: int64(rnd.ExpFloat64() * 1e6), ID: fmt.Sprintf("%010x", rnd.Uint64N(1<<40)),
			Time: Start.Add(time.Duration(rnd.Int64N(int64(over/time.Millisecond))) * time.Millisecond),
		}
		switch p := rnd.Float64(); {
		case p < 0.46:
			r.URI, r.Written = "v2", 2
		case p < 0.64:
			r.URI = "v2/" + repo + "/manifests/817c8a39"
		case p < 0.95:
			r.URI = fmt.Sprintf("v2/%s/blobs/%08x", repo, int(rnd.ExpFloat64()*1e4))
		case p < 0.99:
			r.URI, r.Method, r.Status = fmt.Sprintf("v2/%s/blobs/uploads/%08x", repo, rnd.Uint32()), "PUT", 201
			r.Digest = fmt.Sprintf("%08x", int(rnd.ExpFloat64()*1e4))
		default:
			r.URI, r.Status = "healthz", 404
		}
		out[i] = r
	}
	return out
}

// ByTime returns the records sorted by time.
func ByTime(recs []trace.Record) []trace.Record {
	out := slices.Clone(recs)
	slices.SortStableFunc(out, func(a, b trace.Record) int { return a.Time.Compare(b.Time) })
	return out
}

// Open opens the store in dir. It is closed when the test ends.
func Open(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// ReadAll returns the records of a query.
func ReadAll(t testing.TB, s *store.Store, q store.Query) []trace.Record {
	t.Helper()
	var out []trace.Record
	if err := s.Records(t.Context(), q, func(r *trace.Record) error {
		out = append(out, *r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}
