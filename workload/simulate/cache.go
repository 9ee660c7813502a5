package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/internal/policy"
)

// These are the names of the bounds in CacheConfig.
const (
	Belady     = "belady"
	BeladySize = "belady-size"
)

// Policies returns the names of all policies that can be simulated.
func Policies() []string { return append(policy.Names(), Belady, BeladySize) }

// By says to which shard a request goes.
type By uint8

// These are the ways to choose a shard.
const (
	// ByHost chooses the server that answered in the trace.
	ByHost By = iota
	// ByRandom chooses any: a load balancer that knows nothing.
	ByRandom
	// ByDigest chooses one shard for each layer: consistent hashing.
	ByDigest
)

// ParseBy returns a way to choose a shard by its name.
func ParseBy(s string) (By, error) {
	switch s {
	case "", "host":
		return ByHost, nil
	case "random":
		return ByRandom, nil
	case "digest":
		return ByDigest, nil
	}
	return 0, fmt.Errorf("no way to choose a shard is called %q; there are host, random and digest", s)
}

// String returns the way's name.
func (b By) String() string { return [...]string{"host", "random", "digest"}[b] }

// MarshalText writes the name.
func (b By) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// CacheConfig is a cache to simulate. Sizes are totals over all shards.
type CacheConfig struct {
	// Policy is the policy of the memory; default lru. A bound has one shard and a single
	// level, as large as memory and SSD together. exec:PROGRAM is a program that decides,
	// one for each shard: see docs/simulation.md.
	Policy    string `json:"policy"`
	SSDPolicy string `json:"ssd_policy"`
	// RAM and SSD are the sizes of memory and SSD in bytes. If SSD is 0, there is none.
	RAM int64 `json:"ram"`
	SSD int64 `json:"ssd"`
	// Split is the size in bytes at and above which a layer never goes into memory; 0
	// means none.
	Split int64 `json:"split"`
	// Admission is the admission to the SSD.
	Admission policy.Admission `json:"admission"`
	// WriteRate and WriteBurst limit the writes to the SSD, see
	// [policy.TwoLevelOptions].
	WriteRate  int64 `json:"write_rate"`
	WriteBurst int64 `json:"write_burst"`
	// Shards is the number of caches that share nothing; default 1. By says to which of
	// them a request goes.
	Shards int `json:"shards"`
	By     By  `json:"by"`
	// Seed is the seed of all that is random.
	Seed uint64 `json:"seed"`
}

// CacheResult is how a cache would have performed. Ratios are shares of the requests for
// layers. Without requests they are 0.
type CacheResult struct {
	Config CacheConfig `json:"config"`

	Requests int64 `json:"requests"`
	Hits     int64 `json:"hits"`
	RAMHits  int64 `json:"ram_hits"`
	Bytes    int64 `json:"bytes"`
	HitBytes int64 `json:"hit_bytes"`
	// ObjectRatio and ByteRatio are the hits in either level, RAMRatio the hits in
	// memory, as shares of all requests.
	ObjectRatio float64 `json:"object_ratio"`
	ByteRatio   float64 `json:"byte_ratio"`
	RAMRatio    float64 `json:"ram_ratio"`
	// RAMWarm is RAMRatio counted from the first eviction from memory. CombinedWarm is
	// ObjectRatio counted from the first eviction from the SSD, or from memory without an
	// SSD. FAST'18 counts so. Both exclude the time in which the cache fills.
	RAMWarm      float64 `json:"ram_warm"`
	CombinedWarm float64 `json:"combined_warm"`
	// NotCompulsory is the hits over the requests that are not the first for their layer.
	// A cache without limit reaches 1.
	NotCompulsory float64 `json:"not_compulsory"`
	// BackendBytes is how many bytes had to be fetched.
	BackendBytes int64 `json:"backend_bytes"`
	// SSDWriteBytes is what was written to the SSD.
	SSDWriteBytes int64 `json:"ssd_write_bytes"`
	RAMEvictions  int64 `json:"ram_evictions"`
	SSDEvictions  int64 `json:"ssd_evictions"`
	// RAMNeverEvicted reports whether nothing had to leave memory; then RAMWarm is not
	// defined. SSDNeverEvicted says the same of the SSD and CombinedWarm.
	RAMNeverEvicted bool `json:"ram_never_evicted"`
	SSDNeverEvicted bool `json:"ssd_never_evicted"`
}

// NeverFull reports whether nothing had to leave the last level; then CombinedWarm is not
// defined.
func (c *CacheResult) NeverFull() bool {
	if c.Config.SSD == 0 || c.Config.isBound() {
		return c.RAMNeverEvicted
	}
	return c.SSDNeverEvicted
}

// RunOptions are settings of a simulation. The zero value works.
type RunOptions struct {
	// Workers is how many configurations run at once; default: the number of cores.
	Workers int
	// Progress, if not nil, is called with the number of simulated requests and their
	// total, over all configurations. Several goroutines call it.
	Progress func(done, total int64)
}

// Caches simulates caches over the same requests and returns a result for each
// configuration, in their order.
func Caches(ctx context.Context, r *Requests, configs []CacheConfig, o *RunOptions) ([]CacheResult, error) {
	return caches(ctx, r, configs, o, func(int) observer { return nil })
}

// observer learns the outcome of request i for a layer: where the layer was found.
type observer func(i int, at policy.Level)

// caches is like Caches, with an observer for each configuration, which may be nil. It asks for
// an observer when the configuration's turn has come.
func caches(ctx context.Context, r *Requests, configs []CacheConfig, o *RunOptions, watch func(config int) observer) ([]CacheResult, error) {
	if o == nil {
		o = &RunOptions{}
	}
	var next []int64
	for _, c := range configs {
		if err := c.check(r); err != nil {
			return nil, err
		}
		if next == nil && c.isBound() {
			next = nextRequests(r)
		}
	}
	first := firstRequests(r)
	results := make([]CacheResult, len(configs))
	total := int64(r.Len()) * int64(len(configs))
	tick := ticker(ctx, total, o.Progress)
	err := parallel(o.Workers, len(configs), func(i int) error {
		run, err := newCacheRun(ctx, r, configs[i], next)
		if err != nil {
			return err
		}
		defer run.close()
		run.watch = watch(i)
		if err := run.all(tick); err != nil {
			return err
		}
		results[i] = run.result(first)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// ticker returns a function that any goroutine calls after every few requests. It counts
// them and reports whether to go on.
func ticker(ctx context.Context, total int64, progress func(done, total int64)) func(n int) error {
	var mu sync.Mutex
	var done int64
	return func(n int) error {
		mu.Lock()
		defer mu.Unlock()
		if done += int64(n); progress != nil {
			progress(done, total)
		}
		return ctx.Err()
	}
}

// parallel runs n jobs on some workers and returns the first error.
func parallel(workers, n int, job func(i int) error) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var wg sync.WaitGroup
	var at atomic.Int64
	errs := make([]error, min(workers, n))
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(at.Add(1)) - 1
				if i >= n {
					return
				}
				errs[w] = job(i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// maxShards bounds the memory of a simulation. W-TinyLFU and LHD take 4 MB each while
// they are empty.
const maxShards = 256

func (c *CacheConfig) isBound() bool { return c.Policy == Belady || c.Policy == BeladySize }

func (c *CacheConfig) check(r *Requests) error {
	for _, name := range []string{c.Policy, c.SSDPolicy} {
		if _, ok := external(name); ok && name == c.Policy && name != c.SSDPolicy {
			continue
		}
		if !slices.Contains(Policies(), name) && (name != "" || c.Policy == "") {
			return fmt.Errorf("no policy is called %q; there are %v", name, Policies())
		}
	}
	switch {
	case c.SSDPolicy == Belady || c.SSDPolicy == BeladySize:
		return fmt.Errorf("%s is not a policy for an SSD: it is a bound for both levels together", c.SSDPolicy)
	case c.RAM <= 0 || c.SSD < 0:
		return fmt.Errorf("a cache of %d bytes and %d on an SSD cannot be simulated", c.RAM, c.SSD)
	case c.Shards < 0 || c.Shards > maxShards:
		return fmt.Errorf("there are no %d shards; up to %d can be simulated", c.Shards, maxShards)
	case c.RAM < int64(c.Shards):
		return fmt.Errorf("nothing fits into %d shards of %d bytes", c.Shards, c.RAM)
	case c.Shards > 1 && c.By == ByHost && r.Host == nil:
		return fmt.Errorf("shards by host need a trace that says which server answered")
	case c.WriteRate > 0 && c.WriteBurst <= 0:
		return fmt.Errorf("a write budget of %d bytes a second needs a burst: what does not fit into it is never written", c.WriteRate)
	case c.WriteRate > 0 && r.Time == nil:
		return fmt.Errorf("a write budget needs a trace with times")
	}
	return nil
}

// firstRequests returns the number of requests that are the first for their layer.
func firstRequests(r *Requests) int64 {
	seen := make([]bool, len(r.Size))
	var n int64
	for i, l := range r.Layer {
		if !seen[l] && (r.Write == nil || !r.Write[i]) {
			n++
		}
		seen[l] = true
	}
	return n
}

// cacheRun is the simulation of one configuration.
type cacheRun struct {
	r      *Requests
	c      CacheConfig
	shards []*shard
	rnd    *rand.Rand
	next   []int64
	now    time.Time
	watch  observer
	counts CacheResult
	// programs are the policies that are programs.
	programs []*externalPolicy
}

// shard is one cache, and what is counted from its first evictions on.
type shard struct {
	cache             *policy.TwoLevel
	bound             bound
	ramWarm, ramHits  int64
	allWarm, warmHits int64
}

func newCacheRun(ctx context.Context, r *Requests, c CacheConfig, next []int64) (*cacheRun, error) {
	run := &cacheRun{r: r, c: c, next: next, rnd: rand.New(rand.NewPCG(c.Seed, 0x53686172))}
	n := max(1, c.Shards)
	if c.isBound() {
		n = 1
	}
	for i := range n {
		s, err := run.newShard(ctx, n, c.Seed+uint64(i))
		if err != nil {
			run.close()
			return nil, err
		}
		run.shards = append(run.shards, s)
	}
	return run, nil
}

// close ends the programs.
func (run *cacheRun) close() {
	for _, p := range run.programs {
		p.process.Close()
	}
}

// newShard makes one of n shards. The names of the policies have been checked.
func (run *cacheRun) newShard(ctx context.Context, n int, seed uint64) (*shard, error) {
	c, s := run.c, &shard{}
	ram, ssd, split := c.RAM/int64(n), c.SSD/int64(n), c.Split
	var top policy.Policy
	switch c.Policy {
	case Belady:
		s.bound = &belady{}
	case BeladySize:
		s.bound = newBeladySize(seed)
	default:
		var err error
		if top, err = run.policy(ctx, seed); err != nil {
			return nil, err
		}
	}
	if s.bound != nil {
		top, ram, ssd, split = s.bound, ram+ssd, 0, 0
	}
	var bottom policy.Policy = policy.NewLRU()
	if c.SSDPolicy != "" {
		bottom, _ = policy.New(c.SSDPolicy, seed+1)
	}
	o := policy.TwoLevelOptions{
		Split: split, Admission: c.Admission,
		WriteRate: c.WriteRate / int64(n), WriteBurst: c.WriteBurst / int64(n),
	}
	if o.WriteRate > 0 {
		o.Now = func() time.Time { return run.now }
	}
	s.cache = policy.NewTwoLevel(ram, top, ssd, bottom, &o)
	return s, nil
}

// policy returns a policy of the memory.
func (run *cacheRun) policy(ctx context.Context, seed uint64) (policy.Policy, error) {
	program, ok := external(run.c.Policy)
	if !ok {
		return policy.New(run.c.Policy, seed)
	}
	p, err := newExternal(ctx, program)
	if err == nil {
		run.programs = append(run.programs, p)
	}
	return p, err
}

// tickEvery is how many requests are simulated between two checks of the context.
const tickEvery = 1 << 16

func (run *cacheRun) all(tick func(int) error) error {
	n := run.r.Len()
	for from := 0; from < n; from += tickEvery {
		to := min(n, from+tickEvery)
		for i := from; i < to; i++ {
			run.request(i)
		}
		for _, p := range run.programs {
			if err := p.process.Err(); err != nil {
				return err
			}
		}
		if err := tick(to - from); err != nil {
			return err
		}
	}
	return nil
}

func (run *cacheRun) request(i int) {
	r := run.r
	layer := r.Layer[i]
	size := r.Size[layer]
	key := policy.NumberKey(uint64(layer) + 1)
	s := run.shards[run.shard(i)]
	if run.c.WriteRate > 0 {
		run.now = time.UnixMicro(r.Time[i])
	}
	if s.bound != nil {
		s.bound.at(int64(i), run.next[i])
	}
	write := r.Write != nil && r.Write[i]
	at := s.cache.Get(key)
	if at == policy.Nowhere {
		s.cache.Add(key, size, 1)
	} else if s.bound != nil && !s.bound.keeps() && run.next[i] == never {
		s.cache.Remove(key)
	}
	if write {
		return
	}
	run.count(s, size, at)
	if run.watch != nil {
		run.watch(i, at)
	}
}

// count adds a request for a layer to the counts.
func (run *cacheRun) count(s *shard, size int64, at policy.Level) {
	c := &run.counts
	c.Requests++
	c.Bytes += size
	if at != policy.Nowhere {
		c.Hits++
		c.HitBytes += size
	}
	if at == policy.RAM {
		c.RAMHits++
	}
	st := s.cache.Stats()
	if st.RAMEvictions > 0 {
		s.ramWarm++
		if at == policy.RAM {
			s.ramHits++
		}
	}
	if run.fullEvictions(st) > 0 {
		s.allWarm++
		if at != policy.Nowhere {
			s.warmHits++
		}
	}
}

// fullEvictions returns how many entries the last level has evicted.
func (run *cacheRun) fullEvictions(st policy.TwoLevelStats) int64 {
	if run.c.SSD > 0 && !run.c.isBound() {
		return st.SSDEvictions
	}
	return st.RAMEvictions
}

// shard returns the number of the shard to which request i goes.
func (run *cacheRun) shard(i int) int {
	n := uint64(len(run.shards))
	switch {
	case n == 1:
		return 0
	case run.c.By == ByRandom:
		return int(run.rnd.Uint64N(n))
	case run.c.By == ByDigest:
		// This is the upper half of Fibonacci hashing.
		return int((uint64(run.r.Layer[i]) * 0x9e3779b97f4a7c15 >> 32) % n)
	}
	return int(uint64(run.r.Host[i]) % n)
}

func (run *cacheRun) result(first int64) CacheResult {
	c := run.counts
	c.Config = run.c
	var ramWarm, ramHits, allWarm, warmHits int64
	c.RAMNeverEvicted, c.SSDNeverEvicted = true, true
	for _, s := range run.shards {
		st := s.cache.Stats()
		c.RAMEvictions += st.RAMEvictions
		c.SSDEvictions += st.SSDEvictions
		c.SSDWriteBytes += st.SSDBytes
		c.RAMNeverEvicted = c.RAMNeverEvicted && st.RAMEvictions == 0
		c.SSDNeverEvicted = c.SSDNeverEvicted && st.SSDEvictions == 0
		ramWarm, ramHits = ramWarm+s.ramWarm, ramHits+s.ramHits
		allWarm, warmHits = allWarm+s.allWarm, warmHits+s.warmHits
	}
	c.ObjectRatio = ratio(c.Hits, c.Requests)
	c.ByteRatio = ratio(c.HitBytes, c.Bytes)
	c.RAMRatio = ratio(c.RAMHits, c.Requests)
	c.RAMWarm = ratio(ramHits, ramWarm)
	c.CombinedWarm = ratio(warmHits, allWarm)
	c.NotCompulsory = ratio(c.Hits, c.Requests-first)
	c.BackendBytes = c.Bytes - c.HitBytes
	return c
}

func ratio(a, b int64) float64 {
	if b <= 0 {
		return 0
	}
	return float64(a) / float64(b)
}
