package catalog_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
)

// TestGearShare checks what the layers of an image share with others, and with those of a single
// repository.
func TestGearShare(t *testing.T) { servers.OnBoth(t, testGearShare) }

func testGearShare(t *testing.T, base *catalogtest.Bed) {
	c, ctx := open(t, base, nil), t.Context()
	a, b, d := gearDigest("a"), gearDigest("b"), gearDigest("d")
	for digest, repos := range map[oci.Digest][]string{a: {"x", "z"}, b: {"y"}, d: {"x"}} {
		for _, repo := range repos {
			gearStep(t, putBlob(ctx, c, repo, catalog.Blob{Digest: digest, Size: 1, Content: []byte("1")}, ""))
		}
	}
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(1, 1, 2, 3)}, Layer: gearLayer(a, 1, 2, 3)}))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(2, 4)}, Layer: gearLayer(b, 3, 4)}))
	gearStep(t, gearfacts.NewFiles(c.DB).Record(ctx, gearfacts.Record{Layer: gearLayer(d, 2)}))
	for _, tt := range []struct {
		name   string
		layers []oci.Digest
		repo   string
		want   gearfacts.Share
	}{
		{"with all", []oci.Digest{a}, "", gearfacts.Share{Files: 3, Bytes: 60, Stored: 30, OwnFiles: 1, OwnBytes: 20, OwnStored: 10}},
		{"in a repository", []oci.Digest{a}, "x", gearfacts.Share{Files: 3, Bytes: 60, Stored: 30, OwnFiles: 2, OwnBytes: 40, OwnStored: 20}},
		{"in one that has no other layer", []oci.Digest{a}, "z", gearfacts.Share{Files: 3, Bytes: 60, Stored: 30, OwnFiles: 3, OwnBytes: 60, OwnStored: 30}},
		{"three, one of them twice", []oci.Digest{a, a, d}, "x", gearfacts.Share{Files: 3, Bytes: 60, Stored: 30, OwnFiles: 3, OwnBytes: 60, OwnStored: 30}},
		{"two together", []oci.Digest{a, b}, "", gearfacts.Share{Files: 4, Bytes: 80, Stored: 40, OwnFiles: 3, OwnBytes: 60, OwnStored: 30}},
		{"unknown", []oci.Digest{gearDigest("9")}, "", gearfacts.Share{}},
		{"none", nil, "", gearfacts.Share{}},
	} {
		got, err := gearfacts.NewLayers(c.DB).Share(ctx, gearDigest("f"), tt.layers, tt.repo)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s, %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
	if _, err := gearfacts.NewLayers(c.DB).Share(ctx, "", make([]oci.Digest, gearfacts.MaxShareLayers+1), ""); err == nil {
		t.Error("too many layers are taken")
	}

	got, err := gearfacts.NewLayers(c.DB).Holders(ctx, []gearfacts.Name{{1}, {3}, {9}}, 10)
	for _, h := range got {
		slices.Sort(h.Repositories)
	}
	want := []gearfacts.Holders{{Repositories: []string{"x", "z"}}, {Repositories: []string{"x", "y", "z"}}, {}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("holders, %v (-want +got):\n%s", err, diff)
	}
	if got, err := gearfacts.NewLayers(c.DB).Holders(ctx, []gearfacts.Name{{3}}, 2); err != nil || len(got[0].Repositories) != 2 || !got[0].More {
		t.Errorf("two holders: %v, %v", got, err)
	}
	// If very many layers hold a content, not all of them are examined, and the result says so.
	gearStep(t, c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i < 300)
			INSERT INTO gear_layer_files (file_id, layer_id) SELECT f.id, 1000 + s.i FROM s, gear_files f WHERE f.name = ?`, []byte{0: 3, 31: 0})
		return err
	}))
	if got, err := gearfacts.NewLayers(c.DB).Holders(ctx, []gearfacts.Name{{3}}, 10); err != nil || !got[0].More {
		t.Errorf("of %d layers some are looked at: %v, %v", 256, got, err)
	}
}
