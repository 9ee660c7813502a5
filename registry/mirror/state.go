package mirror

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/mirror/upstream"
)

// contentKey is a tag or digest in a repository.
type contentKey struct{ repo, ref string }

// maxKeys bounds each table of facts about contents. That is at most about 25 MB, and
// only if so many contents are requested within the lifetime of an entry.
const maxKeys = 100_000

// most returns the largest number of keys of a table. There may be many registries that
// are not listed, so their tables together are as large as one table of a listed
// registry.
func most(few bool) int {
	if few {
		return maxKeys / anyMost
	}
	return maxKeys
}

// tagState is what is known about a tag.
type tagState struct {
	// digest is the last digest that the upstream gave for the tag.
	digest oci.Digest
	// confirmed is when the upstream gave it.
	confirmed time.Time
	// until is when the upstream is asked again.
	until time.Time
	// stale says that the upstream failed to confirm the tag.
	stale bool
}

// tags remembers when tags were last confirmed. The zero value is ready.
type tags struct {
	few   bool // see most
	mu    sync.RWMutex
	known map[contentKey]tagState
}

func (t *tags) get(repo, tag string) (tagState, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	st, ok := t.known[contentKey{repo, tag}]
	return st, ok
}

func (t *tags) set(repo, tag string, st tagState, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = map[contentKey]tagState{}
	}
	if len(t.known) >= most(t.few) {
		for k, old := range t.known {
			if !now.Before(old.until) {
				delete(t.known, k)
			}
		}
		if len(t.known) >= most(t.few) { // a dropped entry costs one question to the upstream
			clear(t.known)
		}
	}
	t.known[contentKey{repo, tag}] = st
}

func (t *tags) drop(repo, tag string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, contentKey{repo, tag})
}

// negatives remembers what the upstream refused. The zero value is ready.
type negatives struct {
	few   bool         // see most
	count atomic.Int64 // entries in known; mostly 0, and then nobody waits for the lock
	mu    sync.RWMutex
	known map[contentKey]negative
}

type negative struct {
	err   error
	until time.Time
}

func (n *negatives) get(repo, ref string, now time.Time) error {
	if n.count.Load() == 0 {
		return nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if e, ok := n.known[contentKey{repo, ref}]; ok && now.Before(e.until) {
		return e.err
	}
	return nil
}

func (n *negatives) set(repo, ref string, err error, now time.Time, ttl time.Duration) {
	if ttl <= 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[contentKey]negative{}
	}
	if len(n.known) >= most(n.few) {
		clear(n.known)
	}
	n.known[contentKey{repo, ref}] = negative{err, now.Add(ttl)}
	n.count.Store(int64(len(n.known)))
}

func (n *negatives) drop(repo, ref string) {
	if n.count.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, contentKey{repo, ref})
	n.count.Store(int64(len(n.known)))
}

// aging is a table of bounded size that forgets the entries that were set longest ago.
// The zero value is ready.
type aging[K comparable, V any] struct {
	few       bool // see most
	mu        sync.Mutex
	now, past map[K]V
}

func (a *aging[K, V]) set(k K, v V) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now == nil || len(a.now) >= most(a.few)/2 {
		a.past, a.now = a.now, map[K]V{}
	}
	a.now[k] = v
}

func (a *aging[K, V]) get(k K) (V, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, ok := a.now[k]
	if !ok {
		v, ok = a.past[k]
	}
	return v, ok
}

// recent remembers the contents that were stored a moment ago. A caller that found one of
// them missing in the store looks there again, because it may have come since. The zero
// value is ready.
type recent struct {
	mu    sync.Mutex
	added map[contentKey]time.Time
	ring  [4096]contentKey
	next  int
}

// recentFor is longer than any caller takes between asking the store and asking recent.
const recentFor = 2 * time.Second

func (r *recent) add(k contentKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.added == nil {
		r.added = make(map[contentKey]time.Time, len(r.ring))
	}
	if _, ok := r.added[k]; !ok {
		delete(r.added, r.ring[r.next])
		r.ring[r.next] = k
		r.next = (r.next + 1) % len(r.ring)
	}
	r.added[k] = time.Now()
}

func (r *recent) has(k contentKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.added[k]
	return ok && time.Since(at) < recentFor
}

// pending holds the manifests that clients were given and that are still being stored.
// The zero value is ready.
type pending struct {
	count atomic.Int64
	mu    sync.RWMutex
	puts  map[contentKey]*put
}

// put is a manifest that is being stored.
type put struct {
	m     *oci.Manifest
	users int           // the manifest may be put under several tags, one after the other
	done  chan struct{} // closed when the manifest is stored, or cannot be
}

func (p *pending) get(repo string, d oci.Digest) *oci.Manifest {
	if p.count.Load() == 0 {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if e := p.puts[contentKey{repo, string(d)}]; e != nil {
		return e.m
	}
	return nil
}

func (p *pending) add(repo string, m *oci.Manifest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.puts == nil {
		p.puts = map[contentKey]*put{}
	}
	k := contentKey{repo, string(m.Digest)}
	if p.puts[k] == nil {
		p.puts[k] = &put{m: m, done: make(chan struct{})}
		p.count.Add(1)
	}
	p.puts[k].users++
}

func (p *pending) remove(repo string, d oci.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := contentKey{repo, string(d)}
	e := p.puts[k]
	if e.users--; e.users == 0 {
		delete(p.puts, k)
		p.count.Add(-1)
		close(e.done)
	}
}

// settle waits until those manifests of a repository that are being stored are stored.
func (p *pending) settle(ctx context.Context, repo string) error {
	var wait []<-chan struct{}
	p.mu.RLock()
	for k, e := range p.puts {
		if k.repo == repo {
			wait = append(wait, e.done)
		}
	}
	p.mu.RUnlock()
	for _, done := range wait {
		if err := upstream.Await(ctx, done); err != nil {
			return err
		}
	}
	return nil
}

// gate makes those who store something wait a moment for each other. The store then
// records what comes at the same time in one transaction. No client waits for the content
// to become durable. The zero value is ready.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: nobody waits
}

// gateTime is how long the gate stays shut. In that time an image of a few small blobs is
// pulled as a whole, so it takes one transaction and not eight.
const gateTime = 25 * time.Millisecond

// pass waits until the gate opens.
func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	if g.open == nil {
		g.open = make(chan struct{})
		time.AfterFunc(gateTime, g.unlock)
	}
	open := g.open
	g.mu.Unlock()
	_ = upstream.Await(ctx, open) // when ctx ends there is nothing more to wait for
}

// unlock opens the gate for those who wait.
func (g *gate) unlock() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != nil {
		close(g.open)
		g.open = nil
	}
}

// flights lets all who ask the same question at the same time wait for one answer. The
// zero value is ready.
type flights struct {
	mu    sync.Mutex
	under map[flightID]*flight
}

// flightKey is a question about a content.
type flightKey struct {
	what byte
	contentKey
}

// flightID tells flights apart.
type flightID struct {
	flightKey
	// way names the mirrors through which the question came. Questions that came on
	// another way have a flight of their own: in a ring of mirrors, a flight may wait for
	// the answer to a question that came back. A flight waits for flights with longer ways
	// only, so none waits for itself.
	way string
}

// ringPatience is how long a question that came through other mirrors waits for what is
// under way already. Mostly that brings the answer, and upstreams are asked once.
const ringPatience = 300 * time.Millisecond

type flight struct {
	done chan struct{}
	m    *oci.Manifest
	err  error
}

// doneSoon waits for a moment.
func doneSoon(ctx context.Context, done <-chan struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, ringPatience)
	defer cancel()
	return upstream.Await(ctx, done) == nil
}

// fly returns the answer of the function ask. That function runs once in the background
// for all callers with the same key, and does not end when a client leaves. began reports
// whether ask was started for this caller.
func (m *Registry) fly(ctx context.Context, k flightKey, ask func(ctx context.Context) (*oci.Manifest, error)) (mf *oci.Manifest, began bool, err error) {
	fs, id := &m.flights, flightID{flightKey: k}
	fs.mu.Lock()
	if way := strings.Join(route.From(ctx), ","); way != "" {
		first := fs.under[id]
		fs.mu.Unlock()
		if first != nil && doneSoon(ctx, first.done) {
			return first.m, false, onward(ctx, first.err)
		}
		id.way = way
		fs.mu.Lock()
	}
	f := fs.under[id]
	if f == nil {
		began = true
		f = &flight{done: make(chan struct{})}
		if !m.spawn(func() {
			f.m, f.err = ask(m.self.On(m.ctx, route.From(ctx)))
			fs.mu.Lock()
			delete(fs.under, id)
			fs.mu.Unlock()
			close(f.done)
		}) {
			fs.mu.Unlock()
			return nil, false, fill.ErrClosed()
		}
		if fs.under == nil {
			fs.under = map[flightID]*flight{}
		}
		fs.under[id] = f
	}
	fs.mu.Unlock()
	if err := upstream.Await(ctx, f.done); err != nil {
		return nil, began, err
	}
	if f.err != nil && m.ctx.Err() != nil {
		return nil, began, fill.ErrClosed()
	}
	return f.m, began, onward(ctx, f.err)
}

// onward returns the error for the client of ctx.
func onward(ctx context.Context, err error) error {
	if len(route.From(ctx)) == 0 {
		return err
	}
	return upstream.Onward(err)
}
