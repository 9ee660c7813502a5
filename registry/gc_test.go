package registry_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
)

// TestToldIsKept: a client is told that a blob or manifest is there in the moment
// in which the collector takes it. Either it is not told, or the thing stays.
func TestToldIsKept(t *testing.T) {
	for round := range 5 {
		b := newBed(t, nil, registry.Options{Grace: time.Hour, DeleteUntagged: true})
		var blobs, manifests []oci.Digest
		for i := range 100 {
			d := b.pushBlob("a", content(uint64(i), 50))
			blobs = append(blobs, d.Digest)
			manifests = append(manifests, b.pushManifest("a", imageOf(d)).Digest)
			if i%2 == 0 { // read, so that RAM has them
				if _, err := b.GetManifest(t.Context(), "a", string(manifests[i])); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, d := range blobs {
			if _, err := readBlob(t.Context(), b, "a", d); err != nil {
				t.Fatal(err)
			}
		}
		b.clock.Add(3 * time.Hour)
		var told [200]atomic.Bool
		var done atomic.Bool
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(w)))
				for !done.Load() {
					i := rng.IntN(200)
					var err error
					if i < 100 {
						_, err = b.ResolveBlob(t.Context(), "a", blobs[i])
					} else {
						_, err = b.ResolveManifest(t.Context(), "a", string(manifests[i-100]))
					}
					switch {
					case err == nil:
						told[i].Store(true)
					case told[i].Load():
						t.Errorf("round %d: %d was there a moment ago: %v", round, i, err)
						return
					}
					if rng.IntN(40) == 0 { // leave some to the collector
						runtime.Gosched()
					}
				}
			})
		}
		for range 3 { // the manifests first, then what they named
			if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
				t.Error(err)
			}
			b.clock.Add(10 * time.Minute)
		}
		done.Store(true)
		wg.Wait()
		for i := range told {
			if !told[i].Load() {
				continue
			}
			if i < 100 {
				if _, err := b.cat.Blob(t.Context(), "a", blobs[i]); err != nil {
					t.Errorf("round %d: a client was told of blob %d: %v", round, i, err)
				}
			} else if _, err := b.cat.Manifest(t.Context(), "a", manifests[i-100]); err != nil {
				t.Errorf("round %d: a client was told of manifest %d: %v", round, i-100, err)
			}
		}
	}
}

// TestToldIsKeptOverRestart: what a client was told before the registry was
// stopped, or killed, holds after it was started again.
func TestToldIsKeptOverRestart(t *testing.T) {
	for name, end := range map[string]func(*node){"stop": (*node).stop, "kill": (*node).kill} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			n := s.start(registry.Options{})
			var blobs []oci.Digest
			for i := range 3 {
				data := content(uint64(i), 50_000)
				blobs = append(blobs, oci.SHA256(data))
				if _, err := n.PushBlob(t.Context(), "a", blobs[i], int64(len(data)), bytes.NewReader(data)); err != nil {
					t.Fatal(err)
				}
			}
			s.clock.Add(2 * time.Hour) // the collector may have them all
			for _, d := range blobs {
				if _, err := n.ResolveBlob(t.Context(), "a", d); err != nil {
					t.Fatal(err)
				}
			}
			end(n)
			n = s.start(registry.Options{})
			s.clock.Add(50 * time.Minute)
			if _, err := n.Collect(t.Context(), registry.CollectOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := n.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: manifestNaming(t, blobs[0]), Tags: []string{"x"}}); err != nil {
				t.Errorf("name what was told 50 minutes ago: %v", err)
			}
			s.clock.Add(2 * time.Hour)
			if _, err := n.Collect(t.Context(), registry.CollectOptions{}); err != nil {
				t.Fatal(err)
			}
			for i, d := range blobs {
				_, err := n.ResolveBlob(t.Context(), "a", d)
				if (i == 0) != (err == nil) {
					t.Errorf("blob %d after the grace period: %v", i, err)
				}
			}
			n.wantClean(1)
		})
	}
}

// manifestNaming is a manifest with one blob.
func manifestNaming(t *testing.T, d oci.Digest) []byte {
	t.Helper()
	raw, err := json.Marshal(imageOf(oci.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: d, Size: 50_000}))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
