package trace

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Simulate says how fast caches are simulated, and gives their ratios on the real sample.
type Simulate struct {
	Run measure.Run `json:"run"`
	// Requests is the number of requests for layers of a synthetic dal.
	Requests int64         `json:"requests"`
	Policies []PolicySpeed `json:"policies"`
	// Sample holds the ratios on the real sample. It is empty if the sample is missing.
	SampleRequests  int64          `json:"sample_requests,omitempty"`
	SampleLayers    int64          `json:"sample_layers,omitempty"`
	SampleFootprint int64          `json:"sample_footprint,omitempty"`
	Sample          []PolicyRatios `json:"sample,omitempty"`
}

// PolicySpeed is the cost of a policy: nanoseconds of CPU time for each request and size, by round,
// and the largest resident set.
type PolicySpeed struct {
	Name    string    `json:"name"`
	Ns      []float64 `json:"ns"`
	PeakRSS int64     `json:"peak_rss"`
}

// PolicyRatios are the hit ratios of a policy at each size, as shares.
type PolicyRatios struct {
	Name   string    `json:"name"`
	Object []float64 `json:"object"`
	Byte   []float64 `json:"byte"`
}

const (
	simulateRequests = 2_000_000
	simulateQuick    = 60_000
)

// sizes returns the sizes of the caches, in per cent of the footprint.
func sizes() []string { return []string{"2%", "4%", "6%", "8%", "10%"} }

// policies returns the policies to measure.
func policies(quick bool) []string {
	if quick {
		return []string{"lru", "gdsf", "belady"}
	}
	return []string{"lru", "fifo", "sieve", "slru", "2q", "s3-fifo", "arc", "arc-unit", "lfuda", "gdsf", "w-tinylfu", "lhd", "hyperbolic", "belady", "belady-size"}
}

// simulated holds the part of a simulation's result that is read.
type simulated struct {
	Requests  int64
	Layers    int64
	Footprint int64 `json:"footprint_bytes"`
	Results   []struct {
		Object float64 `json:"object_ratio"`
		Byte   float64 `json:"byte_ratio"`
	}
}

func runSimulate(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Simulate{}
	store := b.NewDir()
	defer b.Remove(store)
	n := simulateRequests
	if b.Run.Quick {
		n = simulateQuick
	}
	if _, _, err := b.Slipway(ctx, 0, "trace", "generate", "--zone", "dal", "--seed", "1", "--requests", strconv.Itoa(n), "-o", store); err != nil {
		return err
	}
	list := policies(b.Run.Quick)
	for range b.Run.Rounds {
		for i, name := range list {
			if len(out.Policies) == i {
				out.Policies = append(out.Policies, PolicySpeed{Name: name})
			}
			if err := out.policy(b, ctx, store, &out.Policies[i]); err != nil {
				return fmt.Errorf("policy %s: %w", name, err)
			}
		}
	}
	for _, p := range out.Policies {
		b.Logf("%-12s %s ns a request", p.Name, measure.SpreadOf(p.Ns))
	}
	if err := out.sample(b, ctx, list); err != nil {
		return err
	}
	out.Run = b.Since(began)
	b.results.Simulate = out
	return nil
}

// policy runs a policy with one size and with all sizes. The difference is the cost of
// the additional sizes alone, without reading the store.
func (s *Simulate) policy(b *bench, ctx context.Context, store string, p *PolicySpeed) error {
	run := func(sizes []string) (measure.Spent, error) {
		var got simulated
		u, err := b.Answer(ctx, 1, &got, "trace", "simulate", "cache", store, "--policy", p.Name, "--size", strings.Join(sizes, ","), "--workers", "1", "--format", "json")
		if err == nil && (got.Requests == 0 || len(got.Results) != len(sizes)) {
			err = fmt.Errorf("%d results of %d requests", len(got.Results), got.Requests)
		}
		s.Requests = got.Requests
		return u, err
	}
	all := sizes()
	middle := len(all) / 2
	one, err := run(all[middle : middle+1])
	if err != nil {
		return err
	}
	every, err := run(all)
	if err != nil {
		return err
	}
	p.Ns = append(p.Ns, (every.CPU-one.CPU)*1e9/float64(len(all)-1)/float64(s.Requests))
	p.PeakRSS = max(p.PeakRSS, one.PeakRSS, every.PeakRSS)
	return nil
}

// sample simulates on the real sample, if it is there.
func (s *Simulate) sample(b *bench, ctx context.Context, list []string) error {
	imported, err := b.Sample(b.o.traces)
	if err != nil || imported == nil {
		return err
	}
	store := b.NewDir()
	defer b.Remove(store)
	if _, _, err := b.Slipway(ctx, 0, append(imported, store)...); err != nil {
		return err
	}
	for _, name := range list {
		var got simulated
		if _, err := b.Answer(ctx, 0, &got, "trace", "simulate", "cache", store, "--policy", name, "--size", strings.Join(sizes(), ","),
			"--sizes", "model", "--seed", "1", "--format", "json"); err != nil {
			return fmt.Errorf("policy %s on the real sample: %w", name, err)
		}
		s.SampleRequests, s.SampleLayers, s.SampleFootprint = got.Requests, got.Layers, got.Footprint
		p := PolicyRatios{Name: name}
		for _, r := range got.Results {
			p.Object, p.Byte = append(p.Object, r.Object), append(p.Byte, r.Byte)
		}
		s.Sample = append(s.Sample, p)
	}
	return nil
}

// Title is the heading.
func (s *Simulate) Title() string { return "Simulation of caches" }

// Head says how the part was measured.
func (s *Simulate) Head() string {
	return fmt.Sprintf("%s\n- %d requests for layers of a synthetic dal", s.Run.Head(), s.Requests)
}

// About says what was done.
func (s *Simulate) About() string {
	return "Each policy is run on one core with one size (6 % of the footprint) and with five (2, 4, 6, 8 and 10 %); the additional CPU time, divided by the requests of the other four, is the cost of a request without reading the store."
}

// Targets returns no targets.
func (s *Simulate) Targets() []measure.Target { return nil }

// Write writes the tables.
func (s *Simulate) Write(w *strings.Builder) {
	var rows [][]string
	for _, p := range s.Policies {
		rows = append(rows, []string{p.Name, measure.SpreadOf(p.Ns).String(), measure.Megabytes(p.PeakRSS)})
	}
	measure.Table(w, 1, []string{"policy", "CPU ns/request", "peak RSS MB"}, rows)
	if len(s.Sample) == 0 {
		w.WriteString("\nThe real sample was not at hand.\n")
		return
	}
	fmt.Fprintf(w, "\nThe real sample: %d requests for %d layers, modelled sizes (seed 1), footprint %.0f GB; hits by requests / by bytes, in %%.\n\n",
		s.SampleRequests, s.SampleLayers, float64(s.SampleFootprint)/1e9)
	rows = nil
	for _, p := range s.Sample {
		row := []string{p.Name}
		for i := range p.Object {
			row = append(row, fmt.Sprintf("%.1f/%.1f", 100*p.Object[i], 100*p.Byte[i]))
		}
		rows = append(rows, row)
	}
	measure.Table(w, 1, append([]string{"policy"}, sizes()...), rows)
}

// Pictures returns one picture: the cost of a request with each policy.
func (s *Simulate) Pictures() []measure.Picture {
	c := measure.Chart{Title: "Simulation: CPU time of a request, in ns"}
	for _, p := range s.Policies {
		c.Series = append(c.Series, measure.Series{Name: p.Name, Points: []measure.Spread{measure.SpreadOf(p.Ns)}})
	}
	return []measure.Picture{{File: "bench-trace-simulate.svg", Chart: c}}
}
