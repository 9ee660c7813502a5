package catalog_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/catalog/repair"
)

// recipeBed is a catalogue with layers a and b, which share content 3 in settled packs.
type recipeBed struct {
	c    *catalog.Catalog
	a, b oci.Digest
	now  time.Time
}

func newRecipeBed(t *testing.T, base *catalogtest.Bed) *recipeBed {
	t.Helper()
	x := &recipeBed{a: gearDigest("a"), b: gearDigest("b"), now: time.UnixMilli(1_700_000_000_000)}
	x.c = open(t, base, &catalog.Options{Clock: func() time.Time { return x.now }, Grace: time.Second})
	for _, d := range []oci.Digest{x.a, x.b} {
		gearStep(t, putBlob(t.Context(), x.c, "x", catalog.Blob{Digest: d, Size: 1000}, ""))
	}
	one, two := gearPack(1, 1, 2, 3), gearPack(2, 4)
	one.Dense, two.Dense = true, true
	gearStep(t, gearfacts.NewFiles(x.c.DB).Record(t.Context(), gearfacts.Record{Packs: []gearfacts.NewPack{one}, Layer: gearLayer(x.a, 1, 2, 3)}))
	gearStep(t, gearfacts.NewFiles(x.c.DB).Record(t.Context(), gearfacts.Record{Packs: []gearfacts.NewPack{two}, Layer: gearLayer(x.b, 3, 4)}))
	x.now = x.now.Add(time.Hour)
	return x
}

// make records a recipe, content n of pack n, of a layer and proves it.
func (x *recipeBed) make(t *testing.T, d oci.Digest, n byte) {
	t.Helper()
	l, err := gearfacts.NewLayers(x.c.DB).Layer(t.Context(), d)
	gearStep(t, err)
	gearStep(t, gearfacts.NewFiles(x.c.DB).Record(t.Context(), gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(n, n)},
		Recipe: &gearfacts.LayerRecipe{Digest: d, Index: l.Index, Recipe: gearfacts.Name{n}, Size: 1000, RecipeSize: 10}}))
	gearStep(t, gearfacts.NewRecipes(x.c.DB).ProveRecipe(t.Context(), d, 7, x.now))
}

func (x *recipeBed) drop(t *testing.T, d oci.Digest) {
	t.Helper()
	gearStep(t, gearfacts.NewRecipes(x.c.DB).DropLayer(t.Context(), d, false))
	gearStep(t, gearfacts.NewRecipes(x.c.DB).LayerAlone(t.Context(), d))
}

// alive returns whether a content is needed by something.
func (x *recipeBed) alive(t *testing.T, n byte) bool {
	t.Helper()
	f, err := gearfacts.NewFiles(x.c.DB).File(t.Context(), gearfacts.Name{n})
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil && f.Live
}

// TestRecipeStates checks the way of a layer to its recipe and back.
func TestRecipeStates(t *testing.T) { servers.OnBoth(t, testRecipeStates) }

func testRecipeStates(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	if err := gearfacts.NewRecipes(x.c.DB).DropLayer(ctx, x.a, false); !errors.Is(err, gearfacts.ErrStale) {
		t.Errorf("drop a layer without a recipe: %v", err)
	}
	if err := gearfacts.NewFiles(x.c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(8, 8)}, Recipe: &gearfacts.LayerRecipe{Digest: x.a, Index: gearfacts.Name{99}, Recipe: gearfacts.Name{8}, Size: 1000}}); !errors.Is(err, gearfacts.ErrStale) {
		t.Errorf("a recipe of another index: %v", err)
	}
	x.make(t, x.a, 10)
	if l, err := gearfacts.NewRecipes(x.c.DB).LayerRecipe(ctx, x.a); err != nil || l.State != gearfacts.RecipeProven || l.Recipe != (gearfacts.Name{10}) || l.Size != 1000 || l.RecipeSize != 10 || l.Rate != 7 || l.Dropped() {
		t.Errorf("proven: %+v, %v", l, err)
	}
	if any, err := gearfacts.NewRecipes(x.c.DB).AnyRecipe(ctx, gearfacts.RecipeStands); err != nil || any {
		t.Errorf("something is dropped: %v, %v", any, err)
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).DropLayer(ctx, x.a, false))
	if any, err := gearfacts.NewRecipes(x.c.DB).AnyRecipe(ctx, gearfacts.RecipeStands); err != nil || !any {
		t.Errorf("nothing is dropped: %v, %v", any, err)
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).LayerAlone(ctx, x.a))
	n, err := gearfacts.NewRecipes(x.c.DB).RecipeCounts(ctx)
	if err != nil || n[gearfacts.RecipeAlone] != (gearfacts.RecipeCount{Layers: 1, Bytes: 1000, RecipeBytes: 10}) || n[gearfacts.RecipeProven].Layers != 0 {
		t.Errorf("counts %+v, %v", n, err)
	}
	list, err := gearfacts.NewRecipes(x.c.DB).LayerRecipes(ctx, gearfacts.RecipeStands, gearfacts.RecipeAlone, "", 10)
	if err != nil || len(list) != 1 || list[0].Digest != x.a {
		t.Errorf("dropped: %+v, %v", list, err)
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).RefuseRecipe(ctx, x.a, "too late"))
	if l, err := gearfacts.NewRecipes(x.c.DB).LayerRecipe(ctx, x.a); err != nil || l.State != gearfacts.RecipeAlone {
		t.Errorf("a dropped layer was refused its recipe: %+v, %v", l, err)
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).EndRecipe(ctx, x.a))
	gearStep(t, gearfacts.NewRecipes(x.c.DB).EndRecipe(ctx, x.a))
	if x.alive(t, 10) {
		t.Error("the recipe that was given up is still needed")
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).RefuseRecipe(ctx, x.a, "no gzip"))
	if l, err := gearfacts.NewRecipes(x.c.DB).LayerRecipe(ctx, x.a); err != nil || l.State != gearfacts.RecipeRefused || l.Reason != "no gzip" {
		t.Errorf("refused: %+v, %v", l, err)
	}
}

// TestRecipeMinReader checks that a program which does not know dropped layers is refused the
// catalogue as long as there are any.
func TestRecipeMinReader(t *testing.T) { servers.OnBoth(t, testRecipeMinReader) }

func testRecipeMinReader(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	oldest := func() (v string) {
		t.Helper()
		gearStep(t, x.c.DB.Row(t.Context(), `SELECT value FROM settings WHERE name = ?`, []any{engine.MinReader}, &v))
		return v
	}
	before := oldest()
	x.make(t, x.a, 10)
	x.make(t, x.b, 11)
	if now := oldest(); now != before {
		t.Errorf("recipes beside objects ask for version %s, want %s", now, before)
	}
	x.drop(t, x.a)
	x.drop(t, x.b)
	gearStep(t, gearfacts.NewRecipes(x.c.DB).EndRecipe(t.Context(), x.a))
	if now := oldest(); now != "6" {
		t.Errorf("a dropped layer asks for version %s, want %s", now, "6")
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).EndRecipe(t.Context(), x.b))
	if now := oldest(); now != before {
		t.Errorf("without dropped layers version %s is asked for, want %s", now, before)
	}
}

// TestDroppedIsNeeded checks that nothing forgets where the contents of a dropped layer are, unless
// they can be made again from another layer's object.
func TestDroppedIsNeeded(t *testing.T) { servers.OnBoth(t, testDroppedIsNeeded) }

func testDroppedIsNeeded(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	x.make(t, x.a, 10)
	x.drop(t, x.a)
	for n, want := range map[byte]error{1: gearfacts.ErrNeeded, 10: gearfacts.ErrNeeded, 3: nil, 4: nil} {
		pack := gearfacts.Name{1}
		switch n {
		case 10:
			pack = gearfacts.Name{10}
		case 4:
			pack = gearfacts.Name{2}
		}
		if err := gearfacts.NewFiles(x.c.DB).Lose(ctx, gearfacts.Name{n}, pack); !errors.Is(err, want) {
			t.Errorf("lose content %d: %v, want %v", n, err, want)
		}
	}
	if layers, err := gearfacts.NewLayers(x.c.DB).LayersOf(ctx, gearfacts.Name{3}, 2); err != nil || !slices.Equal(layers, []oci.Digest{x.b, x.a}) {
		t.Errorf("content 3 is made again from %v, %v; want the layer with an object first", layers, err)
	}
	for pack, want := range map[byte]bool{1: true, 10: true, 2: false} {
		if is, err := gearfacts.NewRecipes(x.c.DB).PackNeeded(ctx, gearfacts.Name{pack}); err != nil || is != want {
			t.Errorf("pack %d is needed: %v, %v", pack, is, err)
		}
	}
	if _, err := repair.New(x.c.DB).MarkAbsent(ctx, x.a, false); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("a dropped layer was given up: %v", err)
	}
	if _, err := repair.New(x.c.DB).MarkAbsent(ctx, x.b, false); err != nil {
		t.Errorf("a layer with an object cannot be given up: %v", err)
	}
}

// TestLastSource checks that the place of a content of a dropped layer is kept unless
// another layer holds the content and has a sound blob.
func TestLastSource(t *testing.T) {
	ctx := t.Context()
	for what, harm := range map[string]func(t *testing.T, x *recipeBed) error{
		"suspect": func(t *testing.T, x *recipeBed) error {
			_, _, err := repair.New(x.c.DB).MarkSuspect(ctx, x.b)
			return err
		},
		"absent": func(t *testing.T, x *recipeBed) error {
			_, err := repair.New(x.c.DB).MarkAbsent(ctx, x.b, false)
			return err
		},
		"dropped": func(t *testing.T, x *recipeBed) error {
			x.make(t, x.b, 11)
			x.drop(t, x.b)
			return nil
		},
		"deleted": func(t *testing.T, x *recipeBed) error {
			gearStep(t, x.c.DeleteBlob(ctx, "x", x.b))
			x.now = x.now.Add(time.Minute)
			_, _, err := x.c.Garbage.Collect(ctx, catalog.CollectOptions{Before: x.now, Keep: func(_ string, d oci.Digest) (time.Time, bool) { return x.now, d == x.a }})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			servers.OnBoth(t, func(t *testing.T, base *catalogtest.Bed) {
				x := newRecipeBed(t, base)
				x.make(t, x.a, 10)
				x.drop(t, x.a)
				gearStep(t, harm(t, x))
				if err := gearfacts.NewFiles(x.c.DB).Lose(ctx, gearfacts.Name{3}, gearfacts.Name{1}); !errors.Is(err, gearfacts.ErrNeeded) {
					t.Errorf("the place of a content was forgotten, whose other layer is %s: %v", what, err)
				}
			})
		})
	}
}

// TestRecipeOfDamaged checks that the places of the contents of a layer with a recipe are
// kept when its object is known to be damaged.
func TestRecipeOfDamaged(t *testing.T) { servers.OnBoth(t, testRecipeOfDamaged) }

func testRecipeOfDamaged(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	x.make(t, x.a, 10)
	if _, _, err := repair.New(x.c.DB).MarkSuspect(ctx, x.a); err != nil {
		t.Fatal(err)
	}
	for n, pack := range map[byte]byte{1: 1, 10: 10} {
		if err := gearfacts.NewFiles(x.c.DB).Lose(ctx, gearfacts.Name{n}, gearfacts.Name{pack}); !errors.Is(err, gearfacts.ErrNeeded) {
			t.Errorf("the place of content %d was forgotten: %v", n, err)
		}
	}
	gearStep(t, repair.New(x.c.DB).ClearSuspect(ctx, x.a))
	gearStep(t, gearfacts.NewFiles(x.c.DB).Lose(ctx, gearfacts.Name{1}, gearfacts.Name{1}))
}

// TestSourceOfLost checks that a blob stays while a content of a dropped layer is to be
// made again from it, and goes after that.
func TestSourceOfLost(t *testing.T) { servers.OnBoth(t, testSourceOfLost) }

func testSourceOfLost(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	x.make(t, x.a, 10)
	x.drop(t, x.a)
	gearStep(t, gearfacts.NewFiles(x.c.DB).Lose(ctx, gearfacts.Name{3}, gearfacts.Name{1}))
	gearStep(t, x.c.DeleteBlob(ctx, "x", x.b))
	collect := func(want string, here bool) {
		t.Helper()
		x.now = x.now.Add(3 * time.Hour)
		for n := 0; ; n++ {
			o := catalog.CollectOptions{Before: x.now.Add(2 * time.Second), Keep: func(_ string, d oci.Digest) (time.Time, bool) { return x.now.Add(time.Hour), d == x.a }}
			out, _, err := x.c.Garbage.Collect(ctx, o)
			gearStep(t, err)
			if out.Examined == 0 {
				break
			}
			if n > 10 {
				t.Fatal("the collection does not end")
			}
		}
		if _, err := x.c.StoredBlob(ctx, x.b); (err == nil) != here {
			t.Errorf("%s: %v", want, err)
		}
	}
	collect("the blob must stay", true)
	collect("the blob must stay", true)
	if lost, err := gearfacts.NewChecks(x.c.DB).Lost(ctx, 10); err != nil || !slices.Equal(lost, []gearfacts.Name{{3}}) {
		t.Errorf("lost: %x, %v", lost, err)
	}
	if _, lost, err := gearfacts.NewRecipes(x.c.DB).Broken(ctx, x.a); err != nil || !lost {
		t.Errorf("the dropped layer lacks nothing: %v, %v", lost, err)
	}
	gearStep(t, gearfacts.NewFiles(x.c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{gearPack(12, 3)}}))
	if _, lost, err := gearfacts.NewRecipes(x.c.DB).Broken(ctx, x.a); err != nil || lost {
		t.Errorf("the dropped layer lacks what was made again: %v, %v", lost, err)
	}
	collect("nothing needs the blob any more", false)
}

// TestRecipeLost checks that the recipe of a layer that still has its object is forgotten when its
// bytes are lost, so that it is made again.
func TestRecipeLost(t *testing.T) { servers.OnBoth(t, testRecipeLost) }

func testRecipeLost(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	x.make(t, x.a, 10)
	gearStep(t, gearfacts.NewFiles(x.c.DB).Lose(t.Context(), gearfacts.Name{10}, gearfacts.Name{10}))
	if l, err := gearfacts.NewRecipes(x.c.DB).LayerRecipe(t.Context(), x.a); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the recipe is still there: %+v, %v", l, err)
	}
	if lost, err := gearfacts.NewLayers(x.c.DB).LayerLost(t.Context(), x.a); err != nil || lost {
		t.Errorf("the layer waits for its recipe: %v, %v", lost, err)
	}
}

// TestRecipeGoesWithBlob checks that deleting a dropped layer releases its recipe and its files.
func TestRecipeGoesWithBlob(t *testing.T) { servers.OnBoth(t, testRecipeGoesWithBlob) }

func testRecipeGoesWithBlob(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	x.make(t, x.a, 10)
	x.drop(t, x.a)
	gearStep(t, x.c.DeleteBlob(ctx, "x", x.a))
	x.now = x.now.Add(time.Minute)
	_, _, err := x.c.Garbage.Collect(ctx, catalog.CollectOptions{Before: x.now, Keep: func(_ string, d oci.Digest) (time.Time, bool) { return x.now, d == x.b }})
	gearStep(t, err)
	if l, err := gearfacts.NewRecipes(x.c.DB).LayerRecipe(ctx, x.a); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the recipe of a blob that is gone: %+v, %v", l, err)
	}
	for n := 1; n > 0; {
		n, err = gearfacts.NewFiles(x.c.DB).Collect(ctx, 2)
		gearStep(t, err)
	}
	for n, want := range map[byte]bool{1: false, 2: false, 10: false, 3: true, 4: true} {
		if is := x.alive(t, n); is != want {
			t.Errorf("content %d lives: %v", n, is)
		}
	}
}

// TestColdLayers checks which layers are offered for recipes.
func TestColdLayers(t *testing.T) { servers.OnBoth(t, testColdLayers) }

func testColdLayers(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	cold := func(before time.Time, least int64) (out []oci.Digest) {
		t.Helper()
		list, err := gearfacts.NewRecipes(x.c.DB).ColdLayers(ctx, before, least, 0, 10)
		gearStep(t, err)
		for _, l := range list {
			out = append(out, l.Digest)
			if !slices.Equal(l.Repositories, []string{"x"}) {
				t.Errorf("%s is shown by %v", l.Digest, l.Repositories)
			}
			if is, _, err := gearfacts.NewRecipes(x.c.DB).IsCold(ctx, l.Digest, before); err != nil || !is {
				t.Errorf("%s is offered and not cold: %v", l.Digest, err)
			}
		}
		return out
	}
	if got := cold(x.now, 1); !slices.Equal(got, []oci.Digest{x.a, x.b}) {
		t.Errorf("cold: %v", got)
	}
	if got := cold(x.now, 1001); got != nil {
		t.Errorf("of 1001 bytes: %v", got)
	}
	if got := cold(x.now.Add(-2*time.Hour), 1); got != nil {
		t.Errorf("before they came: %v", got)
	}
	x.make(t, x.a, 10)
	gearStep(t, gearfacts.NewFiles(x.c.DB).Lose(ctx, gearfacts.Name{4}, gearfacts.Name{2}))
	if got := cold(x.now, 1); got != nil {
		t.Errorf("with a recipe, and with a lost content: %v", got)
	}
	loose := gearPack(5, 4)
	gearStep(t, gearfacts.NewFiles(x.c.DB).Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{loose}}))
	if got := cold(x.now, 1); got != nil {
		t.Errorf("with a pack that is not settled: %v", got)
	}
}

// TestPackChecks checks what is remembered of damaged packs, and which packs are to be read.
func TestPackChecks(t *testing.T) { servers.OnBoth(t, testPackChecks) }

func testPackChecks(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	c := gearfacts.NewChecks(x.c.DB)
	one := gearPack(1, 1).Digest // of layer a and, with one content, of b
	want := func(what string, damaged int64, due ...gearfacts.Name) {
		t.Helper()
		n, err := c.CountDamaged(ctx)
		gearStep(t, err)
		list, err := c.Damaged(ctx, 10)
		gearStep(t, err)
		packs, err := c.Due(ctx, x.now.Add(-time.Hour), x.now, 10)
		gearStep(t, err)
		var got []gearfacts.Name
		for _, p := range packs {
			got = append(got, p.Digest)
		}
		if n != damaged || int64(len(list)) != damaged || !slices.Equal(got, due) {
			t.Errorf("%s: %d damaged, listed %v, due %x; want %d, %x", what, n, list, got, damaged, due)
		}
	}
	gearStep(t, c.Found(ctx, one, "rotten"))
	want("no layer is dropped", 0)
	x.make(t, x.a, 10)
	x.drop(t, x.a)
	ten := gearPack(10, 10).Digest // of the recipe
	want("a layer is dropped", 1, one, ten)
	gearStep(t, c.Found(ctx, one, "something else"))
	if list, err := c.Damaged(ctx, 10); err != nil || list[0].Damage != "rotten" {
		t.Errorf("%v, %v; want what was found first", list, err)
	}
	gearStep(t, c.Checked(ctx, ten, ""))
	gearStep(t, c.Checked(ctx, one, "still rotten"))
	want("both were read", 1)
	if n, err := c.Counts(ctx, x.now); err != nil || n.Packs != 2 || n.Checked != 2 || n.Bytes != n.CheckedBytes {
		t.Errorf("%+v, %v; want 2 packs, both read", n, err)
	}
	x.now = x.now.Add(time.Minute)
	want("the damaged one is read again soon", 1, one)
	x.now = x.now.Add(2 * time.Hour)
	want("both again later", 1, one, ten)
	gearStep(t, c.Checked(ctx, one, ""))
	gearStep(t, c.Found(ctx, ten, "rotten"))
	want("the other one was found damaged", 1, ten)
	gearStep(t, gearfacts.NewRecipes(x.c.DB).EndRecipe(ctx, x.a))
	want("no layer is dropped any more", 0)
}

// TestScrubbedPacks checks that packs are scrubbed from which a pack of a dropped layer
// would be made again, although no dropped layer consists of them.
func TestScrubbedPacks(t *testing.T) { servers.OnBoth(t, testScrubbedPacks) }

func testScrubbedPacks(t *testing.T, base *catalogtest.Bed) {
	x := newRecipeBed(t, base)
	ctx := t.Context()
	x.make(t, x.a, 10)
	x.drop(t, x.a)
	two := gearPack(2, 4) // of layer b
	due := func() bool {
		t.Helper()
		packs, err := gearfacts.NewChecks(x.c.DB).Due(ctx, x.now, x.now, 10)
		gearStep(t, err)
		n, err := gearfacts.NewChecks(x.c.DB).Counts(ctx, x.now)
		if err != nil || n.Packs != int64(len(packs)) {
			t.Errorf("%d packs are due, %+v, %v", len(packs), n, err)
		}
		return slices.ContainsFunc(packs, func(p gearfacts.Pack) bool { return p.Digest == two.Digest })
	}
	if due() {
		t.Error("a pack is scrubbed that no dropped layer needs")
	}
	group := gearfacts.Group{Files: []gearfacts.Object{{Digest: gearfacts.Name{0xff}, Size: 9}}}
	for _, p := range []gearfacts.NewPack{gearPack(1, 1, 2, 3), two} {
		group.Packs = append(group.Packs, gearfacts.Object{Digest: p.Digest, Size: p.Size})
	}
	gearStep(t, gearfacts.NewParity(x.c.DB).Put(ctx, group))
	if !due() {
		t.Error("a pack is not scrubbed that another pack of its group may need")
	}
	gearStep(t, gearfacts.NewRecipes(x.c.DB).EndRecipe(ctx, x.a))
	if due() {
		t.Error("a pack is scrubbed although no layer is dropped any more")
	}
}
