package filestore_test

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// crash lets a number of operations on the object store pass. After that all operations
// fail. If kill is set, it also closes the catalogue, as if the process had been killed.
type crash struct {
	mu   sync.Mutex
	left int
	kill func()
	down bool
}

func (c *crash) step(op string) error {
	switch op {
	case objtest.OpRead, objtest.OpGet, objtest.OpStat, objtest.OpList: // these change nothing
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left >= 0 {
		return nil
	}
	if !c.down {
		c.down = true
		if c.kill != nil {
			c.kill()
		}
	}
	return errInjected
}

// TestCrash interrupts a sequence of conversions, settling and deletions at each of its
// steps. The next process must find everything sound, leave nothing over, and be able to
// repeat the interrupted step.
func TestCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, mode := range []string{"before", "after", "kill before", "kill after"} {
		t.Run(mode, func(t *testing.T) {
			every := 11
			if mode != "kill after" {
				every = 37 // the other modes run the same code
			}
			for n := 0; ; n += every {
				if !crashAt(t, n, mode) {
					if n < 10 {
						t.Errorf("only %d steps", n)
					}
					return
				}
			}
		})
	}
}

var layersOfLife = sync.OnceValue(func() map[string][][]byte {
	return map[string][][]byte{"one": many(1, 40), "two": append(many(1, 20), noise(3, 300<<10), noise(4, 4<<20))}
})

func life(b *bed) error {
	one, two := b.push("one"), b.push("two")
	layers := layersOfLife()
	steps := []func() error{
		func() error { return b.convert(one, "one", layers["one"]) },
		func() error { return b.convert(two, "two", layers["two"]) },
		func() error { _, err := b.s.Settle(b.ctx, filestore.SettleOptions{All: true}); return err },
		func() error { b.pass(time.Hour); return b.s.Housekeep(b.ctx) },
		func() error {
			w, err := b.s.NewWriter(b.ctx)
			if err != nil {
				return err
			}
			defer w.Abort(b.ctx)
			return write(b.ctx, w, append(many(7, 10), noise(9, 600<<10)))
		},
		func() error { return b.s.Housekeep(b.ctx) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

func crashAt(t *testing.T, n int, mode string) (crashed bool) {
	inner := memstore.New(nil)
	c := &crash{left: n}
	hook := func(op, _ string) error { return c.step(op) }
	faults := objtest.Faults{Before: hook}
	if mode == "after" || mode == "kill after" {
		faults = objtest.Faults{After: hook}
	}
	b := &bed{t: t, ctx: t.Context(), path: filepath.Join(t.TempDir(), "catalog.db"), objs: objtest.Faulty(inner, faults)}
	b.init(&filestore.Options{PackSize: 256 << 10, Workers: 2})
	if mode == "kill before" || mode == "kill after" {
		c.kill = func() { must(t, b.cat.Close()) }
	}
	err := life(b)
	if err != nil && !errors.Is(err, errInjected) && c.kill == nil {
		t.Fatalf("stopped at %d: %v, want the injected error", n, err)
	}
	crashed = c.down
	t.Logf("stopped at %d: %v", n, err)
	must(t, b.cat.Close())

	b.objs = inner
	b.open()
	defer func() { must(t, b.cat.Close()) }()
	must(t, b.s.Housekeep(b.ctx))
	b.verify()
	for l, contents := range layersOfLife() {
		must(t, b.convert(b.push(l), l, contents))
	}
	b.check(slices.Concat(layersOfLife()["one"], layersOfLife()["two"][20:])...)
	b.settle(true)
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	if packs := b.verify(); packs != len(b.keys()) || packs > 3 {
		t.Fatalf("stopped at %d: %d packs, objects %v", n, packs, b.keys())
	}
	if t.Failed() {
		t.Fatalf("stopped at %d", n)
	}
	return crashed
}

func TestDependsOnAnother(t *testing.T) {
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("the other commits %v", commits), func(t *testing.T) {
			b := newBed(t, nil)
			shared := many(1, 30)
			one, two := b.push("one"), b.push("two")
			first, err := b.s.NewWriter(b.ctx)
			must(t, err)
			must(t, write(b.ctx, first, shared))
			second := make(chan error, 1)
			w, err := b.s.NewWriter(b.ctx)
			must(t, err)
			own := append(many(2, 5), shared...)
			must(t, write(b.ctx, w, own))
			_, err = w.PutIndex(b.ctx, index("two", own))
			must(t, err)
			go func() { second <- w.Commit(b.ctx, gearfacts.Layer{Digest: two}) }()
			// It has recorded its own contents and waits.
			for {
				if n, err := gearfacts.NewFiles(b.cat.DB).Counts(b.ctx); err != nil || n.Packs == 1 {
					must(t, err)
					break
				}
			}
			select {
			case err := <-second:
				t.Fatalf("did not wait: %v", err)
			default:
			}
			b.settle(true) // must not touch what the two rely on
			if commits {
				_, err = first.PutIndex(b.ctx, index("one", shared))
				must(t, err)
				must(t, first.Commit(b.ctx, gearfacts.Layer{Digest: one}))
				must(t, <-second)
				b.check(own...)
			} else {
				first.Abort(b.ctx)
				if err := <-second; !errors.Is(err, filestore.ErrRetry) {
					t.Fatalf("commit: %v, want ErrRetry", err)
				}
				b.add("two", own...)
				b.check(own...)
			}
			b.verify()
		})
	}
}

// TestDependOnEachOther runs two conversions, each of which stores what the other needs.
func TestDependOnEachOther(t *testing.T) {
	b := newBed(t, nil)
	one, two := many(1, 10), many(2, 10)
	d := []oci.Digest{b.push("one"), b.push("two")}
	x, err := b.s.NewWriter(b.ctx)
	must(t, err)
	y, err := b.s.NewWriter(b.ctx)
	must(t, err)
	must(t, write(b.ctx, x, one))
	must(t, write(b.ctx, y, two))
	must(t, write(b.ctx, x, two))
	must(t, write(b.ctx, y, one))
	var wg sync.WaitGroup
	for i, w := range []*filestore.Writer{x, y} {
		wg.Go(func() {
			_, err := w.PutIndex(b.ctx, fmt.Appendf(nil, "index %d", i))
			if err = errors.Join(err, w.Commit(b.ctx, gearfacts.Layer{Digest: d[i]})); err != nil {
				t.Errorf("commit %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	b.check(slices.Concat(one, two)...)
}

// TestTogether does everything at once. It is meant for the race detector.
func TestTogether(t *testing.T) {
	b := newBed(t, &filestore.Options{PackSize: 32 << 10, DeleteAfter: time.Nanosecond, Locations: 64})
	const layers = 24
	digests := make([]oci.Digest, layers)
	for i := range digests {
		digests[i] = b.push(fmt.Sprint("layer", i))
	}
	contents := func(i int) [][]byte {
		return slices.Concat(many(uint64(i/2), 15), many(99, 10+i), [][]byte{noise(uint64(i/3), 9000)})
	}
	var wg, helpers sync.WaitGroup
	done := make(chan struct{})
	loop := func(do func() error) {
		helpers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := do(); err != nil {
					t.Errorf("beside the conversions: %v", err)
					return
				}
			}
		})
	}
	loop(func() error { _, err := b.s.Settle(b.ctx, filestore.SettleOptions{All: true}); return err })
	loop(func() error { b.pass(time.Second); return b.s.Housekeep(b.ctx) })
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < layers; i += 4 {
				for {
					err := b.convert(digests[i], fmt.Sprint("layer", i), contents(i))
					if errors.Is(err, filestore.ErrRetry) {
						continue
					}
					if err != nil {
						t.Errorf("layer %d: %v", i, err)
					}
					break
				}
				for _, c := range contents(i) {
					f, err := b.s.Open(b.ctx, name(c))
					if err == nil {
						_, err = f.WriteRange(b.ctx, io.Discard, 0, -1)
					}
					if err != nil {
						t.Errorf("read: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	close(done)
	helpers.Wait()
	for i := range layers {
		b.check(contents(i)...)
	}
	b.settle(true)
	b.pass(time.Hour)
	must(t, b.s.Housekeep(b.ctx))
	if packs := b.verify(); packs != len(b.keys()) {
		t.Errorf("%d packs, %d objects", packs, len(b.keys()))
	}
	if len(b.corrupt) > 0 {
		t.Errorf("taken for damaged: %v", b.corrupt)
	}
}
