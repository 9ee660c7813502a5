package dataroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/registry"
)

// Find returns the directory of a configuration's data root. It refuses a directory that this process
// should not open. If create is set, the data root need not exist.
func Find(cfg *config.Config, create bool) (string, error) {
	dir, err := diskRoot(cfg)
	if err != nil {
		return "", err
	}
	if !create {
		if err := checkRoot(dir, cfg.Storage.Catalog.Postgres != ""); err != nil {
			return "", err
		}
	}
	// If a server is running, it does the writing itself. Then it does not matter who
	// owns the directory.
	if err := checkOwner(dir); err != nil && !rootInUse(dir) {
		return "", err
	}
	return dir, nil
}

// diskRoot returns the data directory of a configuration that keeps its data in a
// directory.
func diskRoot(cfg *config.Config) (string, error) {
	if cfg.Storage.Driver() == "inmemory" {
		return "", errors.New("storage.inmemory keeps nothing to look after; configure another storage driver")
	}
	return cfg.Storage.Root(), nil
}

// checkRoot refuses a directory that is not a data root, because opening it would only
// leave files in it. If the catalogue is elsewhere, the directory may be empty.
func checkRoot(dir string, elsewhere bool) error {
	if elsewhere {
		return nil
	}
	_, err := os.Stat(filepath.Join(dir, registry.CatalogFile))
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("the data directory %s is not there; name the right one (storage.filesystem.rootdirectory, storage.directory, --root)", dir)
	}
	if err := checkRestored(dir); err != nil {
		return err
	}
	if err := lostCatalog(dir); err != nil {
		return err
	}
	return fmt.Errorf("%s is not a data directory, it has no %s; name the right one (storage.filesystem.rootdirectory, storage.directory, --root)", dir, registry.CatalogFile)
}
