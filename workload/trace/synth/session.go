package synth

import (
	"math"
	"math/rand/v2"
	"time"
)

// class is the kind of request of an event.
type class uint8

const (
	ping class = iota
	manifestGet
	blobGet
	head
	manifestPut
	post     // begins an upload: 202
	patch    // 202
	upload   // the PUT that ends an upload: 201
	mount    // a POST that mounts a layer: 201
	redirect // a POST that is answered with 301
)

// event is a request to come. It takes 48 B.
type event struct {
	at       int64 // microseconds since 1970
	duration int64 // microseconds
	size     int64
	order    uint64
	repo     uint32
	ref      uint32 // layer, tag, or upload
	client   uint32
	class    class
	status   uint16
}

// bundle is a set of layers that clients get together from one repository.
type bundle struct {
	repo, tag uint32
	layers    []uint32
}

// recentBundles is how many recent bundles can be requested again: about a day and a half
// of the busiest zone. They take at most some 100 B each.
const recentBundles = 1 << 16

// Ids of repositories and tags that are not popular begin here.
const firstRare = 1 << 24

// planner makes up sessions.
type planner struct {
	p   *Profile
	rnd *rand.Rand
	// shift is added to the low-discrepancy sequences, so that seeds differ.
	shift     float64
	manifests *table
	hotLayers *table
	repos     *table // of layers
	clients   *table
	// hotSizes and hotManifests are the sizes of popular contents, so that each kind of
	// size gets its share of requests.
	hotSizes, hotManifests []int64
	// fresh is the share of sessions that request new layers, hot the share of hot layers
	// in them.
	fresh, hot float64
	// popular is the share of manifest GETs that go to popular images.
	popular float64
	// wide is the share of layers that come from known repositories.
	wide       float64
	recent     []bundle
	nextRecent uint64
	nextLayer  uint32
	nextRepo   uint32
	nextTag    uint32
	nextUpload uint32
	emitted    [redirect + 1]int64
	total      int64
	plan       []event
}

func newPlanner(p *Profile, r *rand.Rand) *planner {
	g := &planner{p: p, rnd: r, shift: r.Float64(), manifests: newTable(p.Manifests), hotLayers: newTable(p.HotLayers),
		repos: newTable(p.LayerRepos), clients: newTable(p.Clients)}
	g.hotSizes = assignEvenly(p.BlobSizes, p.HotLayers, r.Uint64())
	g.hotManifests = assignEvenly(p.ManifestSizes, p.Manifests, r.Uint64())
	g.wide = sum(p.LayerRepos)
	g.popular = sum(p.Manifests)
	g.hot = min(sum(p.HotLayers), 1)
	g.fresh = 1
	if g.hot < 1 {
		g.fresh = min(1, p.NewLayers/(1-g.hot))
	}
	g.nextLayer = uint32(len(p.HotLayers))
	g.nextRepo, g.nextTag = firstRare, firstRare
	return g
}

// assignEvenly gives sizes to popular items. A single item may have a fifth of all
// requests. So it tries many random orders and takes the one in which the requests below
// each knot are nearest to the model.
func assignEvenly(m SizeModel, shares []float64, seed uint64) []int64 {
	weights := make([]int64, len(shares))
	for i, s := range shares {
		weights[i] = int64(s * 1e9)
	}
	total := sum(shares)
	var best []int64
	least := math.Inf(1)
	for try := range uint64(64) {
		sizes := m.Assign(weights, 0, mix64(seed+try))
		worst := 0.0
		for _, k := range m.Knots {
			below := 0.0
			for i, size := range sizes {
				if float64(size) < k.Bytes {
					below += shares[i]
				}
			}
			worst = max(worst, math.Abs(below-k.Share*total))
		}
		if worst < least {
			best, least = sizes, worst
		}
	}
	return best
}

// next plans one session that begins at time 0. The result is valid until the next call.
func (g *planner) next() []event {
	g.plan = g.plan[:0]
	m := &g.p.Mix
	// These are the numbers of sessions of each kind for one request. If chance has changed the
	// mix, they bring it back.
	follows := g.follows()
	looks := max(m.ManifestGet-m.ManifestPut*follows, 0) * g.lead(manifestGet, m.ManifestGet)
	pushes := m.ManifestPut * g.lead(manifestPut, m.ManifestPut)
	pings := max(m.Ping-m.ManifestGet*g.pingBefore()*g.p.PingRun, 0.1*m.Ping) / g.p.PingRun * g.lead(ping, m.Ping)
	fetched := m.ManifestGet * g.p.PullsWithLayers * g.p.LayersPerPull
	layers := max(m.BlobGet-fetched, 0.02*m.BlobGet) / g.p.LayersPerPull * g.lead(blobGet, m.BlobGet)
	client := uint32(g.clients.draw(g.rnd))
	switch f := g.rnd.Float64() * (looks + pushes + pings + layers); {
	case f < looks:
		g.look(client)
	case f < looks+pushes:
		g.push(client)
	case f < looks+pushes+layers:
		g.fetch(0, client, g.bundle(g.layerRepo()))
	default:
		g.pings(0, client)
	}
	if len(g.plan) == 0 { // a mix of nothing
		g.pings(0, client)
	}
	for i := range g.plan {
		g.emitted[g.plan[i].class]++
	}
	g.total += int64(len(g.plan))
	return g.plan
}

// lead returns a factor above 1 if less than the wanted share of a class was made so far.
func (g *planner) lead(c class, share float64) float64 {
	if g.total < 200 || share <= 0 {
		return 1
	}
	ratio := share * float64(g.total) / (float64(g.emitted[c]) + 1)
	ratio *= ratio
	return min(max(ratio*ratio, 0.1), 10)
}

// follows returns how many pulls follow a push soon, on average.
func (g *planner) follows() float64 {
	if g.p.Mix.ManifestPut <= 0 {
		return 0
	}
	return min(0.4, 0.5*g.p.Mix.ManifestGet/g.p.Mix.ManifestPut)
}

// pingBefore returns the probability that a client pings before it requests a manifest.
func (g *planner) pingBefore() float64 {
	if g.p.Mix.ManifestGet <= 0 {
		return 0
	}
	return min(0.35, 0.5*g.p.Mix.Ping/(g.p.PingRun*g.p.Mix.ManifestGet))
}

func (g *planner) add(at int64, c class, status uint16, client, repo, ref uint32, size, duration int64) {
	g.plan = append(g.plan, event{at: at, class: c, status: status, client: client, repo: repo, ref: ref, size: size, duration: duration})
}

// geometric draws a number from 1 on with the given mean.
func (g *planner) geometric(mean float64) int {
	if mean <= 1 {
		return 1
	}
	n := 1 + int(math.Log(1-g.rnd.Float64())/math.Log(1-1/mean))
	return min(n, 1000)
}

// count draws a number from 0 on with the given mean.
func (g *planner) count(mean float64) int { return g.geometric(mean+1) - 1 }

// pings adds a run of pings and returns when it ends.
func (g *planner) pings(at int64, client uint32) int64 {
	for range g.geometric(g.p.PingRun) {
		d := g.vary(g.p.Latency.Ping)
		g.add(at, ping, 200, client, 0, g.rnd.Uint32(), 0, d)
		at += min(d, 20_000) + g.rnd.Int64N(20_000) + g.pause()
	}
	return at
}

// look adds a client that requests a manifest, and layers if it lacks some.
func (g *planner) look(client uint32) {
	at := int64(0)
	if g.rnd.Float64() < g.pingBefore() {
		at = g.pings(0, client)
	}
	m := &g.p.Mix
	// The more layers the pulls after pushes get, the fewer the others get.
	lacks, follows := g.p.PullsWithLayers, g.follows()*m.ManifestPut
	if rest := m.ManifestGet - follows; rest > 0 {
		lacks = max((lacks*m.ManifestGet-g.followLacks()*follows)/rest, 0)
	}
	if g.rnd.Float64() < lacks {
		b := g.bundle(g.layerRepo())
		g.fetch(g.manifest(at, client, b.repo, b.tag), client, b)
		return
	}
	repo, tag := g.image()
	g.manifest(at, client, repo, tag)
}

// followLacks returns the share of the pulls after a push that get layers.
func (g *planner) followLacks() float64 { return min(0.6, 4*g.p.PullsWithLayers) }

func (g *planner) manifest(at int64, client, repo, tag uint32) int64 {
	d := g.vary(g.p.Latency.ManifestGet)
	g.add(at, manifestGet, 200, client, repo, tag, g.manifestSize(repo, tag), d)
	if g.rnd.Float64() < 0.000215 { // 6,971 of 32,272,717 GETs of the archive, counted on manifests
		g.plan[len(g.plan)-1].status = 301
	}
	return at + min(d, 10_000_000) + g.pause()
}

// pause returns how long a client pauses between two requests, beyond waiting for the
// answer.
func (g *planner) pause() int64 {
	return int64(g.rnd.ExpFloat64() * float64(g.p.Pace.Microseconds()))
}

// image chooses the image to pull: a popular image, or an image that nobody requested
// before.
func (g *planner) image() (repo, tag uint32) {
	if n := len(g.p.Manifests); n > 0 && g.rnd.Float64() < g.popular {
		i := uint32(g.manifests.draw(g.rnd))
		// Three of ten popular images are another tag of the previous repository.
		if i%10 < 3 && i > 9 {
			return i - i%10 + 5, i + 1
		}
		if i%2 == 0 {
			return i, 0
		}
		return i, i + 1
	}
	g.nextTag++
	if len(g.p.Manifests) > 0 && g.rnd.Float64() < 0.33 {
		return uint32(g.manifests.draw(g.rnd)), g.nextTag
	}
	g.nextRepo++
	if g.rnd.Float64() < 0.5 {
		return g.nextRepo, 0
	}
	return g.nextRepo, g.nextTag
}

// layerRepo chooses the image whose layers are fetched.
func (g *planner) layerRepo() (repo, tag uint32) {
	if g.rnd.Float64() < g.wide {
		// The most popular repositories of layers are not the most popular ones of
		// manifests.
		const behind = 20
		return uint32(g.repos.draw(g.rnd)) + behind, 0
	}
	g.nextRepo++
	return g.nextRepo, 0
}

// bundle chooses layers. It makes new ones and some of shared bases for the given image,
// or chooses an image with layers that were requested recently.
func (g *planner) bundle(repo, tag uint32) bundle {
	if n := min(g.nextRecent, recentBundles); n > 0 && g.rnd.Float64() >= g.fresh {
		// One half is drawn evenly from all that is remembered, which makes some bundles
		// popular. The other half prefers the latest.
		back := g.rnd.Uint64N(n)
		if g.rnd.Float64() < 0.5 {
			back = uint64(math.Pow(float64(n), g.rnd.Float64())) - 1
		}
		b := g.recent[(g.nextRecent-1-min(back, n-1))%recentBundles]
		g.remember(b)
		return b
	}
	b := bundle{repo: repo, tag: tag, layers: make([]uint32, g.layers())}
	for i := range b.layers {
		b.layers[i] = g.layer()
	}
	g.remember(b)
	return b
}

func (g *planner) remember(b bundle) {
	if g.nextRecent < recentBundles {
		g.recent = append(g.recent, b)
	} else {
		g.recent[g.nextRecent%recentBundles] = b
	}
	g.nextRecent++
}

// layers draws how many layers a client gets. The distribution is log-normal if the mean
// allows, so that the median is 2 to 3 and every tenth client gets 9 or more, as in the
// real traces.
func (g *planner) layers() int {
	mean := g.p.LayersPerPull
	if mean < 2.5 {
		return g.geometric(mean)
	}
	const sigma = 0.95
	n := math.Ceil(math.Exp(math.Log(mean-0.5) - sigma*sigma/2 + sigma*g.rnd.NormFloat64()))
	return int(min(max(n, 1), 100))
}

func (g *planner) layer() uint32 {
	if g.rnd.Float64() < g.hot {
		return uint32(g.hotLayers.draw(g.rnd))
	}
	g.nextLayer++
	return g.nextLayer
}

// fetch gets the layers of a bundle, at most three at once as Docker does.
func (g *planner) fetch(at int64, client uint32, b bundle) int64 {
	var free [3]int64
	for i := range free {
		free[i] = at
	}
	end := at
	for _, layer := range b.layers {
		slot := 0
		for i := range free {
			if free[i] < free[slot] {
				slot = i
			}
		}
		size := g.blobSize(layer)
		d := g.transfer(size, 1)
		status := uint16(200)
		if g.rnd.Float64() < 0.0001 { // 1,210 of 12.7 million
			status = 206
		}
		g.add(free[slot], blobGet, status, client, b.repo, layer, size, d)
		// A client that waited for minutes would break sessions apart.
		free[slot] += min(d, 20_000_000) + 1000 + g.rnd.Int64N(30_000) + g.pause()
		end = max(end, free[slot])
	}
	return end
}

// push uploads the layers of an image that the registry lacks, then its manifest. Others
// pull the image soon after.
func (g *planner) push(client uint32) {
	m := &g.p.Mix
	per := func(share float64) float64 { return share / m.ManifestPut }
	repo, tag := g.image()
	at, l := int64(0), &g.p.Latency
	b := bundle{repo: repo, tag: tag}
	for range g.count(per(m.Head) * g.lead(head, m.Head)) {
		layer := g.known()
		b.layers = append(b.layers, layer)
		d := g.vary(l.Head)
		g.add(at, head, 200, client, repo, layer, g.blobSize(layer), d)
		at += d/3 + g.rnd.Int64N(30_000) + g.pause()
	}
	for range g.count(per(m.Redirect) * g.lead(redirect, m.Redirect)) {
		g.add(at, redirect, 301, client, repo, 0, 0, g.vary(l.Head))
		at += 50_000
	}
	for range g.count(per(m.Mount) * g.lead(mount, m.Mount)) {
		g.add(at, mount, 201, client, repo, 0, 0, g.vary(l.Post))
		at += 100_000
	}
	for range g.count(per(m.Upload) * g.lead(upload, m.Upload)) {
		g.nextLayer++
		b.layers = append(b.layers, g.nextLayer)
		at = g.upload(at, client, repo, g.blobSize(g.nextLayer))
	}
	d := g.vary(l.ManifestPut)
	g.add(at, manifestPut, 201, client, repo, tag, g.manifestSize(repo, tag), d)
	at += d
	if n := g.layers(); len(b.layers) > n {
		b.layers = b.layers[len(b.layers)-n:] // the newest
	}
	if len(b.layers) > 0 {
		g.remember(b)
	}
	for range g.count(g.follows()) {
		at += int64(g.rnd.ExpFloat64() * 8e6)
		other := uint32(g.clients.draw(g.rnd))
		after := g.manifest(at, other, repo, tag)
		if g.rnd.Float64() < g.followLacks() {
			g.fetch(after, other, b)
		}
	}
}

// known returns a layer that the registry has.
func (g *planner) known() uint32 {
	if n := min(g.nextRecent, recentBundles); n > 0 && g.rnd.Float64() >= g.hot {
		b := g.recent[g.rnd.Uint64N(n)]
		return b.layers[g.rnd.IntN(len(b.layers))]
	}
	return g.layer()
}

func (g *planner) upload(at int64, client, repo uint32, size int64) int64 {
	l := &g.p.Latency
	g.nextUpload++
	id := g.nextUpload
	d := g.vary(l.Post)
	g.add(at, post, 202, client, repo, 0, 0, d)
	at += d
	if g.rnd.Float64()*g.p.Mix.Upload < g.p.Mix.Patch {
		d = g.transfer(size, l.PatchFactor)
		g.add(at, patch, 202, client, repo, id, 0, d)
		at += min(d, 20_000_000)
	}
	d = g.transfer(size, l.PutFactor)
	g.add(at, upload, 201, client, repo, id, size, d)
	return at + min(d, 20_000_000)
}

// vary draws a duration around a median, in microseconds.
func (g *planner) vary(median time.Duration) int64 {
	return int64(min(float64(median.Microseconds())*math.Exp(g.p.Latency.Spread*g.rnd.NormFloat64()), 3600e6)) + 1
}

// transfer draws how long a layer takes, in microseconds.
func (g *planner) transfer(size int64, factor float64) int64 {
	l := &g.p.Latency
	linear := float64(size) / l.BytesPerSecond * 1e6 * math.Exp(0.5*l.Spread*g.rnd.NormFloat64())
	return int64(min((float64(g.vary(l.LayerGet))+linear)*factor, 3600e6)) + 1
}

// blobSize returns the size of a layer, which is always the same. New layers walk through
// the distribution in steps of the golden ratio, which fills it evenly.
func (g *planner) blobSize(layer uint32) int64 {
	if int(layer) < len(g.hotSizes) {
		return g.hotSizes[layer]
	}
	_, u := math.Modf(float64(layer)*0.6180339887498949 + g.shift)
	return g.p.BlobSizes.Quantile(u)
}

func (g *planner) manifestSize(repo, tag uint32) int64 {
	image := repo
	if tag > 0 {
		image = tag - 1
	}
	if int(image) < len(g.hotManifests) {
		return g.hotManifests[image]
	}
	_, u := math.Modf(float64(mix64(uint64(repo)<<32|uint64(tag))>>11)/(1<<53) + g.shift)
	return g.p.ManifestSizes.Quantile(u)
}
