package synth

import (
	"fmt"
	"math"
	"time"
)

// Profile describes the requests of one availability zone. [Zone] returns published
// profiles, and [Fit] makes one from a trace.
type Profile struct {
	// Zone is the name of the zone, and Prefix what the files of the public archive
	// begin with.
	Zone, Prefix string
	// Requests is how many requests there were in Days days.
	Requests int64
	Days     int
	// Hosts is the number of registry servers.
	Hosts int
	Mix   Mix
	// Manifests holds the popular images, the most popular first: their shares of the
	// GETs of manifests by clients that then need no layer. The rest to 1 goes to images
	// that nobody requested before.
	Manifests []float64
	// HotLayers holds the shares of the GETs of layers that go to layers of shared bases.
	// NewLayers is the share of layers that nobody requested before. The rest to 1 goes
	// to layers that were requested recently.
	HotLayers []float64
	NewLayers float64
	// LayerRepos holds the shares of repositories in the fetched layers, the most popular
	// first. The rest to 1 goes to repositories that nobody requested before.
	LayerRepos []float64
	// Clients holds the clients' shares of the sessions, the busiest first. They add up
	// to 1.
	Clients []float64
	// LayersPerPull is the mean number of layers fetched one after another, at least 1.
	LayersPerPull float64
	// PullsWithLayers is the share of manifest GETs after which the same client gets
	// layers of the repository within a minute.
	PullsWithLayers float64
	// PingRun is the mean number of consecutive pings, at least 1.
	PingRun float64
	// Burst is the probability that a session begins together with the session before,
	// from 0 to less than 1.
	Burst float64
	// Pace is the mean pause of a client between two requests of a session, beyond
	// waiting for the answer.
	Pace          time.Duration
	BlobSizes     SizeModel
	ManifestSizes SizeModel
	Latency       Latency
	Load          Load
}

// Mix holds the share of each kind of request. Together the shares are 1.
type Mix struct {
	Ping, ManifestGet, BlobGet float64
	// Head is the share of HEADs of blobs. All are answered with 200, because the archive
	// has no other status.
	Head float64
	// ManifestPut ends a push.
	ManifestPut float64
	// Upload is the share of POSTs answered with 202, and also the share of the PUTs that
	// end these uploads. Patch is the share of PATCHes, at most the share of uploads.
	Upload, Patch float64
	// Mount is the share of POSTs answered with 201. Redirect is the share of POSTs
	// answered with 301.
	Mount, Redirect float64
}

func (m *Mix) shares() []float64 {
	return []float64{m.Ping, m.ManifestGet, m.BlobGet, m.Head, m.ManifestPut, m.Upload, m.Upload, m.Patch, m.Mount, m.Redirect}
}

// Latency is how long requests take. All times are medians; single requests vary
// around them by a log-normal factor with the deviation Spread.
type Latency struct {
	Ping, Head, ManifestGet, ManifestPut, Post time.Duration
	// LayerGet is the time for small layers. A larger layer also takes its size divided
	// by BytesPerSecond.
	LayerGet       time.Duration
	BytesPerSecond float64
	// A PUT takes PutFactor times as long as a GET, and a PATCH takes PatchFactor times
	// as long as a GET.
	PutFactor, PatchFactor float64
	Spread                 float64
}

// Load is how the rate of sessions changes with time. All zero is an even load.
type Load struct {
	// Hour and Weekday (from Sunday, in UTC) are weights. If all are zero, all are equal.
	Hour    [24]float64
	Weekday [7]float64
	// Pauses are times without new sessions. There are PausesPerDay of them. None is
	// shorter than PauseMin, and PauseMean is their mean.
	PausesPerDay        float64
	PauseMin, PauseMean time.Duration
}

// These are the limits of a profile's tables, for the memory they take.
const (
	maxTable = 1 << 20
	maxHosts = 1 << 16
)

// Validate returns an error if the profile is wrong.
func (p *Profile) Validate() error {
	if p.Zone == "" {
		return fmt.Errorf("profile without the name of a zone")
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("profile of %s: %w", p.Zone, fmt.Errorf(format, args...))
	}
	if p.Hosts < 1 || p.Hosts > maxHosts {
		return fail("%d hosts", p.Hosts)
	}
	sum := 0.0
	for _, s := range p.Mix.shares() {
		if !(s >= 0 && s <= 1) {
			return fail("a share of %g in the mix", s)
		}
		sum += s
	}
	if math.Abs(sum-1) > 0.01 {
		return fail("the mix sums up to %.3f, not 1", sum)
	}
	if p.Mix.Patch > p.Mix.Upload+1e-9 {
		return fail("more PATCHes (%g) than uploads (%g)", p.Mix.Patch, p.Mix.Upload)
	}
	if !(p.NewLayers >= 0 && p.NewLayers <= 1) || !(p.PullsWithLayers >= 0 && p.PullsWithLayers <= 1) || !(p.Burst >= 0 && p.Burst < 1) {
		return fail("new layers %g, pulls with layers %g or bursts %g are not shares", p.NewLayers, p.PullsWithLayers, p.Burst)
	}
	if !(p.LayersPerPull >= 1 && p.LayersPerPull <= 100) || !(p.PingRun >= 1 && p.PingRun <= 1000) {
		return fail("%g layers in a pull, %g pings in a run", p.LayersPerPull, p.PingRun)
	}
	if p.Pace < 0 || p.Pace > time.Hour {
		return fail("a pace of %v", p.Pace)
	}
	if err := p.validateTables(fail); err != nil {
		return err
	}
	if err := p.BlobSizes.Validate(); err != nil {
		return fail("blobs: %w", err)
	}
	if err := p.ManifestSizes.Validate(); err != nil {
		return fail("manifests: %w", err)
	}
	if l := &p.Latency; !(l.BytesPerSecond > 0 && l.PutFactor >= 0 && l.PutFactor <= 1e3 && l.PatchFactor >= 0 &&
		l.PatchFactor <= 1e3 && l.Spread >= 0 && l.Spread <= 5) {
		return fail("latency %+v", *l)
	}
	return p.Load.validate(fail)
}

func (p *Profile) validateTables(fail func(string, ...any) error) error {
	for _, t := range []struct {
		name    string
		shares  []float64
		low, up float64
	}{{"manifests", p.Manifests, 0, 1}, {"hot layers", p.HotLayers, 0, 1 - p.NewLayers}, {"repositories", p.LayerRepos, 0, 1}, {"clients", p.Clients, 1, 1}} {
		if len(t.shares) > maxTable {
			return fail("%d %s; at most %d", len(t.shares), t.name, maxTable)
		}
		sum := 0.0
		for _, s := range t.shares {
			if !(s >= 0) {
				return fail("a share of %g in the %s", s, t.name)
			}
			sum += s
		}
		if !(sum >= t.low-1e-6 && sum <= t.up+1e-6) {
			return fail("the shares of the %s sum up to %.4f, not %.4f to %.4f", t.name, sum, t.low, t.up)
		}
	}
	return nil
}

func (l *Load) validate(fail func(string, ...any) error) error {
	for _, weights := range [][]float64{l.Hour[:], l.Weekday[:]} {
		for _, w := range weights {
			if !(w >= 0 && w <= 1e9) {
				return fail("a weight of %g in the load", w)
			}
		}
	}
	if !(l.PausesPerDay >= 0 && l.PausesPerDay <= 86400) || l.PauseMin < 0 || l.PauseMean < l.PauseMin {
		return fail("pauses of %v and more, %v on the average", l.PauseMin, l.PauseMean)
	}
	if l.PausesPerDay*l.PauseMean.Hours() > 23 {
		return fail("%g pauses a day of %v leave no time for requests", l.PausesPerDay, l.PauseMean)
	}
	return nil
}
