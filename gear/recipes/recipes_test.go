package recipes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

func isAbsent(err error) bool  { return errors.Is(err, objstore.ErrNotExist) }
func isUnknown(err error) bool { return errors.Is(err, catalog.ErrNotFound) }

// layersOfAllKinds are layers as encoders write them, and some that no encoder of a layer does.
func layersOfAllKinds() map[string][]byte {
	a := archive(1, 40)
	return map[string][]byte{
		"level 1":            compressed(1, archive(2, 40)),
		"level 6":            compressed(6, a),
		"level 9":            compressed(9, archive(3, 40)),
		"no compression":     compressed(0, archive(4, 10)),
		"members":            compressed(6, a[:100_000], a[100_000:]),
		"Huffman codes only": compressed(-2, archive(6, 10)),
	}
}

// TestDrop checks that layers of all kinds are dropped, and then pulled as they were pushed.
func TestDrop(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layers := layersOfAllKinds()
	for _, l := range layers {
		b.push(l)
	}
	b.drop()
	for name, l := range layers {
		d := oci.SHA256(l)
		if b.stored(d) || b.state(d) != gearfacts.RecipeAlone {
			t.Errorf("%s: state %d, stored %v; want it dropped", name, b.state(d), b.stored(d))
		}
		b.check(name, l)
	}
	b.restart()
	for name, l := range layers {
		b.check(name+" after a restart", l)
	}
	st, err := b.store.Status(t.Context())
	if err != nil || st.Layers != int64(len(layers)) || st.Waiting != 0 || st.RecipeBytes <= 0 || st.RecipeBytes > st.Bytes/4 {
		t.Errorf("status %+v, %v", st, err)
	}
	rep, err := b.keeper.Rehydrate(t.Context(), nil)
	if err != nil || rep.Layers != len(layers) {
		t.Errorf("rehydrated %+v, %v", rep, err)
	}
	for name, l := range layers {
		d := oci.SHA256(l)
		if !b.stored(d) || b.state(d) != -1 {
			t.Errorf("%s: state %d, stored %v; want the object alone", name, b.state(d), b.stored(d))
		}
		b.check(name+" brought back", l)
	}
}

// rebuilds counts the rebuilds that ended well.
func (b *bed) rebuilds() (n float64) {
	b.t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(b.store.metrics.rebuilds)
	families, err := r.Gather()
	b.must(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "done" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestManyReaders checks that readers at the same time share one rebuild.
func TestManyReaders(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, short(100, 20)))
	d := b.push(layer)
	b.drop()
	before := b.rebuilds()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			off := int64(i%2) * int64(i) // some ask for ranges
			c, err := b.reg.GetBlobRange(t.Context(), repo, d, off, -1)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, layer[off:]) {
				t.Errorf("reader %d got %d bytes, want %d; %v", i, len(got), len(layer)-int(off), err)
			}
		})
	}
	wg.Wait()
	if n := b.rebuilds() - before; n != 1 {
		t.Errorf("50 readers caused %v rebuilds", n)
	}
}

// TestGivenUp checks that a rebuild ends when nobody wants it any more, and that the next reader gets
// the layer all the same.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, short(100, 20)))
	d := b.push(layer)
	b.drop()
	for range 10 {
		o, err := b.store.Get(t.Context(), storage.BlobKey(d), 0, -1)
		b.must(err)
		b.must(o.Close())
		b.must(o.Close())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.store.Get(ctx, storage.BlobKey(d), 0, -1); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that has gone: %v", err)
	}
	b.check("after readers that went", layer)
}

// steps are the places where a process may end while a layer is dropped, or brought back.
func steps() []string {
	return []string{"made", "proving", "proven", "proven again", "dropped", "deleted", "back"}
}

// TestCutOff ends the process after each step. The layer must be there as it was, and the next process
// must end what was begun.
func TestCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, step := range steps() {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			layer := compressed(6, archive(1, 20))
			d := b.push(layer)
			reached := false
			b.keeper.step = func(at string) error {
				if at != step {
					return nil
				}
				reached = true
				return errCut{errors.New("the process ends here")}
			}
			b.settle()
			for range 3 {
				b.pass(2 * again)
				_, _ = b.keeper.Pass(t.Context()) // cut off, unless the step comes later
				b.check("cut off", layer)
			}
			_, _ = b.keeper.Rehydrate(t.Context(), nil)
			if !reached {
				t.Fatal("the step was not reached")
			}
			b.check("cut off", layer)
			b.restart()
			b.check("in the next process", layer)
			for range 4 {
				b.settle()
				b.pass(2 * again)
				b.run()
				b.check("after a pass of the next process", layer)
			}
			if b.stored(d) || b.state(d) != gearfacts.RecipeAlone {
				t.Errorf("state %d, stored %v; want it dropped", b.state(d), b.stored(d))
			}
		})
	}
}

// TestDamage damages each pack under dropped layers in turn. It checks that no wrong byte
// is served, that the damage is reported, that the layers are not forgotten, and that
// they can be read again when the pack is back.
func TestDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layers := [][]byte{compressed(6, archive(1, 30)), compressed(1, archive(2, 30))}
	for _, l := range layers {
		b.push(l)
	}
	b.drop()
	b.settle()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	packs, err := filepath.Glob(filepath.Join(b.dir, storage.PackPrefix, "*"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("packs %v, %v", packs, err)
	}
	saved := filepath.Join(t.TempDir(), "backup") // has everything before anything is damaged
	if _, err := backup.Make(t.Context(), b.reg, saved, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, pack := range packs {
		for name, damage := range map[string]func([]byte) []byte{
			"flipped": func(p []byte) []byte { p[len(p)/3] ^= 0x40; return p },
			"cut":     func(p []byte) []byte { return p[:len(p)/2] },
			"gone":    func([]byte) []byte { return nil },
		} {
			good, err := os.ReadFile(pack)
			b.must(err)
			b.must(os.Remove(pack))
			if bad := damage(bytes.Clone(good)); bad != nil {
				b.must(os.WriteFile(pack, bad, 0o600))
			}
			b.restart() // nothing is remembered
			b.damaged(name, layers, saved)
			b.restart()
			b.alarm(name, 1)
			_ = os.Remove(pack)
			b.must(os.WriteFile(pack, good, 0o600))
			b.restart()
			if rep, err := b.files.Verify(t.Context(), filestore.VerifyOptions{Contents: true}); err != nil || rep.Problems > 0 {
				t.Errorf("with the pack back, which was %s: %+v, %v", name, rep, err)
			}
			b.alarm("back", 0)
			if _, err := backup.Make(t.Context(), b.reg, saved, backup.Options{}); err != nil {
				t.Errorf("a backup with the pack back, which was %s: %v", name, err)
			}
			for _, l := range layers {
				b.check("with the pack back, which was "+name, l)
			}
		}
	}
}

// damaged checks what a registry with a damaged pack does.
func (b *bed) damaged(name string, layers [][]byte, saved string) {
	b.t.Helper()
	ctx := b.t.Context()
	var needed *backup.NeededPacksError
	if name != "flipped" { // nobody has read it since
		if _, err := backup.Make(ctx, b.reg, saved, backup.Options{}); !errors.As(err, &needed) {
			b.t.Errorf("%s: a backup that has the pack passed it over: %v", name, err)
		}
	}
	for _, l := range layers {
		got, err := b.read(oci.SHA256(l))
		if err == nil && !bytes.Equal(got, l) || !bytes.HasPrefix(l, got) {
			b.t.Errorf("%s: a pull got %d wrong bytes", name, len(got))
		}
		if err != nil && len(got) == len(l) {
			b.t.Errorf("%s: a pull that failed got everything", name)
		}
	}
	if _, err := b.files.Settle(ctx, filestore.SettleOptions{All: true}); err != nil && ctx.Err() != nil {
		b.t.Errorf("%s: settling did not end: %v", name, err)
	}
	rep, err := b.files.Verify(ctx, filestore.VerifyOptions{Contents: true, Repair: true})
	if err != nil || rep.Problems == 0 {
		b.t.Errorf("%s: the check found %d problems, %v", name, rep.Problems, err)
	}
	for _, dir := range []string{saved, filepath.Join(b.t.TempDir(), "backup")} {
		if _, err = backup.Make(ctx, b.reg, dir, backup.Options{}); !errors.As(err, &needed) {
			b.t.Errorf("%s: a backup passed it over: %v", name, err)
		}
	}
	fsck, err := check.Run(ctx, b.reg, check.Options{Repair: true, GiveUpMany: true})
	if err != nil || len(fsck.Problems) == 0 {
		b.t.Errorf("%s: fsck found %d problems, %v", name, len(fsck.Problems), err)
	}
	for _, l := range layers {
		if s := b.state(oci.SHA256(l)); s != gearfacts.RecipeAlone {
			b.t.Errorf("%s: the layer is in state %d", name, s)
		}
	}
}

// alarm checks how many packs count as unreadable.
func (b *bed) alarm(what string, want int64) {
	b.t.Helper()
	st, err := b.store.Status(b.t.Context())
	if err != nil || st.Unreadable != want || int64(len(st.UnreadablePacks)) != want {
		b.t.Errorf("%s: the status has %d unreadable packs, %v; want %d; %v", what, st.Unreadable, st.UnreadablePacks, want, err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(b.store.metrics.unreadable)
	list, err := reg.Gather()
	b.must(err)
	if got := list[0].Metric[0].Gauge.GetValue(); got != float64(want) {
		b.t.Errorf("%s: slipway_recipes_unreadable_packs is %v, want %d", what, got, want)
	}
}

// TestSettleReadsBack checks that a pack which was stored with other bytes does not take the place of
// those that dropped layers consist of.
func TestSettleReadsBack(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 30))
	b.push(layer)
	b.drop()
	b.push(compressed(6, archive(2, 30))) // so that there is something to settle
	b.disk.on.Store(true)
	if _, err := b.files.Settle(t.Context(), filestore.SettleOptions{All: true}); err == nil {
		t.Error("a pack with other bytes than were written was taken")
	}
	b.disk.on.Store(false)
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	b.restart()
	b.check("after a pack that was stored wrong", layer)
}

// TestProofFails checks that a layer stays whose pack was damaged after its recipe was proven.
func TestProofFails(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 30))
	d := b.push(layer)
	b.settle()
	b.pass(2 * cold)
	if rep := b.run(); rep.Made != 1 || b.state(d) != gearfacts.RecipeProven || !b.stored(d) {
		t.Fatalf("%+v, state %d", rep, b.state(d))
	}
	packs, err := filepath.Glob(filepath.Join(b.dir, storage.PackPrefix, "*"))
	b.must(err)
	for _, p := range packs {
		content, err := os.ReadFile(p)
		b.must(err)
		content[len(content)/3] ^= 1
		b.must(os.WriteFile(p, content, 0o600))
	}
	b.pass(2 * again)
	if rep := b.run(); rep.Dropped != 0 || rep.Failed != 1 || !b.stored(d) {
		t.Errorf("%+v, stored %v", rep, b.stored(d))
	}
	b.check("whose recipe failed", layer)
}

// TestStays checks which layers are not dropped.
func TestStays(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	plain := archive(7, 10) // no gzip
	gz := compressed(6, archive(8, 10))
	b.push(plain)
	d := b.push(gz)
	b.pass(2 * again)
	if b.run(); b.state(d) != -1 {
		t.Errorf("a layer that is not settled is in state %d", b.state(d))
	}
	b.settle()
	b.keeper.p.Repositories = func(string) bool { return false }
	if b.run(); b.state(d) != -1 {
		t.Errorf("a layer of a repository that is left out is in state %d", b.state(d))
	}
	b.keeper.p.Repositories = nil
	b.keeper.p.ColdAfter = 0
	if b.run(); b.state(d) != -1 {
		t.Errorf("a layer is in state %d although no layers are dropped", b.state(d))
	}
	b.keeper.p.ColdAfter = 1000 * time.Hour
	if b.run(); b.state(d) != -1 {
		t.Errorf("a layer that is not cold is in state %d", b.state(d))
	}
	b.keeper.p.ColdAfter, b.keeper.p.LeastRate = cold, 1<<50
	rep := b.run()
	if rep.Refused != 1 || b.state(oci.SHA256(plain)) != gearfacts.RecipeRefused {
		t.Errorf("%+v; a layer that is no gzip is in state %d", rep, b.state(oci.SHA256(plain)))
	}
	b.pass(2 * again)
	rep = b.run()
	if rep.Refused != 1 || b.state(d) != gearfacts.RecipeRefused {
		t.Errorf("%+v; a slow layer is in state %d", rep, b.state(d))
	}
	b.pass(2 * again)
	b.run()
	for _, l := range [][]byte{plain, gz} {
		if !b.stored(oci.SHA256(l)) {
			t.Error("a layer that was refused a recipe is gone")
		}
		b.check("refused", l)
	}
}

// failures returns how many layers something failed with.
func (b *bed) failures() float64 {
	b.t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(b.store.metrics.failures)
	list, err := reg.Gather()
	b.must(err)
	return list[0].Metric[0].Counter.GetValue()
}

// TestComesBack puts the object of a dropped layer back. The object is used, and dropped
// again only after the layer was proven again. A damaged object is removed.
func TestComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 30))
	d := b.push(layer)
	b.drop()
	b.push(layer)
	if !b.stored(d) {
		t.Fatal("a push left no object")
	}
	if b.run(); b.state(d) != gearfacts.RecipeProven || !b.stored(d) {
		t.Errorf("pushed again: state %d", b.state(d))
	}
	b.pass(2 * again)
	if b.run(); b.state(d) != gearfacts.RecipeAlone || b.stored(d) {
		t.Errorf("dropped again: state %d", b.state(d))
	}
	bad := bytes.Clone(layer)
	bad[len(bad)/2] ^= 1
	b.must(b.disk.Put(t.Context(), storage.BlobKey(d), bad, false))
	failed := b.failures()
	if b.run(); b.stored(d) {
		t.Error("the damaged object of a dropped layer stays")
	}
	if n := b.failures(); n != failed {
		t.Errorf("to remove a damaged object counts as %v failures", n-failed)
	}
	b.restart()
	b.check("after a damaged object", layer)
}

// TestBringBack checks that a dropped layer becomes an object again when it is rebuilt
// often within a day because clients pull it, and only then, and that it is dropped again.
func TestBringBack(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	b.keeper.p.BringBackAfter = 3
	b.store.opts.KeepFor = time.Nanosecond // each read rebuilds
	layer := compressed(6, archive(1, 20))
	d := b.push(layer)
	b.putManifest(layer)
	b.drop()
	if b.stored(d) {
		t.Fatal("the layer was not dropped")
	}
	read := func(times int) {
		t.Helper()
		for range times {
			if got, err := b.read(d); err != nil || !bytes.Equal(got, layer) {
				t.Fatalf("pulled %d bytes, %v", len(got), err)
			}
			for end := time.Now().Add(time.Minute); b.rebuilding(d); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the result of a rebuild is kept")
				}
			}
		}
	}
	pull := func() {
		t.Helper()
		_, err := b.reg.GetManifest(t.Context(), repo, "v1")
		b.must(err)
		b.must(b.reg.Upkeep().FlushPulls(t.Context()))
	}
	read(5)
	if rep := b.run(); rep.Back > 0 || b.stored(d) {
		t.Errorf("%+v: a layer is back that only checks have read", rep)
	}
	pull()
	read(2)
	b.pass(25 * time.Hour)
	b.run() // a day has passed
	pull()
	read(2)
	if rep := b.run(); rep.Back > 0 || b.stored(d) {
		t.Errorf("%+v: a layer is back after two rebuilds a day", rep)
	}
	read(1)
	if rep := b.run(); rep.Back != 1 || !b.stored(d) || b.state(d) != -1 {
		t.Errorf("%+v, stored %v, state %d; want the layer back", rep, b.stored(d), b.state(d))
	}
	b.check("back", layer)
	b.drop()
	if b.stored(d) {
		t.Error("the layer was not dropped again")
	}
	b.check("dropped again", layer)
}

// rebuilding reports whether a rebuild of a layer runs or its result is kept.
func (b *bed) rebuilding(d oci.Digest) bool {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.store.flights[d] != nil
}

// TestTogether drops a layer and brings it back, again and again, while others pull it, push it, settle
// the packs, collect garbage and make backups. Every pull must give the layer.
func TestTogether(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 12))
	d := b.push(layer)
	b.putManifest(layer)
	b.settle()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	again := func(what string, do func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := do(); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				select { // what excludes others would else keep them from ever beginning
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	for range 2 {
		again("pull", func() error {
			got, err := b.read(d)
			if err == nil && !bytes.Equal(got, layer) {
				err = errors.New("other bytes")
			}
			return err
		})
	}
	again("push", func() error {
		_, err := b.reg.PushBlob(ctx, repo, d, int64(len(layer)), bytes.NewReader(layer))
		return err
	})
	again("settle", func() error {
		_, err := b.files.Settle(ctx, filestore.SettleOptions{All: true})
		return errors.Join(err, b.files.Housekeep(ctx))
	})
	again("collect", func() error {
		_, err := b.reg.Collect(ctx, registry.CollectOptions{})
		return err
	})
	saved := filepath.Join(t.TempDir(), "backup")
	again("backup", func() error {
		_, err := backup.Make(ctx, b.reg, saved, backup.Options{})
		return err
	})
	dropped := 0
	for end := time.Now().Add(10 * time.Minute); dropped < 3 && time.Now().Before(end) && !t.Failed(); {
		b.pass(2 * cold)
		b.run()
		b.pass(2 * b.keeper.p.Again)
		dropped += b.run().Dropped
		if dropped%2 == 1 {
			_, err := b.keeper.Rehydrate(t.Context(), nil)
			b.must(err)
		}
	}
	stop()
	wg.Wait()
	if dropped < 3 {
		t.Errorf("the layer was dropped %d times", dropped)
	}
	b.restart()
	b.check("in the end", layer)
}

// putManifest puts an image with a layer.
func (b *bed) putManifest(layer []byte) {
	b.t.Helper()
	config := []byte("{}")
	_, err := b.reg.PushBlob(b.t.Context(), repo, oci.SHA256(config), int64(len(config)), bytes.NewReader(config))
	b.must(err)
	m := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}]}`,
		oci.MediaTypeOCIManifest, oci.SHA256(config), oci.SHA256(layer), len(layer))
	_, err = b.reg.PutManifest(b.t.Context(), repo, oci.PutManifest{Bytes: []byte(m), MediaType: oci.MediaTypeOCIManifest, Tags: []string{"v1"}})
	b.must(err)
}

// TestModel does many things in any order, ends the process now and then, and compares the registry with
// a map of what it must hold.
func TestModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for seed := range uint64(4) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			b := newBed(t)
			pool := [][]byte{compressed(6, archive(1, 9)), compressed(1, archive(2, 9)), compressed(9, archive(3, 9)), archive(4, 9)}
			here := map[int]bool{}
			dropped := 0
			for n := range 40 {
				i := r.IntN(len(pool))
				d := oci.SHA256(pool[i])
				what := ""
				switch r.IntN(14) {
				case 0, 1, 9, 10:
					what = "push"
					b.push(pool[i])
					here[i] = true
				case 2:
					what = "delete"
					if here[i] {
						b.must(b.reg.DeleteBlob(t.Context(), repo, d))
						delete(here, i)
					}
				case 3:
					what = "collect"
					b.pass(time.Hour)
					_, err := b.reg.Collect(t.Context(), registry.CollectOptions{})
					b.must(err)
					b.must(b.files.Housekeep(t.Context()))
					clear(here) // no manifest names them
				case 4, 5, 11, 12, 13:
					what = "settle and pass"
					b.settle()
					b.pass(2 * again)
					dropped += b.run().Dropped
				case 6:
					what = "rehydrate"
					_, err := b.keeper.Rehydrate(t.Context(), nil, d)
					b.must(err)
				case 7:
					what = "restart"
					b.restart()
				case 8:
					what = "a pass that is cut off"
					at := steps()[r.IntN(len(steps()))]
					b.keeper.step = func(step string) error {
						if step == at {
							return errCut{errors.New("the process ends here")}
						}
						return nil
					}
					b.pass(2 * again)
					_, _ = b.keeper.Pass(t.Context())
					b.restart()
				}
				for i, l := range pool {
					if here[i] {
						b.check(what, l)
					} else if _, err := b.read(oci.SHA256(l)); err == nil {
						t.Fatalf("step %d, %s: layer %d can be pulled and is not here", n, what, i)
					}
				}
			}
			b.drop()
			for i := range here {
				b.check("in the end", pool[i])
			}
			if t.Logf("%d layers were dropped", dropped); dropped == 0 {
				t.Error("no layer was dropped")
			}
		})
	}
}
