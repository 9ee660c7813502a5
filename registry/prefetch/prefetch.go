// Package prefetch fetches blobs into a cache before clients ask for them.
//
// It watches a registry ([Prefetcher.Registry]), tells a prefetcher of package
// internal/policy what happens, in the same calls as a simulation does, and has the cache
// do what that one says: warm these layers, the small first; keep those; give up what is
// under way for a client that never came.
//
// A client is who asks: the user's name and the address together, so that neither many
// machines with one account nor many users behind one address pass for one client.
// Requests without an actor (see oci.Actor), which come from this process, count for
// nothing. Asking whether a manifest is there (HEAD) is a check for something new and
// never begins anything.
//
// Whatever goes wrong here costs time and no request: a layer that is not fetched ahead
// is fetched when it is asked for.
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

// Cache is what is filled; *tier.Store is one. All methods may run concurrently, and
// all but Warm return at once.
type Cache interface {
	// Warm fetches an object unless it is held or on its way, and returns when it is
	// there. Who asks for it meanwhile gets it as it comes. ctx ends a fetch for which
	// nobody else waits.
	Warm(ctx context.Context, key string, size int64) error
	// Pin keeps an object until a time if it is here or on its way, which it tells. Unpin
	// ends that, and reports whether there was anything to end.
	Pin(key string, until time.Time) bool
	Unpin(key string) bool
	// Holds tells where an object is.
	Holds(key string) policy.Level
}

// Mode is the prefetcher that decides.
type Mode uint8

// The modes.
const (
	// Manifest fetches the layers of a manifest that a client was given and has not
	// seen before: policy.Manifests.
	Manifest Mode = iota
	// Algorithm1 fetches what was pushed lately to a repository from which a client
	// asks for a manifest: policy.Algorithm1, that of FAST'18.
	Algorithm1
)

// Options of New. Key is needed.
type Options struct {
	// Mode decides what to fetch. Default Manifest.
	Mode Mode
	// Manifests and Algorithm1 are the settings of either.
	Manifests  policy.ManifestsOptions
	Algorithm1 policy.Algorithm1Options
	// Rate is how many bytes a second may be fetched ahead with Algorithm1, Burst how
	// many at once; what is above waits. Default 0: no limit. Manifests has its own.
	Rate, Burst int64
	// Parallel is how many layers are fetched at once. Default 4.
	Parallel int
	// Small is the size in bytes up to which blobs do not matter, as they are never
	// fetched from the cache. Default 0.
	Small int64
	// Key is the key of a blob's object.
	Key func(d oci.Digest) string
	// Manifest reads a manifest of a repository, for the one of an index that a client
	// will ask for. Default: its layers wait until the client does.
	Manifest func(ctx context.Context, repo string, d oci.Digest) ([]byte, error)
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Logger; default slog.Default.
	Logger *slog.Logger
}

const (
	// maxQueued bounds the layers that wait to be fetched. Beyond it nothing is begun.
	maxQueued = 4096
	// maxLookups bounds the manifests of indexes that wait to be read.
	maxLookups = 256
	// maxNames bounds what is remembered of names, in entries of at most 200 bytes
	// each; see recent.
	maxNames = 1 << 16
	// maxParsed bounds the manifests that are kept parsed, some kilobytes each.
	maxParsed = 2048
)

// Prefetcher fetches ahead. All methods may run concurrently.
type Prefetcher struct {
	cache   Cache
	o       Options
	log     *slog.Logger
	seed    maphash.Seed
	limit   *rate.Limiter // nil without one
	work    chan *job
	lookups chan lookup

	// parsedMu guards parsed. It is held together with no other.
	parsedMu sync.Mutex
	parsed   recent[oci.Digest, *contents]

	// mu guards all below. It is held for no I/O but what the cache does to give up room;
	// the cache's own locks come after it.
	mu  sync.Mutex
	now time.Time // of the last event: the policies' time never goes back
	m   *policy.Manifests
	a   *policy.Algorithm1
	// fetched is what m or a counts as fetched ahead.
	fetched *policy.Prefetched
	// jobs are what the policy counts as fetched ahead.
	jobs map[policy.Key]*job
	pins map[policy.Key]*pin
	// names are the digests of layers that may be fetched later: that were pushed lately,
	// for Algorithm1, or are large, of a manifest that a client was given lately.
	names recent[policy.Key, oci.Digest]
	// platforms are those of the manifests in indexes that were given to clients,
	// pulls the platform that each client pulled last.
	platforms recent[oci.Digest, string]
	pulls     recent[uint64, string]
	stats     Stats
}

// pin counts the manifests that keep a layer in the cache.
type pin struct {
	key   string
	count int
}

// lookup is a manifest of an index whose layers a client will ask for.
type lookup struct {
	repo   string
	client uint64
	digest oci.Digest
}

// New returns a prefetcher for a cache. Until Run runs it only collects.
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
			a.MaxEntries = maxNames // more of them have no name here
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

// Run fetches until ctx ends, and returns when nothing is under way any more.
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

// advance ends what has had its time.
func (p *Prefetcher) advance() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.time(); p.a != nil {
		p.a.Advance(now)
	} else {
		p.follow(p.m.Advance(now), nil)
	}
}

// time is the clock's, but never before the last one. mu is held.
func (p *Prefetcher) time() time.Time {
	if now := p.o.Clock(); now.After(p.now) {
		p.now = now
	}
	return p.now
}

// clientOf names who makes a request; ok is false for this process.
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

// GetManifest notes that a client was given a manifest.
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

// given plans for the layers of a manifest. mu is held.
func (p *Prefetcher) given(repo string, client uint64, d oci.Digest, c *contents) {
	held := func(k policy.Key) bool {
		d, ok := c.digest(k)
		return ok && p.cache.Holds(p.o.Key(d)) != policy.Nowhere
	}
	p.follow(p.m.GetManifest(p.time(), p.repo(repo), client, keyOf(d), c.layers, held), c)
}

// givenIndex has the manifest of an index read that the client will ask for, if it is
// known which platform it pulls. mu is held.
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
		default: // its layers wait until the client asks for it
		}
		return
	}
}

// lookUpAll reads the manifests of indexes until ctx ends.
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
	const patience = 10 * time.Second // the client will have asked by then
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := p.o.Manifest(ctx, l.repo, l.digest)
	if err != nil { // the index may name what is not here
		p.log.Debug("read a manifest ahead", "repo", l.repo, "digest", l.digest, "err", err)
		return
	}
	c := p.contents(l.digest, b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given(l.repo, l.client, l.digest, c)
}

// GetBlob notes that a client asks for a blob, or for its beginning.
func (p *Prefetcher) GetBlob(ctx context.Context, repo string, d oci.Digest, size int64) {
	client, ok := p.clientOf(ctx)
	if !ok || size <= p.o.Small && p.m == nil {
		return
	}
	k := keyOf(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.time()
	if size <= p.o.Small { // most often the configuration, with which a pull begins
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

// follow does what a plan says; c is the manifest that the plan is about, if there is
// one. What is to be dropped dropped tells already. mu is held.
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
