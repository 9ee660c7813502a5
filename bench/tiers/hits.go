package tiers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/internal/backendtest"
)

// Hits compares the cost of hits in both tiers with the least possible cost.
type Hits struct {
	Run measure.Run `json:"run"`
	RAM []HitCase   `json:"ram"`
	SSD []HitCase   `json:"ssd"`
}

// HitCase is a size of blobs with the figures of two servers, by round.
type HitCase struct {
	Size int64 `json:"size"`
	// Cache holds the figures of the cache. Floor holds the figures of the storage in
	// memory, or of nginx.
	Cache HitRounds `json:"cache"`
	Floor HitRounds `json:"floor"`
}

// HitRounds are figures of a server: CPU milliseconds for a request, and MB per second.
type HitRounds struct {
	Name string    `json:"name"`
	CPU  []float64 `json:"cpu_ms"`
	Rate []float64 `json:"mb_per_second"`
	// Hits is the share of the requests that were hits, by the registry's own count. It is -1 for
	// other servers.
	Hits float64 `json:"hits"`
}

const (
	hitClients = 4
	hitRepo    = "bench/hits"
)

func runHits(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Hits{}
	h := newHost(b)
	defer h.close()
	s, bucket, err := h.bucket(backendtest.S3)
	if err != nil {
		return err
	}
	other, err := started(h, func(t testing.TB) string { return s.Bucket(t) })
	if err != nil {
		return err
	}
	if err := out.ram(b, ctx, s3(s3Name, s.Endpoint, bucket, s)); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if err := out.ssd(b, ctx, s3(s3Name, s.Endpoint, other, s)); err != nil {
		return fmt.Errorf("SSD: %w", err)
	}
	out.Run = b.Since(began)
	b.results.Hits = out
	return nil
}

// ram compares hits in memory with the in-memory storage.
func (x *Hits) ram(b *bench, ctx context.Context, store backend) error {
	cached, err := b.serve(ctx, "cache", b.NewDir(), store.driver+"  blob_cache: {ram: 1GiB, ssd: 0, large: 512MiB, write_through: false}\n  prefetch: {mode: \"off\"}\n")
	if err != nil {
		return err
	}
	defer cached.stop()
	floor, err := b.serve(ctx, "in memory", b.NewDir(), inMemory().driver+noCache)
	if err != nil {
		return err
	}
	defer floor.stop()
	for i, size := range []int64{128 << 10, 1 << 20, 16 << 20} {
		c := measure.NewContent(uint64(100+i), size)
		a := &hitServer{server: cached, url: cached.url(hitRepo, c.Digest)}
		m := &hitServer{server: floor, url: floor.url(hitRepo, c.Digest)}
		for _, s := range []*hitServer{a, m} {
			if err := s.push(ctx, hitRepo, c); err != nil {
				return err
			}
		}
		got, err := compareHits(b, ctx, size, a, m)
		if err != nil {
			return err
		}
		got.Cache.Hits, err = a.share(ctx, "ram")
		if err != nil {
			return err
		}
		x.RAM = append(x.RAM, got)
	}
	return nil
}

// ssd compares hits on the SSD with nginx, which sends the same bytes from a file.
func (x *Hits) ssd(b *bench, ctx context.Context, store backend) error {
	cached, err := b.serve(ctx, "SSD", b.NewDir(), store.driver+"  blob_cache: {ram: 0, ssd: 4GiB, admission: all, write_through: false}\n  prefetch: {mode: \"off\"}\n")
	if err != nil {
		return err
	}
	defer cached.stop()
	spec := rival.Nginx("nginx")
	if spec.Binary == "" {
		return fmt.Errorf("nginx is the yardstick: %s", spec.Why)
	}
	web, err := rival.Start(ctx, spec, b.NewDir())
	if err != nil {
		return err
	}
	defer web.Stop()
	for i, size := range []int64{1 << 20, 128 << 20} {
		c := measure.NewContent(uint64(200+i), size)
		a := &hitServer{server: cached, url: cached.url(hitRepo, c.Digest)}
		if err := a.push(ctx, hitRepo, c); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(web.Dir, "static", fmt.Sprint(size)), c); err != nil {
			return err
		}
		m := &hitServer{url: "http://" + web.Addr + "/" + fmt.Sprint(size), web: web}
		got, err := compareHits(b, ctx, size, a, m)
		if err != nil {
			return err
		}
		if got.Cache.Hits, err = a.share(ctx, "ssd"); err != nil {
			return err
		}
		x.SSD = append(x.SSD, got)
	}
	return nil
}

func writeFile(path string, c measure.Content) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.ReadFrom(c.Reader()); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// hitServer is a server that gets requests for the same blob again and again.
type hitServer struct {
	*server               // nil for nginx
	web     *rival.Server // nil for a registry
	url     string

	before map[string]float64
	asked  int
}

func (s *hitServer) pid() int {
	if s.web != nil {
		return s.web.Process.Pid()
	}
	return s.Process.Pid()
}

// share returns the share of the requests since the first call of compareHits that the registry
// counts as hits in a tier.
func (s *hitServer) share(ctx context.Context, tier string) (float64, error) {
	now, err := s.metrics(ctx, "slipway_cache_")
	if err != nil {
		return 0, err
	}
	name := fmt.Sprintf(`slipway_cache_tier_hits_total{tier=%q}`, tier)
	return (now[name] - s.before[name]) / float64(s.asked), nil
}

// compareHits sends requests to two servers in turn. Before that, it sends each one or
// two requests, so that its cache holds what is measured.
func compareHits(b *bench, ctx context.Context, size int64, cache, floor *hitServer) (HitCase, error) {
	out := HitCase{Size: size, Cache: HitRounds{Name: "cache"}, Floor: HitRounds{Name: "floor", Hits: -1}}
	each := pick(b, 3*time.Second, 500*time.Millisecond)
	for _, s := range []*hitServer{cache, floor} {
		for range 3 {
			if _, err := measure.Get(ctx, http.DefaultClient, s.url, size, make([]byte, 256<<10)); err != nil {
				return out, err
			}
		}
	}
	var err error
	if cache.before, err = cache.metrics(ctx, "slipway_cache_"); err != nil {
		return out, err
	}
	for round := range b.Run.Rounds {
		order := []*hitServer{cache, floor}
		if round%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		for _, s := range order {
			cpu, rate, n, err := hammer(ctx, s, size, each)
			if err != nil {
				return out, err
			}
			s.asked += n
			to := &out.Cache
			if s == floor {
				to = &out.Floor
			}
			to.CPU, to.Rate = append(to.CPU, cpu), append(to.Rate, rate)
		}
	}
	b.Logf("%8d bytes: cache %s ms, %s MB/s; floor %s ms, %s MB/s", size, measure.SpreadOf(out.Cache.CPU), measure.SpreadOf(out.Cache.Rate),
		measure.SpreadOf(out.Floor.CPU), measure.SpreadOf(out.Floor.Rate))
	return out, nil
}

// hammer makes some clients ask for the same blob for a time.
func hammer(ctx context.Context, s *hitServer, size int64, long time.Duration) (cpuMs, rate float64, n int, err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: hitClients, DisableCompression: true}}
	defer client.CloseIdleConnections()
	m, err := measure.StartMeter(s.pid())
	if err != nil {
		return 0, 0, 0, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(long)
	for range hitClients {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for time.Now().Before(end) {
				_, gerr := measure.Get(ctx, client, s.url, size, buf)
				mu.Lock()
				if n++; gerr != nil {
					err = gerr
				}
				mu.Unlock()
				if gerr != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	u, merr := m.Stop()
	if err == nil {
		err = merr
	}
	return u.Server.Seconds() * 1e3 / float64(n), float64(n) * float64(size) / 1e6 / u.Elapsed.Seconds(), n, err
}

// ratios divides the figures of two servers, round by round.
func ratios(a, b []float64) []float64 {
	var out []float64
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]/b[i])
	}
	return out
}

// Title is the heading.
func (x *Hits) Title() string { return "Hits in memory and on the SSD" }

// Head says how the part was measured.
func (x *Hits) Head() string { return x.Run.Head() }

// About says what was done.
func (x *Hits) About() string {
	return fmt.Sprintf("%d clients ask for one blob again and again, and count its bytes. Hits in memory are compared with a registry whose storage is memory (`storage.inmemory`), and hits on the SSD with nginx, which sends the same bytes from a file. "+
		"Both get requests in turn, and the order changes with each round; ratios are taken within rounds. The registry's own counters show that all requests were hits.", hitClients)
}

// Targets returns the limits on the cost of a hit.
func (x *Hits) Targets() []measure.Target {
	var out []measure.Target
	for _, c := range x.RAM {
		t := measure.TargetOf("hits", "CPU of a hit in memory, "+binary(c.Size)+", cache / in-memory driver", 1.2, false, ratios(c.Cache.CPU, c.Floor.CPU))
		out = append(out, t)
	}
	for _, c := range x.SSD {
		out = append(out, measure.TargetOf("hits", "rate of hits on the SSD, "+binary(c.Size)+", cache / nginx", 0.95, true, ratios(c.Cache.Rate, c.Floor.Rate)))
	}
	least := 1.0
	for _, c := range append(append([]HitCase(nil), x.RAM...), x.SSD...) {
		least = min(least, c.Cache.Hits)
	}
	return append(out, measure.Target{Scenario: "hits", What: "share of the requests that were hits", Limit: 1, AtLeast: true, Figure: least})
}

// binary formats the size of a blob in binary units.
func binary(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Write writes the table.
func (x *Hits) Write(w *strings.Builder) {
	var rows [][]string
	add := func(what, floor string, list []HitCase) {
		for _, c := range list {
			for _, r := range []struct {
				name string
				h    HitRounds
			}{{what, c.Cache}, {floor, c.Floor}} {
				rows = append(rows, []string{binary(c.Size), r.name, measure.SpreadOf(r.h.CPU).String(), measure.SpreadOf(r.h.Rate).String()})
			}
		}
	}
	add("cache, memory", "in-memory driver", x.RAM)
	add("cache, SSD", "nginx", x.SSD)
	measure.Table(w, 2, []string{"blob", "server", "CPU ms/request", "MB/s"}, rows)
}

// Pictures returns no pictures.
func (x *Hits) Pictures() []measure.Picture { return nil }
