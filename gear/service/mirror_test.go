package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

// mirrorImage records an image of a mirrored repository. Its blobs need not exist.
func (b *bed) mirrorImage(repo string, config []byte, layers ...[]byte) {
	b.t.Helper()
	desc := func(kind string, data []byte) oci.Descriptor {
		return oci.Descriptor{MediaType: kind, Digest: oci.SHA256(data), Size: int64(len(data))}
	}
	doc := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest, "config": desc("application/vnd.oci.image.config.v1+json", config)}
	var list []oci.Descriptor
	for _, l := range layers {
		list = append(list, desc(gzipLayer, l))
	}
	doc["layers"] = list
	raw, err := json.Marshal(doc)
	b.must(err)
	_, err = b.reg.PutManifest(context.Background(), repo, oci.PutManifest{Bytes: raw, Tags: []string{"v1"}})
	b.must(err)
}

func (b *bed) adopt(repo string, data []byte) {
	b.t.Helper()
	_, err := b.reg.AdoptBytes(context.Background(), repo, oci.SHA256(data), data)
	b.must(err)
}

func (b *bed) queued(d oci.Digest) bool {
	b.t.Helper()
	_, err := gearfacts.NewLayers(b.cat.DB).Job(context.Background(), d)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		b.t.Fatal(err)
	}
	return err == nil
}

// TestMirroredLayers checks that a layer of a mirrored image is queued once both the
// layer and the manifest have arrived, in either order. The config is never queued.
func TestMirroredLayers(t *testing.T) {
	b := newBed(t, setup{idle: true, gear: gearregistry.Options{Mode: func(repo string) gearregistry.Mode {
		if repo == "up/off" || repo == ours {
			return gearregistry.Off
		}
		return gearregistry.Sync // nothing waits for mirrored layers
	}}})
	config := []byte(`{"os":"linux"}`)
	first, later, early, off := layer(1, 3, 9000), layer(2, 3, 9000), layer(3, 3, 100), layer(4, 2, 100)
	b.adopt("up/app", early)
	if b.queued(oci.SHA256(early)) {
		t.Error("a blob is queued that no manifest calls a layer")
	}
	b.mirrorImage("up/app", config, first, later, early)
	b.mirrorImage("up/off", config, off)
	want := func(when string, want map[*[]byte]bool) {
		t.Helper()
		for data, queued := range want {
			if got := b.queued(oci.SHA256(*data)); got != queued {
				t.Errorf("%s: a blob of %d bytes is queued: %t, want %t", when, len(*data), got, queued)
			}
		}
	}
	want("with the manifest", map[*[]byte]bool{&first: false, &later: false, &early: true})
	if n, err := b.svc.QueueAll(t.Context(), true); n != 0 || err != nil {
		t.Errorf("queued %d layers, %v; want none that is not there", n, err)
	}
	b.adopt("up/app", first)
	b.adopt("up/app", config)
	b.adopt("up/off", off)
	want("with a layer", map[*[]byte]bool{&first: true, &later: false, &config: false, &off: false})
	// A layer stored for another repository exists here as soon as it is linked.
	b.pushBlob(ours, later)
	want("with the other layer elsewhere", map[*[]byte]bool{&later: false})
	_, err := b.reg.LinkStored(t.Context(), "up/app", oci.SHA256(later))
	b.must(err)
	want("with the other layer", map[*[]byte]bool{&later: true})
	b.run()
	for _, data := range [][]byte{first, later, early} {
		b.wait(oci.SHA256(data))
		b.readable("up/app", oci.SHA256(data))
	}
}
