package catalog

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
)

// TestGearShare checks what the layers of an image share with others, and with those of a single
// repository.
func TestGearShare(t *testing.T) { onBoth(t, testGearShare) }

func testGearShare(t *testing.T, base *bed) {
	c, ctx := base.open(t, nil), t.Context()
	a, b, d := gearDigest("a"), gearDigest("b"), gearDigest("d")
	for digest, repos := range map[oci.Digest][]string{a: {"x", "z"}, b: {"y"}, d: {"x"}} {
		for _, repo := range repos {
			gearStep(t, c.putBlob(ctx, repo, Blob{Digest: digest, Size: 1, Content: []byte("1")}, ""))
		}
	}
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(1, 1, 2, 3)}, Layer: gearLayer(a, 1, 2, 3)}))
	gearStep(t, c.RecordGear(ctx, GearRecord{Packs: []NewGearPack{gearPack(2, 4)}, Layer: gearLayer(b, 3, 4)}))
	gearStep(t, c.RecordGear(ctx, GearRecord{Layer: gearLayer(d, 2)}))
	for _, tt := range []struct {
		name   string
		layers []oci.Digest
		repo   string
		want   GearShare
	}{
		{"with all", []oci.Digest{a}, "", GearShare{3, 60, 30, 1, 20, 10}},
		{"in a repository", []oci.Digest{a}, "x", GearShare{3, 60, 30, 2, 40, 20}},
		{"in one that has no other layer", []oci.Digest{a}, "z", GearShare{3, 60, 30, 3, 60, 30}},
		{"three, one of them twice", []oci.Digest{a, a, d}, "x", GearShare{3, 60, 30, 3, 60, 30}},
		{"two together", []oci.Digest{a, b}, "", GearShare{4, 80, 40, 3, 60, 30}},
		{"unknown", []oci.Digest{gearDigest("9")}, "", GearShare{}},
		{"none", nil, "", GearShare{}},
	} {
		got, err := c.GearShare(ctx, gearDigest("f"), tt.layers, tt.repo)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s, %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
	if _, err := c.GearShare(ctx, "", make([]oci.Digest, MaxShareLayers+1), ""); err == nil {
		t.Error("too many layers are taken")
	}

	got, err := c.GearHolders(ctx, []GearName{{1}, {3}, {9}}, 10)
	for _, h := range got {
		slices.Sort(h.Repositories)
	}
	want := []GearHolders{{[]string{"x", "z"}, false}, {[]string{"x", "y", "z"}, false}, {}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("holders, %v (-want +got):\n%s", err, diff)
	}
	if got, err := c.GearHolders(ctx, []GearName{{3}}, 2); err != nil || len(got[0].Repositories) != 2 || !got[0].More {
		t.Errorf("two holders: %v, %v", got, err)
	}
	// If very many layers hold a content, not all of them are examined, and the result says so.
	gearStep(t, c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i < 300)
			INSERT INTO gear_layer_files (file_id, layer_id) SELECT f.id, 1000 + s.i FROM s, gear_files f WHERE f.name = ?`, []byte{0: 3, 31: 0})
		return err
	}))
	if got, err := c.GearHolders(ctx, []GearName{{3}}, 10); err != nil || !got[0].More {
		t.Errorf("of %d layers some are looked at: %v, %v", holderLayers, got, err)
	}
}
