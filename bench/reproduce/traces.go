package reproduce

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/analyze"
)

// Results are the raw figures of the parts that this suite measures itself.
type Results struct {
	Traces *Traces `json:"traces,omitempty"`
	Caches *Caches `json:"caches,omitempty"`
}

// Fill takes from old what was not measured this time.
func (r *Results) Fill(old *Results) {
	r.Traces = cmp.Or(r.Traces, old.Traces)
	r.Caches = cmp.Or(r.Caches, old.Caches)
}

// Traces is the analysis of a synthetic trace.
type Traces struct {
	Run      measure.Run     `json:"run"`
	Requests int64           `json:"requests"`
	Report   *analyze.Report `json:"report"`
}

// Caches are simulations of caches and prefetchers.
type Caches struct {
	Run      measure.Run  `json:"run"`
	Requests int64        `json:"requests"`
	Caches   []ZoneCaches `json:"caches"`
	Prefetch []ZonePulls  `json:"prefetch"`
}

// ZoneCaches are the caches of a zone, in the order of their memory and, within that, of their SSDs.
type ZoneCaches struct {
	Zone    string        `json:"zone"`
	Results []CacheResult `json:"results"`
}

// CacheResult is what is used of a simulation's result.
type CacheResult struct {
	RAMWarm         float64 `json:"ram_warm"`
	CombinedWarm    float64 `json:"combined_warm"`
	NotCompulsory   float64 `json:"not_compulsory"`
	ObjectRatio     float64 `json:"object_ratio"`
	RAMNeverEvicted bool    `json:"ram_never_evicted"`
}

// ZonePulls are the prefetchers of a zone.
type ZonePulls struct {
	Zone    string       `json:"zone"`
	Results []PullResult `json:"results"`
}

// PullResult is what is used of a simulation's result.
type PullResult struct {
	Config struct {
		LM time.Duration `json:"lm_ns"`
		ML time.Duration `json:"ml_ns"`
	} `json:"config"`
	HitsPerPrefetch float64 `json:"hits_per_prefetch"`
	HitsPerDecision float64 `json:"hits_per_decision"`
	Prefetches      int64   `json:"prefetches"`
	PeakBytes       int64   `json:"peak_bytes"`
}

const (
	// archiveRequests is the number of requests in the public archive.
	archiveRequests = 40_872_024
	quickRequests   = 60_000
	// sampleIngress is what was pushed in the three days of the real sample: 307 GiB, from the
	// totals that were published of the archive.
	sampleIngress = 307 << 30
)

// memories returns the sizes of memory in Figure 17, in per cent of the ingress. ssds
// returns the sizes of the SSD, as multiples of these.
func memories() []float64 { return []float64{2, 4, 6, 8, 10} }
func ssds() []string      { return []string{"10x", "15x", "20x"} }

// generate makes a trace of all zones.
func (s *session) generate(ctx context.Context) (store string, requests int64, err error) {
	store, requests = s.NewDir(), archiveRequests
	args := []string{"trace", "generate", "--zone", "all", "--seed", "1", "-o", store}
	if s.Run.Quick {
		requests = quickRequests
		args = append(args, "--requests", strconv.FormatInt(requests, 10))
	}
	_, u, err := s.Slipway(ctx, 0, args...)
	if err == nil {
		s.Logf("%d requests generated in %.1f s", requests, u.Wall)
	}
	return store, requests, err
}

// traces measures Table 1 and Figures 4 to 15.
func (s *session) traces(ctx context.Context) error {
	began := time.Now()
	store, n, err := s.generate(ctx)
	defer s.Remove(store)
	if err != nil {
		return err
	}
	dir := s.NewDir()
	defer s.Remove(dir)
	if _, _, err := s.Slipway(ctx, 0, "trace", "analyze", store, "-o", dir); err != nil {
		return err
	}
	out := &Traces{Requests: n, Report: &analyze.Report{}}
	if err := measure.ReadJSON(out.Report, dir, "report.json"); err != nil {
		return err
	}
	out.Run = s.Since(began)
	s.results.Traces = out
	return nil
}

// caches measures Figures 17 and 18.
func (s *session) caches(ctx context.Context) error {
	began := time.Now()
	store, n, err := s.generate(ctx)
	defer s.Remove(store)
	if err != nil {
		return err
	}
	out := &Caches{Requests: n}
	var sizes []string
	for _, m := range memories() {
		sizes = append(sizes, fmt.Sprintf("%g%%", m))
	}
	if out.Caches, err = answers[ZoneCaches](ctx, s, "trace", "simulate", "cache", store, "--policy", "lru", "--size", strings.Join(sizes, ","), "--of", "ingress",
		"--ssd", strings.Join(ssds(), ","), "--split", "100MiB", "--shards", "6", "--by", "host", "--format", "json"); err != nil {
		return err
	}
	s.Logf("caches simulated")
	if out.Prefetch, err = answers[ZonePulls](ctx, s, "trace", "simulate", "prefetch", store, "--algorithm", "algorithm1", "--pair", "size", "--format", "json"); err != nil {
		return err
	}
	s.Logf("prefetchers simulated")
	if err := s.sample(ctx, out); err != nil {
		return err
	}
	out.Run = s.Since(began)
	s.results.Caches = out
	return nil
}

// sample simulates the caches on the real sample, if it is there.
func (s *session) sample(ctx context.Context, out *Caches) error {
	imported, err := s.Sample(s.o.traces)
	if err != nil || imported == nil {
		return err
	}
	store := s.NewDir()
	defer s.Remove(store)
	if _, _, err := s.Slipway(ctx, 0, append(imported, store)...); err != nil {
		return err
	}
	var sizes []string
	for _, m := range memories() {
		sizes = append(sizes, strconv.FormatInt(int64(m/100*sampleIngress), 10))
	}
	list, err := answers[ZoneCaches](ctx, s, "trace", "simulate", "cache", store, "--policy", "lru", "--size", strings.Join(sizes, ","),
		"--ssd", strings.Join(ssds(), ","), "--split", "100MiB", "--sizes", "model", "--seed", "1", "--format", "json")
	for _, z := range list {
		z.Zone = sampleZone
		out.Caches = append(out.Caches, z)
	}
	return err
}

// answers runs the binary and reads the JSON documents it prints, one for each zone.
func answers[T any](ctx context.Context, s *session, args ...string) (out []T, err error) {
	text, _, err := s.Slipway(ctx, 0, args...)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var v T
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("parse what slipway %s prints: %w", strings.Join(args[:3], " "), err)
		}
		out = append(out, v)
	}
}

// shortName returns the paper's name of a zone.
func shortName(zone string) string {
	if slices.Contains(zones(), zone) {
		return zone
	}
	for long, short := range map[string]string{"dal09": "dal", "lon02": "lon", "fra02": "fra", "syd01": "syd", "stage-dal09": "stg", "prestage-mon01": "prs", "dev-mon01": "dev"} {
		if zone == long {
			return short
		}
	}
	return zone
}

// hitRatios finds the values of Figure 17.
func (c *Caches) hitRatios() *Finding {
	if c == nil {
		return nil
	}
	out := &Finding{Run: &c.Run, Values: map[string]measure.Spread{}}
	for _, z := range c.Caches {
		if len(z.Results) != len(memories())*len(ssds()) {
			continue
		}
		zone := shortName(z.Zone)
		curve := Curve{Name: zone}
		for i, m := range memories() {
			r := z.Results[i*len(ssds())]
			if !r.RAMNeverEvicted {
				out.Values[fmt.Sprintf("%s, memory of %g %%", zone, m)] = one(r.RAMWarm)
				curve.Points = append(curve.Points, chart.Point{X: m / 100, Y: r.RAMWarm})
			}
			out.Values[fmt.Sprintf("%s, both levels at %g %%, not the first requests", zone, m)] = one(r.NotCompulsory)
		}
		if len(curve.Points) > 0 {
			out.Curves = append(out.Curves, curve)
		}
	}
	return out
}

// prefetches finds the values of Figure 18.
func (c *Caches) prefetches() *Finding {
	if c == nil {
		return nil
	}
	out := &Finding{Run: &c.Run, Values: map[string]measure.Spread{}}
	const short, long = time.Hour, 24 * time.Hour
	for _, z := range c.Prefetch {
		zone := shortName(z.Zone)
		ratios := map[[2]time.Duration]float64{}
		var peak int64
		for _, r := range z.Results {
			ratios[[2]time.Duration{r.Config.LM, r.Config.ML}] = r.HitsPerDecision
			peak = max(peak, r.PeakBytes)
		}
		out.Values[zone+", most memory"] = one(float64(peak))
		if base := ratios[[2]time.Duration{short, short}]; base > 0 {
			out.Values[zone+", MLthresh of 24 h / of 1 h"] = one(ratios[[2]time.Duration{short, long}] / base)
			out.Values[zone+", LMthresh of 24 h / of 1 h"] = one(ratios[[2]time.Duration{long, short}] / base)
		}
	}
	return out
}

// sortClaims sorts claims by zone in the paper's order, and then by name.
func sortClaims(list []Claim) {
	place := func(c Claim) int {
		zone, _, _ := strings.Cut(c.Name, ",")
		return slices.Index(zones(), zone)
	}
	slices.SortStableFunc(list, func(a, b Claim) int { return cmp.Or(cmp.Compare(place(a), place(b)), strings.Compare(a.Name, b.Name)) })
}
