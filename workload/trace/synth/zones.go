package synth

import (
	"fmt"
	"strings"
	"time"
)

// Zones returns the names of the published zones, the busiest first.
func Zones() []string { return []string{"dal", "lon", "stg", "fra", "syd", "prs", "dev"} }

// published are the figures in which the zones differ.
type published struct {
	zone, prefix  string
	requests      int64 // the archive's, of Days days
	days          int
	hosts         int
	mix           Mix
	withLayers    float64 // FAST'18 fig. 12a: the others get none
	meanBlob      float64 // bytes: egress of Table 1 over the archive's GETs
	manifests     SizeModel
	layers        []float64
	newLayers     float64
	popular       []float64
	repos         []float64
	shares        []float64
	burst         float64
	pingRun       float64
	pace          time.Duration
	pausesPerDay  float64
	pauseMin      time.Duration
	pauseMean     time.Duration
	night, sunday float64 // load at the quietest hour and at the weekend
	latency       Latency
}

// Zone returns the profile of one of the published zones.
func Zone(name string) (*Profile, error) {
	for _, z := range publishedZones() {
		if z.zone == name {
			return z.profile(), nil
		}
	}
	return nil, fmt.Errorf("unknown zone %q; there are %s", name, strings.Join(Zones(), ", "))
}

func (z *published) profile() *Profile {
	p := &Profile{Zone: z.zone, Prefix: z.prefix, Requests: z.requests, Days: z.days, Hosts: z.hosts, Mix: z.mix,
		Manifests: z.popular, LayerRepos: z.repos, HotLayers: z.layers, NewLayers: z.newLayers, Clients: z.shares,
		PullsWithLayers: z.withLayers, PingRun: z.pingRun, Burst: z.burst, Pace: z.pace,
		BlobSizes: BlobSizes().WithMean(z.meanBlob, 1<<20), ManifestSizes: z.manifests, Latency: z.latency}
	// If many pulls need layers, most of the layers come after a manifest, because there
	// would not be enough layers otherwise.
	pulls := p.Mix.ManifestGet * p.PullsWithLayers
	p.LayersPerPull = min(4.5, max(1, 0.85*p.Mix.BlobGet/pulls))
	p.Load.PausesPerDay, p.Load.PauseMin, p.Load.PauseMean = z.pausesPerDay, z.pauseMin, z.pauseMean
	for h := range p.Load.Hour {
		// Office hours of America and Europe in UTC: quiet from 2 to 6, busy from 13 to 19.
		switch {
		case h >= 2 && h < 6:
			p.Load.Hour[h] = z.night
		case h >= 13 && h < 19:
			p.Load.Hour[h] = 1.2
		default:
			p.Load.Hour[h] = 1
		}
	}
	p.Load.Weekday = [7]float64{z.sunday, 1, 1.05, 1.05, 1.05, 1, z.sunday}
	return p
}

// smallManifests returns sizes of about 1 KB. longManifests returns lon's sizes, half of
// which are above 10 KB.
func smallManifests() SizeModel {
	return SizeModel{Knots: []Knot{{0, 400}, {0.2, 750}, {0.5, 1100}, {0.8, 2200}, {0.95, 8000}, {1, 40000}}}
}

func longManifests() SizeModel {
	return SizeModel{Knots: []Knot{{0, 400}, {0.2, 1100}, {0.4, 5000}, {0.49, 10000}, {0.8, 18000}, {1, 60000}}}
}

// publishedZones returns the archive's requests, days and blob GETs. Shares of methods
// and kinds are chosen so that they meet figures 4 and 5 of FAST'18, the known counts of
// GETs and PUTs of a zone, and the archive's totals over all zones. If Table 1 and a
// figure of the paper disagree (lon), the figure counts.
func publishedZones() []published {
	return append(busyZones(), internalZones()...)
}

func busyZones() []published {
	return []published{
		{zone: "dal", prefix: "dal09/prod-dal09", requests: 20_856_543, days: 73, hosts: 6,
			mix: Mix{Ping: .3803, ManifestGet: .1513, BlobGet: .2951, Head: .1003, ManifestPut: .0165, Upload: .016,
				Patch: .0158, Mount: .0075, Redirect: .0013},
			withLayers: .17, meanBlob: 14.5e6, manifests: smallManifests(), layers: bases(), newLayers: .27,
			popular: images(.17), repos: layerRepos(), shares: manyClients(8157), burst: .25, pingRun: 1.42, night: .65, sunday: .75, latency: dalLatency()},
		{zone: "lon", prefix: "lon02/prod-lon02", requests: 7_592_009, days: 73, hosts: 6,
			mix: Mix{Ping: .3283, ManifestGet: .225, BlobGet: .230, Head: .115, ManifestPut: .025, Upload: .022,
				Patch: .0217, Mount: .009, Redirect: .002},
			withLayers: .15, meanBlob: 14e6, manifests: longManifests(), layers: bases(), newLayers: .27,
			popular: images(.15), repos: layerRepos(), shares: manyClients(1178), pingRun: 1, pace: 3 * time.Second, night: .9, sunday: 1, latency: lonLatency()},
		{zone: "fra", prefix: "fra02/prod-fra02", requests: 3_869_210, days: 73, hosts: 6,
			mix: Mix{Ping: .0822, ManifestGet: .50, BlobGet: .181, Head: .12, ManifestPut: .0476, Upload: .02,
				Patch: .0197, Mount: .008, Redirect: .0015},
			withLayers: .27, meanBlob: 11.5e6, manifests: smallManifests(), layers: bases(), newLayers: .27,
			popular: images(.27), repos: layerRepos(), shares: manyClients(2182), pingRun: 1.5, pausesPerDay: 610, pauseMin: 108 * time.Second,
			pauseMean: 114 * time.Second, night: .8, sunday: .9, latency: quickLatency(1.5e6)},
		{zone: "syd", prefix: "syd01/prod-syd01", requests: 1_056_787, days: 63, hosts: 6,
			mix: Mix{Ping: .122, ManifestGet: .34, BlobGet: .200, Head: .14, ManifestPut: .0965, Upload: .03,
				Patch: .0295, Mount: .01, Redirect: .002},
			withLayers: .20, meanBlob: 8.84e6, manifests: smallManifests(), layers: sydBases(), newLayers: .15,
			popular: images(.20), repos: layerRepos(), shares: manyClients(1058), pingRun: 1.5, pausesPerDay: 178, pauseMin: 110 * time.Second,
			pauseMean: 240 * time.Second, night: .8, sunday: .85, latency: quickLatency(1.5e6)},
		{zone: "stg", prefix: "stage-dal09/stage-dal09", requests: 6_306_742, days: 70, hosts: 6,
			mix: Mix{Ping: .1385, ManifestGet: .247, BlobGet: .377, Head: .115, ManifestPut: .0518, Upload: .02,
				Patch: .0197, Mount: .009, Redirect: .002},
			withLayers: .12, meanBlob: 12.3e6, manifests: smallManifests(), layers: bases(), newLayers: .27,
			popular: images(.12), repos: layerRepos(), shares: manyClients(1980), pingRun: 1, pace: 10 * time.Second,
			night: .9, sunday: 1, latency: quickLatency(1.5e6)},
	}
}

func internalZones() []published {
	images := curve(point{1, .15}, point{3, .34}, point{10, .63}, point{30, .78}, point{100, .88}, point{200, .91})
	return []published{
		{zone: "prs", prefix: "prestage-mon01/prestage-mon01", requests: 809_856, days: 64, hosts: 3,
			mix: Mix{Ping: .1213, ManifestGet: .173, BlobGet: .325, Head: .20, ManifestPut: .0802, Upload: .03,
				Patch: .0295, Mount: .01, Redirect: .001},
			withLayers: .065, meanBlob: 9.3e6, manifests: smallManifests(), layers: zipf(9000, .03, 0, .55), newLayers: .2,
			popular: images, repos: zipf(150, 1, 2, .97), shares: fewClients(18), pingRun: 1.5, pausesPerDay: 142, pauseMin: 110 * time.Second,
			pauseMean: 350 * time.Second, night: .9, sunday: .8, latency: quickLatency(3e6)},
		{zone: "dev", prefix: "dev-mon01/dev-mon01", requests: 380_877, days: 54, hosts: 3,
			mix: Mix{Ping: .3232, ManifestGet: .184, BlobGet: .310, Head: .11, ManifestPut: .0394, Upload: .0095,
				Patch: .0094, Mount: .004, Redirect: .001},
			withLayers: .022, meanBlob: 12.2e6, manifests: smallManifests(), layers: zipf(5000, .1, 0, .6), newLayers: .2,
			popular: images, repos: zipf(100, 1, 2, .97), shares: fewClients(29), pingRun: 1.5, pausesPerDay: 72, pauseMin: 105 * time.Second,
			pauseMean: 720 * time.Second, night: .9, sunday: .7, latency: quickLatency(3e6)},
	}
}

// dalLatency returns the latency of dal: more than 60 % of layers take more than 1 s, and
// a quarter 10 s or more. It is flat below 1 MB, then linear (FAST'18 fig. 8 and 9).
func dalLatency() Latency {
	return Latency{Ping: 3 * time.Millisecond, Head: 60 * time.Millisecond, ManifestGet: 120 * time.Millisecond,
		ManifestPut: 300 * time.Millisecond, Post: 150 * time.Millisecond, LayerGet: 1150 * time.Millisecond,
		BytesPerSecond: 0.8e6, PutFactor: 0.8, PatchFactor: 1.6, Spread: 1.2}
}

// lonLatency returns the latency of lon, where manifests take 300 to 400 ms more than in
// dal.
func lonLatency() Latency {
	l := dalLatency()
	l.ManifestGet, l.ManifestPut = 470*time.Millisecond, 650*time.Millisecond
	l.LayerGet, l.BytesPerSecond = 700*time.Millisecond, 1e6
	return l
}

// quickLatency returns the latency of the other zones, about which nothing is published except
// that they are less busy.
func quickLatency(bytesPerSecond float64) Latency {
	l := dalLatency()
	l.LayerGet, l.BytesPerSecond = 500*time.Millisecond, bytesPerSecond
	return l
}

// manyClients returns the clients' shares. The first has 15 % (FAST'18 fig. 11).
func manyClients(n int) []float64 {
	return append([]float64{0.15}, zipf(n-1, 1.05, 4, 0.85)...)
}

// fewClients: two have 80 %.
func fewClients(n int) []float64 {
	return append([]float64{0.5, 0.3}, zipf(n-2, 1, 0, 0.2)...)
}

// bases returns the shares of the shared layers of dal and of zones without a published
// curve.
func bases() []float64 {
	return curve(point{1, .028}, point{3, .065}, point{10, .133}, point{30, .248}, point{100, .33}, point{300, .39}, point{800, .42})
}

// sydBases returns the shares of syd. The first has 19 %, and the top 1 % have 59 % of
// the layer GETs.
func sydBases() []float64 {
	return curve(point{1, .20}, point{3, .24}, point{10, .30}, point{30, .50}, point{100, .63}, point{300, .66}, point{500, .67})
}

func layerRepos() []float64 {
	return curve(point{1, .108}, point{3, .213}, point{10, .291}, point{30, .374}, point{100, .494}, point{300, .634},
		point{1000, .769}, point{3000, .90})
}

// images returns how popular images are if the given share of the manifest GETs is
// followed by layers. The curve of all manifest GETs is from three days of dal. GETs that
// are followed by layers go to many more images, and are taken out of it.
func images(withLayers float64) []float64 {
	// Pulls that follow pushes go to popular images anyway.
	withLayers *= 0.6
	var out []point
	last := 0.0
	for _, p := range []struct {
		rank             int
		all, amongPulled float64
	}{{1, .07, 0}, {3, .174, 0}, {10, .421, 0}, {30, .715, .2}, {100, .838, .45}, {300, .875, .6}, {1000, .901, .7}} {
		last = max((p.all-withLayers*p.amongPulled)/(1-withLayers), last)
		out = append(out, point{p.rank, min(last, 1)})
	}
	return curve(out...)
}
