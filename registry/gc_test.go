package registry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// TestToldIsKept tells a client that a blob or manifest exists at the moment at which the collector
// takes it. Either the client is not told, or the content stays.
func TestToldIsKept(t *testing.T) {
	for round := range 5 {
		b := newBed(t, nil, registry.Options{Grace: time.Hour, DeleteUntagged: true})
		var blobs, manifests []oci.Digest
		for i := range 100 {
			d := b.PushBytes("a", registrytest.Content(uint64(i), 50))
			blobs = append(blobs, d.Digest)
			manifests = append(manifests, b.PushManifest("a", registrytest.ImageOf(d)).Digest)
			if i%2 == 0 { // reads them into RAM
				if _, err := b.GetManifest(t.Context(), "a", string(manifests[i])); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, d := range blobs {
			if _, err := registrytest.ReadBlob(t.Context(), b, "a", d); err != nil {
				t.Fatal(err)
			}
		}
		b.Clock.Add(3 * time.Hour)
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
			b.Clock.Add(10 * time.Minute)
		}
		done.Store(true)
		wg.Wait()
		for i := range told {
			if !told[i].Load() {
				continue
			}
			if i < 100 {
				if _, err := b.Cat.Blob(t.Context(), "a", blobs[i]); err != nil {
					t.Errorf("round %d: a client was told of blob %d: %v", round, i, err)
				}
			} else if _, err := b.Cat.Manifest(t.Context(), "a", manifests[i-100]); err != nil {
				t.Errorf("round %d: a client was told of manifest %d: %v", round, i-100, err)
			}
		}
	}
}

// TestToldIsKeptOverRestart checks that what a client was told before the registry was stopped, or
// killed, still holds after it was started again.
func TestToldIsKeptOverRestart(t *testing.T) {
	for name, end := range map[string]func(*node){"stop": (*node).stop, "kill": (*node).kill} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			n := s.start(registry.Options{})
			var blobs []oci.Digest
			for i := range 3 {
				data := registrytest.Content(uint64(i), 50_000)
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

// manifestNaming returns a manifest with one blob.
func manifestNaming(t *testing.T, d oci.Digest) []byte {
	t.Helper()
	raw, err := json.Marshal(registrytest.ImageOf(oci.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: d, Size: 50_000}))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestForeignLayerPinsNothing checks that naming the digest of another repository's content as a
// foreign layer does not keep that content from the collector.
func TestForeignLayerPinsNothing(t *testing.T) {
	b := newBed(t, nil, registry.Options{})
	image, config, small, large := b.PushImage("a", 1, "v1")
	own := b.PushBytes("b", []byte("{}"))
	var layers []oci.Descriptor
	for _, d := range []oci.Descriptor{config, small, large} {
		d.MediaType, d.URLs = "application/vnd.oci.image.layer.nondistributable.v1.tar", []string{"https://a.test/x"}
		layers = append(layers, d)
	}
	b.PushManifest("b", registrytest.ImageOf(own, layers...), "v1")
	if err := b.DeleteManifest(t.Context(), "a", image.Digest); err != nil {
		t.Fatal(err)
	}
	collect := func() registry.CollectReport {
		t.Helper()
		b.Clock.Add(2 * time.Hour)
		rep, err := b.Collect(t.Context(), registry.CollectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	if rep := collect(); rep.Contents != 4 {
		t.Errorf("collected %d contents, want the manifest, the config and both layers", rep.Contents)
	}
	for _, d := range []oci.Descriptor{image, config, small, large} {
		if _, err := b.Cat.StoredBlob(t.Context(), d.Digest); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("%s of %d bytes is still stored: %v", d.Digest, d.Size, err)
		}
	}
	if _, err := b.Store.Stat(t.Context(), storage.BlobKey(large.Digest)); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("the object of the large layer: %v", err)
	}
	if _, err := b.GetManifest(t.Context(), "b", "v1"); err != nil {
		t.Errorf("the image with the foreign layers: %v", err)
	}
	if rep, err := check.Run(t.Context(), b.Registry, check.Options{}); err != nil || !rep.Clean() {
		t.Errorf("fsck: %v, %+v", err, rep.Problems)
	}
	// They may still come, and are then kept.
	b.PushBytes("b", registrytest.Content(1, 5000))
	b.PushBytes("b", registrytest.Content(1+1<<32, 100_000))
	collect()
	for _, d := range []oci.Descriptor{small, large} {
		if _, err := registrytest.ReadBlob(t.Context(), b, "b", d.Digest); err != nil {
			t.Errorf("a foreign layer that came: %v", err)
		}
	}
}

// TestDryRunFollows checks that a dry run reports everything that a run would remove, including
// what only becomes free by another removal, and that it changes nothing.
func TestDryRunFollows(t *testing.T) {
	for _, tc := range []struct {
		name string
		now  bool
	}{{"in its time", false}, {"now", true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBed(t, nil, registry.Options{})
			// This is an index of two images and a signature of it, all without a tag. One of the
			// layers also belongs to an image that stays.
			one, _, shared, _ := b.PushImage("a", 1)
			two, _, _, _ := b.PushImage("a", 2)
			index := b.PushManifest("a", registrytest.IndexOf(one, two))
			signature := registrytest.ImageOf(b.PushBytes("a", []byte("{}")))
			signature.Subject = &index
			b.PushManifest("a", signature)
			b.PushManifest("a", registrytest.ImageOf(b.PushBytes("a", []byte("[]")), shared), "v1")
			b.Clock.Add(2 * time.Hour)
			for range 2 { // untagged manifests leave the queue under a policy that keeps them
				if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			o := registry.CollectOptions{DryRun: true, Untagged: true, Now: tc.now}
			var dry registry.CollectReport
			for range 2 { // it changes nothing
				var err error
				if dry, err = b.Collect(t.Context(), o); err != nil || dry.AtLeast {
					t.Fatalf("got %+v, %v", dry, err)
				}
			}
			if !tc.now && dry.FreedContents == 0 {
				t.Errorf("nothing is told to follow: %+v", dry)
			}
			var real registry.CollectReport
			for o.DryRun = false; ; b.Clock.Add(2 * time.Hour) {
				rep, err := b.Collect(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				real.Manifests, real.Blobs, real.Contents, real.Bytes = real.Manifests+rep.Manifests, real.Blobs+rep.Blobs, real.Contents+rep.Contents, real.Bytes+rep.Bytes
				if rep.Examined == 0 {
					break
				}
			}
			got := [4]int64{int64(dry.Manifests + dry.FreedManifests), int64(dry.Blobs + dry.FreedBlobs), int64(dry.Contents + dry.FreedContents), dry.Bytes + dry.FreedBytes}
			want := [4]int64{int64(real.Manifests), int64(real.Blobs), int64(real.Contents), real.Bytes}
			if got != want || real.Manifests != 4 {
				t.Errorf("manifests, blobs, contents, bytes: told %v, went %v", got, want)
			}
			if tc.now && len(dry.Digests) != real.Contents {
				t.Errorf("told of %d digests, %d contents went", len(dry.Digests), real.Contents)
			}
		})
	}
}
