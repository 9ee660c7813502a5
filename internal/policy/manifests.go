package policy

import (
	"container/heap"
	"encoding/binary"
	"time"
)

// ManifestsOptions are the settings of Manifests. The zero value works.
type ManifestsOptions struct {
	// Keep is how long a prefetched layer is kept. Default 10 min.
	Keep time.Duration
	// Forget is how long it is remembered that a client was given a manifest or a layer.
	// Default 24 h.
	Forget time.Duration
	// Cancel is how long a client may take to ask for its first layer. After that, layers
	// that were fetched for it and used by nobody are dropped. Default 60 s.
	Cancel time.Duration
	// Eager is the size in bytes up to which a layer is fetched when a client is given
	// the manifest. Larger layers are fetched when the client asks for a first blob. Most
	// clients that look at a manifest fetch nothing (FAST'18 figure 12), and the few
	// large layers are most of the bytes. Default 0: all layers are fetched at once.
	Eager int64
	// Remember bounds how many pairs of client and manifest, or of client and layer, are
	// remembered. Default 1<<20, about 60 MB. The oldest pair is forgotten first.
	Remember int
	// Rate bounds how many bytes per second are prefetched, and Burst how many at once. A
	// layer that exceeds the budget is not prefetched. Default 0: no limit.
	Rate, Burst int64
	// Precision is the share of prefetched layers that must be used. A repository with a
	// lower share is left alone for Rest. The share is checked after Judge layers were
	// used or dropped. Older layers then fade, so that about the last Judge layers count.
	// Default 0.1 of 32 layers, 1 h. A negative precision switches this off.
	Precision float64
	Judge     int
	Rest      time.Duration
	// Pin is how long the layers of a pushed manifest are pinned, unless PinClients
	// distinct clients have asked for the manifest before. Default 1 h, 16 clients.
	Pin        time.Duration
	PinClients int
}

func (o *ManifestsOptions) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.Keep, 10*time.Minute)
	set(&o.Forget, 24*time.Hour)
	set(&o.Cancel, time.Minute)
	set(&o.Rest, time.Hour)
	set(&o.Pin, time.Hour)
	if o.Remember <= 0 {
		o.Remember = 1 << 20
	}
	if o.Precision == 0 {
		o.Precision = 0.1
	}
	if o.Judge <= 0 {
		o.Judge = 32
	}
	if o.PinClients <= 0 {
		o.PinClients = 16
	}
}

// Manifests is the prefetcher that reads manifests. When a client asks for a manifest
// that it was not given before, it is about to ask for the layers that it does not have.
// Manifests must not be called for a HEAD of a manifest, which is only a check for
// something new. It only decides. Times must not go back.
type Manifests struct {
	o       ManifestsOptions
	given   recentKeys
	fetched Prefetched
	budget  bucket
	// waiting holds the clients that were given a manifest and have not asked for a layer
	// yet.
	waiting map[uint64]*waitingClient
	ends    dueHeap[*waitingClient]
	repos   map[uint64]*repoRecord
	pins    map[Key]*pinnedManifest
	pinEnds dueHeap[*pinnedManifest]
	stats   ManifestsStats
}

// ManifestsStats counts what Manifests decided, in addition to [PrefetchStats].
type ManifestsStats struct {
	// Known counts the requests for manifests that the client had been given before.
	// Cancelled counts the requests that were not followed by a request for a layer.
	// OverBudget counts layers that the budget did not allow. Resting counts the requests
	// in repositories that are left alone.
	Known      int64 `json:"known"`
	Cancelled  int64 `json:"cancelled"`
	OverBudget int64 `json:"over_budget"`
	Resting    int64 `json:"resting"`
}

type waitingClient struct {
	client uint64
	repo   uint64
	layers []Key
	later  []Layer // larger than Eager
	due    time.Time
	place  int
}

func (w *waitingClient) when() time.Time { return w.due }
func (w *waitingClient) at(i int)        { w.place = i }

// repoRecord says how useful prefetching for a repository was recently.
type repoRecord struct {
	used, judged float64
	restsUntil   time.Time
}

type pinnedManifest struct {
	key     Key
	layers  []Layer
	clients map[uint64]struct{}
	due     time.Time
	place   int
}

func (p *pinnedManifest) when() time.Time { return p.due }
func (p *pinnedManifest) at(i int)        { p.place = i }

// maxRepos bounds the known repositories; beyond it, all records of repositories are
// cleared. maxPins bounds the known pushed manifests; beyond it, the pin that ends next
// is removed.
const (
	maxRepos = 1 << 16
	maxPins  = 1 << 16
)

// NewManifests returns an empty prefetcher.
func NewManifests(o *ManifestsOptions) *Manifests {
	m := &Manifests{waiting: map[uint64]*waitingClient{}, repos: map[uint64]*repoRecord{}, pins: map[Key]*pinnedManifest{}}
	if o != nil {
		m.o = *o
	}
	m.o.defaults()
	m.given.limit, m.given.ttl = m.o.Remember, m.o.Forget
	m.budget = bucket{rate: float64(m.o.Rate), burst: float64(m.o.Burst)}
	return m
}

// Prefetched returns the layers that were prefetched and are still kept.
func (m *Manifests) Prefetched() *Prefetched { return &m.fetched }

// Stats returns the counts.
func (m *Manifests) Stats() ManifestsStats { return m.stats }

// Plan says what to do after a request.
type Plan struct {
	// Fetch is what to prefetch, in this order: the smallest first.
	Fetch []Layer
	// Later is what may be fetched when the client asks for a first blob.
	Later []Layer
	// Drop holds prefetched layers that are not needed. Fetches in progress are to be
	// cancelled.
	Drop []Layer
	// Pin is what to keep until PinUntil. Unpin is what need not be kept any longer. A
	// layer in both was pushed again, and is kept.
	Pin, Unpin []Layer
	PinUntil   time.Time
}

// PutManifest notes that a manifest was pushed. Its layers were pushed just before. So
// they are held and need only be kept.
func (m *Manifests) PutManifest(now time.Time, manifest Key, layers []Layer) Plan {
	plan := m.Advance(now)
	if old := m.pins[manifest]; old != nil { // otherwise a caller that counts pins would never reach 0
		plan.Unpin = append(plan.Unpin, m.unpin(old)...)
	}
	if len(m.pinEnds) >= maxPins {
		plan.Unpin = append(plan.Unpin, m.unpin(m.pinEnds[0])...)
	}
	p := &pinnedManifest{key: manifest, layers: layers, due: now.Add(m.o.Pin), clients: map[uint64]struct{}{}}
	m.pins[manifest] = p
	heap.Push(&m.pinEnds, p)
	plan.Pin, plan.PinUntil = layers, p.due
	return plan
}

// GetManifest notes that a client was given a manifest, and plans for its layers. held
// reports whether a layer need not be fetched; if it is nil, no layer is held.
func (m *Manifests) GetManifest(now time.Time, repo, client uint64, manifest Key, layers []Layer, held func(Key) bool) Plan {
	plan := m.Advance(now)
	if p := m.pins[manifest]; p != nil {
		p.clients[client] = struct{}{}
		if len(p.clients) >= m.o.PinClients {
			plan.Unpin = append(plan.Unpin, m.unpin(p)...)
		}
	}
	if m.given.add(pair(client, manifest), now) {
		m.stats.Known++
		return plan
	}
	if !m.trusts(repo, now) {
		m.stats.Resting++
		return plan
	}
	wanted := make([]Layer, 0, len(layers))
	for _, l := range layers {
		if m.given.has(pair(client, l.Key), now) || held != nil && held(l.Key) {
			continue
		}
		wanted = append(wanted, l)
	}
	bySize(wanted)
	m.budget.fill(now)
	w := &waitingClient{client: client, repo: repo, due: now.Add(m.o.Cancel)}
	for _, l := range wanted {
		if m.o.Eager > 0 && l.Size > m.o.Eager {
			w.later = append(w.later, l)
		} else if m.take(now, repo, l) {
			plan.Fetch = append(plan.Fetch, l)
			w.layers = append(w.layers, l.Key)
		}
	}
	plan.Later = w.later
	m.wait(w)
	return plan
}

// take reports whether a layer is to be fetched, which it is if it is not kept yet and
// the budget allows it.
func (m *Manifests) take(now time.Time, repo uint64, l Layer) bool {
	if !m.fetched.Has(l.Key) && m.o.Rate > 0 && !m.budget.take(float64(l.Size)) {
		m.stats.OverBudget++
		return false
	}
	return m.fetched.Add(l, repo, now.Add(m.o.Keep))
}

// wait notes what is cancelled if the client asks for no layer. If the client already
// waits for another manifest, the later time applies to both.
func (m *Manifests) wait(w *waitingClient) {
	if len(w.layers)+len(w.later) == 0 {
		return
	}
	if old := m.waiting[w.client]; old != nil {
		old.layers, old.later, old.repo = append(old.layers, w.layers...), append(old.later, w.later...), w.repo
		old.due = w.due
		heap.Fix(&m.ends, old.place)
		return
	}
	m.waiting[w.client] = w
	heap.Push(&m.ends, w)
}

// GetLayer notes a request for a layer and reports whether the layer was prefetched. It
// plans for the large layers of the manifest that the client was given, except for this
// layer.
func (m *Manifests) GetLayer(now time.Time, client uint64, k Key) (hit bool, plan Plan) {
	plan = m.pulls(now, client, k)
	m.given.add(pair(client, k), now)
	f := m.fetched.index[k]
	if f != nil && !f.used {
		m.judge(f.repo, true)
	}
	return m.fetched.Use(k), plan
}

// GetConfig notes a request for a blob that is not a layer to prefetch, and plans for the
// large layers of the manifest that the client was given.
func (m *Manifests) GetConfig(now time.Time, client uint64) Plan { return m.pulls(now, client, Key{}) }

// pulls notes that a client, after it was given a manifest, really pulls the image. It
// does not plan the layer asked, because the client requests that layer itself.
func (m *Manifests) pulls(now time.Time, client uint64, asked Key) Plan {
	plan := m.Advance(now)
	w := m.waiting[client]
	if w == nil {
		return plan
	}
	delete(m.waiting, client)
	heap.Remove(&m.ends, w.place)
	m.budget.fill(now)
	for _, l := range w.later {
		if l.Key != asked && m.take(now, w.repo, l) {
			plan.Fetch = append(plan.Fetch, l)
		}
	}
	return plan
}

// Advance returns what to drop and unpin because its time has come.
func (m *Manifests) Advance(now time.Time) Plan {
	var plan Plan
	for len(m.ends) > 0 && !m.ends[0].due.After(now) {
		w := heap.Pop(&m.ends).(*waitingClient)
		delete(m.waiting, w.client)
		m.stats.Cancelled++
		for _, k := range w.layers {
			if f := m.fetched.index[k]; f != nil && !f.used {
				m.judge(f.repo, false)
				plan.Drop = append(plan.Drop, f.layer)
				m.fetched.drop(f)
			}
		}
	}
	for len(m.fetched.order) > 0 && !m.fetched.order[0].due.After(now) {
		f := m.fetched.order[0]
		if !f.used {
			m.judge(f.repo, false)
		}
		plan.Drop = append(plan.Drop, f.layer)
		m.fetched.drop(f)
	}
	for len(m.pinEnds) > 0 && !m.pinEnds[0].due.After(now) {
		plan.Unpin = append(plan.Unpin, m.unpin(m.pinEnds[0])...)
	}
	return plan
}

// unpin ends the pin of a manifest and returns its layers. Another manifest may still pin
// some of them; the holder of the pins counts pins.
func (m *Manifests) unpin(p *pinnedManifest) []Layer {
	heap.Remove(&m.pinEnds, p.place)
	delete(m.pins, p.key)
	return p.layers
}

// judge notes whether a layer that was fetched for a repository was used.
func (m *Manifests) judge(repo uint64, used bool) {
	r := m.repos[repo]
	if r == nil {
		if len(m.repos) >= maxRepos {
			clear(m.repos)
		}
		r = &repoRecord{}
		m.repos[repo] = r
	}
	// Old judgements fade, so that the record reflects about Judge layers.
	keep := 1 - 1/float64(m.o.Judge)
	if r.judged >= float64(m.o.Judge) {
		r.used, r.judged = r.used*keep, r.judged*keep
	}
	r.judged++
	if used {
		r.used++
	}
}

// trusts reports whether prefetching for a repository is useful, as far as is known.
func (m *Manifests) trusts(repo uint64, now time.Time) bool {
	r := m.repos[repo]
	if r == nil || m.o.Precision < 0 {
		return true
	}
	if !r.restsUntil.IsZero() {
		if now.Before(r.restsUntil) {
			return false
		}
		*r = repoRecord{} // a new chance
		return true
	}
	if r.judged < float64(m.o.Judge) || r.used/r.judged >= m.o.Precision {
		return true
	}
	r.restsUntil = now.Add(m.o.Rest)
	return false
}

// pair returns a key for a content that a client was given.
func pair(client uint64, k Key) Key {
	var out Key
	a := mix64(client)
	binary.LittleEndian.PutUint64(out[:8], mix64(a^k.hash()))
	binary.LittleEndian.PutUint64(out[8:], mix64(a+binary.LittleEndian.Uint64(k[:8])^binary.LittleEndian.Uint64(k[8:])<<1))
	return out
}

// recentKeys remembers keys for some time. It remembers at most limit keys.
type recentKeys struct {
	limit int
	ttl   time.Duration
	index map[Key]int64 // the time at which it was added, in nanoseconds
	// ring holds the keys in the order in which they were added, to apply the limit. If a
	// key is in it more than once, the last place counts.
	ring []stampedKey
	at   int
}

type stampedKey struct {
	key Key
	at  int64
}

// add remembers a key from now on, and reports whether it was already remembered.
func (s *recentKeys) add(k Key, now time.Time) bool {
	known := s.has(k, now)
	if s.index == nil {
		s.index = map[Key]int64{}
	}
	e := stampedKey{k, now.UnixNano()}
	if len(s.ring) < s.limit {
		s.ring = append(s.ring, e)
	} else {
		if old := s.ring[s.at]; s.index[old.key] == old.at && old.key != k {
			delete(s.index, old.key)
		}
		s.ring[s.at] = e
		s.at = (s.at + 1) % s.limit
	}
	s.index[k] = e.at
	return known
}

func (s *recentKeys) has(k Key, now time.Time) bool {
	at, ok := s.index[k]
	return ok && now.UnixNano()-at < int64(s.ttl)
}
