// Package recipes keeps layers as recipes. A layer that nobody pulls is dropped. When
// somebody requests it, it is rebuilt from its files, byte for byte.
//
// [Store] is directly above the object store, below caches. A dropped layer is an object
// in it like any other. A reader gets the bytes while they are rebuilt, but never the
// last bytes before the digest of the whole layer is known to be right. All readers of a
// layer share one rebuild.
//
// [Keeper] makes recipes and drops layers. Package rebuild defines what a recipe is and
// how it rebuilds a layer. The catalogue records which layers have a recipe, and since
// when the recipe stands for the layer. DESIGN.md describes the order of the steps and
// what a crash leaves after each of them.
package recipes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// Options are the options of New. The zero value works.
type Options struct {
	// Log receives what an operator should know; default: discarded.
	Log *slog.Logger
	// TempDir is the directory of the files that hold layers while they are rebuilt and
	// read; default: the system's directory for temporary files. The files have no name.
	TempDir string
	// Workers is how many segments of a layer are rebuilt at the same time; default: the
	// number of processors.
	Workers int
	// Rebuilds is how many layers are rebuilt at the same time; default 2. Other rebuilds
	// wait.
	Rebuilds int
	// KeepFor is how long a rebuilt layer is kept for later readers; default 1 min.
	KeepFor time.Duration
	// KeepBytes bounds the total size of the layers kept, together with those that are
	// being read; default 1 GiB. Only layers that are read at the same time may have more.
	KeepBytes int64
	// Parity is how many packs of a group may be lost at once; 0: packs have no parity,
	// because the object store itself is redundant.
	Parity int
	// OnCorrupt is called with damaged contents, as in filestore.Options.
	OnCorrupt func(*filestore.CorruptError)
}

// Store is an object store in which dropped layers are objects like others.
type Store struct {
	objstore.Store
	cat   *catalog.Catalog
	files *filestore.Store
	guard *parity.Guard
	opts  Options
	log   *slog.Logger

	slots chan struct{} // taken by rebuilds in progress
	stop  context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup

	mu      sync.Mutex
	flights map[oci.Digest]*flight
	kept    int64 // size of the layers that nobody reads
	inUse   int64 // size of the layers that are read, which includes those being rebuilt
	counts  counts
	closed  bool
	pass    *Progress // is not changed; nil: no pass is running

	metrics *metrics
}

var (
	_ objstore.Wrapper = (*Store)(nil)
	_ objstore.Adapter = (*Store)(nil)
)

// New returns a Store that adds rebuilding to the store inner. Closing the result closes
// inner.
func New(cat *catalog.Catalog, inner objstore.Store, o *Options) (*Store, error) {
	s := &Store{Store: inner, cat: cat, flights: map[oci.Digest]*flight{}, counts: counts{of: map[oci.Digest]int{}}, metrics: newMetrics(cat)}
	if o != nil {
		s.opts = *o
	}
	if s.log = s.opts.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.opts.Workers <= 0 {
		s.opts.Workers = runtime.GOMAXPROCS(0)
	}
	if s.opts.Rebuilds <= 0 {
		s.opts.Rebuilds = 2
	}
	if s.opts.KeepFor <= 0 {
		s.opts.KeepFor = time.Minute
	}
	if s.opts.KeepBytes <= 0 {
		s.opts.KeepBytes = 1 << 30
	}
	s.guard = parity.New(cat.DB, inner, parity.Options{Log: s.log, Files: s.opts.Parity, OnRepair: func(gear.Name) { s.metrics.repaired.Inc() }})
	var err error
	if s.files, err = s.proof(); err != nil {
		return nil, err
	}
	s.slots = make(chan struct{}, s.opts.Rebuilds)
	s.stop, s.end = context.WithCancel(context.Background())
	return s, nil
}

// proof returns a file store that reads packs from the object store, and caches no
// content.
func (s *Store) proof() (*filestore.Store, error) {
	return filestore.New(s.cat, s.Store, &filestore.Options{Log: s.log, Cache: forgetful{}, OnCorrupt: s.opts.OnCorrupt, Guard: s.guard})
}

// forgetful is a cache that keeps nothing.
type forgetful struct{}

// Get implements filestore.Cache.
func (forgetful) Get(gear.Name) ([]byte, bool) { return nil, false }

// Put implements filestore.Cache.
func (forgetful) Put(gear.Name, []byte) {}

// Proof returns a file store that reads packs from where they are stored: see
// filestore.Options.
func (s *Store) Proof() *filestore.Store { return s.files }

// Unwrap implements objstore.Wrapper.
func (s *Store) Unwrap() objstore.Store { return s.Store }

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	obj, err := s.Store.Get(ctx, key, off, n)
	if err == nil {
		return obj, nil
	}
	l, dropped, err := s.instead(ctx, key, err)
	if dropped {
		return s.open(ctx, key, &l, off, n)
	}
	if errors.Is(err, objstore.ErrNotExist) { // it may have come back between the two look-ups
		return s.Store.Get(ctx, key, off, n)
	}
	return nil, err
}

// instead looks for a dropped layer after the object store has returned an error for its
// key, and returns the error if there is none. The recipe stands for a dropped layer whatever
// the error is: the object is not expected to be there, and so the store's directory, say,
// need not be readable.
func (s *Store) instead(ctx context.Context, key string, err error) (l gearfacts.LayerRecipe, dropped bool, _ error) {
	if ctx.Err() != nil {
		return l, false, err
	}
	l, dropped, lookErr := s.dropped(ctx, key)
	if lookErr != nil {
		return l, false, lookErr
	}
	return l, dropped, err
}

// Stat implements objstore.Store.
func (s *Store) Stat(ctx context.Context, key string) (objstore.Info, error) {
	info, err := s.Store.Stat(ctx, key)
	if err == nil {
		return info, nil
	}
	l, dropped, err := s.instead(ctx, key, err)
	if dropped {
		return infoOf(key, &l), s.broken(ctx, &l)
	}
	if errors.Is(err, objstore.ErrNotExist) {
		return s.Store.Stat(ctx, key)
	}
	return info, err
}

// broken returns objstore.ErrCorrupt for a dropped layer that cannot be rebuilt, as far
// as is known without rebuilding it. So a client that pushes the layer has to send its
// bytes. A pack that was found damaged is made again now. If that fails for a reason that
// may pass, broken returns the reason.
func (s *Store) broken(ctx context.Context, l *gearfacts.LayerRecipe) error {
	packs, lost, err := gearfacts.NewRecipes(s.cat.DB).Broken(ctx, l.Digest)
	if err != nil {
		return failure("look for damaged packs of a layer", err)
	}
	for _, p := range packs {
		if lost {
			break
		}
		err := s.guard.Repaired(ctx, p)
		if lost = errors.Is(err, parity.ErrNoParity); err != nil && !lost {
			return err
		}
	}
	if lost {
		return fmt.Errorf("layer %s is kept as a recipe, and files of it are damaged: %w", l.Digest, objstore.ErrCorrupt)
	}
	return nil
}

// dropped reports whether a key is the key of a dropped layer.
func (s *Store) dropped(ctx context.Context, key string) (l gearfacts.LayerRecipe, is bool, err error) {
	d, ok := storage.DigestOfKey(key)
	if !ok {
		return l, false, nil
	}
	l, err = gearfacts.NewRecipes(s.cat.DB).LayerRecipe(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return l, false, nil
	}
	if err != nil {
		return l, false, failure("look for the recipe of a layer", err)
	}
	return l, l.Dropped(), nil
}

func infoOf(key string, l *gearfacts.LayerRecipe) objstore.Info {
	return objstore.Info{Key: key, Size: l.Size, ModTime: l.Changed, Proven: true}
}

// List implements objstore.Store. It does not list dropped layers, because they are not
// objects.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return s.Store.List(ctx, prefix, after)
}

// Close implements objstore.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.wg.Wait()
	s.forgetAll()
	return s.Store.Close()
}

// Adapt implements objstore.Adapter.
func (s *Store) Adapt(target any) bool {
	switch t := target.(type) {
	case *objstore.Opener:
		inner, ok := objstore.As[objstore.Opener](s.Store)
		if ok {
			*t = opener{s, inner}
		}
		return ok
	case *objstore.Redirector:
		inner, ok := objstore.As[objstore.Redirector](s.Store)
		if ok {
			*t = redirector{s, inner}
		}
		return ok
	}
	return false
}

// opener opens dropped layers, too.
type opener struct {
	s     *Store
	inner objstore.Opener
}

// OpenAt implements objstore.Opener.
func (o opener) OpenAt(ctx context.Context, key string) (objstore.ReadAtCloser, error) {
	f, err := o.inner.OpenAt(ctx, key)
	if err == nil {
		return f, nil
	}
	l, dropped, err := o.s.instead(ctx, key, err)
	if errors.Is(err, objstore.ErrNotExist) && !dropped {
		return o.inner.OpenAt(ctx, key)
	}
	if !dropped {
		return nil, err
	}
	fl, err := o.s.acquire(&l)
	if err != nil {
		return nil, err
	}
	return &places{f: fl}, nil
}

// redirector does not redirect to an object that is gone, or may be deleted before the
// URL expires.
type redirector struct {
	s     *Store
	inner objstore.Redirector
}

// URL implements objstore.Redirector. It returns objstore.ErrNotExist for a layer that is
// dropped or soon will be.
func (r redirector) URL(ctx context.Context, key string, valid time.Duration) (string, error) {
	d, ok := storage.DigestOfKey(key)
	if !ok {
		return r.inner.URL(ctx, key, valid)
	}
	l, err := gearfacts.NewRecipes(r.s.cat.DB).LayerRecipe(ctx, d)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
	case err != nil:
		return "", failure("look for the recipe of a layer", err)
	case l.Dropped() || l.State == gearfacts.RecipeProven && time.Until(l.Due) < 2*valid:
		return "", fmt.Errorf("layer %s is kept as a recipe: %w", d, objstore.ErrNotExist)
	}
	return r.inner.URL(ctx, key, valid)
}
