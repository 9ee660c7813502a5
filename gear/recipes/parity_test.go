package recipes

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
)

// protectedBed is a bed whose packs have parity.
func protectedBed(t testing.TB) *bed {
	t.Helper()
	b := newBed(t)
	b.parity = 1
	b.restart()
	return b
}

const parityPrefix = "slipway/gear/parity/"

// wantObject checks that an object is as it was.
func (b *bed) wantObject(what, path string, want []byte) {
	b.t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		b.t.Errorf("%s: %s has %d other bytes than the %d before; %v", what, filepath.Base(path), len(got), len(want), err)
	}
}

// TestParity damages each pack of dropped layers in turn, in all ways. A pull, the scrub,
// and the check with repair each make the pack again.
func TestParity(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	b.keeper.p.ScrubEvery = time.Hour
	layers := [][]byte{compressed(6, archive(1, 30)), compressed(1, archive(2, 30))}
	for _, l := range layers {
		b.push(l)
		b.settle()
	}
	b.drop()
	for _, l := range layers {
		if s := b.state(oci.SHA256(l)); s != gearfacts.RecipeAlone {
			t.Fatalf("a layer is in state %d", s)
		}
	}
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	heal := map[string]func() error{
		"pull": func() error {
			for _, l := range layers {
				if got, err := b.read(oci.SHA256(l)); err != nil || !bytes.Equal(got, l) {
					return fmt.Errorf("%d of %d bytes, %w", len(got), len(l), err)
				}
			}
			return nil
		},
		"scrub": func() error {
			b.pass(2 * time.Hour)
			rep, err := b.keeper.Scrub(t.Context())
			if err == nil && (rep.Repaired != 1 || rep.Damaged != 0) {
				err = fmt.Errorf("%+v", rep)
			}
			return err
		},
		"fsck": func() error {
			restored := 0
			_, err := b.files.Verify(t.Context(), filestore.VerifyOptions{Contents: true, Repair: true, Found: func(p filestore.Problem) {
				if !p.Restored {
					t.Errorf("found %+v", p)
				}
				restored++
			}})
			if err == nil && restored != 1 {
				err = fmt.Errorf("%d packs were restored", restored)
			}
			return err
		},
	}
	for _, pack := range b.objects(storage.PackPrefix) {
		for harm, do := range harms() {
			for by, again := range heal {
				what := harm + ", then " + by
				good := b.harm(pack, do)
				b.restart() // nothing is remembered
				b.keeper.p.ScrubEvery = time.Hour
				if err := again(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				b.alarm(what, 0)
				if by != "pull" { // a pull that does not need the damaged bytes leaves them
					b.wantObject(what, pack, good)
				}
				_ = os.Remove(pack)
				b.must(os.WriteFile(pack, good, 0o600))
			}
		}
	}
}

// TestParityDamaged damages parity files. They are found and made anew, and meanwhile
// nothing else changes.
func TestParityDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	layer := compressed(6, archive(1, 30))
	b.push(layer)
	b.drop()
	b.run()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context())) // else a restart deletes replaced packs at any time
	for harm, do := range harms() {
		file := b.objects(parityPrefix)[0]
		good := b.harm(file, do)
		b.restart()
		b.keeper.p.ScrubEvery = time.Hour
		b.pass(2 * time.Hour)
		if rep, err := b.keeper.Scrub(t.Context()); err != nil || rep.Damaged+rep.Repaired > 0 {
			t.Errorf("%s: %+v, %v", harm, rep, err)
		}
		b.run()
		b.wantObject(harm, file, good)
		for _, pack := range b.objects(storage.PackPrefix) {
			good := b.harm(pack, func([]byte) []byte { return nil })
			b.restart()
			b.check(harm, layer)
			b.must(os.WriteFile(pack, good, 0o600))
		}
	}
}

// TestParityModel does many things in any order, and loses a pack or a parity file after
// each. What was pushed must be pulled as it was.
func TestParityModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for seed := range uint64(4) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 2))
			b := protectedBed(t)
			pool := [][]byte{compressed(6, archive(1, 9)), compressed(1, archive(2, 9)), compressed(9, archive(3, 9)), compressed(6, archive(4, 9))}
			here := map[int]bool{}
			dropped, lost := 0, 0
			for n := range 40 {
				i := r.IntN(len(pool))
				what := b.anything(r, pool, i, here, &dropped)
				b.keeper.p.ScrubEvery = time.Hour
				if r.IntN(2) == 0 {
					b.pass(2 * again)
					dropped += b.run().Dropped
				}
				if b.loseOne(r, here, pool) {
					lost++
				}
				for i := range here {
					b.check(fmt.Sprintf("step %d, %s", n, what), pool[i])
				}
				if r.IntN(3) == 0 {
					b.pass(2 * time.Hour)
					if rep, err := b.keeper.Scrub(t.Context()); err != nil || rep.Damaged > 0 {
						t.Fatalf("step %d, %s: scrub: %+v, %v", n, what, rep, err)
					}
				}
			}
			if t.Logf("%d layers were dropped, %d objects lost", dropped, lost); dropped == 0 || lost == 0 {
				t.Error("no layer was dropped, or nothing was lost")
			}
		})
	}
}

// anything does one thing to a layer or to the registry.
func (b *bed) anything(r *rand.Rand, pool [][]byte, i int, here map[int]bool, dropped *int) string {
	b.t.Helper()
	ctx := b.t.Context()
	switch r.IntN(10) {
	case 0, 1, 2:
		b.push(pool[i])
		here[i] = true
		return "push"
	case 3:
		if here[i] {
			b.must(b.reg.DeleteBlob(ctx, repo, oci.SHA256(pool[i])))
			delete(here, i)
		}
		return "delete"
	case 4:
		_, err := b.keeper.Rehydrate(ctx, nil, oci.SHA256(pool[i]))
		b.must(err)
		return "rehydrate"
	case 5:
		b.pass(time.Hour)
		b.must(b.files.Housekeep(ctx))
		return "delete replaced packs"
	case 6:
		at := paritySteps()[r.IntN(len(paritySteps()))]
		b.cut(at)
		b.pass(2 * again)
		_, _ = b.keeper.Pass(ctx)
		b.restart()
		return "a pass that is cut off when " + at
	default:
		b.settle()
		b.pass(2 * again)
		*dropped += b.run().Dropped
		return "settle and pass"
	}
}

// loseOne damages one object of the packs' groups: one that dropped layers need.
func (b *bed) loseOne(r *rand.Rand, here map[int]bool, pool [][]byte) bool {
	b.t.Helper()
	for i := range here { // a layer that is on its way, or whose blob is there, has no parity yet
		if b.state(oci.SHA256(pool[i])) != gearfacts.RecipeAlone {
			return false
		}
	}
	list := append(b.objects(storage.PackPrefix), b.objects(parityPrefix)...)
	if len(here) == 0 || len(list) == 0 {
		return false
	}
	kinds := []string{"flipped", "zeroed", "cut", "gone"}
	b.harm(list[r.IntN(len(list))], harms()[kinds[r.IntN(len(kinds))]])
	b.restart()
	b.keeper.p.ScrubEvery = time.Hour
	b.pass(2 * time.Hour)
	for i := range here {
		b.check("with a lost object", pool[i])
	}
	if rep, err := b.keeper.Scrub(b.t.Context()); err != nil || rep.Damaged > 0 {
		b.t.Fatalf("scrub after a loss: %+v, %v", rep, err)
	}
	b.run() // makes damaged parity anew
	return true
}

func paritySteps() []string {
	return []string{"parity", "parity recorded", "parity forgotten", "dropped"}
}

// cut ends the next pass at a step.
func (b *bed) cut(at string) {
	b.keeper.step = func(step string) error {
		if step == at {
			return errCut{errors.New("the process ends here")}
		}
		return nil
	}
}

// TestParityCutOff ends the process at each step of making parity. The layer is pulled
// before and after, no file is left that nothing names, and in the end it is dropped and
// survives the loss of any pack.
func TestParityCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, at := range paritySteps() {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			b := protectedBed(t)
			layer := compressed(6, archive(1, 20))
			d := b.push(layer)
			b.settle()
			for n := range 3 {
				b.cut(at)
				b.pass(2 * again)
				_, err := b.keeper.Pass(t.Context())
				if n == 1 && err == nil {
					t.Fatal("the step was not reached")
				}
				b.check("cut off", layer)
				b.restart()
				b.check("in the next process", layer)
			}
			for range 3 {
				b.settle()
				b.pass(2 * again)
				b.run()
			}
			if b.stored(d) || b.state(d) != gearfacts.RecipeAlone {
				t.Fatalf("state %d, stored %v; want it dropped", b.state(d), b.stored(d))
			}
			groups, err := gearfacts.NewParity(b.cat.DB).Groups(t.Context(), gearfacts.Name{})
			b.must(err)
			if files := b.objects(parityPrefix); len(files) != len(groups) || len(groups) == 0 {
				t.Errorf("%d groups have %d files", len(groups), len(files))
			}
			b.pass(time.Hour)
			b.must(b.files.Housekeep(t.Context()))
			for _, pack := range b.objects(storage.PackPrefix) {
				good := b.harm(pack, func([]byte) []byte { return nil })
				b.restart()
				b.check("without a pack", layer)
				_ = os.Remove(pack)
				b.must(os.WriteFile(pack, good, 0o600))
			}
		})
	}
}

// TestParityEnds checks that parity goes when no layer is dropped any more, and when the
// store is declared to be redundant, and that packs which only groups kept are deleted then.
func TestParityEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	layer := compressed(6, archive(1, 20))
	d := b.push(layer)
	b.drop()
	if len(b.objects(parityPrefix)) == 0 || b.stored(d) {
		t.Fatalf("%d parity files, stored %v", len(b.objects(parityPrefix)), b.stored(d))
	}
	before := len(b.objects(storage.PackPrefix))
	b.settle() // joins the recipe with the rest
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	if n := len(b.objects(storage.PackPrefix)); n < before {
		t.Errorf("%d of %d packs are left although groups need them", n, before)
	}
	b.run()
	b.must(b.files.Housekeep(t.Context()))
	if n := len(b.objects(storage.PackPrefix)); n >= before {
		t.Errorf("%d packs, want fewer than %d, because no group needs them", n, before)
	}
	b.check("after its packs were replaced", layer)
	b.parity = 0
	b.restart()
	b.run()
	if n := len(b.objects(parityPrefix)); n > 0 {
		t.Errorf("%d parity files in a store that is redundant", n)
	}
	b.parity = 1
	b.restart()
	b.run()
	if n := len(b.objects(parityPrefix)); n == 0 {
		t.Error("no parity in a store that is not redundant any more")
	}
	_, err := b.keeper.Rehydrate(t.Context(), nil)
	b.must(err)
	b.keeper.p.ColdAfter = 0
	b.run()
	if n := len(b.objects(parityPrefix)); n > 0 {
		t.Errorf("%d parity files without dropped layers", n)
	}
	_, err = b.reg.Collect(t.Context(), registry.CollectOptions{})
	b.must(err)
	b.check("brought back", layer)
}

// TestPlanGroups checks properties of plans for any packs and groups: each needed pack is
// in a group afterwards, groups that stay do not lose packs, a plan that was carried out
// leads to no other one, and few packs have parity of their own only if no group has room
// for them.
func TestPlanGroups(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		var packs []gearfacts.Object
		var groups []gearfacts.ParityGroup
		next, made := int64(0), 0
		for range 6 {
			for range r.IntN(15) {
				packs = append(packs, gearfacts.Object{Digest: gearfacts.Name{1, byte(made)}, Size: r.Int64N(100)})
				made++
			}
			if n := len(packs); n > 0 && r.IntN(3) == 0 { // one is replaced
				at := r.IntN(n)
				gone := packs[at]
				packs = slices.Delete(packs, at, at+1)
				for i := range groups {
					for j, p := range groups[i].Packs {
						groups[i].InUse[j] = groups[i].InUse[j] && p != gone
					}
				}
			}
			for again := range 2 {
				p := planGroups(groups, packs, 1)
				if again == 1 && len(p.make)+len(p.drop) > 0 {
					t.Fatalf("seed %d: a second plan makes %d groups and drops %d", seed, len(p.make), len(p.drop))
				}
				groups = carryOut(groups, p, &next)
			}
			few, room, partial := 0, 0, 0
			for _, g := range groups {
				switch n := len(g.Packs); {
				case n > parity.GroupPacks+mostJoin:
					t.Fatalf("seed %d: a group of %d packs", seed, n)
				case n <= mostJoin:
					few = n
				case n >= parity.GroupPacks:
					room = max(room, parity.GroupPacks+mostJoin-n)
				}
				if len(g.Packs) < parity.GroupPacks {
					partial++
				}
			}
			if partial > 1 || few > 0 && room >= few {
				t.Fatalf("seed %d: %d groups are partial, and %d packs are alone beside a group with room for %d", seed, partial, few, room)
			}
			covered := map[gearfacts.Object]int{}
			for _, g := range groups {
				for _, o := range g.Packs {
					covered[o]++
				}
			}
			for _, o := range packs {
				if covered[o] != 1 {
					t.Fatalf("seed %d: a pack is in %d groups", seed, covered[o])
				}
			}
		}
	}
}

// carryOut returns the groups after a plan.
func carryOut(groups []gearfacts.ParityGroup, p plan, next *int64) []gearfacts.ParityGroup {
	drop := map[int64]bool{}
	for _, id := range p.drop {
		drop[id] = true
	}
	var out []gearfacts.ParityGroup
	for _, g := range groups {
		if !drop[g.ID] {
			out = append(out, g)
		}
	}
	for _, packs := range p.make {
		*next++
		g := gearfacts.ParityGroup{ID: *next, Group: gearfacts.Group{Packs: packs, Files: make([]gearfacts.Object, 1)}}
		for range packs {
			g.InUse = append(g.InUse, true)
		}
		out = append(out, g)
	}
	return out
}

// TestParityStops ends the process at each operation of the object store in turn while
// layers are made recipes, protected and dropped, and packs settled. Then any one object
// is lost. Everything that was pushed is pulled as it was.
func TestParityStops(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	r := rand.New(rand.NewPCG(1, 4))
	var layers [][]byte
	here, stopped := map[int]bool{}, 0
	for n := 1; n < 120; n += 1 + n/8 {
		if len(layers) < 12 {
			here[len(layers)] = true
			layers = append(layers, compressed(6, archive(uint64(len(layers)+1), 6)))
			b.push(layers[len(layers)-1])
		}
		b.pass(2 * again)
		b.disk.stopAfter(n)
		_, _ = b.files.Settle(t.Context(), filestore.SettleOptions{All: true})
		_, _ = b.keeper.Pass(t.Context())
		b.pass(time.Hour)
		_ = b.files.Housekeep(t.Context())
		if b.disk.stopped() {
			stopped++
		}
		b.restart() // with a disk that works
		for i := range here {
			b.check(fmt.Sprintf("stopped after %d operations", n), layers[i])
		}
		b.settle()
		for range 2 {
			b.pass(2 * again)
			b.run()
		}
		b.loseOne(r, here, layers)
	}
	if stopped < 10 {
		t.Errorf("the process was stopped %d times", stopped)
	}
}
