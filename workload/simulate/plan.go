package simulate

import (
	"context"
	"errors"
	"fmt"

	"example.org/slipway/internal/policy"
)

// Size is the size of a cache in bytes, as one would buy it.
type Size struct {
	RAM int64 `json:"ram"`
	SSD int64 `json:"ssd"`
}

// PlanConfig says what to plan for.
type PlanConfig struct {
	// Curves are the candidates, as totals over all replicas: lists of growing sizes. Each list
	// shows where a larger size stops being worth it.
	Curves [][]Size `json:"-"`
	// Policy is the policy of the memory, and SSDPolicy is the policy of the SSD; default
	// gdsf and lru, which are the registry's.
	Policy    string           `json:"policy"`
	SSDPolicy string           `json:"ssd_policy"`
	Admission policy.Admission `json:"admission"`
	// Split returns the size in bytes at and above which a layer never goes into a memory
	// of ram bytes. nil means none.
	Split func(ram int64) int64 `json:"-"`
	// Growth scales the load of the trace: there are Growth times as many requests, for
	// Growth times as many contents. Default 1. A cache that is Growth times as large has
	// the same share of hits as in the trace.
	Growth float64 `json:"growth"`
	// Model says how long a layer takes from each place. The zero value is
	// [DefaultModel].
	Model Model `json:"model"`
	// Goal is the latency to reach, if any.
	Goal Goal `json:"goal"`
	// RAMCost is the price of a byte of memory relative to a byte of SSD. Default
	// [DefaultRAMCost].
	RAMCost float64 `json:"ram_cost"`
	// MaxDriveWrites is how often a day the whole SSD may be written. Candidates that
	// write more are not recommended. Default [DefaultDriveWrites].
	MaxDriveWrites float64 `json:"max_drive_writes_per_day"`
	// Replica is the capacity of a replica. The zero value is [DefaultReplica].
	Replica Replica `json:"replica"`
	// MaxReplicas is the largest number of replicas. Default 16.
	MaxReplicas int `json:"max_replicas"`
	// NoHomes plans for replicas with separate caches, instead of one home for each
	// layer.
	NoHomes bool   `json:"no_homes"`
	Seed    uint64 `json:"seed"`
}

// DefaultSplit returns the smallest size of the layers that the registry does not keep in
// a memory of ram bytes, unless storage.blob_cache.large says otherwise.
func DefaultSplit(ram int64) int64 { return max(1, min(100<<20, ram/8)) }

// DefaultRAMCost says that a byte of memory has long cost some twenty times as much as a
// byte of a server's SSD. It only decides between candidates that serve equally well.
const DefaultRAMCost = 20

// DefaultDriveWrites: SSDs for mixed use are commonly specified for three drive writes a
// day over five years.
const DefaultDriveWrites = 3

// Candidate is a cache and how it would perform.
type Candidate struct {
	Size
	// Curve is the number of the list that the candidate is from.
	Curve int `json:"curve"`
	// Result is the result of the simulation. Its sizes and bytes are of the trace as it
	// is, without growth.
	Result CacheResult `json:"result"`
	// Later is the object ratio of the second half of the requests, when the cache had
	// seen the first half.
	Later float64 `json:"later_object_ratio"`
	// Gain is how much the hit ratio grows for each GiB more than the next smaller
	// candidate of the curve; 0 for the smallest.
	Gain float64 `json:"gain_per_gib"`
	// Knee marks the first candidate beyond which a GiB more brings less than the average
	// between the smallest and the largest candidate of the curve.
	Knee bool `json:"knee"`
	// Latency is the latency of layers on an idle registry.
	Latency Latency `json:"latency"`
	// BackendBytesPerSec and BackendRequestsPerSec are the rates of the hour in which
	// most bytes are fetched.
	BackendBytesPerSec    float64 `json:"backend_bytes_per_second"`
	BackendRequestsPerSec float64 `json:"backend_requests_per_second"`
	// SSDBytesPerDay is how many bytes a day are written to the SSD. DriveWrites is how many
	// times a day these bytes would fill the whole SSD.
	SSDBytesPerDay float64 `json:"ssd_bytes_per_day"`
	DriveWrites    float64 `json:"drive_writes_per_day"`
	// Cost is the cost in bytes of SSD.
	Cost float64 `json:"cost"`
	// Meets reports whether Latency meets the goal.
	Meets bool `json:"meets_goal"`
}

// Plan says what to buy, and why.
type Plan struct {
	Zone   string     `json:"zone"`
	Config PlanConfig `json:"config"`
	// Trace describes the trace behind the plan.
	Trace PlanTrace `json:"trace"`
	// None is a registry without a cache, Limit a registry whose cache never evicts
	// anything.
	None       Candidate   `json:"none"`
	Limit      Candidate   `json:"limit"`
	Candidates []Candidate `json:"candidates"`
	Advice     Advice      `json:"advice"`
	// Assumed lists the assumptions of the figures, Unknown what the trace lacks.
	Assumed []string `json:"assumed"`
	Unknown []string `json:"unknown"`
}

// PlanTrace is what a plan knows of the trace, without growth.
type PlanTrace struct {
	Requests  int64 `json:"requests"`
	LayerGets int   `json:"layer_gets"`
	Layers    int   `json:"layers"`
	// First is how many requests are the first for their layer.
	First     int64 `json:"first_requests"`
	Footprint int64 `json:"footprint_bytes"`
	Ingress   int64 `json:"ingress_bytes"`
	// Unsized counts pushes that are not in Ingress because the trace lacks their size.
	Unsized int64   `json:"unsized_pushes,omitempty"`
	Seconds float64 `json:"seconds"`
	// PeakPerSec is the rate of requests of any kind in the busiest minute.
	PeakPerSec float64 `json:"peak_requests_per_second"`
	Skipped    int64   `json:"skipped_requests"`
	Servers    int     `json:"servers"`
	Sizes      string  `json:"sizes"`
}

// SizesFrom notes that the layers' sizes are not from the trace.
func (p *Plan) SizesFrom(where string) {
	p.Trace.Sizes = where
	p.Unknown = p.unknown()
}

// planner makes one plan.
type planner struct {
	r *Requests
	a *Arrivals
	c PlanConfig
	o *RunOptions
}

// MakePlan tries the sizes on the requests for layers and recommends one. The requests
// must have their times and the sizes of their layers.
func MakePlan(ctx context.Context, zone string, r *Requests, a *Arrivals, c PlanConfig, o *RunOptions) (*Plan, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	if r.Len() == 0 || r.Time == nil || r.Write != nil {
		return nil, errors.New("a plan needs requests for layers, with their times, and no pushes among them")
	}
	p := &planner{r: r, a: a, c: c, o: o}
	plan := &Plan{Zone: zone, Config: c, Trace: p.trace()}
	if err := p.tryAll(ctx, plan); err != nil {
		return nil, err
	}
	if err := p.advise(ctx, plan); err != nil {
		return nil, err
	}
	plan.Assumed, plan.Unknown = plan.assumed(), plan.unknown()
	return plan, nil
}

// complete checks a configuration and fills in defaults.
func (c *PlanConfig) complete() error {
	if c.Policy == "" {
		c.Policy = "gdsf"
	}
	if c.SSDPolicy == "" {
		c.SSDPolicy = "lru"
	}
	if c.Growth == 0 {
		c.Growth = 1
	}
	if c.RAMCost == 0 {
		c.RAMCost = DefaultRAMCost
	}
	if c.MaxDriveWrites == 0 {
		c.MaxDriveWrites = DefaultDriveWrites
	}
	if c.MaxReplicas == 0 {
		c.MaxReplicas = 16
	}
	if c.Replica == (Replica{}) {
		c.Replica = DefaultReplica()
	}
	if m := &c.Model; m.RAM.empty() && m.SSD.empty() && m.Backend.empty() {
		*m = DefaultModel()
	}
	switch {
	case c.Policy == Belady || c.Policy == BeladySize:
		return fmt.Errorf("%s knows the future: there is no such cache to buy", c.Policy)
	case !(c.Growth > 0) || c.Growth > maxGrowth:
		return fmt.Errorf("a growth of %g is none; it is above 0 and at most %d", c.Growth, maxGrowth)
	case !(c.MaxDriveWrites > 0):
		return fmt.Errorf("an SSD that may be written %g times a day is none", c.MaxDriveWrites)
	case !(c.RAMCost > 0):
		return fmt.Errorf("memory at %g times the cost of SSD is none", c.RAMCost)
	case c.MaxReplicas < 1 || c.MaxReplicas > maxShards:
		return fmt.Errorf("there are no %d replicas; from 1 to %d can be planned", c.MaxReplicas, maxShards)
	}
	return errors.Join(c.checkCurves(), c.Model.check(), c.Replica.check())
}

// maxGrowth is more than any forecast.
const maxGrowth = 10000

func (t *Tier) empty() bool { return t.Latency == 0 && t.Bandwidth == 0 && len(t.Points) == 0 }

// maxLevel bounds a level of a cache, so that sums do not overflow: 1 PiB.
const maxLevel = 1 << 50

func (c *PlanConfig) checkCurves() error {
	if len(c.Curves) == 0 {
		return errors.New("a plan needs sizes to choose from")
	}
	for _, list := range c.Curves {
		if len(list) == 0 {
			return errors.New("a plan needs sizes to choose from")
		}
		for i, s := range list {
			if s.RAM <= 0 || s.SSD < 0 || max(s.RAM, s.SSD) > maxLevel {
				return fmt.Errorf("a cache of %d bytes and %d on an SSD cannot be planned", s.RAM, s.SSD)
			}
			if i > 0 && s.RAM+s.SSD <= list[i-1].RAM+list[i-1].SSD {
				return errors.New("the sizes of a curve grow")
			}
		}
	}
	return nil
}

func (p *planner) trace() PlanTrace {
	r := p.r
	return PlanTrace{
		Requests: p.a.Requests, LayerGets: r.Len(), Layers: len(r.Size), First: firstRequests(r),
		Footprint: r.Footprint(), Ingress: r.Ingress, Unsized: r.Unsized, Seconds: p.a.spanSeconds(),
		PeakPerSec: float64(p.a.peak()) / 60, Skipped: r.Skipped, Servers: r.Servers(), Sizes: "recorded",
	}
}

// simulated scales a cache of the plan down to the trace.
func (p *planner) simulated(s Size) CacheConfig {
	g := p.c.Growth
	c := CacheConfig{
		Policy: p.c.Policy, SSDPolicy: p.c.SSDPolicy, Admission: p.c.Admission, Shards: 1, Seed: p.c.Seed,
		RAM: int64(float64(s.RAM) / g), SSD: int64(float64(s.SSD) / g),
	}
	if p.c.Split != nil {
		c.Split = p.c.Split(s.RAM)
	}
	return c
}

// tryAll simulates all candidates, a cache without limit and no cache.
func (p *planner) tryAll(ctx context.Context, plan *Plan) error {
	limit := CacheConfig{Policy: "lru", SSDPolicy: "lru", RAM: p.r.Footprint() + 1, Shards: 1}
	configs := []CacheConfig{limit}
	for _, list := range p.c.Curves {
		for _, s := range list {
			configs = append(configs, p.simulated(s))
		}
	}
	views, results, err := p.look(ctx, configs)
	if err != nil {
		return err
	}
	for n, list := range p.c.Curves {
		from := len(plan.Candidates)
		for _, s := range list {
			i := len(plan.Candidates) + 1
			c := p.candidate(s, results[i], views[i])
			c.Curve = n
			plan.Candidates = append(plan.Candidates, c)
		}
		curve(plan.Candidates[from:])
	}
	g := p.c.Growth
	plan.Limit = p.candidate(Size{RAM: int64(float64(limit.RAM) * g)}, results[0], views[0])
	plan.None = p.without()
	return nil
}

// view is what a simulation showed of one configuration.
type view struct {
	found found
	// hours holds the misses by hour.
	hours   map[int64]*fetched
	minutes map[int64]*fetched
	later   int64 // hits in the second half
	// latency is computed as soon as the simulation ends. Then found is freed.
	latency Latency
}

// fetched counts requests and their bytes, and how many of both had to be fetched.
type fetched struct{ requests, bytes, misses, missBytes int64 }

// look simulates configurations and keeps what a plan needs of each. What is kept by
// layer is freed when the next configuration starts, unless there is only one.
func (p *planner) look(ctx context.Context, configs []CacheConfig) ([]*view, []CacheResult, error) {
	views := make([]*view, len(configs))
	results, err := caches(ctx, p.r, configs, p.o, func(i int) observer {
		v := &view{found: make(found, 3*len(p.r.Size)), hours: map[int64]*fetched{}, minutes: map[int64]*fetched{}}
		views[i] = v
		left := p.r.Len()
		return func(j int, at policy.Level) {
			p.note(v, j, at)
			if left--; left > 0 {
				return
			}
			v.latency = v.found.latency(p.r.Size, &p.c.Model, 0)
			if len(configs) > 1 {
				v.found = nil
			}
		}
	})
	return views, results, err
}

// note adds a request to a view.
func (p *planner) note(v *view, i int, at policy.Level) {
	layer := p.r.Layer[i]
	size := p.r.Size[layer]
	v.found.add(layer, at)
	if at != policy.Nowhere && i >= p.r.Len()/2 {
		v.later++
	}
	t := p.r.Time[i]
	for _, b := range []struct {
		in map[int64]*fetched
		at int64
	}{{v.hours, t / hourMicros}, {v.minutes, t / minuteMicros}} {
		f := b.in[b.at]
		if f == nil {
			f = &fetched{}
			b.in[b.at] = f
		}
		f.requests++
		f.bytes += size
		if at == policy.Nowhere {
			f.misses++
			f.missBytes += size
		}
	}
}

// candidate makes a candidate from a simulation.
func (p *planner) candidate(s Size, res CacheResult, v *view) Candidate {
	g, days := p.c.Growth, p.a.spanSeconds()/86400
	c := Candidate{Size: s, Result: res, Latency: v.latency, Cost: float64(s.RAM)*p.c.RAMCost + float64(s.SSD)}
	n := p.r.Len()
	c.Later = ratio(v.later, int64(n-n/2))
	c.SSDBytesPerDay = float64(res.SSDWriteBytes) * g / days
	if s.SSD > 0 {
		c.DriveWrites = c.SSDBytesPerDay / float64(s.SSD)
	}
	// An hour that the trace does not fill counts with the rate of its part.
	seconds := min(3600, p.a.spanSeconds())
	for _, f := range v.hours {
		if b := float64(f.missBytes) * g / seconds; b > c.BackendBytesPerSec {
			c.BackendBytesPerSec, c.BackendRequestsPerSec = b, float64(f.misses)*g/seconds
		}
	}
	c.Meets = p.c.Goal.met(c.Latency)
	return c
}

// without returns the candidate of a registry without a cache.
func (p *planner) without() Candidate {
	v := &view{found: make(found, 3*len(p.r.Size)), hours: map[int64]*fetched{}, minutes: map[int64]*fetched{}}
	res := CacheResult{Requests: int64(p.r.Len())}
	for i, l := range p.r.Layer {
		p.note(v, i, policy.Nowhere)
		res.Bytes += p.r.Size[l]
	}
	res.BackendBytes = res.Bytes
	v.latency = v.found.latency(p.r.Size, &p.c.Model, 0)
	return p.candidate(Size{}, res, v)
}

// curve sets the gains and finds the knee: the candidate that lies highest above the line
// from the first to the last. If the curve only flattens, the gain before the knee is
// above the average and the gain after it below.
func curve(list []Candidate) {
	if len(list) < 2 {
		return
	}
	gib := func(c *Candidate) float64 { return float64(c.RAM+c.SSD) / (1 << 30) }
	first, last := &list[0], &list[len(list)-1]
	slope := (last.Result.ObjectRatio - first.Result.ObjectRatio) / (gib(last) - gib(first))
	knee, height := 0, 0.0
	for i := range list {
		c := &list[i]
		if i > 0 {
			c.Gain = (c.Result.ObjectRatio - list[i-1].Result.ObjectRatio) / (gib(c) - gib(&list[i-1]))
		}
		if h := c.Result.ObjectRatio - first.Result.ObjectRatio - slope*(gib(c)-gib(first)); h > height+1e-12 {
			knee, height = i, h
		}
	}
	list[knee].Knee = true
}
