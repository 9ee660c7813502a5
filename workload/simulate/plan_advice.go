package simulate

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Replica is the capacity of one server and what requests cost it. docs/capacity.md has
// the sources of the defaults.
type Replica struct {
	// Cores is the number of cores of a replica. Network is its rate in bytes a second.
	Cores     float64 `json:"cores"`
	Bandwidth float64 `json:"network_bytes_per_second"`
	// Busy is the share of both that may be used in the peak minute.
	Busy float64 `json:"busy"`
	// Spare is how many more replicas there are than needed, in case some fail.
	Spare int `json:"spare"`
	// These are costs in seconds of CPU time: RequestCPU for each request, GBCPU for each
	// GB sent, MissCPU for each layer that is fetched, MissGBCPU for each GB fetched, and
	// PushGBCPU for each GB pushed. They add up.
	RequestCPU float64 `json:"request_cpu_seconds"`
	GBCPU      float64 `json:"gb_cpu_seconds"`
	MissCPU    float64 `json:"miss_cpu_seconds"`
	MissGBCPU  float64 `json:"miss_gb_cpu_seconds"`
	PushGBCPU  float64 `json:"push_gb_cpu_seconds"`
}

// DefaultReplica returns a small server, with measured costs of requests.
func DefaultReplica() Replica {
	return Replica{
		Cores: 4, Bandwidth: 1.25e9, Busy: 0.6, Spare: 1,
		RequestCPU: 60e-6,  // a pull of 7 requests takes 0.394 ms with access log: docs/bench.md
		GBCPU:      0.39,   // a GET of 1 MiB takes 0.386 s/GB: docs/bench.md
		MissCPU:    300e-6, // an assumption: a request to the store, signed and read
		MissGBCPU:  1.0,    // an assumption: read from the store, hashed, written to the SSD
		PushGBCPU:  4.3,    // a push in layers of 1 MiB takes 4.33 s/GB: docs/bench.md
	}
}

func (r *Replica) check() error {
	for _, f := range []float64{r.RequestCPU, r.GBCPU, r.MissCPU, r.MissGBCPU, r.PushGBCPU} {
		if !(f >= 0) || math.IsInf(f, 0) {
			return errors.New("what a request costs is a number of at least 0")
		}
	}
	if !(r.Cores > 0) || !(r.Bandwidth > 0) || !(r.Busy > 0 && r.Busy <= 1) || r.Spare < 0 {
		return errors.New("a replica has cores and a network, of which a share above 0 and up to 1 may be busy, and no negative number of spares")
	}
	return nil
}

// Advice is the recommendation.
type Advice struct {
	// Candidate is the number of the recommended candidate, Why the reason.
	Candidate int    `json:"candidate"`
	Why       string `json:"why"`
	// GoalMet reports whether the latency meets the goal in the peak minute.
	GoalMet bool `json:"goal_met"`
	// Replicas is how many replicas are needed for the peak minute, without spares. It is
	// 0 if MaxReplicas are not enough; then Wanted says how many would be.
	Replicas int `json:"replicas"`
	Wanted   int `json:"wanted_replicas"`
	// CPU and Network are the shares of a replica's CPU and network that are used, each
	// in its peak minute.
	CPU     float64 `json:"cpu_share"`
	Network float64 `json:"network_share"`
	// Peak is the latency in the peak minute, when transfers share the rest of the
	// network.
	Peak Latency `json:"peak_latency"`
	// Each is the size of the cache of each replica, including spares.
	Each Size `json:"each_replica"`
	// Homes is the benefit of one home for each layer. It is nil with one replica.
	Homes *HomesEffect `json:"homes,omitempty"`
}

// HomesEffect compares replicas in which each layer has a home with replicas that have
// separate caches. Memory and SSD are the same in both.
type HomesEffect struct {
	Replicas int         `json:"replicas"`
	On       CacheResult `json:"on"`
	Off      CacheResult `json:"off"`
	// OnLatency and OffLatency are latencies of idle registries. They do not include the
	// way over another replica.
	OnLatency  Latency `json:"on_latency"`
	OffLatency Latency `json:"off_latency"`
}

// advise chooses a candidate and counts replicas.
func (p *planner) advise(ctx context.Context, plan *Plan) error {
	a := &plan.Advice
	a.Candidate, a.Why = p.choose(plan)
	c := plan.Candidates[a.Candidate]
	if err := p.replicas(ctx, a, c); err != nil {
		return err
	}
	n := max(1, a.Replicas) + p.c.Replica.Spare
	if a.Replicas == 0 {
		n = a.Wanted + p.c.Replica.Spare
	}
	a.Each = c.Size
	if !p.c.NoHomes {
		a.Each = Size{RAM: c.RAM / int64(n), SSD: c.SSD / int64(n)}
	}
	if n > 1 && n <= maxShards {
		var err error
		a.Homes, err = p.homes(ctx, c.Size, n)
		return err
	}
	return nil
}

// choose returns the number of the cheapest candidate that meets the goal. If none does,
// it returns the number of the candidate at the knee of the last curve. It passes over
// candidates that would wear out an SSD, if there are others.
func (p *planner) choose(plan *Plan) (int, string) {
	g, list := p.c.Goal, plan.Candidates
	if g.Of == "" {
		return p.chooseKnee(list)
	}
	cheapest, nearest, worn := -1, -1, 0
	for i := range list {
		if p.wears(&list[i]) {
			worn++
			continue
		}
		if nearest < 0 || g.of(list[i].Latency) < g.of(list[nearest].Latency) {
			nearest = i
		}
		if list[i].Meets && (cheapest < 0 || list[i].Cost < list[cheapest].Cost) {
			cheapest = i
		}
	}
	than := ""
	if worn > 0 {
		than = fmt.Sprintf(", of those whose SSD is written at most %g times a day", p.c.MaxDriveWrites)
	}
	switch {
	case cheapest >= 0 && plan.None.Meets:
		return cheapest, fmt.Sprintf("it is the cheapest%s; even without a cache there is %s", than, g)
	case cheapest >= 0:
		return cheapest, fmt.Sprintf("it is the cheapest that has %s, where memory costs %g times as much as SSD%s", g, p.c.RAMCost, than)
	case nearest < 0:
		return len(list) - 1, fmt.Sprintf("all SSDs tried are written more than %g times a day; this is the largest", p.c.MaxDriveWrites)
	case !plan.Limit.Meets:
		return nearest, fmt.Sprintf("no cache has %s: without any limit it is %s, because of requests that are the first for their layer; this one comes nearest%s", g, msText(g.of(plan.Limit.Latency)), than)
	}
	return nearest, fmt.Sprintf("none of the sizes tried has %s, though a cache that holds everything does; this one comes nearest%s", g, than)
}

// wears reports whether a candidate would wear out its SSD.
func (p *planner) wears(c *Candidate) bool { return c.DriveWrites > p.c.MaxDriveWrites }

// chooseKnee returns the knee of the last curve, or the next larger size there that
// spares the SSD.
func (p *planner) chooseKnee(list []Candidate) (int, string) {
	last := len(list) - 1
	knee := last
	for i := last; i >= 0 && list[i].Curve == list[last].Curve; i-- {
		if list[i].Knee {
			knee = i
		}
	}
	for i := knee; i <= last; i++ {
		switch {
		case p.wears(&list[i]):
		case i > knee:
			return i, fmt.Sprintf("smaller ones, from the knee on, write their SSD more than %g times a day", p.c.MaxDriveWrites)
		case list[i].Knee:
			return i, "from here on a GiB more serves fewer further requests than on average over the sizes tried"
		default:
			return i, "it is the only one of its curve"
		}
	}
	return last, fmt.Sprintf("all from the knee on write their SSD more than %g times a day; this is the largest", p.c.MaxDriveWrites)
}

// replicas counts the replicas that the peak minute needs: first for CPU and network,
// then until the latency meets the goal.
func (p *planner) replicas(ctx context.Context, a *Advice, c Candidate) error {
	v, err := p.one(ctx, c.Size, 1, ByDigest)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		if p.c.NoHomes && n > 1 && n <= p.c.MaxReplicas {
			// Each replica has a separate cache of this size.
			if v, err = p.one(ctx, Size{RAM: c.RAM * int64(n), SSD: c.SSD * int64(n)}, n, ByRandom); err != nil {
				return err
			}
		}
		cpu, net := p.load(v, n)
		fits := cpu <= p.c.Replica.Busy && net <= p.c.Replica.Busy
		a.Wanted, a.CPU, a.Network = n, cpu, net
		// A network that is full has no finite latency, so none is computed if the load
		// does not fit.
		if fits {
			a.Peak = v.found.latency(p.r.Size, &p.c.Model, p.c.Replica.Bandwidth*(1-min(net, 0.99)))
			a.GoalMet = p.c.Goal.met(a.Peak)
		}
		if fits && (a.GoalMet || !c.Meets || n >= p.c.MaxReplicas) {
			break
		}
		if n >= manyReplicas {
			break
		}
	}
	if a.Wanted <= p.c.MaxReplicas {
		a.Replicas = a.Wanted
	}
	return nil
}

// manyReplicas is where counting ends.
const manyReplicas = 10000

// one simulates a size for n replicas and keeps where each layer was found.
func (p *planner) one(ctx context.Context, s Size, n int, by By) (*view, error) {
	config := p.simulated(s)
	config.Shards, config.By = n, by
	if p.c.Split != nil {
		config.Split = p.c.Split(s.RAM / int64(n))
	}
	views, _, err := p.look(ctx, []CacheConfig{config})
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

// load returns the share of a replica's CPU and network that is used with n replicas,
// each in its worst minute.
func (p *planner) load(v *view, n int) (cpu, net float64) {
	rep := &p.c.Replica
	// A request reaches the home of its layer with probability 1/n. Otherwise the home
	// sends the layer to the replica that got the request, which sends it on.
	peer := 0.0
	if !p.c.NoHomes {
		peer = float64(n-1) / float64(n)
	}
	for at, m := range p.a.minutes {
		f := fetched{}
		if got := v.minutes[at]; got != nil {
			f = *got
		}
		layers, sent := float64(f.requests), float64(f.bytes+m.other)
		const gb = 1e9
		work := float64(m.requests)*rep.RequestCPU + sent/gb*rep.GBCPU +
			float64(f.misses)*rep.MissCPU + float64(f.missBytes)/gb*rep.MissGBCPU +
			float64(m.pushed)/gb*rep.PushGBCPU +
			peer*(2*layers*rep.RequestCPU+2*float64(f.bytes)/gb*rep.GBCPU)
		each := p.c.Growth / float64(n) / 60
		cpu = max(cpu, work*each/rep.Cores)
		net = max(net, (sent+peer*float64(f.bytes))*each/rep.Bandwidth)
	}
	return cpu, net
}

// homes compares n replicas with and without homes.
func (p *planner) homes(ctx context.Context, s Size, n int) (*HomesEffect, error) {
	on := p.simulated(s)
	on.Shards, on.By = n, ByDigest
	if p.c.Split != nil {
		on.Split = p.c.Split(s.RAM / int64(n))
	}
	off := on
	off.By = ByRandom
	if on.RAM < int64(n) {
		return nil, fmt.Errorf("nothing fits into %d replicas of %d bytes", n, on.RAM)
	}
	views, results, err := p.look(ctx, []CacheConfig{on, off})
	if err != nil {
		return nil, err
	}
	return &HomesEffect{Replicas: n, On: results[0], Off: results[1], OnLatency: views[0].latency, OffLatency: views[1].latency}, nil
}
