package tiers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/netdelay"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/workload/replay/result"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Prefetch shows how useful the prefetchers are if the store is far away.
type Prefetch struct {
	Run      measure.Run    `json:"run"`
	Requests int            `json:"requests"`
	Speed    string         `json:"speed"`
	Scale    string         `json:"scale"`
	RTT      float64        `json:"rtt_ms"`
	Modes    []PrefetchMode `json:"modes"`
}

// PrefetchMode is one of the prefetchers.
type PrefetchMode struct {
	Name   string `json:"name"`
	Layers int64  `json:"layers"`
	Errors int64  `json:"errors"`
	// Kinds counts the errors by kind, such as "status 404" or "broken".
	Kinds map[string]int64 `json:"kinds,omitempty"`
	// Early counts requests that got a 404 because their push was not over yet, and requests that
	// were not sent because their manifest got a 404 for that reason.
	Early int64 `json:"early"`
	// Invalid says why the replay does not count. It is empty if the replay is valid.
	Invalid string `json:"invalid,omitempty"`
	// Latency is for GETs of layers that are objects, in milliseconds. All is for every GET of a
	// blob.
	Latency Bin `json:"latency"`
	All     Bin `json:"all"`
	// Fetched, Used, Bytes and Wasted are the registry's own counts.
	Fetched float64 `json:"fetched"`
	Used    float64 `json:"used"`
	Bytes   float64 `json:"bytes"`
	Wasted  float64 `json:"wasted_bytes"`
	Hits    float64 `json:"hits"`
	// Backend is the number of bytes that came from the store for objects.
	Backend float64 `json:"backend_bytes"`

	objects, all []float64 // in milliseconds, of all rounds
}

const (
	// storeRTT is the round trip to the store.
	storeRTT = 20 * time.Millisecond
	// busyHour is the start of the part of the trace that is replayed.
	busyHour = "2017-06-20T14:00:00Z"
)

func runPrefetch(b *bench, ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	out := &Prefetch{Requests: pick(b, 8_000, 800), Speed: pick(b, "100x", "100x"), Scale: pick(b, "0.1", "0.05"), RTT: storeRTT.Seconds() * 1e3}
	h := newHost(b)
	defer h.close()
	s, err := started(h, backendtest.S3)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	counted, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	count := newCounter()
	wg.Go(func() { count.Serve(ctx, counted, s.Endpoint) })
	proxy := &netdelay.Proxy{Target: counted.Addr().String(), RTT: storeRTT}
	wg.Go(func() { _ = proxy.Serve(ctx, l) }) // ends with the context
	traces := b.NewDir()
	defer b.Remove(traces)
	if _, err := b.slipway(ctx, "trace", "generate", "--zone", "fra", "--seed", "3", "--days", "1", "-o", traces); err != nil {
		return err
	}
	for _, mode := range prefetchModes {
		out.Modes = append(out.Modes, PrefetchMode{Name: mode})
	}
	for round := range b.Run.Rounds {
		for i := range prefetchModes {
			m := &out.Modes[(i+round)%len(prefetchModes)]
			bucket, err := started(h, func(t testing.TB) string { return s.Bucket(t) })
			if err != nil {
				return err
			}
			count.Bytes.Store(0)
			if err := out.measure(b, ctx, m, traces, s3(m.Name, s.Endpoint, bucket, s), s3(m.Name, l.Addr().String(), bucket, s)); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
			m.Backend += float64(count.Bytes.Load())
			if err := os.RemoveAll(filepath.Join(s.Dir, bucket)); err != nil {
				return err
			}
			b.Logf("%-10s mean %s, median %s ms of %d layers; %.0f fetched ahead, %.0f used, %s of %s MB wasted", m.Name, measure.Figure(m.Latency.Mean), measure.Figure(m.Latency.Median), m.Latency.N, m.Fetched, m.Used,
				measure.Figure(m.Wasted/1e6), measure.Figure(m.Backend/1e6))
		}
	}
	out.Run = b.Since(began)
	b.results.Prefetch = out
	return nil
}

// prefetchModes are the values of storage.prefetch.mode.
var prefetchModes = []string{"off", "algorithm1", "manifest"}

// measure replays with one prefetcher. First, a registry without a cache stores what the
// replay needs, over a connection to the store without the delay. Then another registry
// starts, with an empty cache and the delayed connection.
func (x *Prefetch) measure(b *bench, ctx context.Context, m *PrefetchMode, traces string, near, far backend) error {
	scale, err := strconv.ParseFloat(x.Scale, 64)
	if err != nil {
		return err
	}
	eager := int64(scale * (32 << 20)) // reduced by the same factor as the layers
	dir := b.NewDir()
	defer b.Remove(dir)
	res := filepath.Join(dir, "result")
	replay := func(r *server, phase string) error {
		_, err := b.slipway(ctx, "trace", "replay", traces, "-o", res, "--target", "http://"+r.Addr, "--level", "L2", "--clients",
			"--from", busyHour, "--max-requests", strconv.Itoa(x.Requests), "--speed", x.Speed, "--keep-gaps", "--size-scale", x.Scale, "--phase", phase, "--quiet", "--no-docker-config")
		return err
	}
	r, err := b.serve(ctx, m.Name, dir, near.driver+noCache+trustUs)
	if err != nil {
		return err
	}
	err = replay(r, "warmup")
	addr := r.Addr
	r.stop()
	if err != nil {
		return err
	}
	r, err = b.serveAt(ctx, m.Name, dir, far.driver+fmt.Sprintf("  blob_cache: {ram: 512MiB, ssd: 0, large: 64MiB, write_through: false}\n  prefetch: {mode: %q, budget: 0, eager: %d}\n", m.Name, eager)+trustUs, addr)
	if err != nil {
		return err
	}
	defer r.stop()
	if err := replay(r, "run"); err != nil {
		return err
	}
	said, err := verdict(res)
	if err != nil {
		return err
	}
	if said != "" {
		m.Invalid = said
	}
	if err := m.read(res); err != nil {
		return err
	}
	return m.count(ctx, r)
}

// verdict returns the replay's own objection to its result, or "" if it has none.
func verdict(dir string) (string, error) {
	var s struct {
		Valid   bool
		Verdict string
	}
	text, err := os.ReadFile(filepath.Join(dir, result.SummaryName))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return "", fmt.Errorf("read the summary of a replay: %w", err)
	}
	if s.Valid {
		return "", nil
	}
	return s.Verdict, nil
}

// trustUs makes the registry trust the replay's statements about whose requests it sends.
const trustUs = "http:\n  trusted_proxies: [127.0.0.1]\n"

// read reads what the replay measured.
func (m *PrefetchMode) read(dir string) error {
	tooSoon := map[int64]bool{} // pulls that came before the end of their push
	err := result.Read(dir, func(s *result.Sample) error {
		if !s.IsSession() && early(s) {
			tooSoon[s.Task] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = result.Read(dir, func(s *result.Sample) error {
		if s.IsSession() || s.Method != store.GET || s.Object != result.Object(trace.Blob) {
			return nil
		}
		m.Layers++
		if early(s) || s.Outcome == result.Failed && tooSoon[s.Task] {
			m.Early++
			return nil
		}
		if s.Outcome != result.OK {
			m.wrong(s)
			return nil
		}
		ms := float64(s.Service()) / 1e3
		m.all = append(m.all, ms)
		if s.Bytes > inlineMax {
			m.objects = append(m.objects, ms)
		}
		return nil
	})
	m.Latency, m.All = binOf("objects", m.objects), binOf("all", m.all)
	return err
}

// wrong counts a request that went wrong.
func (m *PrefetchMode) wrong(s *result.Sample) {
	if m.Kinds == nil {
		m.Kinds = map[string]int64{}
	}
	kind := s.Outcome.String()
	if s.Outcome == result.BadStatus {
		kind = fmt.Sprintf("%s %d", kind, s.Status)
	}
	m.Kinds[kind]++
	m.Errors++
}

// count reads the registry's own counts.
func (m *PrefetchMode) count(ctx context.Context, r *server) error {
	now, err := r.metrics(ctx, "slipway_")
	if err != nil {
		return err
	}
	m.Fetched += now[`slipway_prefetch_layers_total{outcome="fetched"}`]
	m.Used += now["slipway_prefetch_used_total"]
	m.Hits += now["slipway_prefetch_hits_total"]
	// Unused content counts as wasted only when its time is over, and the replay is
	// shorter than that. So everything that was not used counts as wasted here.
	fetched := now["slipway_prefetch_bytes_total"]
	m.Bytes += fetched
	m.Wasted += max(0, fetched-now["slipway_prefetch_used_bytes_total"])
	return nil
}

func (x *Prefetch) mode(name string) *PrefetchMode {
	for i := range x.Modes {
		if x.Modes[i].Name == name {
			return &x.Modes[i]
		}
	}
	return &PrefetchMode{}
}

// Title is the heading.
func (x *Prefetch) Title() string { return "Prefetching from a distant store" }

// Head says how the part was measured.
func (x *Prefetch) Head() string { return x.Run.Head() }

// About says what was done.
func (x *Prefetch) About() string {
	return fmt.Sprintf("%d requests of an afternoon of a synthetic fra are replayed as pulls and pushes (level L2), %s as fast as they were between pulls, with the times within a pull as they were (--keep-gaps), and with layers of %s times their size, to a registry whose store is %.0f ms away; its cache (memory alone) is empty at first. Each mode has a separate bucket in each round, and the same requests. Figures cover all rounds together. "+
		"Every seventh layer stands alone, without a manifest before it; in dal, two of three do. Latency is measured from sending, for GETs of layers that are objects. Precision is used / fetched. \"Wasted\" is what no client had requested when the replay ended.", x.Requests, x.Speed, x.Scale, x.RTT)
}

// Targets returns the targets of the manifest prefetcher.
func (x *Prefetch) Targets() []measure.Target {
	off, one, man := x.mode("off"), x.mode("algorithm1"), x.mode("manifest")
	part := func(what string, limit, a, b float64, atLeast bool) measure.Target {
		t := measure.Target{Scenario: "prefetch", What: what, Limit: limit, AtLeast: atLeast, Missing: !(b > 0)}
		if !t.Missing {
			t.Figure = a / b
		}
		return t
	}
	return []measure.Target{
		part("mean latency of layers, manifest / off", 0.5, man.Latency.Mean, off.Latency.Mean, false),
		part("mean latency of layers, manifest / algorithm1", 0.75, man.Latency.Mean, one.Latency.Mean, false),
		part("precision of manifest", 0.6, man.Used, man.Fetched, true),
		part("wasted by manifest / read from the store", 0.1, man.Wasted, man.Backend, false),
		{Scenario: "prefetch", What: "requests that went wrong", Figure: float64(off.Errors + one.Errors + man.Errors)},
	}
}

// Write writes the table.
func (x *Prefetch) Write(w *strings.Builder) {
	var rows [][]string
	for _, m := range x.Modes {
		precision := "-"
		if m.Fetched > 0 {
			precision = measure.Figure(100 * m.Used / m.Fetched)
		}
		rows = append(rows, []string{m.Name, fmt.Sprint(m.Latency.N), measure.Figure(m.Latency.Mean), measure.Figure(m.Latency.Median), measure.Figure(m.Latency.P99),
			measure.Figure(m.All.Mean), measure.Figure(m.Fetched), precision, measure.Figure(m.Hits), measure.Figure(m.Wasted / 1e6), measure.Figure(m.Backend / 1e6)})
	}
	for _, m := range x.Modes {
		if m.Invalid != "" {
			fmt.Fprintf(w, "The replay with %s says of itself: %s\n\n", m.Name, m.Invalid)
		}
		for _, kind := range slices.Sorted(maps.Keys(m.Kinds)) {
			fmt.Fprintf(w, "With %s %d requests went wrong: %s.\n\n", m.Name, m.Kinds[kind], kind)
		}
	}
	measure.Table(w, 1, []string{"mode", "layers", "mean ms", "median", "p99", "mean of all blobs", "fetched ahead", "precision %", "hits", "MB wasted", "MB from the store"}, rows)
}

// Pictures returns no pictures.
func (x *Prefetch) Pictures() []measure.Picture { return nil }
