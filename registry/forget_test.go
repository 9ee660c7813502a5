package registry_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"example.org/slipway/registry/backup"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/storage"
)

// TestForget checks that an image is removed at once with everything that nobody else needs, and
// that nothing else is removed.
func TestForget(t *testing.T) {
	onEngines(t, registry.Options{DeleteDisabled: true, Immutable: func(_, _ string) bool { return true }}, func(t *testing.T, b *bed) {
		ctx := t.Context()
		config, mine := registrytest.Content(1, 3000), registrytest.Content(2, 100_000)
		sibling, neighbour, pushed := registrytest.Content(3, 110_000), registrytest.Content(4, 120_000), registrytest.Content(5, 130_000)
		for _, data := range [][]byte{config, mine, sibling, neighbour, pushed} {
			b.adopt("up/a", data)
		}
		b.adopt("up/b", neighbour)
		b.PushBytes("own/a", pushed)
		own := b.PushManifest("own/a", registrytest.ImageOf(b.PushBytes("own/a", registrytest.Content(6, 20)), describe(pushed)), "v1")

		platform := b.PushManifest("up/a", registrytest.ImageOf(describe(config), describe(mine), describe(sibling), describe(neighbour), describe(pushed)))
		index := b.PushManifest("up/a", registrytest.IndexOf(platform, describe(registrytest.Content(7, 10))), "v1", "latest")
		signature := registrytest.ImageOf(describe(registrytest.Content(8, 10)))
		signature.Subject = &index
		signed := b.PushManifest("up/a", signature)
		other := b.PushManifest("up/a", registrytest.ImageOf(describe(config), describe(sibling)), "v2")

		missing := oci.SHA256([]byte("not there"))
		got, err := b.Forget(ctx, "up/a", registry.ForgetOptions{}, index.Digest, missing)
		want := registry.Forgotten{Manifests: 3, Blobs: 3, Contents: 4, Bytes: 100_000 + platform.Size + index.Size + signed.Size}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("forgotten: %v (-want +got)\n%s", err, diff)
		}
		if b.stored(mine) {
			t.Error("the object that nobody needs is still there")
		}
		for _, data := range [][]byte{mine, neighbour, pushed} {
			b.wantNoBlob("up/a", data)
		}
		for _, data := range [][]byte{config, sibling} {
			b.WantBlob("up/a", data)
		}
		b.WantBlob("up/b", neighbour)
		b.WantBlob("own/a", pushed)
		for _, ref := range []string{"v1", "latest", string(index.Digest), string(platform.Digest), string(signed.Digest)} {
			if _, err := b.GetManifest(ctx, "up/a", ref); !oci.HasCode(err, oci.CodeManifestUnknown) {
				t.Errorf("manifest %s is still there: %v", ref, err)
			}
		}
		if m, err := b.GetManifest(ctx, "up/a", "v2"); err != nil || m.Digest != other.Digest {
			t.Errorf("the other image: %v", err)
		}
		if m, err := b.GetManifest(ctx, "own/a", "v1"); err != nil || m.Digest != own.Digest {
			t.Errorf("the pushed image: %v", err)
		}
		b.wantSound()

		// The image is pushed again.
		b.PushManifest("up/a", registrytest.ImageOf(describe(config), describe(mine)), "v1")
		b.adopt("up/a", mine)
		b.WantBlob("up/a", mine)
		b.wantSound()
	})
}

// TestForgetEverything checks that nothing is left, not even the repository.
func TestForgetEverything(t *testing.T) {
	onEngines(t, registry.Options{}, func(t *testing.T, b *bed) {
		ctx := t.Context()
		var digests []oci.Digest
		for i := range uint64(40) {
			layer := registrytest.Content(i/2, 20_000)
			m := b.PushManifest("up/a", registrytest.ImageOf(describe(registrytest.Content(100+i, 10)), describe(layer)), fmt.Sprint("v", i))
			b.adopt("up/a", layer)
			digests = append(digests, m.Digest)
		}
		rep, err := b.Forget(ctx, "up/a", registry.ForgetOptions{}, digests...)
		if err != nil || rep.Manifests != 40 || rep.Blobs != 20 || rep.Contents != 60 || rep.Later {
			t.Errorf("forgotten: %+v, %v", rep, err)
		}
		n, err := b.Cat.Counts(ctx)
		if err != nil || n.Repositories+n.Blobs+n.Manifests+n.Tags+n.Links+n.GCQueue != 0 {
			t.Errorf("left: %+v, %v", n, err)
		}
		for info, err := range b.Store.List(ctx, "docker/", "") {
			if err != nil || !storage.IsIdentity(info.Key) {
				t.Errorf("left in the store: %+v, %v", info, err)
			}
		}
		if u, err := b.MirrorUsage(ctx, "up/"); err != nil || u != (registry.MirrorUsage{}) {
			t.Errorf("usage: %+v, %v", u, err)
		}
	})
}

// TestForgetSpares checks that an image that was pulled after it was chosen stays, even if only RAM
// knows of the pull.
func TestForgetSpares(t *testing.T) {
	b := newBed(t, nil, registry.Options{Partial: mirrored})
	ctx := t.Context()
	var digests []oci.Digest
	for i := range uint64(4) {
		m := b.PushManifest("up/a", registrytest.ImageOf(describe(registrytest.Content(i, 10))), fmt.Sprint("v", i))
		digests = append(digests, m.Digest)
	}
	index := b.PushManifest("up/a", registrytest.IndexOf(oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: digests[3], Size: 100}), "multi")
	b.Clock.Add(time.Hour)
	chosen := b.Clock.Now()
	b.Clock.Add(time.Minute)
	for _, ref := range []string{"v1", string(digests[2]), string(digests[3])} {
		if _, err := b.GetManifest(ctx, "up/a", ref); err != nil {
			t.Fatal(err)
		}
	}
	young := b.PushManifest("up/a", registrytest.ImageOf(describe(registrytest.Content(9, 10))), "young")
	rep, err := b.Forget(ctx, "up/a", registry.ForgetOptions{UsedBefore: chosen}, append(digests[:3:3], index.Digest, young.Digest)...)
	if err != nil || rep.Manifests != 1 {
		t.Errorf("forgotten: %+v, %v; want the first image", rep, err)
	}
	if _, err := b.GetManifest(ctx, "up/a", "v0"); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("the first image is still there: %v", err)
	}
	for _, ref := range []string{"v1", "v2", "multi", "young", string(digests[3])} {
		if _, err := b.GetManifest(ctx, "up/a", ref); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// TestForgetTagAndBlob checks that single parts can go, and can come again.
func TestForgetTagAndBlob(t *testing.T) {
	onEngines(t, registry.Options{Immutable: func(_, _ string) bool { return true }}, func(t *testing.T, b *bed) {
		ctx := t.Context()
		layer, shared := registrytest.Content(1, 50_000), registrytest.Content(2, 60_000)
		m := b.PushManifest("up/a", registrytest.ImageOf(describe(layer), describe(shared)), "v1", "v2")
		b.adopt("up/a", layer)
		b.adopt("up/a", shared)
		b.PushBytes("own/a", shared)
		for range 2 {
			if err := b.ForgetTag(ctx, "up/a", "v1"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.GetManifest(ctx, "up/a", "v1"); !oci.HasCode(err, oci.CodeManifestUnknown) {
			t.Errorf("the tag is still there: %v", err)
		}
		for _, ref := range []string{"v2", string(m.Digest)} {
			if _, err := b.GetManifest(ctx, "up/a", ref); err != nil {
				t.Errorf("%s: %v", ref, err)
			}
		}
		for _, data := range [][]byte{layer, shared, layer} {
			if err := b.ForgetBlob(ctx, "up/a", oci.SHA256(data)); err != nil {
				t.Errorf("forget a blob: %v", err)
			}
			b.wantNoBlob("up/a", data)
		}
		if got := b.MirrorAdded(); got != 60_000 {
			t.Errorf("%d bytes are left of what was added, want 60000", got)
		}
		if b.stored(layer) || !b.stored(shared) {
			t.Errorf("objects: layer %t, shared %t; want only the shared one", b.stored(layer), b.stored(shared))
		}
		b.wantSound()
		b.adopt("up/a", layer)
		b.WantBlob("up/a", layer)
		b.wantSound()
	})
}

// TestForgetDuringBackup checks that a backup has everything that was there when it began. What it
// needed goes with the next collection.
func TestForgetDuringBackup(t *testing.T) {
	store := &registrytest.Hooked{Store: memstore.New(nil)}
	b := newBed(t, store, registry.Options{Partial: mirrored})
	layers := [][]byte{registrytest.Content(1, 50_000), registrytest.Content(2, 60_000)}
	m := b.PushManifest("up/a", registrytest.ImageOf(describe(layers[0]), describe(layers[1])), "v1")
	for _, l := range layers {
		b.adopt("up/a", l)
	}
	want := registrytest.Reachable(t, b)
	forget := func() {
		rep, err := b.Forget(t.Context(), "up/a", registry.ForgetOptions{}, m.Digest)
		if err != nil || !rep.Later || rep.Contents != 3 {
			t.Errorf("forgotten: %+v, %v; want it for later", rep, err)
		}
	}
	store.OnGet.Store(&forget)
	dir := t.TempDir()
	if _, err := backup.Make(t.Context(), b.Registry, dir, backup.Options{Parallel: 1}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, registrytest.ReadBackup(t, dir)); diff != "" {
		t.Errorf("the backup is not the registry as it was (-registry +backup):\n%s", diff)
	}
	for _, l := range layers {
		b.wantNoBlob("up/a", l)
	}
	if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if b.stored(l) {
			t.Error("an object is still there after the collection")
		}
	}
	b.wantSound()
}

// mirror makes a registry mirror images of the layers that the writers push, and forget them, until
// stop is closed. Then it forgets all of them.
func (o *oracle) mirror(reg *registry.Registry, repo string, stop <-chan struct{}) {
	t, ctx := o.t, o.t.Context()
	b := &bed{&registrytest.Bed{Registry: reg, T: t}}
	rng := rand.New(rand.NewPCG(uint64(len(repo)), uint64(repo[len(repo)-1])))
	var images []oci.Digest
	freed := 0
	forget := func(digests ...oci.Digest) {
		rep, err := reg.Forget(ctx, repo, registry.ForgetOptions{}, digests...)
		if err != nil {
			t.Errorf("forget: %v", err)
		}
		freed += rep.Contents
	}
	for n := 0; !t.Failed(); n++ {
		select {
		case <-stop:
			forget(images...)
			t.Logf("%s: %d images, %d contents freed", repo, n, freed)
			if freed == 0 {
				t.Errorf("%s: nothing was freed", repo)
			}
			return
		default:
		}
		doc := registrytest.Image{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, Annotations: map[string]string{"n": fmt.Sprint(n)}}
		var layers [][]byte
		for range 1 + rng.IntN(4) {
			layers = append(layers, o.pool[rng.IntN(len(o.pool))])
		}
		for _, l := range layers {
			doc.Layers = append(doc.Layers, describe(l))
		}
		config := fmt.Appendf(nil, "config %d of %s", n, repo)
		c := describe(config)
		doc.Config = &c
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Error(err)
			return
		}
		res, err := reg.PutManifest(ctx, repo, oci.PutManifest{Bytes: raw, Tags: []string{fmt.Sprint("t", n%3)}})
		if err != nil {
			t.Errorf("put a manifest: %v", err)
			return
		}
		images = append(images, res.Descriptor.Digest)
		for _, l := range append(layers, config) {
			d := oci.SHA256(l)
			switch rng.IntN(3) {
			case 0:
				_, err = reg.AdoptBytes(ctx, repo, d, l)
			case 1:
				_, err = reg.AdoptBlob(ctx, repo, d, int64(len(l)), b.spool(l))
			default:
				if _, err = reg.LinkStored(ctx, repo, d); oci.HasCode(err, oci.CodeBlobUnknown) {
					_, err = reg.AdoptBytes(ctx, repo, d, l)
				}
			}
			if err != nil {
				t.Errorf("adopt: %v", err)
			}
			if got, err := registrytest.ReadBlob(ctx, reg, repo, d); err != nil || !bytes.Equal(got, l) {
				t.Errorf("blob %s of %s, which was just adopted: %d bytes, %v", d, repo, len(got), err)
			}
		}
		if len(images) > 3 {
			i := rng.IntN(len(images))
			forget(images[i])
			images = append(images[:i:i], images[i+1:]...)
		}
	}
}

// TestForgetOracle is like TestCollectOracle, with mirrored repositories that adopt and forget
// the same contents meanwhile.
func TestForgetOracle(t *testing.T) {
	store, err := fsstore.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	runOracleOf(t, store, &oracle{t: t, mirrors: true}, gcSeconds(t)/2)
}

// TestReplicasForgetOracle is like TestForgetOracle, with two replicas.
func TestReplicasForgetOracle(t *testing.T) {
	const grace = 2 * time.Second
	store, err := fsstore.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, store, grace)
	hop := &hopping{t: t}
	o := &oracle{Registry: hop, t: t, grace: grace, mirrors: true}
	for range 2 {
		r := c.add(registry.Options{Lease: time.Second, Partial: mirrored}, nil, nil)
		hop.list, o.collectors = append(hop.list, r), append(o.collectors, r.Registry)
	}
	o.run(hop.list[0].cat, c.store, gcSeconds(t))
}

// TestForgetBesideAdopt adopts and forgets the same image at the same time. What is there
// afterwards must be whole.
func TestForgetBesideAdopt(t *testing.T) {
	onEngines(t, registry.Options{}, func(t *testing.T, b *bed) {
		layers := [][]byte{registrytest.Content(1, 100), registrytest.Content(2, 40_000)}
		doc := registrytest.ImageOf(describe(layers[0]), describe(layers[1]))
		m := b.PushManifest("up/a", doc, "v1")
		var busy sync.WaitGroup
		for range 3 {
			busy.Go(func() {
				for range 10 {
					for _, l := range layers {
						if _, err := b.AdoptBytes(t.Context(), "up/a", oci.SHA256(l), l); err != nil {
							t.Errorf("adopt: %v", err)
						}
					}
				}
			})
		}
		busy.Go(func() {
			for range 10 {
				if _, err := b.Forget(t.Context(), "up/a", registry.ForgetOptions{}, m.Digest); err != nil {
					t.Errorf("forget: %v", err)
				}
				raw, _ := json.Marshal(doc)
				if _, err := b.PutManifest(t.Context(), "up/a", oci.PutManifest{Bytes: raw, Tags: []string{"v1"}}); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
		busy.Wait()
		for _, l := range layers {
			b.adopt("up/a", l)
			b.WantBlob("up/a", l)
		}
		b.wantSound()
	})
}
