package recipes

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
)

// begin starts a process whose portions have so many layers.
func (b *bed) begin(layers int) {
	b.restart()
	b.keeper.full = portion{layers, fullPortion.bytes}
}

// droppedOf returns how many layers are dropped. It checks that each is pulled as it was
// pushed.
func (b *bed) droppedOf(what string, layers [][]byte) (n int) {
	b.t.Helper()
	for _, l := range layers {
		b.check(what, l)
		if d := oci.SHA256(l); b.state(d) >= gearfacts.RecipeStands && !b.stored(d) {
			n++
		}
	}
	return n
}

// TestPortions ends a pass in the middle of making recipes, and in the middle of dropping.
// The layers of the portions before must be dropped by then, each protected against the
// loss of any pack, and the next pass goes on from there.
func TestPortions(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const layers, full = 12, 3
	for _, at := range []string{"made", "parity", "parity recorded", "dropped"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			b := protectedBed(t)
			b.begin(full)
			b.keeper.p.Again = 0 // so that one pass makes and drops
			var pushed [][]byte
			for i := range layers {
				pushed = append(pushed, compressed(6, archive(uint64(i+1), 5)))
				b.push(pushed[i])
			}
			b.settle()
			b.pass(2 * cold)
			var progress Status
			b.keeper.step = func(step string) error {
				st, err := b.store.Status(t.Context())
				if err != nil {
					return errCut{err}
				}
				if progress = st; step == at && st.Layers >= 2*full {
					return errCut{errors.New("the process ends here")}
				}
				return nil
			}
			if _, err := b.keeper.Pass(t.Context()); err == nil {
				t.Fatal("the pass was not cut off")
			}
			if p := progress.Pass; p == nil || p.Made < full || p.Dropped < full || p.DroppedBytes <= 0 {
				t.Errorf("progress in the middle: %+v", p)
			}
			if st, err := b.store.Status(t.Context()); err != nil || st.Pass != nil {
				t.Errorf("after the pass: %+v, %v", st.Pass, err)
			}
			b.begin(full)
			n := b.droppedOf("in the next process", pushed)
			if n < 2*full-1 || n > 3*full {
				t.Errorf("%d layers are dropped of %d when the pass ends in the third portion of %d", n, layers, full)
			}
			b.loseEach("after the stop", pushed)
			b.keeper.p.Again = 0
			b.pass(time.Hour)
			b.run()
			if n := b.droppedOf("in the end", pushed); n != layers {
				t.Errorf("%d of %d layers are dropped by the next pass", n, layers)
			}
		})
	}
}

// loseEach loses each pack in turn. Layers that are dropped must be pulled as they were.
func (b *bed) loseEach(what string, layers [][]byte) {
	b.t.Helper()
	full := b.keeper.full
	b.pass(time.Hour)
	b.must(b.files.Housekeep(b.t.Context())) // else a restart deletes replaced packs at any time
	for _, pack := range b.objects(storage.PackPrefix) {
		good := b.harm(pack, func([]byte) []byte { return nil })
		b.begin(full.layers)
		for _, l := range layers {
			if b.state(oci.SHA256(l)) < gearfacts.RecipeStands {
				continue
			}
			if got, err := b.read(oci.SHA256(l)); err != nil || !bytes.Equal(got, l) {
				b.t.Errorf("%s, without a pack: %d of %d bytes, %v", what, len(got), len(l), err)
			}
		}
		_ = os.Remove(pack)
		b.must(os.WriteFile(pack, good, 0o600))
	}
}

// TestPortionsDue ends a pass that drops what an earlier one made, after its first portion.
func TestPortionsDue(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := protectedBed(t)
	b.begin(2)
	r := rand.New(rand.NewPCG(1, 8))
	var pushed [][]byte
	for i := range 5 {
		pushed = append(pushed, compressed(1+r.IntN(9), archive(uint64(i+1), 5)))
		b.push(pushed[i])
	}
	b.settle()
	b.pass(2 * cold)
	if rep := b.run(); rep.Made != len(pushed) || rep.Dropped != 0 {
		t.Fatalf("%+v; want recipes only", rep)
	}
	b.pass(2 * again)
	b.keeper.step = func(step string) error { // the process ends after the first portion
		if st, err := b.store.Status(t.Context()); err != nil || step == "proven again" && st.Layers == 2 {
			return errCut{errors.Join(err, errors.New("the process ends here"))}
		}
		return nil
	}
	if rep, err := b.keeper.Pass(t.Context()); err == nil || rep.Dropped != 2 {
		t.Errorf("%+v, %v; want the two layers of the first portion dropped", rep, err)
	}
	b.begin(2)
	if n := b.droppedOf("after the stop", pushed); n != 2 {
		t.Errorf("%d layers are dropped, want 2", n)
	}
}
