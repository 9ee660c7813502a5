package dataroot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/registry"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// RefusedError says that a directory cannot be adopted as it is, and that nothing was
// adopted.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// AdoptInPlace adopts the storage of a Distribution registry (a directory or an object
// store) as the storage of a configuration, without moving anything. A dry run works on a
// copy of the catalogue and throws the copy away, so it counts what a real run would
// adopt.
func AdoptInPlace(ctx context.Context, cfg *config.Config, dryRun bool, o adopt.Options) (_ adopt.Report, err error) {
	if cfg.Storage.Driver() == "filesystem" {
		if err := checkAdoptable(cfg.Storage.FileSystem.RootDirectory); err != nil {
			return adopt.Report{}, err
		}
	}
	var scratch string
	if dryRun {
		if scratch, err = os.MkdirTemp("", "slipway-adopt-"); err != nil {
			return adopt.Report{}, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	}
	catalogDir := ""
	if dryRun && !hasCatalog(cfg) { // a catalogue left behind would make the storage look adopted
		catalogDir = scratch
	}
	r, err := openStorage(ctx, cfg, catalogDir)
	if err != nil {
		return adopt.Report{}, err
	}
	defer func() { err = errors.Join(err, r.Close(ctx)) }()
	if cfg.Storage.Remote() {
		if found, err := holdsAny(ctx, r.Objects, linksDir); err != nil || !found {
			return adopt.Report{}, errors.Join(err, boolError(!found, "the object store holds nothing of a Distribution registry below "+linksDir))
		}
	}
	if err := checkOwned(ctx, r.Catalog, r.Objects); err != nil {
		return adopt.Report{}, err
	}
	cat := r.Catalog
	if dryRun && catalogDir == "" {
		if cat, err = copyCatalog(ctx, r.Catalog, filepath.Join(scratch, registry.CatalogFile), cfg); err != nil {
			return adopt.Report{}, err
		}
		defer func() { err = errors.Join(err, cat.Close()) }()
	}
	return adopt.Run(ctx, cat, r.Objects, o)
}

// checkOwned refuses a storage that belongs to this registry, or to another registry of
// this program, and whose catalogue is not here. What was pushed since its adoption would
// belong to no repository, and the new catalogue would not match the store.
func checkOwned(ctx context.Context, cat *catalog.Catalog, store objstore.Store) error {
	owner, err := storage.Owner(ctx, store)
	if err != nil || owner == "" {
		return err
	}
	if id, _, err := cat.Settings.RegistryID(ctx); err != nil || id == owner {
		return err
	}
	return errOwned()
}

func errOwned() error {
	return &RefusedError{fmt.Errorf("the storage was adopted before, and the catalogue of that registry is not here: name the catalogue, or restore a backup (slipway restore); "+
		"to adopt anew what Distribution stored, and to lose what was pushed here, first remove %s from the storage", storage.IDKeys())}
}

// hasCatalog reports whether the catalogue of a configuration exists.
func hasCatalog(cfg *config.Config) bool {
	_, err := os.Stat(filepath.Join(cfg.Storage.Root(), registry.CatalogFile))
	return err == nil || cfg.Storage.Catalog.Postgres != ""
}

// copyCatalog copies a catalogue to path and opens the copy.
func copyCatalog(ctx context.Context, cat *catalog.Catalog, path string, cfg *config.Config) (*catalog.Catalog, error) {
	if err := cat.DB.Backup(ctx, path); err != nil {
		return nil, err
	}
	return catalog.Open(ctx, path, &catalog.Options{Grace: cfg.Storage.GC.Grace})
}

// checkAdoptable refuses a directory that is not the storage of a Distribution registry.
// It also refuses a storage that the object store could not see completely.
func checkAdoptable(dir string) error {
	if err := checkFiles(dir); err != nil {
		return &RefusedError{err}
	}
	if _, err := os.Stat(filepath.Join(dir, distributionDir)); err != nil {
		return fmt.Errorf("%s holds no Distribution storage, which has %s in it: %w", dir, distributionDir, err)
	}
	if err := checkRestored(dir); err != nil {
		return err
	}
	if backup.CatalogLost(dir) && storage.HasID(dir) { // before a new catalogue is made
		return errOwned()
	}
	return checkOwner(dir)
}

// checkFiles refuses a storage that contains a symbolic link, or a file that this process
// may not read. The object store follows no links, because a user who may write to one
// place of the disk could otherwise make it read another. Without this check, the content
// behind a link would be missing without a message, and a blob that cannot be read would
// be adopted and fail when it is pulled.
func checkFiles(dir string) error {
	top := filepath.Join(dir, "docker")
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path == top:
			return nil // the caller says so
		case err != nil:
			return fmt.Errorf("look through the storage: %w", err)
		case d.Type()&fs.ModeSymlink != 0:
			return linkError(path)
		case d.Type().IsRegular() && !strings.Contains(path, "/_uploads/"):
			return checkReadable(path)
		}
		return nil
	})
}

// linkError says what the user can do when a symbolic link stands for a part of the
// storage.
func linkError(path string) error {
	target, err := os.Readlink(path)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s is a symbolic link to %s, and a storage with symbolic links is not served: "+
		"move what it points at to its place, or have the whole data directory on the other disk and name that", path, target)
}

// checkReadable returns an error that says what the user can do if this process may not
// read a file.
func checkReadable(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s cannot be read by user #%d: give that user the files first, such as with chown -R, or run this as their owner", path, os.Geteuid())
	}
	return nil // other errors show when the file is read
}
