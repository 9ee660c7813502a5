package recipes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/rebuild"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// Policy says which layers are dropped.
type Policy struct {
	// ColdAfter is how long nobody must have pulled an image with a layer before the
	// layer is dropped; 0: no layer is dropped.
	ColdAfter time.Duration
	// Again is how long a layer is kept after its recipe was made and proven. Then it is
	// rebuilt from what is stored, and dropped.
	Again time.Duration
	// Repositories reports whether a repository may show a layer that is dropped; nil:
	// all repositories may.
	Repositories func(repo string) bool
	// LeastBytes is the size of the smallest layer that is dropped.
	LeastBytes int64
	// LeastRate is the minimum number of bytes of a layer that a processor must rebuild
	// in a second.
	LeastRate int64
	// MostRecipe is the maximum size of a recipe, in percent of its layer.
	MostRecipe int64
	// Share is how much of one processor the making and proving of recipes may take, in
	// percent; 0 means all of it.
	Share int
	// BringBackAfter is how many rebuilds of a layer within a day make it an object
	// again; 0: no layer becomes an object again in this way. All readers at once and for
	// some time after share a rebuild.
	BringBackAfter int
	// ScrubEvery is the time after which a pack that dropped layers need is read whole
	// again; 0: never.
	ScrubEvery time.Duration
	// ScrubRate is how many bytes Scrub reads in a second; 0: as fast as it can.
	ScrubRate int64
	// Enter, if not nil, is called before the work on each layer or pack, and leave after
	// it. An error of Enter ends a pass or a scrub.
	Enter func() (leave func(), err error)
}

// Keeper makes recipes and drops layers.
type Keeper struct {
	s     *Store
	files *filestore.Store // used to write recipes
	reg   *registry.Registry
	p     Policy
	now   func() time.Time

	mu    sync.Mutex // held during a pass, and during Rehydrate
	began time.Time  // when the pass began
	// tried has the layers that the pass wanted to drop and could not. It leaves them to
	// the next pass, because each try rebuilds the layer.
	tried map[oci.Digest]bool
	busy  time.Duration // work since the last rest

	scrubbing sync.Mutex    // held during Scrub
	limiter   *rate.Limiter // of Scrub; nil: no limit

	full portion // the layers of a portion
	// step is called after each step, for tests that end the process there. It may be
	// nil.
	step func(string) error
}

// NewKeeper returns the keeper of a registry. It writes recipes with files. It does
// nothing before Pass, Scrub or Rehydrate is called.
func NewKeeper(s *Store, files *filestore.Store, reg *registry.Registry, p Policy) *Keeper {
	return &Keeper{s: s, files: files, reg: reg, p: p, now: reg.Upkeep().Replica.Now, limiter: newLimiter(p.ScrubRate),
		full: fullPortion}
}

// Report says what a pass did.
type Report struct {
	// Made is the number of recipes made, and Refused the number of layers that got no
	// recipe.
	Made    int `json:"made"`
	Refused int `json:"refused"`
	// Dropped is the number of dropped layers, and DroppedBytes their size.
	Dropped      int   `json:"dropped"`
	DroppedBytes int64 `json:"dropped_bytes"`
	// Back is the number of layers that are objects again because they are pulled often.
	Back int `json:"back"`
	// Failed is the number of layers with which something failed. They are as they were,
	// and the log says why.
	Failed int `json:"failed"`
}

// Pass considers all layers once. It may be interrupted at any point; the next pass
// continues the work. A layer that cannot be dropped does not stop the work on others.
//
// The work is done in portions: the layers of one are protected and dropped before the
// next portion begins. Layers whose recipes were made by an earlier pass come first.
func (k *Keeper) Pass(ctx context.Context) (rep Report, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.reg.CheckStore(ctx); err != nil {
		return rep, err
	}
	if err := k.reg.Upkeep().Storage.Writable(); err != nil {
		return rep, err
	}
	if err := k.returned(ctx); err != nil {
		return rep, fmt.Errorf("look for dropped layers that have objects: %w", err)
	}
	if err := k.bringBack(ctx, &rep); err != nil {
		return rep, fmt.Errorf("store layers again that are pulled often: %w", err)
	}
	k.began, k.tried = k.now(), map[oci.Digest]bool{}
	k.s.passes(&Progress{Since: k.began})
	defer k.s.passes(nil)
	if k.p.ColdAfter > 0 {
		if err := k.dropDue(ctx, &rep); err != nil {
			return rep, err
		}
		if err := k.makeAll(ctx, &rep); err != nil {
			return rep, err
		}
	}
	// Groups that lack packs are merged, and those that nothing needs go.
	if err := k.protect(ctx, &rep, k.now()); err != nil {
		return rep, fmt.Errorf("keep the parity of packs: %w", err)
	}
	return rep, k.s.metrics.count(ctx, k.s.cat)
}

// portion is the work between two moments at which nothing is left half done.
type portion struct {
	layers int
	bytes  int64
}

// fullPortion is the portion of a Keeper. Each portion asks the catalogue for all groups of
// packs, which must take little time beside the work on the portion.
var fullPortion = portion{256, 1 << 30}

// fills adds a layer to a portion and reports whether the portion is full then.
func (k *Keeper) fills(p *portion, size int64) bool {
	p.layers++
	p.bytes += size
	return p.layers >= k.full.layers || p.bytes >= k.full.bytes
}

// progress says what the pass has done so far.
func (k *Keeper) progress(ctx context.Context, rep *Report) error {
	k.s.passes(&Progress{Since: k.began, Report: *rep})
	k.s.log.Info("the pass over cold layers goes on", "made", rep.Made, "refused", rep.Refused, "dropped", rep.Dropped,
		"bytes", rep.DroppedBytes, "failed", rep.Failed)
	return k.s.metrics.count(ctx, k.s.cat)
}

// did reports a step to a test.
func (k *Keeper) did(step string) error {
	if k.step == nil {
		return nil
	}
	return k.step(step)
}

// page is how many layers are listed at a time.
const page = 256

// each calls do for the layers in the states from one to another. An error of do concerns
// only its layer, and counts as a failure.
func (k *Keeper) each(ctx context.Context, from, to gearfacts.RecipeState, rep *Report, do func(*gearfacts.LayerRecipe) error) error {
	for after := oci.Digest(""); ; {
		list, err := gearfacts.NewRecipes(k.s.cat.DB).LayerRecipes(ctx, from, to, after, page)
		if err != nil || len(list) == 0 {
			return err
		}
		for i := range list {
			after = list[i].Digest
			if err := k.alone(ctx, rep, after, func() error { return do(&list[i]) }); err != nil {
				return err
			}
		}
	}
}

// alone works on one layer, and then rests. If the work fails, the layer stays as it is
// for now.
func (k *Keeper) alone(ctx context.Context, rep *Report, d oci.Digest, do func() error) error {
	err := k.entered(do)
	var cut errCut
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return k.rest(ctx)
	case errors.As(err, &cut):
		return err
	}
	rep.Failed++
	k.s.metrics.failures.Inc()
	k.s.log.Error("a layer cannot be kept as a recipe; it stays as it is and is tried again", "layer", d, "err", err)
	return k.rest(ctx)
}

// entered calls do between Enter and leave.
func (k *Keeper) entered(do func() error) error {
	if k.p.Enter == nil {
		return do()
	}
	leave, err := k.p.Enter()
	if err != nil {
		return errCut{err}
	}
	defer leave()
	return do()
}

// errCut ends a pass.
type errCut struct{ error }

// Unwrap is for errors.Is and errors.As.
func (e errCut) Unwrap() error { return e.error }

// returned looks for dropped layers whose objects exist. An object may remain from an
// interrupted drop, or come from a push or from a restored backup. The layers are proven
// again before the objects are deleted.
func (k *Keeper) returned(ctx context.Context) error {
	var rep Report
	return k.each(ctx, gearfacts.RecipeStands, gearfacts.RecipeAlone, &rep, func(l *gearfacts.LayerRecipe) error {
		_, err := k.s.Store.Stat(ctx, storage.BlobKey(l.Digest))
		if errors.Is(err, objstore.ErrNotExist) {
			return gearfacts.NewRecipes(k.s.cat.DB).LayerAlone(ctx, l.Digest)
		}
		if err != nil {
			return err
		}
		right, err := k.objectRight(ctx, l)
		if err != nil {
			return err
		}
		if !right { // the recipe continues to stand for the layer
			if err := k.redrop(ctx, l); err != nil {
				return fmt.Errorf("the object of the dropped layer is there and damaged; it is deleted once the layer can be rebuilt: %w", err)
			}
			k.s.log.Warn("deleted a damaged object of a dropped layer, which was rebuilt before", "layer", l.Digest)
			return nil
		}
		return gearfacts.NewRecipes(k.s.cat.DB).ProveRecipe(ctx, l.Digest, l.Rate, k.now().Add(k.p.Again))
	})
}

// objectRight reports whether a layer has an object with the layer's digest.
func (k *Keeper) objectRight(ctx context.Context, l *gearfacts.LayerRecipe) (bool, error) {
	obj, err := k.s.Store.Get(ctx, storage.BlobKey(l.Digest), 0, -1)
	if storage.IsDamage(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer obj.Close()
	_, match, err := verify.Copy(ctx, nil, obj, l.Digest, func(int) {})
	if storage.IsDamage(err) {
		return false, nil
	}
	return match, err
}

// redrop deletes the damaged object of a layer whose recipe stands for it.
func (k *Keeper) redrop(ctx context.Context, l *gearfacts.LayerRecipe) error {
	if _, err := k.prove(ctx, l); err != nil {
		return err
	}
	return k.remove(ctx, l)
}

// makeAll makes the recipes of cold layers. After each portion it drops what is due by
// then.
func (k *Keeper) makeAll(ctx context.Context, rep *Report) error {
	before := k.now().Add(-k.p.ColdAfter)
	var made portion
	for after := int64(0); ; {
		list, err := gearfacts.NewRecipes(k.s.cat.DB).ColdLayers(ctx, before, k.p.LeastBytes, after, page)
		if err != nil {
			return fmt.Errorf("look for cold layers: %w", err)
		}
		if len(list) == 0 {
			return k.dropDue(ctx, rep)
		}
		for _, l := range list {
			after = l.ID
			if !k.matches(l.Repositories) || k.tried[l.Digest] {
				continue
			}
			if err := k.alone(ctx, rep, l.Digest, func() error { return k.makeOne(ctx, l.Digest, rep) }); err != nil {
				return fmt.Errorf("make recipes: %w", err)
			}
			if k.fills(&made, l.Size) {
				made = portion{}
				if err := errors.Join(k.dropDue(ctx, rep), k.progress(ctx, rep)); err != nil {
					return err
				}
			}
		}
	}
}

// matches reports whether a layer that these repositories show may be dropped.
func (k *Keeper) matches(repos []string) bool {
	for _, r := range repos {
		if k.p.Repositories != nil && !k.p.Repositories(r) {
			return false
		}
	}
	return len(repos) > 0
}

// makeOne makes the recipe of a layer and proves it.
func (k *Keeper) makeOne(ctx context.Context, d oci.Digest, rep *Report) error {
	began := time.Now()
	l, stored, err := k.recipe(ctx, d)
	k.busy += time.Since(began)
	if errors.Is(err, rebuild.ErrUnsupported) {
		rep.Refused++
		return gearfacts.NewRecipes(k.s.cat.DB).RefuseRecipe(ctx, d, err.Error())
	}
	if err != nil {
		return err
	}
	if most := l.Size * k.p.MostRecipe / 100; k.p.MostRecipe > 0 && int64(len(stored)) > most {
		rep.Refused++
		return gearfacts.NewRecipes(k.s.cat.DB).RefuseRecipe(ctx, d, fmt.Sprintf("its recipe takes %d bytes, and may take %d", len(stored), most))
	}
	err = k.files.PutRecipe(ctx, l, stored)
	if errors.Is(err, gearfacts.ErrStale) { // it was deleted, or another process was faster
		return nil
	}
	if err != nil {
		return fmt.Errorf("store its recipe: %w", err)
	}
	rep.Made++
	if err := k.did("made"); err != nil {
		return err
	}
	return k.first(ctx, d)
}

// recipe makes the recipe of a layer from its object.
func (k *Keeper) recipe(ctx context.Context, d oci.Digest) (l gearfacts.LayerRecipe, stored []byte, err error) {
	g, err := gearfacts.NewLayers(k.s.cat.DB).Layer(ctx, d)
	if err != nil {
		return l, nil, err
	}
	x, err := readIndex(ctx, k.s.files, g.Index)
	if err != nil {
		return l, nil, err
	}
	obj, err := k.s.Store.Get(ctx, storage.BlobKey(d), 0, -1)
	if err != nil {
		return l, nil, err
	}
	defer obj.Close()
	split := rebuild.NewSplitter(x.Files)
	r, err := rebuild.Make(ctx, obj, &rebuild.MakeOptions{Plain: split, Verify: true})
	if err != nil {
		return l, nil, err
	}
	if digestOf(r.Digest) != d {
		return l, nil, fmt.Errorf("the stored layer has the digest %s: %w", digestOf(r.Digest), objstore.ErrCorrupt)
	}
	skeleton, err := split.Skeleton()
	if err == nil {
		r.Skeleton, err = skeleton.Append(nil)
	}
	return gearfacts.LayerRecipe{Digest: d, Index: g.Index, Size: r.Size}, r.Append(nil), err
}

// first proves a recipe that was just stored. It was verified when it was made, so what
// remains is that the object store has it and the files. Before the layer is dropped, it is
// rebuilt from them.
func (k *Keeper) first(ctx context.Context, d oci.Digest) error {
	l, err := gearfacts.NewRecipes(k.s.cat.DB).LayerRecipe(ctx, d)
	if err != nil {
		return err
	}
	began := time.Now()
	files, err := k.s.proof()
	if err == nil {
		err = readBack(ctx, files, &l)
	}
	k.busy += time.Since(began)
	if err != nil {
		err = fmt.Errorf("read back what is stored: %w", err)
		if isLoss(err) { // the object stays, and the next pass makes another recipe
			err = errors.Join(err, gearfacts.NewRecipes(k.s.cat.DB).EndRecipe(ctx, d))
		}
		return err
	}
	if err := k.did("proving"); err != nil {
		return err
	}
	if err := gearfacts.NewRecipes(k.s.cat.DB).ProveRecipe(ctx, d, 0, k.now().Add(k.p.Again)); err != nil {
		return err
	}
	return k.did("proven")
}

// prove rebuilds a layer from what the object store has. It uses separate caches.
func (k *Keeper) prove(ctx context.Context, l *gearfacts.LayerRecipe) (rate int64, err error) {
	began := time.Now()
	files, err := k.s.proof()
	if err != nil {
		return 0, err
	}
	err = rebuildLayer(ctx, files, l, io.Discard, 1)
	took := time.Since(began)
	k.busy += took
	return int64(float64(l.Size) / max(took.Seconds(), 1e-9)), err
}

// rest pauses so that the work since the last rest takes no more than its share of a
// processor.
func (k *Keeper) rest(ctx context.Context) error {
	busy := k.busy
	k.busy = 0
	if k.p.Share <= 0 || k.p.Share >= 100 || busy == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(busy * time.Duration(100-k.p.Share) / time.Duration(k.p.Share))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// dropDue proves again the layers that have waited long enough, and drops them. Only the
// packs of one portion are protected before its layers are dropped.
func (k *Keeper) dropDue(ctx context.Context, rep *Report) error {
	until := k.now() // layers that come to be due meanwhile wait for the next call
	var last *gearfacts.LayerRecipe
	for {
		list, err := gearfacts.NewRecipes(k.s.cat.DB).DueLayers(ctx, until, last, k.full.layers)
		if err != nil {
			return fmt.Errorf("look for layers to drop: %w", err)
		}
		if len(list) == 0 {
			return nil
		}
		var p portion
		var work []*gearfacts.LayerRecipe
		for i := range list {
			last = &list[i]
			if k.tried[last.Digest] {
				continue
			}
			work = append(work, last)
			if k.fills(&p, last.Size) {
				break
			}
		}
		if len(work) == 0 {
			continue
		}
		if err := k.protect(ctx, rep, last.Due); err != nil {
			return fmt.Errorf("keep the parity of packs: %w", err)
		}
		for _, l := range work {
			if err := k.alone(ctx, rep, l.Digest, func() error { return k.dropOne(ctx, l, rep) }); err != nil {
				return fmt.Errorf("drop layers: %w", err)
			}
		}
		if err := k.progress(ctx, rep); err != nil {
			return err
		}
	}
}

// dropOne proves a layer again and drops it. A recipe that is stored but not proven comes
// from a process that ended.
func (k *Keeper) dropOne(ctx context.Context, l *gearfacts.LayerRecipe, rep *Report) error {
	if l.State == gearfacts.RecipeMade {
		err := k.first(ctx, l.Digest)
		k.tried[l.Digest] = err != nil
		return err
	}
	k.tried[l.Digest] = true
	cold, repos, err := gearfacts.NewRecipes(k.s.cat.DB).IsCold(ctx, l.Digest, k.now().Add(-k.p.ColdAfter))
	if err != nil {
		return err
	}
	if !cold || !k.matches(repos) { // the recipe is kept until the layer is cold again
		return gearfacts.NewRecipes(k.s.cat.DB).ProveRecipe(ctx, l.Digest, l.Rate, k.now().Add(k.p.Again))
	}
	rate, err := k.prove(ctx, l)
	if err != nil {
		err = fmt.Errorf("rebuild it from what is stored: %w", err)
		if isLoss(err) {
			// Either the stored data or this program does not produce what was pushed. The
			// object stays.
			err = errors.Join(err, gearfacts.NewRecipes(k.s.cat.DB).EndRecipe(ctx, l.Digest))
		}
		return err
	}
	if rate < k.p.LeastRate {
		rep.Refused++
		return gearfacts.NewRecipes(k.s.cat.DB).RefuseRecipe(ctx, l.Digest, fmt.Sprintf("%d bytes of it are rebuilt in a second, and %d must be", rate, k.p.LeastRate))
	}
	if err := k.did("proven again"); err != nil {
		return err
	}
	err = k.remove(ctx, l)
	if errors.Is(err, gearfacts.ErrStale) || errors.Is(err, gearfacts.ErrUnprotected) { // it is being deleted, or has changed
		return nil
	}
	if err == nil {
		rep.Dropped++
		rep.DroppedBytes += l.Size
		delete(k.tried, l.Digest)
	}
	return err
}

// remove makes the recipe stand for a layer that was just proven, and deletes the object.
// Meanwhile nobody else deletes objects or relies on them, and nobody publishes the
// layer.
func (k *Keeper) remove(ctx context.Context, l *gearfacts.LayerRecipe) error {
	up := k.reg.Upkeep()
	if up.Replica.Shared {
		return errors.New("layers are not dropped where servers share the catalogue")
	}
	release, err := up.Exclude(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := up.Storage.Here(ctx); err != nil {
		return err
	}
	defer up.Storage.Locks.Lock(l.Digest)()
	if err := gearfacts.NewRecipes(k.s.cat.DB).DropLayer(ctx, l.Digest, k.s.opts.Parity > 0); err != nil {
		return err
	}
	if err := k.did("dropped"); err != nil {
		return err
	}
	if err := k.s.Store.Delete(ctx, storage.BlobKey(l.Digest)); err != nil {
		return err
	}
	if err := k.did("deleted"); err != nil {
		return err
	}
	k.s.log.Info("dropped a layer, which is rebuilt from now on", "layer", l.Digest, "bytes", l.Size)
	return gearfacts.NewRecipes(k.s.cat.DB).LayerAlone(ctx, l.Digest)
}
