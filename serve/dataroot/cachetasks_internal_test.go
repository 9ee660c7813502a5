package dataroot

import (
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/storage"
)

// TestWarmLayers checks that the report counts the outcome of each layer, and that the error says
// why a layer could not be fetched.
func TestWarmLayers(t *testing.T) {
	const size = 1000
	store := memstore.New(nil)
	c, err := tier.New(store, &tier.Options{RAMBytes: 1 << 20, LargeObject: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	here, lost := digest.FromString("here"), digest.FromString("lost")
	if err := store.Put(t.Context(), storage.BlobKey(here), make([]byte, size), false); err != nil {
		t.Fatal(err)
	}
	r := &Root{Cache: c}
	layers := []oci.Descriptor{{Digest: here, Size: size}, {Digest: lost, Size: size}, {Digest: digest.FromString("huge"), Size: 1 << 30}}
	var last CacheWarmReport
	rep, err := r.warmLayers(t.Context(), layers, func(p CacheWarmReport) { last = p })
	if !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("got error %v, want that of the layer that is not there", err)
	}
	rep.Took, last.Took = 0, 0
	want := CacheWarmReport{Layers: 3, LayersTotal: 3, Bytes: 2*size + 1<<30, BytesTotal: 2*size + 1<<30, NotKept: 1, Failed: 1}
	if rep != want || last != want {
		t.Errorf("got %+v, at last %+v; want %+v", rep, last, want)
	}
	if rep, err := r.warmLayers(t.Context(), layers[:1], nil); err != nil || rep.Held != 1 {
		t.Errorf("again: %+v, %v; want it held", rep, err)
	}
}
