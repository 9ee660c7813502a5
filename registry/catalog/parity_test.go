package catalog_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/gearfacts"
)

// TestParityGroups checks what the groups of packs keep from being forgotten.
func TestParityGroups(t *testing.T) { servers.OnBoth(t, testParityGroups) }

func testParityGroups(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	parity, files, layers := gearfacts.NewParity(x.c.DB), gearfacts.NewFiles(x.c.DB), gearfacts.NewRecipes(x.c.DB)
	object := func(pack byte, contents ...byte) gearfacts.Object {
		p := gearPack(pack, contents...)
		return gearfacts.Object{Digest: p.Digest, Size: p.Size}
	}
	one, ten := object(1, 1, 2, 3), object(10, 10)
	file := func(n byte) gearfacts.Object { return gearfacts.Object{Digest: gearfacts.Name{n, 0xff}, Size: 9} }

	x.make(t, x.a, 10)
	if list, err := parity.ToProtect(ctx, x.now.Add(-time.Second)); err != nil || len(list) > 0 {
		t.Errorf("%v, %v; want nothing protected of a layer that is not dropped soon", list, err)
	}
	want := []gearfacts.Object{one, ten}
	if one.Size < ten.Size {
		want = []gearfacts.Object{ten, one}
	}
	if list, err := parity.ToProtect(ctx, x.now); err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v; want %v", list, err, want)
	}
	if err := layers.DropLayer(ctx, x.a, true); !errors.Is(err, gearfacts.ErrUnprotected) {
		t.Errorf("a layer without parity: %v", err)
	}
	gearStep(t, parity.Put(ctx, gearfacts.Group{Packs: []gearfacts.Object{one}, Files: []gearfacts.Object{file(1)}}))
	if err := layers.DropLayer(ctx, x.a, true); !errors.Is(err, gearfacts.ErrUnprotected) {
		t.Errorf("a layer with parity of one pack only: %v", err)
	}
	if err := parity.Put(ctx, gearfacts.Group{Packs: []gearfacts.Object{ten, object(99, 99)}}); !errors.Is(err, gearfacts.ErrStale) {
		t.Errorf("a group with an unknown pack: %v", err)
	}
	gearStep(t, parity.Put(ctx, gearfacts.Group{Packs: []gearfacts.Object{ten, one}, Files: []gearfacts.Object{file(2), file(3)}}))
	gearStep(t, layers.DropLayer(ctx, x.a, true))
	gearStep(t, layers.LayerAlone(ctx, x.a))

	groups, err := parity.Groups(ctx, gearfacts.Name{})
	gearStep(t, err)
	if len(groups) != 2 || !slices.Equal(groups[1].Packs, []gearfacts.Object{ten, one}) || !slices.Equal(groups[1].Files, []gearfacts.Object{file(2), file(3)}) ||
		!slices.Equal(groups[1].InUse, []bool{true, true}) || groups[1].Broken {
		t.Fatalf("groups: %+v", groups)
	}
	if of, err := parity.Groups(ctx, ten.Digest); err != nil || len(of) != 1 || of[0].ID != groups[1].ID {
		t.Errorf("groups of one pack: %+v, %v", of, err)
	}
	drop := func(g int, want bool) {
		t.Helper()
		if got, err := parity.Drop(ctx, groups[g].ID, false); err != nil || got != want {
			t.Errorf("group %d was dropped: %v, %v; want %v", g, got, err, want)
		}
	}
	drop(1, false) // the last one of ten
	gearStep(t, parity.Checked(ctx, groups[1].ID, true))
	drop(0, false) // the other one of its pack is broken
	gearStep(t, parity.Checked(ctx, groups[1].ID, false))
	drop(0, true)
	for n, want := range map[byte]bool{1: false, 2: true, 3: true} {
		if known, err := parity.FileKnown(ctx, file(n).Digest); err != nil || known != want {
			t.Errorf("file %d is known: %v, %v", n, known, err)
		}
	}

	// A pack of the group is replaced.
	packs, err := files.Packs(ctx, 0, 10)
	gearStep(t, err)
	twelve := gearPack(12, 1, 2, 3)
	twelve.Dense = true
	r := gearfacts.Replacement{Packs: []gearfacts.NewPack{twelve}, Old: []int64{packs[0].ID}, Due: x.now, Parity: true}
	if err := files.Move(ctx, r); !errors.Is(err, gearfacts.ErrStale) {
		t.Errorf("packs that dropped layers need got no group: %v", err)
	}
	r.Group = &gearfacts.Group{Packs: []gearfacts.Object{object(12, 1, 2, 3)}, Files: []gearfacts.Object{file(4)}}
	gearStep(t, files.Move(ctx, r))
	x.now = x.now.Add(time.Hour)
	if list, err := files.Deleting(ctx, 10); err != nil || len(list) > 0 {
		t.Errorf("%x is deleted although a group has it; %v", list, err)
	}
	groups, err = parity.Groups(ctx, one.Digest)
	gearStep(t, err)
	if len(groups) != 1 || !slices.Equal(groups[0].InUse, []bool{true, false}) {
		t.Errorf("the group of a replaced pack: %+v", groups)
	}
	drop(0, false)
	gearStep(t, parity.Put(ctx, gearfacts.Group{Packs: []gearfacts.Object{object(12, 1, 2, 3), ten}, Files: []gearfacts.Object{file(5)}}))
	drop(0, true)
	if list, err := files.Deleting(ctx, 10); err != nil || !slices.Equal(list, []gearfacts.Name{one.Digest}) {
		t.Errorf("deleting %x, %v; want the replaced pack", list, err)
	}
	gearStep(t, layers.EndRecipe(ctx, x.a))
	if groups, err = parity.Groups(ctx, gearfacts.Name{}); err != nil || len(groups) != 2 {
		t.Fatalf("%+v, %v", groups, err)
	}
	drop(0, true)
	drop(1, true) // no dropped layer needs them
}
