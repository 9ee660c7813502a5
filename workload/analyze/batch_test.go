package analyze_test

import (
	"math/rand/v2"
	"time"

	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// base is the Tuesday on which the traces of the tests begin.
var base = time.Date(2017, 6, 20, 0, 0, 0, 0, time.UTC)

// req is a request of a miniature trace.
type req struct {
	at     time.Duration // after base
	dur    time.Duration // -1 for unknown
	method store.Method
	kind   trace.Kind
	// host, client, repo, user, ref and digest are small numbers; 0 is none.
	host, client, repo, user, ref, digest store.Symbol
	size                                  int64
	status                                uint16
}

// batch returns a batch of requests.
func batch(zone string, reqs []req) *store.Batch {
	b := &store.Batch{Zone: zone}
	for _, r := range reqs {
		b.Time = append(b.Time, base.Add(r.at).UnixMicro())
		us := r.dur.Microseconds()
		if r.dur < 0 {
			us = -1
		}
		b.Duration = append(b.Duration, us)
		b.Size = append(b.Size, r.size)
		b.Method = append(b.Method, r.method)
		b.Kind = append(b.Kind, r.kind)
		b.Status = append(b.Status, r.status)
		b.Host = append(b.Host, r.host)
		b.Client = append(b.Client, r.client)
		b.Repo = append(b.Repo, r.repo)
		b.Namespace = append(b.Namespace, r.user)
		b.Ref = append(b.Ref, r.ref)
		b.Digest = append(b.Digest, r.digest)
		b.Agent = append(b.Agent, store.None)
	}
	return b
}

// randomTrace returns a trace of n requests over some days, one of them absent.
func randomTrace(seed uint64, n int) []req {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var out []req
	at := time.Duration(0)
	for i := range n {
		at += time.Duration(rnd.ExpFloat64() * float64(20*time.Second)).Truncate(time.Millisecond)
		if i == n/2 {
			at += 60 * time.Hour
		}
		r := req{at: at, dur: time.Duration(rnd.ExpFloat64() * float64(2*time.Second)), host: store.Symbol(1 + rnd.IntN(3)),
			client: store.Symbol(1 + rnd.IntN(5)), repo: store.Symbol(1 + rnd.IntN(4)), user: store.Symbol(1 + rnd.IntN(2)), status: 200}
		r.size = int64(rnd.ExpFloat64() * 1e6)
		if rnd.IntN(20) == 0 {
			r.size = -1
		}
		if rnd.IntN(20) == 0 {
			r.dur = -1
		}
		switch k := rnd.IntN(10); {
		case k < 3:
			r = req{at: r.at, dur: r.dur, method: store.GET, kind: trace.Ping, client: r.client, host: r.host, status: 200}
		case k < 6:
			r.method, r.kind, r.digest = store.GET, trace.Blob, store.Symbol(100+rnd.IntN(40))
			r.ref = r.digest
		case k < 8:
			r.method, r.kind, r.ref = store.GET, trace.Manifest, store.Symbol(1+rnd.IntN(9))
		case k < 9:
			r.method, r.kind, r.ref = store.PUT, trace.Manifest, store.Symbol(1+rnd.IntN(9))
		default:
			r.method, r.kind, r.ref = store.PUT, trace.Upload, store.Symbol(1000+i)
		}
		out = append(out, r)
	}
	return out
}

// zoneOf describes a trace as a store does.
func zoneOf(name string, reqs []req) store.Zone {
	z := store.Zone{Name: name, Records: int64(len(reqs))}
	if len(reqs) > 0 {
		z.First, z.Last = base.Add(reqs[0].at), base.Add(reqs[len(reqs)-1].at)
	}
	seen := map[time.Time]bool{}
	for _, r := range reqs {
		if day := base.Add(r.at).Truncate(24 * time.Hour); !seen[day] {
			seen[day] = true
			z.Days = append(z.Days, day)
		}
	}
	return z
}

var _ analyze.Source = (*memSource)(nil)
