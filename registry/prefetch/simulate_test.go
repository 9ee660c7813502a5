package prefetch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
	"example.org/slipway/registry/prefetch"
	"example.org/slipway/workload/simulate"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// recording is a series of requests. A live prefetcher gets them one after the other, and a
// simulation gets them as a trace.
type recording struct {
	batch  store.Batch
	live   []func(*bed)
	random *rand.Rand
	now    time.Time
	// latest is the manifest to which each tag of each repository points.
	latest map[[2]int]pushed
	layers int
}

type pushed struct {
	digest   oci.Digest
	bytes    []byte
	contents []int // layers by number
}

// Scan implements simulate.Source.
func (r *recording) Scan(_ context.Context, _ store.Query, fn func(*store.Batch) error) error {
	return fn(&r.batch)
}

// These are the symbols of the trace by kind.
const (
	repoSymbol   = 100
	clientSymbol = 200
	tagSymbol    = 300
	layerSymbol  = 1000
)

func (r *recording) add(m store.Method, k trace.Kind, client, repo int, ref, digest store.Symbol, size int64, live func(*bed)) {
	b := &r.batch
	b.Time = append(b.Time, r.now.UnixMicro())
	b.Method, b.Kind, b.Status = append(b.Method, m), append(b.Kind, k), append(b.Status, 200)
	b.Host, b.Client = append(b.Host, 1), append(b.Client, store.Symbol(clientSymbol+client))
	b.Repo, b.Ref, b.Digest = append(b.Repo, store.Symbol(repoSymbol+repo)), append(b.Ref, ref), append(b.Digest, digest)
	b.Size = append(b.Size, size)
	at := r.now
	r.live = append(r.live, func(b *bed) {
		b.clock.mu.Lock()
		b.clock.t = at
		b.clock.mu.Unlock()
		live(b)
	})
}

func (r *recording) wait(d time.Duration) { r.now = r.now.Add(d) }

// sizeOf gives each layer a different size, so that the order never depends on chance.
func sizeOf(layer int) int64 { return int64(1000 + (layer*7919)%100_000*100 + layer) }

func layerName(layer int) string { return fmt.Sprintf("layer %d", layer) }

func repoName(repo int) string { return fmt.Sprintf("team/repo%d", repo) }

func clientCtx(client int) context.Context { return by(fmt.Sprintf("client %d", client)) }

// push pushes an image of some existing layers and some new ones.
func (r *recording) push(client, repo, tag int) {
	var contents []int
	if old, ok := r.latest[[2]int{repo, tag}]; ok {
		contents = append(contents, old.contents[:len(old.contents)/2]...)
	}
	for range 1 + r.random.IntN(4) {
		r.layers++
		l := r.layers
		contents = append(contents, l)
		r.wait(100 * time.Millisecond)
		r.add(store.PUT, trace.Upload, client, repo, store.Symbol(50_000+l), store.Symbol(layerSymbol+l), sizeOf(l), func(b *bed) {
			b.PutBlob(clientCtx(client), repoName(repo), blob(layerName(l)), sizeOf(l))
		})
	}
	var list []oci.Descriptor
	for _, l := range contents {
		list = append(list, layer(layerName(l), sizeOf(l)))
	}
	p := pushed{contents: contents}
	p.digest, p.bytes = image(list...)
	r.latest[[2]int{repo, tag}] = p
	r.wait(100 * time.Millisecond)
	r.add(store.PUT, trace.Manifest, client, repo, store.Symbol(tagSymbol+tag), store.None, 500, func(b *bed) {
		b.PutManifest(clientCtx(client), repoName(repo), p.digest, p.bytes)
	})
}

// pull requests an image and the given number of its layers.
func (r *recording) pull(client, repo, tag, layers int) {
	p, ok := r.latest[[2]int{repo, tag}]
	if !ok {
		return
	}
	r.wait(time.Second)
	r.add(store.GET, trace.Manifest, client, repo, store.Symbol(tagSymbol+tag), store.None, 500, func(b *bed) {
		b.GetManifest(clientCtx(client), repoName(repo), p.digest, p.bytes)
	})
	for _, l := range p.contents[:min(layers, len(p.contents))] {
		r.wait(200 * time.Millisecond)
		s := store.Symbol(layerSymbol + l)
		r.add(store.GET, trace.Blob, client, repo, s, s, sizeOf(l), func(b *bed) {
			b.GetBlob(clientCtx(client), repoName(repo), blob(layerName(l)), sizeOf(l))
		})
	}
}

// record makes up some hours of pushes and pulls.
func record(seed uint64) *recording {
	r := &recording{random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_500_000_000, 0), latest: map[[2]int]pushed{}}
	const repos, tags, clients, scanner = 3, 2, 6, 99
	for range 400 {
		repo, tag := r.random.IntN(repos), r.random.IntN(tags)
		if r.random.IntN(5) == 0 {
			r.push(r.random.IntN(2), repo, tag)
			// A trace does not say what a manifest names. One client must fetch everything.
			r.pull(scanner, repo, tag, 100)
		} else {
			// Most requests only check for news.
			r.pull(2+r.random.IntN(clients), repo, tag, 100*(r.random.IntN(3)/2))
		}
		r.wait(time.Duration(r.random.IntN(240)) * time.Second)
	}
	return r
}

// TestDecidesAsSimulated checks that the same requests lead to the same decisions as in a
// simulation: the code is the same and gets the same input.
func TestDecidesAsSimulated(t *testing.T) {
	manifest := simulate.PrefetchConfig{Algorithm: simulate.Manifest, ML: 20 * time.Minute, Manifests: policy.ManifestsOptions{Pin: 2 * time.Minute}}
	limited := manifest
	limited.Manifests = policy.ManifestsOptions{Rate: 2000, Burst: 10 << 20, PinClients: 3, Pin: 5 * time.Minute, Forget: time.Hour, Precision: 0.6, Judge: 8, Rest: 30 * time.Minute}
	algorithm := simulate.PrefetchConfig{Algorithm: simulate.Algorithm1, LM: time.Hour, ML: 20 * time.Minute}
	for seed := range uint64(3) {
		r := record(seed)
		p, err := simulate.LoadPrefetch(t.Context(), r, simulate.Window{Zone: "z"}, simulate.PairDigest, 0)
		if err != nil {
			t.Fatal(err)
		}
		configs := []simulate.PrefetchConfig{manifest, limited, algorithm}
		results, err := simulate.Prefetch(t.Context(), p, configs, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range configs {
			want := results[i]
			if want.Prefetches < 50 || want.Hits == 0 {
				t.Fatalf("seed %d: the trace shows nothing: %+v", seed, want)
			}
			o := prefetch.Options{Small: 2, Manifests: c.Manifests, Algorithm1: policy.Algorithm1Options{LM: c.LM, ML: c.ML}}
			o.Manifests.Keep = c.ML
			if c.Algorithm == simulate.Algorithm1 {
				o.Mode = prefetch.Algorithm1
			}
			b := newBed(t, o, false)
			b.shelf.pinnedIsHeld = true
			for _, f := range slices.Clone(r.live) {
				f(b)
			}
			b.clock.add(1000 * time.Hour)
			b.Advance()
			got := b.Decided()
			decided := simulate.PrefetchResult{Config: want.Config, LayerGets: want.LayerGets, Hits: got.Hits, Prefetches: got.Prefetches, Used: got.Used, Bytes: got.Bytes,
				Refreshes: got.Refreshes, HitsPerPrefetch: want.HitsPerPrefetch, HitsPerDecision: want.HitsPerDecision, Precision: want.Precision, Recall: want.Recall, WastedBytes: got.WastedBytes, PeakBytes: got.Peak,
				PinnedHits: want.PinnedHits, PinnedPeakBytes: want.PinnedPeakBytes, Stats: b.Stats().Decisions}
			if d := cmp.Diff(want, decided); d != "" {
				t.Errorf("seed %d, %s (-simulated +live):\n%s", seed, c.Algorithm, d)
			}
			if i == 1 && (want.Stats.OverBudget == 0 || want.Stats.Resting == 0) {
				t.Errorf("seed %d: the limits are never met: %+v", seed, want.Stats)
			}
		}
	}
}
