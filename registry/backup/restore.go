package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"example.org/slipway/internal/durable"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/snapshot"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/storage"
)

// RestoreOptions are the options of [Restore]. The zero value works.
type RestoreOptions struct {
	// Parallel and Progress are as in Options.
	Parallel int
	Progress func(Report)
	// AllowDamaged restores what it can from a backup that is damaged or has incomplete images.
	// Repair the result (package check) before the registry is used.
	AllowDamaged bool
	// Quick compares only the sizes of objects that are there already. Otherwise they are read.
	Quick bool
	// Claim, if not nil, keeps others away from root until it is released. It is called when root
	// exists, before anything in it is inspected.
	Claim func() (release func() error, err error)
	// Into, if not nil, opens the target of the restore and calls fill with it. It
	// replaces the directory, so root and Claim have no meaning. It is called once the
	// backup is known to be usable.
	Into func(ctx context.Context, fill func(Target) error) error
}

// Target is a registry that has lost its catalogue, or never had one.
type Target struct {
	// Store is the registry's object store. Objects that it already has are kept.
	Store objstore.Store
	// SetCatalog makes a copy of the catalogue in file. The copy becomes the registry's
	// catalogue.
	SetCatalog func(ctx context.Context, file string) error
}

// Restore turns the directory root into a data root that holds what the backup in dir
// holds. root must be missing or empty, or have lost its catalogue. Nobody may use root
// meanwhile. Every byte is checked against its digest. The catalogue comes last, so that
// a root with a catalogue is whole. If root has a [RestoreMarker] and no catalogue,
// Restore continues the interrupted restore. Errors: ErrNotEmpty, [*IncompleteError],
// [*storage.StoreError] if the objects there belong to another registry.
func Restore(ctx context.Context, dir, root string, o RestoreOptions) (Report, error) {
	t := newTransfer(nil, o.Parallel, o.Progress)
	to := root
	if o.Into != nil {
		to = "the object store"
	} else {
		o.Into = func(_ context.Context, fill func(Target) error) error { return intoRoot(root, o.Claim, fill) }
	}
	err := restore(ctx, dir, o, t)
	if err != nil {
		err = fmt.Errorf("restore %s to %s: %w", dir, to, err)
	}
	return t.finish(), err
}

func restore(ctx context.Context, dir string, o RestoreOptions, t *transfer) (err error) {
	src, lock, err := openBackup(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close(), lock.Close()) }()
	var lacking []string
	err = withSnapshot(ctx, filepath.Join(dir, registry.CatalogFile), func(s *snapshot.Snapshot) (err error) {
		lacking, err = s.Incomplete(ctx)
		return err
	})
	if err == nil && !o.AllowDamaged {
		err = incomplete("backup", lacking, int64(len(lacking)))
	}
	if err != nil {
		return err
	}
	t.src, t.verify = src, !o.Quick
	return o.Into(ctx, func(to Target) error { return t.fill(ctx, dir, to, o.AllowDamaged, lacking) })
}

// intoRoot calls fill with a data root as the target.
func intoRoot(root string, claim func() (func() error, error), fill func(Target) error) (err error) {
	begun := RestoreCutOff(root)
	release, err := claimRoot(root, claim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	dst, err := fsstore.New(root, nil)
	if err != nil {
		return err
	}
	err = fill(Target{Store: dst, SetCatalog: func(_ context.Context, file string) error {
		return errors.Join(PlaceCatalog(file, root), os.Remove(filepath.Join(root, RestoreMarker))) // a marker has no meaning beside a catalogue
	}})
	if other := (*storage.StoreError)(nil); errors.As(err, &other) && !begun { // nothing was changed
		err = errors.Join(err, os.Remove(filepath.Join(root, RestoreMarker)))
	}
	return errors.Join(err, dst.Close())
}

// fill copies a backup into a target. lacking lists the images that the backup does not
// have completely.
func (t *transfer) fill(ctx context.Context, dir string, to Target, allowDamaged bool, lacking []string) error {
	t.dst = to.Store
	file := filepath.Join(dir, registry.CatalogFile)
	err := withSnapshot(ctx, file, func(s *snapshot.Snapshot) (err error) {
		if err := keepStoreID(ctx, s, to.Store); err != nil {
			return err
		}
		if err := t.copyAll(ctx, s); err != nil {
			return err
		}
		lacking, err = t.imagesOfLost(ctx, s, lacking)
		return err
	})
	if err != nil {
		return err
	}
	t.step(func(rep *Report) {
		rep.Incomplete, rep.IncompleteTotal = lacking[:min(len(lacking), maxListed)], int64(len(lacking))
	})
	if n := t.rep.DamagedTotal; n > 0 && !allowDamaged {
		err := fmt.Errorf("%d contents of the backup are damaged, the first is %s; repeat the command with --allow-damaged to get everything else", n, t.rep.Damaged[0])
		return errors.Join(err, incomplete("backup", lacking, int64(len(lacking))))
	}
	if err := to.SetCatalog(ctx, file); err != nil {
		return err
	}
	t.step(func(rep *Report) { rep.Done = true })
	return nil
}

// imagesOfLost adds the contents without a good copy to the report. It returns the
// incomplete images together with the images that need these contents.
func (t *transfer) imagesOfLost(ctx context.Context, s *snapshot.Snapshot, images []string) ([]string, error) {
	for _, c := range t.lost {
		t.damaged(c.Digest)
		uses, err := s.Uses(ctx, c.Digest, maxListed)
		if err != nil {
			return nil, fmt.Errorf("look for images that need %s: %w", c.Digest, err)
		}
		for _, u := range uses {
			images = append(images, u.String())
		}
	}
	slices.Sort(images)
	return slices.Compact(images), nil
}

// PlaceCatalog makes a copy of a backup's catalogue. The copy becomes the catalogue of a
// data root. Files that a lost or empty catalogue has left there are removed, because
// they would spoil the new one.
func PlaceCatalog(file, root string) error {
	unborn := filepath.Join(root, catalogUnborn)
	if err := os.Remove(unborn); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by an interrupted restore
		return err
	}
	if err := copyFile(file, unborn); err != nil {
		return err
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal", "-synced"} {
		if err := os.Remove(filepath.Join(root, registry.CatalogFile+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return renameDurably(unborn, filepath.Join(root, registry.CatalogFile))
}

// MoveCatalog copies a backup's catalogue in file into the catalogue of a registry, which
// is elsewhere and empty.
func MoveCatalog(ctx context.Context, file string, to *catalog.Catalog) (err error) {
	tmp, err := os.MkdirTemp("", "slipway-restore-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	path := filepath.Join(tmp, registry.CatalogFile)
	if err := copyFile(file, path); err != nil {
		return err
	}
	from, err := catalog.Open(ctx, path, nil) // opening it brings the schema up to date
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	return engine.Move(ctx, from.DB, to.DB, nil)
}

// keepStoreID gives a restored store the id of the registry whose backup it is.
func keepStoreID(ctx context.Context, s *snapshot.Snapshot, dst objstore.Store) error {
	id, _, err := s.Identity(ctx)
	if err != nil || id == "" {
		return err
	}
	return storage.WriteID(ctx, dst, id)
}

// claimRoot creates the directory to restore into, claims it and marks it.
func claimRoot(root string, claim func() (func() error, error)) (release func() error, err error) {
	if err := makeDir(root); err != nil {
		return nil, err
	}
	release = func() error { return nil }
	if claim != nil {
		if release, err = claim(); err != nil {
			return nil, err
		}
	}
	if err = CheckRestorable(root); err != nil {
		err = fmt.Errorf("a backup is only restored into an empty directory: %w", err)
	} else if err = os.WriteFile(filepath.Join(root, RestoreMarker), nil, 0o600); err == nil {
		err = durable.SyncDir(root)
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// openBackup opens a backup's objects for reading and keeps writers away. It returns an
// error if the backup's catalogue is damaged or was made by a newer program.
func openBackup(ctx context.Context, dir string) (store objstore.Store, lock *os.File, err error) {
	if _, err := os.Stat(filepath.Join(dir, registry.CatalogFile)); err != nil {
		return nil, nil, fmt.Errorf("no complete backup is there: %w", err)
	}
	if lock, err = os.Open(filepath.Join(dir, Marker)); err != nil {
		return nil, nil, fmt.Errorf("no backup is there: %w", err)
	}
	if err := lockMarker(lock, syscall.LOCK_SH); err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	if err := checkCatalog(ctx, filepath.Join(dir, registry.CatalogFile)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("the backup's catalogue cannot be used: %w", err), lock.Close())
	}
	fsys, err := fsstore.New(dir, nil)
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return readOnly{fsys}, lock, nil
}

// copyFile copies a file durably. Only its owner may use the copy.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// Open opens a backup as a read-only registry, so that repositories and tags can be
// copied from it into a running registry. It works on a copy of the backup's catalogue,
// in the directory for temporary files. close removes the copy, and the caller must call
// close.
func Open(ctx context.Context, dir string, log *slog.Logger) (reg *registry.Registry, close func(context.Context) error, err error) {
	store, lock, err := openBackup(ctx, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open backup %s: %w", dir, err)
	}
	var cat *catalog.Catalog
	tmp := ""
	close = func(ctx context.Context) error {
		var errs []error
		if reg != nil {
			errs = append(errs, reg.Close(ctx))
		}
		if cat != nil {
			errs = append(errs, cat.Close())
		}
		errs = append(errs, store.Close(), lock.Close())
		if tmp != "" {
			errs = append(errs, os.RemoveAll(tmp))
		}
		return errors.Join(errs...)
	}
	fail := func(err error) (*registry.Registry, func(context.Context) error, error) {
		return nil, nil, errors.Join(fmt.Errorf("open backup %s: %w", dir, err), close(ctx))
	}
	if tmp, err = os.MkdirTemp("", "slipway-backup-"); err != nil {
		return fail(err)
	}
	path := filepath.Join(tmp, registry.CatalogFile)
	if err := copyFile(filepath.Join(dir, registry.CatalogFile), path); err != nil {
		return fail(err)
	}
	if cat, err = catalog.Open(ctx, path, nil); err != nil {
		return fail(err)
	}
	if reg, err = registry.New(ctx, cat, store, &registry.Options{Logger: log, ReadOnly: true, Anonymous: true}); err != nil {
		reg = nil
		return fail(err)
	}
	return reg, close, nil
}

// errReadOnly is returned for a write to a backup.
var errReadOnly = errors.New("a backup is not written to")

// readOnly is a read-only store. It hides the other abilities of the store below it, such as
// sweeping uploads.
type readOnly struct{ store objstore.Store }

var _ objstore.Store = readOnly{}

func (s readOnly) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	return s.store.Get(ctx, key, off, n)
}

func (s readOnly) Stat(ctx context.Context, key string) (objstore.Info, error) {
	return s.store.Stat(ctx, key)
}

func (s readOnly) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return s.store.List(ctx, prefix, after)
}

func (s readOnly) Put(context.Context, string, []byte, bool) error { return errReadOnly }
func (s readOnly) Delete(context.Context, string) error            { return errReadOnly }
func (s readOnly) Abandon(context.Context, string) error           { return errReadOnly }
func (s readOnly) Close() error                                    { return s.store.Close() }

func (s readOnly) NewUpload(context.Context, int64) (objstore.Upload, error) {
	return nil, errReadOnly
}

func (s readOnly) Resume(context.Context, string, int64) (objstore.Upload, error) {
	return nil, errReadOnly
}
