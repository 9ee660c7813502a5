package recipes

import (
	"fmt"
	"testing"
	"time"

	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

// TestRegroup drops one layer after another, so that packs come one by one, and ends the
// process at each step of making groups again. At no time may the loss of any one pack lose
// a dropped layer, and in the end parity is shared as widely as packs allow.
func TestRegroup(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	b.packSize = 4 << 10 // so that packs of earlier layers are full, and stay
	b.restart()
	var layers [][]byte
	grown := 0 // full groups that were made again
	for n := range 12 {
		layers = append(layers, compressed(6, archive(uint64(n+1), 3)))
		b.push(layers[n])
		b.settle()
		b.pass(2 * again)
		b.run()
		b.pass(2 * again)
		step := paritySteps()[n%len(paritySteps())]
		b.cut(step)
		_, _ = b.keeper.Pass(t.Context())
		b.restart()
		if n == 4 {
			b.loseEach(fmt.Sprintf("%d layers, cut off when %s", n+1, step), layers)
		}
		b.run()
		groups := b.groups()
		packs := 0
		for _, g := range groups {
			packs += len(g.Packs)
			if len(g.Packs) > parity.GroupPacks {
				grown++
			}
		}
		if most := (packs + parity.GroupPacks + mostJoin - 1) / parity.GroupPacks; len(groups) > most {
			t.Errorf("%d layers: %d groups of %d packs, want at most %d", n+1, len(groups), packs, most)
		}
		if packs > parity.GroupPacks && packs <= parity.GroupPacks+mostJoin && len(groups) != 1 {
			t.Errorf("%d layers: %d packs are in %d groups, want one", n+1, packs, len(groups))
		}
	}
	for range 3 {
		b.settle()
		b.pass(2 * again)
		b.run()
	}
	b.loseEach("in the end", layers)
	if grown == 0 {
		t.Error("no full group was made again with more packs")
	}
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	if files, groups := b.objects(parityPrefix), b.groups(); len(files) != len(groups) {
		t.Errorf("%d groups have %d files", len(groups), len(files))
	}
	dropped := b.droppedOf("in the end", layers)
	for i, l := range layers {
		switch b.state(oci.SHA256(l)) {
		case gearfacts.RecipeAlone:
		case gearfacts.RecipeRefused: // it is so small that its recipe is large
			dropped++
		default: // a small blob is in the catalogue, and not an object that could be dropped
			if dropped++; b.stored(oci.SHA256(l)) {
				t.Errorf("layer %d is in state %d", i, b.state(oci.SHA256(l)))
			}
		}
	}
	if dropped != len(layers) {
		t.Errorf("%d of %d layers are dropped or stay", dropped, len(layers))
	}
}

// groups returns all groups.
func (b *bed) groups() []gearfacts.ParityGroup {
	b.t.Helper()
	groups, err := gearfacts.NewParity(b.cat.DB).Groups(b.t.Context(), gearfacts.Name{})
	b.must(err)
	return groups
}
