package recipes

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
)

// TestRehydrateDamaged gives up the recipe of a layer whose object was damaged meanwhile.
// The object must be what the recipe rebuilds; only then may the recipe go.
func TestRehydrateDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 12))
	d := b.push(layer)
	object := filepath.Join(b.dir, storage.BlobKey(d))
	b.settle()
	for harm, do := range harms() {
		for _, drop := range []bool{false, true} {
			what := fmt.Sprintf("%s, dropped: %v", harm, drop)
			b.pass(2 * cold)
			b.run()
			if drop {
				b.pass(2 * again)
				b.run()
				b.must(b.disk.Put(t.Context(), storage.BlobKey(d), layer, false))
			}
			if s := b.state(d); (s == gearfacts.RecipeAlone) != drop || s < gearfacts.RecipeProven {
				t.Fatalf("%s: the layer is in state %d", what, s)
			}
			b.harm(object, do)
			rep, err := b.keeper.Rehydrate(t.Context(), nil, d)
			if err != nil || rep.Layers != 1 || b.state(d) != -1 {
				t.Errorf("%s: %+v, %v, state %d", what, rep, err, b.state(d))
			}
			b.restart()
			b.check(what, layer)
		}
	}
	// The other way round: the object is right, and the recipe of no use.
	b.pass(2 * cold)
	b.run()
	b.pass(2 * again)
	b.run()
	b.must(b.disk.Put(t.Context(), storage.BlobKey(d), layer, false))
	for _, pack := range b.objects(storage.PackPrefix) {
		b.must(os.Remove(pack))
	}
	if rep, err := b.keeper.Rehydrate(t.Context(), nil, d); err != nil || rep.Layers != 1 {
		t.Errorf("with an object and without packs: %+v, %v", rep, err)
	}
	b.check("without packs", layer)
}
