package registry_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/storage"
)

// copied is a manifest that a client copies, with what it names.
type copied struct {
	raw   []byte
	blobs [][]byte
	below []*copied
}

func (c *copied) digest() oci.Digest { return oci.SHA256(c.raw) }

// copyTo copies as crane, regctl and oras do: what HEAD finds is left out with all that it names.
func (c *copied) copyTo(ctx context.Context, r oci.Registry, repo, tag string) error {
	ref := tag
	if tag == "" {
		ref = string(c.digest())
	}
	desc, err := r.ResolveManifest(oci.ForPushing(ctx), repo, ref)
	if err == nil && desc.Digest == c.digest() {
		return nil
	}
	for _, m := range c.below {
		if err := m.copyTo(ctx, r, repo, ""); err != nil {
			return err
		}
	}
	for _, data := range c.blobs {
		d := oci.SHA256(data)
		if _, err := r.ResolveBlob(ctx, repo, d); err == nil {
			continue
		}
		if _, err := r.PushBlob(ctx, repo, d, int64(len(data)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	put := oci.PutManifest{Bytes: c.raw}
	if tag != "" {
		put.Tags = []string{tag}
	}
	_, err = r.PutManifest(ctx, repo, put)
	return err
}

// shapes are images in which the same layer is needed at different depths.
func shapes(layer []byte) map[string]*copied {
	image := &copied{raw: imageOf(layer), blobs: [][]byte{layer}}
	index := &copied{raw: indexOf(image.raw), below: []*copied{image}}
	nested := &copied{raw: indexOf(index.raw), below: []*copied{index}}
	return map[string]*copied{"image": image, "index": index, "index of an index": nested}
}

// TestCopyMends checks that a client that copies an image anew mends what the registry has lost of
// it, whatever that is and however deep, although such clients ask for the manifest first. Clients
// that only pull go on getting the manifest: they may have the layer.
func TestCopyMends(t *testing.T) {
	for i := range 3 {
		distant, o := i == 1, registry.Options{}
		if i == 2 { // what may be missing and was here is missed all the same
			o.MissingPlatforms = func(string, oci.Descriptor) bool { return true }
		}
		sectors := &registrytest.BadSectors{}
		b := &bed{&registrytest.Bed{T: t, Root: t.TempDir(), Clock: registrytest.NewClock()}}
		b.Store = objtest.Faulty(memstore.New(&memstore.Options{Now: b.Clock.Now}), sectors.Faults())
		if distant {
			b.Store = distantStore{b.Store}
		}
		b.Open(o)
		seed := uint64(0)
		for _, state := range states {
			for shape := range shapes(nil) {
				for c := range 4 {
					tag, asked := []string{"", "v1"}[c%2], c/2 == 1
					seed++
					layer := registrytest.Content(seed, 40_000)
					im, key := shapes(layer)[shape], storage.BlobKey(oci.SHA256(layer))
					registrytest.NoError(t, im.copyTo(t.Context(), b, "a", tag))
					if asked { // RAM then has what HEAD needs
						registrytest.NoError(t, im.copyTo(t.Context(), b, "a", tag))
					}
					b.Clock.Add(time.Second)
					state.change(b, sectors, key, layer)
					what := fmt.Sprintf("%s with tag %q, asked for before: %v, its layer is %s", shape, tag, asked, state.name)
					if !state.visible { // a read finds it out
						b.ForgetRAM()
						_, _ = registrytest.ReadBlob(t.Context(), b, "a", oci.SHA256(layer))
					}
					b.wantMendedByCopy(what, im, tag, layer)
				}
			}
		}
	}
}

func (b *bed) wantMendedByCopy(what string, im *copied, tag string, layer []byte) {
	b.T.Helper()
	ctx := b.T.Context()
	if _, err := b.ResolveManifest(ctx, "a", string(im.digest())); err != nil {
		b.T.Errorf("%s: HEAD of a client that pulls: %v", what, err)
	}
	if err := im.copyTo(ctx, b, "a", tag); err != nil {
		b.T.Errorf("%s: copy: %v", what, err)
	}
	if got, err := registrytest.ReadBlob(ctx, b, "a", oci.SHA256(layer)); err != nil || !bytes.Equal(got, layer) {
		b.T.Errorf("%s: after a copy that went well the layer cannot be read: %v", what, err)
	}
	if _, err := b.ResolveManifest(oci.ForPushing(ctx), "a", string(im.digest())); err != nil {
		b.T.Errorf("%s: HEAD after the copy: %v", what, err)
	}
}

// TestCopyMendsManifest is like TestCopyMends, for a manifest that an index names and whose bytes
// in the catalogue are wrong or were given up. A platform that the index never had is not missed.
func TestCopyMendsManifest(t *testing.T) {
	layer := registrytest.Content(1, 40_000)
	index := shapes(layer)["index"]
	child := index.below[0].digest()
	for name, statement := range map[string]string{
		"flipped":  "UPDATE blobs SET content = zeroblob(length(content)) WHERE digest = ",
		"given up": "UPDATE blobs SET content = NULL, state = 0 WHERE digest = ",
	} {
		for _, sparse := range []bool{false, true} {
			b := &bed{registrytest.New(t, nil, registry.Options{MissingPlatforms: func(string, oci.Descriptor) bool { return sparse }})}
			registrytest.NoError(t, index.copyTo(t.Context(), b, "a", "v1"))
			b.SQL(statement + registrytest.Quote(child))
			b.ForgetRAM()
			registrytest.NoError(t, index.copyTo(t.Context(), b, "a", "v1"))
			if m, err := b.GetManifest(t.Context(), "a", string(child)); err != nil || !bytes.Equal(m.Bytes, index.below[0].raw) {
				t.Errorf("%s, may be missing %v: after a copy that went well: %v", name, sparse, err)
			}
		}
	}
	b := &bed{registrytest.New(t, nil, registry.Options{MissingPlatforms: func(string, oci.Descriptor) bool { return true }})}
	_, err := b.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: index.raw, Tags: []string{"v1"}})
	registrytest.NoError(t, err)
	b.Restart(t)
	if _, err := b.ResolveManifest(oci.ForPushing(t.Context()), "a", "v1"); err != nil {
		t.Errorf("an index that never had its platform: %v", err)
	}
}

// TestCopierWaitsForNothing checks that HEAD of a manifest for a client that may push answers as
// before where the registry cannot tell whether something is lost, or could not take a push.
func TestCopierWaitsForNothing(t *testing.T) {
	layer := registrytest.Content(1, 40_000)
	im := shapes(layer)["image"]
	for name, o := range map[string]registry.Options{
		"read-only":          {ReadOnly: true},
		"mirrored":           {Partial: func(string) bool { return true }},
		"layers are no duty": {MissingBlobs: true},
	} {
		b := &bed{registrytest.New(t, nil, registry.Options{})}
		registrytest.NoError(t, im.copyTo(t.Context(), b, "a", "v1"))
		registrytest.NoError(t, b.Store.Delete(t.Context(), storage.BlobKey(oci.SHA256(layer))))
		o.Clock, o.Logger = b.Clock.Now, slog.New(slog.DiscardHandler)
		reg, err := registry.New(t.Context(), b.Cat, b.Store, &o)
		registrytest.NoError(t, err)
		if _, err := reg.ResolveManifest(oci.ForPushing(t.Context()), "a", "v1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		registrytest.NoError(t, reg.Close(t.Context()))
	}
}
