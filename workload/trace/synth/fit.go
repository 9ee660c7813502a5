package synth

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// These are the largest numbers of entries in a fitted profile's tables. Rarer entries
// are part of the rest.
const (
	fitLayers    = 3000
	fitManifests = 3000
	fitRepos     = 3000
	fitClients   = 20000
	// session is how long after a manifest layers belong to its pull (FAST'18 fig. 12).
	session = int64(time.Minute / time.Microsecond)
	// shortestPause is the shortest time without a request that counts as a pause.
	shortestPause = int64(time.Minute / time.Microsecond)
)

// Fit makes the profile of a zone of a store: its mix, popularities, sizes, times, clients,
// pulls, and its load by hour and weekday. Requests that belong to no kind of session (DELETE,
// lists of tags, failed requests) are left out of it. Memory depends on the number of distinct
// layers, manifests, repositories and clients.
func Fit(ctx context.Context, s *store.Store, zone string) (*Profile, error) {
	z := slices.IndexFunc(s.Zones(), func(z store.Zone) bool { return z.Name == zone })
	if z < 0 {
		return nil, fmt.Errorf("store %s has no zone %q", s.Dir(), zone)
	}
	f := newFit()
	if err := s.Scan(ctx, store.Query{Zone: zone}, f.batch); err != nil {
		return nil, err
	}
	f.expire(math.MaxInt64)
	if f.total == 0 {
		return nil, fmt.Errorf("zone %s has no requests of the kinds that can be generated", zone)
	}
	p := f.profile(zone, max(len(s.Zones()[z].Days), 1))
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("fit %s: %w", zone, err)
	}
	return p, nil
}

// pair is a client and a repository, or a repository and a tag.
type pair struct{ a, b store.Symbol }

// window is the time after a manifest GET.
type window struct {
	until  int64
	who    pair
	what   pair
	before int64 // how many layers the follower had got before it
}

// follower is a client and a repository with open windows.
type follower struct {
	layers  int64 // how many the client got since the first of the windows
	windows int
}

// fit collects what a profile is made from.
type fit struct {
	count   [redirect + 1]int64
	total   int64
	layers  map[store.Symbol]int64
	repos   map[store.Symbol]int64
	clients map[store.Symbol]int64
	hosts   map[store.Symbol]bool
	// lookedAt counts manifests that no layers followed.
	lookedAt           map[pair]int64
	windows            []window // in order of time
	open               map[pair]*follower
	pulls, pulled      int64 // manifests that layers followed, and the number of these layers
	runs               int64
	lastGet            trace.Kind
	blobs, manifests   histogram
	times              [redirect + 1]histogram
	small, rate        histogram // microseconds; bytes per second of large layers
	smallPut, smallPat histogram
	hour               [24]float64
	days               map[int64]float64
	last               int64
	pauses, paused     int64
}

func newFit() *fit {
	return &fit{layers: map[store.Symbol]int64{}, repos: map[store.Symbol]int64{}, clients: map[store.Symbol]int64{},
		hosts: map[store.Symbol]bool{}, lookedAt: map[pair]int64{}, open: map[pair]*follower{}, days: map[int64]float64{}}
}

func (f *fit) batch(b *store.Batch) error {
	for i := range b.Len() {
		f.at(b, i)
	}
	return nil
}

// classOf returns the class of event that would have made a request.
func classOf(m store.Method, k trace.Kind, status uint16) (class, bool) {
	switch {
	case status >= 400:
		return 0, false
	case m == store.GET && k == trace.Ping:
		return ping, true
	case m == store.GET && k == trace.Manifest:
		return manifestGet, true
	case m == store.GET && k == trace.Blob:
		return blobGet, true
	case m == store.HEAD && (k == trace.Blob || k == trace.Manifest):
		return head, true
	case m == store.PUT && k == trace.Manifest:
		return manifestPut, true
	case m == store.PUT && k == trace.Upload:
		return upload, true
	case m == store.PATCH && k == trace.Upload:
		return patch, true
	case m == store.POST && k == trace.Upload:
		switch status {
		case 201:
			return mount, true
		case 301:
			return redirect, true
		}
		return post, true
	}
	return 0, false
}

func (f *fit) at(b *store.Batch, i int) {
	c, ok := classOf(b.Method[i], b.Kind[i], b.Status[i])
	if !ok {
		return
	}
	t := b.Time[i]
	f.count[c]++
	f.total++
	f.clients[b.Client[i]]++
	f.hosts[b.Host[i]] = true
	f.hour[t/3600e6%24]++
	f.days[t/86400e6]++
	if gap := t - f.last; f.last != 0 && gap >= shortestPause && gap < 86400e6 {
		f.pauses++
		f.paused += gap
	}
	f.last = t
	f.durations(c, b.Duration[i], b.Size[i])
	f.expire(t)
	who := pair{b.Client[i], b.Repo[i]}
	switch c {
	case ping:
		if f.lastGet != trace.Ping {
			f.runs++
		}
	case manifestGet:
		o := f.open[who]
		if o == nil {
			o = &follower{}
			f.open[who] = o
		}
		o.windows++
		f.windows = append(f.windows, window{until: t + session, who: who, what: pair{b.Repo[i], b.Ref[i]}, before: o.layers})
		f.manifests.add(b.Size[i])
	case blobGet:
		f.layers[b.Ref[i]]++
		f.repos[b.Repo[i]]++
		f.blobs.add(b.Size[i])
		if o := f.open[who]; o != nil {
			o.layers++
		}
	}
	if b.Method[i] == store.GET {
		f.lastGet = b.Kind[i]
	}
}

// expire closes the windows that end at t or before.
func (f *fit) expire(t int64) {
	n := 0
	for ; n < len(f.windows) && f.windows[n].until <= t; n++ {
		w := &f.windows[n]
		o := f.open[w.who]
		if layers := o.layers - w.before; layers == 0 {
			f.lookedAt[w.what]++
		} else {
			f.pulls++
			f.pulled += layers
		}
		if o.windows--; o.windows == 0 {
			delete(f.open, w.who)
		}
	}
	f.windows = f.windows[n:]
}

// largeLayer is the smallest size for which a layer's size decides how long it takes.
const largeLayer = 8 << 20

func (f *fit) durations(c class, micros, size int64) {
	if micros < 0 {
		return
	}
	f.times[c].add(micros)
	switch small := size >= 0 && size < 1<<20; {
	case c == blobGet && small:
		f.small.add(micros)
	case c == upload && small:
		f.smallPut.add(micros)
	case c == patch:
		f.smallPat.add(micros)
	case c == blobGet && size >= largeLayer && micros > 0:
		f.rate.add(int64(float64(size) / float64(micros) * 1e6))
	}
}

func (f *fit) profile(zone string, days int) *Profile {
	share := func(c class) float64 { return float64(f.count[c]) / float64(f.total) }
	uploads := (share(post) + share(upload)) / 2
	p := &Profile{Zone: zone, Requests: f.total, Days: days, Hosts: len(f.hosts),
		Mix: Mix{Ping: share(ping), ManifestGet: share(manifestGet), BlobGet: share(blobGet), Head: share(head),
			ManifestPut: share(manifestPut), Upload: uploads, Patch: min(share(patch), uploads), Mount: share(mount), Redirect: share(redirect)}}
	p.Manifests = top(f.lookedAt, fitManifests, 2, 0)
	p.HotLayers = top(f.layers, fitLayers, 4, f.count[blobGet])
	p.LayerRepos = top(f.repos, fitRepos, 2, f.count[blobGet])
	p.Clients = top(f.clients, fitClients, 1, 0)
	normalize(p.Clients)
	if n := f.count[blobGet]; n > 0 {
		p.NewLayers = min(float64(len(f.layers)-len(p.HotLayers))/float64(n), 1-sum(p.HotLayers))
	}
	p.LayersPerPull = 1
	if n := f.count[manifestGet]; n > 0 && f.pulls > 0 {
		p.PullsWithLayers = float64(f.pulls) / float64(n)
		p.LayersPerPull = min(max(float64(f.pulled)/float64(f.pulls), 1), 100)
		p.LayersPerPull = max(min(p.LayersPerPull, float64(f.count[blobGet])/float64(f.pulls)), 1)
	}
	p.PingRun = f.pingRun()
	p.normalizeMix()
	p.BlobSizes, p.ManifestSizes = f.blobs.sizes(BlobSizes()), f.manifests.sizes(smallManifests())
	p.Latency = f.latency()
	p.Load = f.load()
	return p
}

// normalizeMix scales the shares so that they add up to 1.
func (p *Profile) normalizeMix() {
	total := sum(p.Mix.shares())
	m := &p.Mix
	for _, s := range []*float64{&m.Ping, &m.ManifestGet, &m.BlobGet, &m.Head, &m.ManifestPut, &m.Upload, &m.Patch, &m.Mount, &m.Redirect} {
		*s /= total
	}
}

// pingRun returns the length of the runs that clients make. The observed runs are longer,
// because runs of several clients meet. The correction was found by trial with generated
// traces.
func (f *fit) pingRun() float64 {
	gets := f.count[ping] + f.count[manifestGet] + f.count[blobGet]
	if f.runs == 0 || gets == f.count[ping] {
		return 1
	}
	share := float64(f.count[ping]) / float64(gets)
	return min(max(float64(f.count[ping])/float64(f.runs)-1.3*share/(1-share), 1), 1000)
}

func (f *fit) latency() Latency {
	l := dalLatency()
	set := func(d *time.Duration, h *histogram) {
		if h.n > 0 {
			*d = time.Duration(h.quantile(0.5)) * time.Microsecond
		}
	}
	set(&l.Ping, &f.times[ping])
	set(&l.Head, &f.times[head])
	set(&l.ManifestGet, &f.times[manifestGet])
	set(&l.ManifestPut, &f.times[manifestPut])
	set(&l.Post, &f.times[post])
	set(&l.LayerGet, &f.small)
	if f.rate.n > 0 {
		l.BytesPerSecond = max(f.rate.quantile(0.5), 1)
	}
	if f.small.n > 0 {
		get := math.Max(f.small.quantile(0.5), 1)
		l.Spread = min(math.Log(math.Max(f.small.quantile(0.75), 1)/math.Max(f.small.quantile(0.25), 1))/1.349, 5)
		if f.smallPut.n > 0 {
			l.PutFactor = min(f.smallPut.quantile(0.5)/get, 1e3)
		}
		if all := f.times[blobGet].quantile(0.5); f.smallPat.n > 0 && all > 0 {
			l.PatchFactor = min(f.smallPat.quantile(0.5)/all, 1e3)
		}
	}
	return l
}

func (f *fit) load() Load {
	l := Load{Hour: f.hour}
	var n [7]float64
	mean := 0.0
	for day, requests := range f.days {
		weekday := (day + 4) % 7 // 1970 began on a Thursday
		l.Weekday[weekday] += requests
		n[weekday]++
		mean += requests / float64(len(f.days))
	}
	for d := range l.Weekday {
		if n[d] > 0 {
			l.Weekday[d] /= n[d]
		} else {
			l.Weekday[d] = mean // the trace has no such day
		}
	}
	if f.pauses > 0 {
		l.PausesPerDay = float64(f.pauses) / float64(len(f.days))
		l.PauseMin = time.Duration(shortestPause) * time.Microsecond
		l.PauseMean = time.Duration(f.paused/f.pauses) * time.Microsecond
		if hours := l.PausesPerDay * l.PauseMean.Hours(); hours > 22 {
			l.PausesPerDay *= 22 / hours
		}
	}
	return l
}

// top returns the shares of at most n keys with at least the given number of counts, the
// largest first. The shares are of all counts, or of total if that is not 0.
func top[K comparable](counts map[K]int64, n int, atLeast, total int64) []float64 {
	var all int64
	ranked := make([]int64, 0, len(counts))
	for _, c := range counts {
		all += c
		if c >= atLeast {
			ranked = append(ranked, c)
		}
	}
	slices.SortFunc(ranked, func(a, b int64) int { return cmp.Compare(b, a) })
	ranked = ranked[:min(n, len(ranked))]
	if total == 0 {
		total = max(all, 1)
	}
	out := make([]float64, len(ranked))
	for i, c := range ranked {
		out[i] = float64(c) / float64(total)
	}
	return out
}

func normalize(shares []float64) {
	total := sum(shares)
	for i := range shares {
		shares[i] /= total
	}
}
