package simulate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/policy"
	"example.org/slipway/workload/simulate"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/synth"
)

// requests returns requests for layers named by letters. The sizes are those of a, b, c
// and so on.
func requests(layers string, sizes ...int64) *simulate.Requests {
	r := &simulate.Requests{Size: sizes}
	for _, c := range layers {
		r.Layer = append(r.Layer, uint32(c-'a'))
	}
	return r
}

func caches(t testing.TB, r *simulate.Requests, configs ...simulate.CacheConfig) []simulate.CacheResult {
	t.Helper()
	out, err := simulate.Caches(context.Background(), r, configs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFigure17 simulates figure 17 in miniature, worked out by hand. The memory holds 4,
// the SSD 10. Layers of 4 and more go to the SSD at once.
//
//	a2 miss  a in memory
//	b2 miss  a, b in memory
//	c2 miss  a goes down: the first eviction from memory
//	a2 SSD   a goes up, b goes down
//	d5 miss  to the SSD, which has 7
//	c2 RAM
//	e11 miss larger than the SSD
//	d5 SSD   stays
//	f4 miss  to the SSD: b goes, the first eviction from the SSD
//	d5 SSD
//	b2 miss  comes into memory, a goes down: SSD has 11, f was asked for before d: f goes
func TestFigure17(t *testing.T) {
	r := requests("abcadcedfdb", 2, 2, 2, 5, 11, 4)
	c := simulate.CacheConfig{Policy: "lru", RAM: 4, SSD: 10, Split: 4}
	got := caches(t, r, c)[0]
	c.Shards = 0
	want := simulate.CacheResult{
		Config: c, Requests: 11, Hits: 4, RAMHits: 1, Bytes: 2 + 2 + 2 + 2 + 5 + 2 + 11 + 5 + 4 + 5 + 2, HitBytes: 2 + 2 + 5 + 5,
		ObjectRatio: 4.0 / 11, ByteRatio: 14.0 / 42, RAMRatio: 1.0 / 11,
		// Both count the evicting request too: c to b are 9, f to b are 3.
		RAMWarm: 1.0 / 9, CombinedWarm: 1.0 / 3,
		NotCompulsory: 4.0 / 5, BackendBytes: 28, SSDWriteBytes: 2 + 2 + 5 + 4 + 2, RAMEvictions: 3, SSDEvictions: 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNeverEvicted(t *testing.T) {
	r := requests("aabb", 1, 1)
	got := caches(t, r, simulate.CacheConfig{Policy: "lru", RAM: 10, SSD: 10}, simulate.CacheConfig{Policy: "lru", RAM: 1, SSD: 10})
	if !got[0].RAMNeverEvicted || !got[0].SSDNeverEvicted || got[0].RAMWarm != 0 || got[0].NotCompulsory != 1 {
		t.Errorf("all fits into memory: %+v", got[0])
	}
	if got[1].RAMNeverEvicted || !got[1].SSDNeverEvicted || got[1].RAMWarm != 0.5 {
		t.Errorf("memory has room for one: %+v", got[1])
	}
}

func TestBounds(t *testing.T) {
	// With room for 2, the optimum is 3 hits: keep a and b, and drop c and d at once.
	got := caches(t, requests("abcabdab", 1, 1, 1, 1),
		simulate.CacheConfig{Policy: simulate.Belady, RAM: 2},
		simulate.CacheConfig{Policy: simulate.BeladySize, RAM: 1, SSD: 1},
		simulate.CacheConfig{Policy: "lru", RAM: 2})
	// Belady admits every layer that is requested, so c evicts b, and d evicts b again.
	for i, want := range []int64{2, 4, 0} {
		if got[i].Hits != want {
			t.Errorf("%s: %d hits, want %d", got[i].Config.Policy, got[i].Hits, want)
		}
	}
}

func TestShards(t *testing.T) {
	r := requests(strings.Repeat("ab", 100), 1, 1)
	r.Host = make([]uint32, r.Len())
	for i := range r.Host {
		r.Host[i] = uint32(i / 2 % 2)
	}
	c := simulate.CacheConfig{Policy: "lru", RAM: 4, Shards: 2}
	random, digest := c, c
	random.By, digest.By = simulate.ByRandom, simulate.ByDigest
	got := caches(t, r, c, random, digest)
	// With the other choices each server fetches both layers. By digest each layer is
	// fetched once.
	for i, want := range []int64{196, 196, 198} {
		if got[i].Hits != want {
			t.Errorf("by %v: %d hits, want %d", got[i].Config.By, got[i].Hits, want)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	for name, c := range map[string]simulate.CacheConfig{
		"unknown policy": {Policy: "mru", RAM: 1},
		"no policy":      {RAM: 1},
		"bound as SSD":   {Policy: "lru", SSDPolicy: simulate.Belady, RAM: 1, SSD: 1},
		"no room":        {Policy: "lru"},
		"negative SSD":   {Policy: "lru", RAM: 1, SSD: -1},
		"shards":         {Policy: "lru", RAM: 1, Shards: -1},
		"many shards":    {Policy: "lru", RAM: 1 << 40, Shards: 1 << 30, By: simulate.ByDigest},
		"small shards":   {Policy: "lru", RAM: 1, Shards: 2, By: simulate.ByDigest},
		"no burst":       {Policy: "lru", RAM: 2, SSD: 2, WriteRate: 1},
		"no hosts":       {Policy: "lru", RAM: 2, Shards: 2},
		"no times":       {Policy: "lru", RAM: 2, SSD: 2, WriteRate: 1, WriteBurst: 1},
	} {
		if _, err := simulate.Caches(context.Background(), requests("a", 1), []simulate.CacheConfig{c}, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := simulate.Caches(ctx, requests("a", 1), []simulate.CacheConfig{{Policy: "lru", RAM: 2}}, nil); err == nil {
		t.Error("a simulation that is not wanted any more ends without error")
	}
}

// source is a store with one batch.
type source struct{ b store.Batch }

func (s *source) Scan(_ context.Context, _ store.Query, fn func(*store.Batch) error) error {
	return fn(&s.b)
}

// add adds a request at a time in seconds.
func (s *source) add(second float64, m store.Method, k trace.Kind, client, repo, ref, digest store.Symbol, size int64) {
	b := &s.b
	b.Time = append(b.Time, int64(second*1e6))
	b.Method, b.Kind = append(b.Method, m), append(b.Kind, k)
	b.Status = append(b.Status, 200)
	b.Host, b.Client = append(b.Host, 1), append(b.Client, client)
	b.Repo, b.Ref, b.Digest = append(b.Repo, repo), append(b.Ref, ref), append(b.Digest, digest)
	b.Size = append(b.Size, size)
}

func TestLoadCache(t *testing.T) {
	s := &source{}
	const repo = 1
	s.add(0, store.PUT, trace.Upload, 1, repo, 90, store.None, 70) // paired with the GET of 70 below
	s.add(1, store.PUT, trace.Upload, 1, repo, 91, store.None, 80) // never asked for
	s.add(2, store.PUT, trace.Upload, 1, repo, 92, 50, 60)         // the source states the digest
	s.add(3, store.PUT, trace.Manifest, 1, repo, 93, store.None, 5)
	s.add(4, store.GET, trace.Blob, 1, repo, 40, 40, 70)
	s.add(5, store.GET, trace.Blob, 1, repo, 50, 50, 20) // a range of the blob
	s.add(6, store.GET, trace.Blob, 1, repo, 50, 50, 60)
	s.add(7, store.HEAD, trace.Blob, 1, repo, 50, 50, 60)
	s.add(8, store.GET, trace.Manifest, 1, repo, 93, store.None, 5)
	s.add(9, store.GET, trace.Blob, 1, repo, 51, 51, 0) // has no size
	s.add(10, store.GET, trace.Blob, 1, repo, 52, 52, 9)
	s.b.Status[len(s.b.Status)-1] = 404

	load := func(w simulate.Writes) *simulate.Requests {
		r, err := simulate.LoadCache(context.Background(), s, simulate.Window{Zone: "z"}, w, false)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := load(simulate.NoWrites)
	if diff := cmp.Diff([]uint32{0, 1, 1}, r.Layer); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{70, 60}, r.Size); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	if r.Ingress != 70+80+60+5 || r.Skipped != 1 || r.Footprint() != 130 {
		t.Errorf("ingress %d, skipped %d, footprint %d; want 215, 1, 130", r.Ingress, r.Skipped, r.Footprint())
	}
	// A pushed layer is cached when it is requested.
	c := simulate.CacheConfig{Policy: "lru", RAM: 1000}
	for w, want := range map[simulate.Writes][2]int64{
		simulate.NoWrites: {3, 1}, simulate.WriteThrough: {3, 3}, simulate.CompatWrites: {6, 1},
	} {
		got := caches(t, load(w), c)[0]
		if got.Requests != want[0] || got.Hits != want[1] {
			t.Errorf("writes %d: %d hits of %d, want %d of %d", w, got.Hits, got.Requests, want[1], want[0])
		}
	}
	// A layer that is pushed and requested later is one layer, not two. compat names a
	// push by its upload.
	for w, want := range map[simulate.Writes]int64{simulate.WriteThrough: 70 + 60 + 80, simulate.CompatWrites: 70 + 60 + 70 + 80 + 60} {
		if got := load(w).Footprint(); got != want {
			t.Errorf("writes %d: footprint %d, want %d", w, got, want)
		}
	}
}

// TestPushedByPatches loads pushes as the logs of different registries record them: the
// PUT that ends an upload has the size of everything, or only of its own body, and
// nothing is recorded of what came before.
func TestPushedByPatches(t *testing.T) {
	const unknown = trace.Unknown
	for name, tc := range map[string]struct {
		patches          []int64
		put              int64
		ingress, unsized int64
	}{
		"the whole at the PUT":     {[]int64{60, 40}, 100, 105, 0},
		"nothing at the PUT":       {[]int64{60, 40}, unknown, 105, 0},
		"the rest at the PUT":      {[]int64{60, 40}, 7, 112, 0},
		"no PATCH":                 {nil, 100, 105, 0},
		"unknown":                  {nil, unknown, 5, 1},
		"unknown, and PATCHes too": {[]int64{unknown, unknown}, unknown, 5, 1},
		"empty":                    {nil, 0, 5, 0},
	} {
		s := &source{}
		for _, size := range append([]int64{1 << 30}, tc.patches...) { // the first is of another upload, which never ends
			upload := store.Symbol(90)
			if size == 1<<30 {
				upload = 91
			}
			s.add(0, store.PATCH, trace.Upload, 1, 1, upload, store.None, size)
			s.b.Status[len(s.b.Status)-1] = 202
		}
		s.add(1, store.PUT, trace.Upload, 1, 1, 90, 50, tc.put)
		s.add(2, store.PUT, trace.Manifest, 1, 1, 93, store.None, 5)
		s.add(3, store.GET, trace.Blob, 1, 1, 50, 50, 100)
		r, err := simulate.LoadCache(context.Background(), s, simulate.Window{Zone: "z"}, simulate.NoWrites, false)
		if err != nil {
			t.Fatal(err)
		}
		if r.Ingress != tc.ingress || r.Unsized != tc.unsized {
			t.Errorf("%s: ingress %d and %d pushes without a size, want %d and %d", name, r.Ingress, r.Unsized, tc.ingress, tc.unsized)
		}
	}
}

// TestPairedWithNext checks that a push is paired with the next GET of its size, not with
// an earlier or a later one.
func TestPairedWithNext(t *testing.T) {
	s := &source{}
	s.add(0, store.GET, trace.Blob, 1, 1, 40, 40, 70)
	s.add(1, store.PUT, trace.Upload, 1, 1, 90, store.None, 70)
	s.add(2, store.PUT, trace.Upload, 1, 1, 91, store.None, 70)
	s.add(3, store.GET, trace.Blob, 1, 1, 41, 41, 70)
	s.add(4, store.GET, trace.Blob, 1, 1, 42, 42, 70)
	s.add(5, store.PUT, trace.Upload, 1, 1, 92, store.None, 70)
	r, err := simulate.LoadCache(context.Background(), s, simulate.Window{Zone: "z"}, simulate.WriteThrough, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint32{0, 1, 1, 1, 2, 3}, r.Layer); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{70, 70, 70, 70}, r.Size); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
}

// TestUploadIDs checks that the id of an upload is not taken for a digest, even if it
// equals that of another layer.
func TestUploadIDs(t *testing.T) {
	s := &source{}
	s.add(0, store.PUT, trace.Upload, 1, 1, 50, store.None, 70)
	s.add(1, store.GET, trace.Manifest, 2, 1, 60, store.None, 1)
	s.add(2, store.GET, trace.Blob, 2, 1, 50, 50, 80)
	for _, w := range []simulate.Writes{simulate.WriteThrough, simulate.CompatWrites} {
		r, err := simulate.LoadCache(context.Background(), s, simulate.Window{Zone: "z"}, w, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := caches(t, r, simulate.CacheConfig{Policy: "lru", RAM: 1000})[0]; got.Hits != 0 || r.Footprint() != 150 {
			t.Errorf("writes %v: %d hits, footprint %d; want 0 and 150", w, got.Hits, r.Footprint())
		}
	}
	config := simulate.PrefetchConfig{Algorithm: simulate.Algorithm1, LM: time.Hour, ML: time.Hour}
	got, err := simulate.Prefetch(context.Background(), pulls(t, s, simulate.PairDigest), []simulate.PrefetchConfig{config}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Prefetches != 1 || got[0].Hits != 0 {
		t.Errorf("%d prefetches, %d hits; want 1 and 0", got[0].Prefetches, got[0].Hits)
	}
}

// TestShardsOfHosts checks that the numbers of servers in a store have no meaning: three
// servers go to three shards.
func TestShardsOfHosts(t *testing.T) {
	s := &source{}
	for i := range 12 {
		s.add(float64(i), store.GET, trace.Blob, 1, 1, 40, 40, 70)
		s.b.Host[i] = []store.Symbol{12, 15, 18}[i%3]
	}
	load := func() *simulate.Requests {
		r, err := simulate.LoadCache(context.Background(), s, simulate.Window{Zone: "z"}, simulate.NoWrites, false)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := load()
	c := simulate.CacheConfig{Policy: "lru", RAM: 300, Shards: 3}
	if got := caches(t, r, c)[0]; got.Hits != 9 || r.Servers() != 3 {
		t.Errorf("%d hits with a shard for each of %d servers, want 9 with 3: each of them misses once", got.Hits, r.Servers())
	}
	// Without servers in the trace, shards by host are impossible.
	for i := range s.b.Host {
		s.b.Host[i] = store.None
	}
	if _, err := simulate.Caches(context.Background(), load(), []simulate.CacheConfig{c}, nil); err == nil {
		t.Error("shards by host of a trace without hosts: no error")
	}
}

// TestPrefetchSkips checks that requests without what a prefetcher needs are counted, and
// that nothing is guessed: unknown clients are not one client.
func TestPrefetchSkips(t *testing.T) {
	s := &source{}
	s.add(0, store.GET, trace.Manifest, store.None, 1, 60, store.None, 1)
	s.add(1, store.GET, trace.Blob, store.None, 1, 50, 50, 10)
	s.add(2, store.GET, trace.Blob, 1, 1, 50, 50, -1)
	s.add(3, store.GET, trace.Blob, 1, 1, 50, 50, 10)
	s.add(4, store.HEAD, trace.Blob, 1, 1, 50, 50, -1)
	p := pulls(t, s, simulate.PairDigest)
	if p.Len() != 1 || p.Skipped != 3 || p.Manifests() != 0 {
		t.Errorf("%d requests, %d skipped, %d manifests known; want 1, 3, 0", p.Len(), p.Skipped, p.Manifests())
	}
	s.add(5, store.PUT, trace.Upload, 1, 1, 90, store.None, 10)
	s.add(6, store.PUT, trace.Upload, 1, 1, 91, 50, 10)
	for pair, want := range map[simulate.Pair]int64{simulate.PairDigest: 1, simulate.PairSize: 0} {
		if got := pulls(t, s, pair).NoDigest; got != want {
			t.Errorf("paired by %v: %d pushes without digest, want %d", pair, got, want)
		}
	}
}

// TestPairNear checks pairing by near size: a GET takes the pushed layer of the nearest
// size, if it is within 1000 bytes.
func TestPairNear(t *testing.T) {
	for _, c := range []struct{ size, want int64 }{{4000, 5000}, {3999, 0}, {5400, 5000}, {5500, 6000}, {7000, 6000}, {7001, 0}} {
		s := &source{}
		for i, pushed := range []int64{6000, 5000, 6000} {
			s.add(float64(i), store.PUT, trace.Upload, 1, 1, store.Symbol(70+i), store.None, pushed)
		}
		s.add(10, store.GET, trace.Manifest, 2, 1, 60, store.None, 1)
		s.add(11, store.GET, trace.Blob, 2, 1, 50, 50, c.size)
		config := simulate.PrefetchConfig{Algorithm: simulate.Algorithm1, LM: time.Hour, ML: time.Hour}
		got, err := simulate.Prefetch(context.Background(), pulls(t, s, simulate.PairNear), []simulate.PrefetchConfig{config}, nil)
		if err != nil {
			t.Fatal(err)
		}
		hits := int64(1)
		if c.want == 0 {
			hits = 0
		}
		// The wasted bytes show which of the two was hit.
		wasted := 5000 + 6000 - c.want
		if got[0].Prefetches != 2 || got[0].Hits != hits || got[0].WastedBytes != wasted {
			t.Errorf("size %d: %d hits, %d bytes wasted of 2 prefetches, want %d and %d", c.size, got[0].Hits, got[0].WastedBytes, hits, wasted)
		}
	}
}

func pulls(t *testing.T, s *source, pair simulate.Pair) *simulate.Pulls {
	t.Helper()
	p, err := simulate.LoadPrefetch(context.Background(), s, simulate.Window{Zone: "z"}, pair, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFigure18 simulates figure 18 in miniature, worked out by hand.
func TestFigure18(t *testing.T) {
	const (
		minute                 = 60
		repo                   = 1
		alice, bob, ev         = 1, 2, 3
		x, y                   = 50, 51
		tag                    = 60
		uploadX, uploadY       = 70, 71
		sizeX, sizeY     int64 = 5000, 3000
	)
	s := &source{}
	s.add(0, store.PUT, trace.Upload, alice, repo, uploadX, x, sizeX)
	s.add(1, store.PUT, trace.Upload, alice, repo, uploadY, y, sizeY)
	s.add(2, store.PUT, trace.Manifest, alice, repo, tag, store.None, 1)
	s.add(3, store.GET, trace.Manifest, alice, repo, tag, store.None, 1) // it pushed the image, so nothing is prefetched
	s.add(4*minute, store.GET, trace.Manifest, bob, repo, tag, store.None, 1)
	s.add(4*minute+1, store.GET, trace.Blob, bob, repo, x, x, sizeX)          // hit
	s.add(4*minute+2, store.GET, trace.Blob, bob, repo, x, x, sizeX)          // hit
	s.add(20*minute, store.GET, trace.Blob, bob, repo, y, y, sizeY)           // only with a long ML
	s.add(30*minute, store.GET, trace.Manifest, ev, repo, tag, store.None, 1) // only with a long LM
	s.add(30*minute+1, store.GET, trace.Blob, ev, repo, x, x, sizeX-999)      // near, not the same

	const short, long = 10 * time.Minute, time.Hour
	a1 := func(lm, ml time.Duration) simulate.PrefetchConfig {
		return simulate.PrefetchConfig{Algorithm: simulate.Algorithm1, LM: lm, ML: ml}
	}
	for _, c := range []struct {
		name   string
		pair   simulate.Pair
		config simulate.PrefetchConfig
		want   simulate.PrefetchResult
	}{
		{"long, long", simulate.PairDigest, a1(long, long), simulate.PrefetchResult{
			Hits: 4, Prefetches: 2, Used: 2, Bytes: 8000, Refreshes: 2, HitsPerPrefetch: 2, HitsPerDecision: 1, Precision: 1, Recall: 1, PeakBytes: 8000}},
		// x and y are prefetched for bob at 4 min. They expire, and are prefetched for ev
		// at 30 min.
		{"long LM, short ML", simulate.PairDigest, a1(long, short), simulate.PrefetchResult{
			Hits: 3, Prefetches: 4, Used: 2, Bytes: 16000, HitsPerPrefetch: 0.75, HitsPerDecision: 0.75, Precision: 0.5, Recall: 0.75, WastedBytes: 6000, PeakBytes: 8000}},
		{"short, short", simulate.PairDigest, a1(short, short), simulate.PrefetchResult{
			Hits: 2, Prefetches: 2, Used: 1, Bytes: 8000, HitsPerPrefetch: 1, HitsPerDecision: 1, Precision: 0.5, Recall: 0.5, WastedBytes: 3000, PeakBytes: 8000}},
		// ev's layer has another size. A registry that knows only sizes takes it for
		// another layer.
		{"by size", simulate.PairSize, a1(long, long), simulate.PrefetchResult{
			Hits: 3, Prefetches: 2, Used: 2, Bytes: 8000, Refreshes: 2, HitsPerPrefetch: 1.5, HitsPerDecision: 0.75, Precision: 1, Recall: 0.75, PeakBytes: 8000}},
		{"by near size", simulate.PairNear, a1(long, long), simulate.PrefetchResult{
			Hits: 4, Prefetches: 2, Used: 2, Bytes: 8000, Refreshes: 2, HitsPerPrefetch: 2, HitsPerDecision: 1, Precision: 1, Recall: 1, PeakBytes: 8000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := simulate.Prefetch(context.Background(), pulls(t, s, c.pair), []simulate.PrefetchConfig{c.config}, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Config, c.want.LayerGets = c.config, 4
			if diff := cmp.Diff(c.want, got[0]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestManifestPrefetch runs the manifest prefetcher over a trace without pushes. It
// learns the layers from what other clients request after the manifest.
func TestManifestPrefetch(t *testing.T) {
	const repo, tag, x, y = 1, 60, 50, 51
	s := &source{}
	for i, client := range []store.Symbol{1, 2, 3} {
		at := float64(i) * 1000
		s.add(at, store.GET, trace.Manifest, client, repo, tag, store.None, 1)
		s.add(at+1, store.GET, trace.Blob, client, repo, x, x, 100)
		s.add(at+2, store.GET, trace.Blob, client, repo, y, y, 10)
		s.add(at+3, store.GET, trace.Manifest, client, repo, tag, store.None, 1) // requests the manifest again
		s.add(at+100, store.GET, trace.Blob, client, repo, 52, 52, 1)            // too late for the session
	}
	ahead := simulate.PrefetchConfig{Algorithm: simulate.Manifest, ML: time.Minute}
	online := ahead
	online.Online = true
	p := pulls(t, s, simulate.PairDigest)
	if p.Manifests() != 1 {
		t.Errorf("layers of %d manifests are known, want 1", p.Manifests())
	}
	got, err := simulate.Prefetch(context.Background(), p, []simulate.PrefetchConfig{ahead, online}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []simulate.PrefetchResult{
		{Config: ahead, LayerGets: 9, Hits: 6, Prefetches: 6, Used: 6, Bytes: 330, HitsPerPrefetch: 1, HitsPerDecision: 1, Precision: 1, Recall: 6.0 / 9, PeakBytes: 110,
			Stats: policy.ManifestsStats{Known: 3}},
		// It learns from the first client.
		{Config: online, LayerGets: 9, Hits: 4, Prefetches: 4, Used: 4, Bytes: 220, HitsPerPrefetch: 1, HitsPerDecision: 1, Precision: 1, Recall: 4.0 / 9, PeakBytes: 110,
			Stats: policy.ManifestsStats{Known: 3}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestModelSizesOrder checks that sizes come in the order of NumPy's normal numbers, as
// in the only existing model: 0.35, 0.82, 0.33 and -1.30 for seed 1.
func TestModelSizesOrder(t *testing.T) {
	m := synth.BlobSizes()
	want := []int64{m.Quantile(5.0 / 8), m.Quantile(7.0 / 8), m.Quantile(3.0 / 8), m.Quantile(1.0 / 8)}
	if diff := cmp.Diff(want, simulate.ModelSizes([]int64{1, 1, 1, 1}, 1, 0)); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	if got := simulate.ModelSizes([]int64{0, 0}, 1, 0); got[0] != 32 || got[1] != 32 {
		t.Errorf("sizes of what is never asked for: %v, want the smallest", got)
	}
}

func TestModelSizes(t *testing.T) {
	counts := make([]int64, 5000)
	var total int64
	for i := range counts {
		counts[i] = int64(1 + 5000/(i+1))
		total += counts[i]
	}
	var small, mean float64
	sizes := simulate.ModelSizes(counts, 3, 0)
	for i, s := range sizes {
		if s < 16<<10 {
			small += float64(counts[i])
		}
		mean += float64(counts[i]) * float64(s)
	}
	if got := small / float64(total); math.Abs(got-0.53) > 0.02 {
		t.Errorf("%.3f of the requests are below 16 KiB, want 0.53", got)
	}
	if got := mean / float64(total) / 1e6; math.Abs(got-14.43) > 2 {
		t.Errorf("mean size is %.2f MB, want about 14.43", got)
	}
	// With a negative rho, popular layers are small.
	head := func(rho float64) (sum float64) {
		for _, s := range simulate.ModelSizes(counts, 3, rho)[:50] {
			sum += math.Log(float64(s)) / 50
		}
		return sum
	}
	if neg, none, pos := head(-0.9), head(0), head(0.9); !(neg < none && none < pos) {
		t.Errorf("mean logarithm of the bytes of the 50 most popular: %.1f, %.1f, %.1f for rho -0.9, 0, 0.9; want them to grow", neg, none, pos)
	}
	if diff := cmp.Diff(sizes, simulate.ModelSizes(counts, 3, 0)); diff != "" {
		t.Error("the same seed gives other sizes")
	}
}

func TestReports(t *testing.T) {
	r := requests("abcadcedfdb", 2, 2, 2, 5, 11, 4)
	rep := &simulate.CacheReport{Zone: "<dal>", Requests: 11, Layers: 6, Sizes: "recorded", Of: "footprint",
		Results: caches(t, r, simulate.CacheConfig{Policy: "lru", SSDPolicy: "lru", RAM: 4, SSD: 10}, simulate.CacheConfig{Policy: simulate.Belady, RAM: 100})}
	var text, page, data bytes.Buffer
	for _, err := range []error{rep.WriteText(&text), rep.WriteHTML(&page), rep.WriteJSON(&data)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"zone <dal>: 11 requests for 6 layers", "lru + lru", "never evicted"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	if s := page.String(); !strings.Contains(s, "&lt;dal&gt;") || strings.Contains(s, "<dal>") || !strings.Contains(s, "<svg") {
		t.Error("the page has no picture, or what is not escaped")
	}
	var fields struct {
		Results []struct {
			ObjectRatio float64 `json:"object_ratio"`
			Config      struct {
				By string `json:"by"`
			} `json:"config"`
		} `json:"results"`
	}
	if err := json.Unmarshal(data.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	if len(fields.Results) != 2 || fields.Results[0].ObjectRatio != rep.Results[0].ObjectRatio || fields.Results[0].Config.By != "host" {
		t.Errorf("JSON is\n%s", data.String())
	}
}
