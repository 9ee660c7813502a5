// Package prefetch fetches blobs into a cache before clients ask for them.
//
// It watches a registry ([Prefetcher.Registry]) and reports events to a prefetcher of
// package internal/policy, with the same calls as a simulation. Then it makes the cache
// do what the prefetcher decides: warm some layers, the small ones first; keep others;
// give up fetches for a client that never came.
//
// A client is identified by the user's name and the address together. So many machines
// with one account do not count as one client, and neither do many users behind one
// address. Requests without an actor (see oci.Actor) come from this process and do not
// count. A request that asks whether a manifest is there (HEAD) checks for something new,
// and never starts a fetch.
//
// Failures here cost time but do not make requests fail: a layer that is not fetched
// ahead is fetched when it is requested.
package prefetch

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
)

// Cache is the cache to fill, such as a *tier.Store. All methods may run concurrently,
// and all except Warm return at once.
type Cache interface {
	// Warm fetches an object unless it is held or on its way, and returns when the object
	// is there. Requests for the object meanwhile get its bytes as they come. When ctx
	// ends, the fetch ends unless somebody else waits for it.
	Warm(ctx context.Context, key string, size int64) error
	// Pin keeps an object until a given time, and reports whether the object is here or
	// on its way. Unpin ends a pin, and reports whether there was one.
	Pin(key string, until time.Time) bool
	Unpin(key string) bool
	// Holds returns the level that an object is at.
	Holds(key string) policy.Level
}

// Mode is the prefetcher that makes the decisions.
type Mode uint8

// The modes.
const (
	// Manifest fetches the layers of a manifest that a client got and had not seen
	// before. It is policy.Manifests.
	Manifest Mode = iota
	// Algorithm1 fetches what was recently pushed to a repository when a client requests
	// a manifest of that repository. It is policy.Algorithm1, the algorithm of FAST'18.
	Algorithm1
)

// Options are the options of New. Key is required.
type Options struct {
	// Mode decides what to fetch. Default Manifest.
	Mode Mode
	// Manifests and Algorithm1 are the settings of the two prefetchers.
	Manifests  policy.ManifestsOptions
	Algorithm1 policy.Algorithm1Options
	// Rate is how many bytes per second may be fetched ahead with Algorithm1, and Burst
	// is how many may be fetched at once. Further fetches wait. Default 0: no limit.
	// Manifests has a separate limit.
	Rate, Burst int64
	// Parallel is how many layers are fetched at once. Default 4.
	Parallel int
	// Small is the size in bytes up to which blobs do not matter, because they are never
	// fetched from the cache. Default 0.
	Small int64
	// Key is the key of a blob's object.
	Key func(d oci.Digest) string
	// Manifest reads a manifest of a repository. It is used for the manifest of an index
	// that a client will request. By default its layers wait until the client requests
	// it.
	Manifest func(ctx context.Context, repo string, d oci.Digest) ([]byte, error)
	// Clock returns the time; default time.Now.
	Clock func() time.Time
	// Logger; default slog.Default.
	Logger *slog.Logger
}

const (
	// maxQueued bounds the layers that wait to be fetched. Further layers are not fetched
	// ahead.
	maxQueued = 4096
	// maxLookups bounds the manifests of indexes that wait to be read.
	maxLookups = 256
	// maxNames bounds the remembered names, in entries of at most 200 bytes each; see
	// recent.
	maxNames = 1 << 16
	// maxParsed bounds the parsed manifests that are kept. Each takes some kilobytes.
	maxParsed = 2048
)

// Prefetcher fetches blobs ahead of requests. All methods may run concurrently.
type Prefetcher struct {
	cache   Cache
	o       Options
	log     *slog.Logger
	seed    maphash.Seed
	limit   *rate.Limiter // nil if there is none
	work    chan *job
	lookups chan lookup

	// parsedMu guards parsed. It is not held together with any other lock.
	parsedMu sync.Mutex
	parsed   recent[oci.Digest, *contents]

	// mu guards everything below. It is not held during I/O, except for what the cache
	// does to free room. The cache's own locks are locked after it.
	mu  sync.Mutex
	now time.Time // time of the last event, because the policies' time must not go back
	m   *policy.Manifests
	a   *policy.Algorithm1
	// fetched is what m or a counts as fetched ahead.
	fetched *policy.Prefetched
	// jobs are the layers that the policy counts as fetched ahead.
	jobs map[policy.Key]*job
	pins map[policy.Key]*pin
	// names are the digests of layers that may be fetched later. For Algorithm1 these are
	// layers that were pushed recently. Otherwise they are large layers of a manifest
	// that a client got recently.
	names recent[policy.Key, oci.Digest]
	// platforms are the platforms of the manifests in indexes that clients got. pulls has
	// the platform that each client pulled last.
	platforms recent[oci.Digest, string]
	pulls     recent[uint64, string]
	stats     Stats
}

// pin counts the manifests that keep a layer in the cache.
type pin struct {
	key   string
	count int
}

// lookup is a manifest of an index, whose layers a client will request.
type lookup struct {
	repo   string
	client uint64
	digest oci.Digest
}

// New returns a prefetcher for a cache. Until Run is called it only collects.
func New(cache Cache, o Options) (*Prefetcher, error) {
	if cache == nil || o.Key == nil {
		return nil, errors.New("prefetching needs a cache and the keys of its objects")
	}
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	p := &Prefetcher{
		cache: cache, o: o, log: o.Logger, seed: maphash.MakeSeed(),
		work: make(chan *job, maxQueued), lookups: make(chan lookup, maxLookups),
		jobs: map[policy.Key]*job{}, pins: map[policy.Key]*pin{},
		parsed: newRecent[oci.Digest, *contents](maxParsed), names: newRecent[policy.Key, oci.Digest](maxNames),
		platforms: newRecent[oci.Digest, string](maxNames), pulls: newRecent[uint64, string](maxNames),
	}
	if o.Mode == Algorithm1 {
		a := o.Algorithm1
		if a.MaxEntries <= 0 {
			a.MaxEntries = maxNames // further entries have no name here
		}
		p.a = policy.NewAlgorithm1(&a)
		p.fetched = p.a.Prefetched()
		if o.Rate > 0 {
			p.limit = rate.NewLimiter(rate.Limit(o.Rate), int(max(o.Burst, 1)))
		}
	} else {
		p.m = policy.NewManifests(&o.Manifests)
		p.fetched = p.m.Prefetched()
	}
	p.fetched.OnDrop = p.dropped
	return p, nil
}

// Run fetches until ctx ends, and returns when no fetch is in progress any more.
func (p *Prefetcher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range p.o.Parallel {
		wg.Go(func() { p.fetchAll(ctx) })
	}
	wg.Go(func() { p.lookUpAll(ctx) })
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return ctx.Err()
		case <-tick.C:
			p.advance()
		}
	}
}

// advance ends what has expired.
func (p *Prefetcher) advance() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.time(); p.a != nil {
		p.a.Advance(now)
	} else {
		p.follow(p.m.Advance(now), nil)
	}
}

// time returns the clock's time, but never a time before the last one. mu is held.
func (p *Prefetcher) time() time.Time {
	if now := p.o.Clock(); now.After(p.now) {
		p.now = now
	}
	return p.now
}

// clientOf identifies the client of a request. ok is false for requests of this process.
func (p *Prefetcher) clientOf(ctx context.Context) (client uint64, ok bool) {
	a := oci.ActorFrom(ctx)
	if a == nil {
		return 0, false
	}
	var h maphash.Hash
	h.SetSeed(p.seed)
	h.WriteString(a.Name)
	addr := oci.ClientOf(a.Addr).As16()
	h.Write(addr[:])
	return h.Sum64(), true
}

func (p *Prefetcher) repo(name string) uint64 { return maphash.String(p.seed, name) }

// PutBlob notes that a blob was pushed.
func (p *Prefetcher) PutBlob(ctx context.Context, repo string, d oci.Digest, size int64) {
	client, ok := p.clientOf(ctx)
	if !ok || p.a == nil || size <= p.o.Small {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := policy.Layer{Key: keyOf(d), Size: size}
	p.names.put(l.Key, d)
	p.a.PutLayer(p.time(), p.repo(repo), client, l)
}

// PutManifest notes that a manifest was pushed.
func (p *Prefetcher) PutManifest(ctx context.Context, repo string, d oci.Digest, manifest []byte) {
	if _, ok := p.clientOf(ctx); !ok || p.m == nil {
		return
	}
	c := p.contents(d, manifest)
	if len(c.layers) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.follow(p.m.PutManifest(p.time(), keyOf(d), c.layers), c)
}

// GetManifest notes that a client got a manifest.
func (p *Prefetcher) GetManifest(ctx context.Context, repo string, d oci.Digest, manifest []byte) {
	client, ok := p.clientOf(ctx)
	if !ok {
		return
	}
	var c *contents
	if p.m != nil {
		c = p.contents(d, manifest)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.a != nil:
		p.fetch(p.a.GetManifest(p.time(), p.repo(repo), client), func(k policy.Key) (oci.Digest, bool) { return p.names.get(k) })
	case len(c.children) > 0:
		p.givenIndex(repo, client, c)
	default:
		if platform, ok := p.platforms.get(d); ok {
			p.pulls.put(client, platform)
		}
		p.given(repo, client, d, c)
	}
}

// given plans fetches for the layers of a manifest. mu is held.
func (p *Prefetcher) given(repo string, client uint64, d oci.Digest, c *contents) {
	held := func(k policy.Key) bool {
		d, ok := c.digest(k)
		return ok && p.cache.Holds(p.o.Key(d)) != policy.Nowhere
	}
	p.follow(p.m.GetManifest(p.time(), p.repo(repo), client, keyOf(d), c.layers, held), c)
}

// givenIndex queues a look-up of the manifest of an index that the client will request,
// if the platform that the client pulls is known. mu is held.
func (p *Prefetcher) givenIndex(repo string, client uint64, c *contents) {
	for _, child := range c.children {
		p.platforms.put(child.digest, child.platform)
	}
	platform, ok := p.pulls.get(client)
	if !ok || p.o.Manifest == nil {
		return
	}
	for _, child := range c.children {
		if child.platform != platform {
			continue
		}
		select {
		case p.lookups <- lookup{repo, client, child.digest}:
		default: // the layers wait until the client requests it
		}
		return
	}
}

// lookUpAll reads the queued manifests of indexes until ctx ends.
func (p *Prefetcher) lookUpAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-p.lookups:
			p.lookUp(ctx, l)
		}
	}
}

func (p *Prefetcher) lookUp(ctx context.Context, l lookup) {
	const patience = 10 * time.Second // the client will have requested it by then
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := p.o.Manifest(ctx, l.repo, l.digest)
	if err != nil { // the index may name manifests that are not here
		p.log.Debug("read a manifest ahead", "repo", l.repo, "digest", l.digest, "err", err)
		return
	}
	c := p.contents(l.digest, b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given(l.repo, l.client, l.digest, c)
}

// GetBlob notes that a client requests a blob, or its beginning.
func (p *Prefetcher) GetBlob(ctx context.Context, repo string, d oci.Digest, size int64) {
	client, ok := p.clientOf(ctx)
	if !ok || size <= p.o.Small && p.m == nil {
		return
	}
	k := keyOf(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.time()
	if size <= p.o.Small { // usually the configuration, with which a pull begins
		p.follow(p.m.GetConfig(now, client), nil)
		return
	}
	p.stats.Requests++
	p.taken(p.jobs[k], now)
	if p.a != nil {
		p.a.GetLayer(now, k)
		return
	}
	_, plan := p.m.GetLayer(now, client, k)
	p.follow(plan, nil)
}

// Ahead reports whether a blob is being fetched ahead, so that the cache will soon hold it.
func (p *Prefetcher) Ahead(d oci.Digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[keyOf(d)]
	return j != nil && j.state == running
}

// follow carries out a plan. c is the manifest that the plan is about, if there is one.
// The method dropped already handles the layers to be dropped. mu is held.
func (p *Prefetcher) follow(plan policy.Plan, c *contents) {
	for _, l := range plan.Pin {
		d, ok := c.digest(l.Key)
		if !ok {
			continue
		}
		pn := p.pins[l.Key]
		if pn == nil {
			pn = &pin{key: p.o.Key(d)}
			p.pins[l.Key] = pn
		}
		pn.count++
		p.cache.Pin(pn.key, plan.PinUntil)
	}
	for _, l := range plan.Unpin {
		pn := p.pins[l.Key]
		if pn == nil {
			continue
		}
		if pn.count--; pn.count <= 0 {
			delete(p.pins, l.Key)
			p.cache.Unpin(pn.key)
		}
	}
	for _, l := range plan.Later {
		p.names.put(l.Key, c.digests[l.Key])
	}
	digest := c.digest
	if c == nil {
		digest = p.names.get
	}
	p.fetch(plan.Fetch, digest)
}
