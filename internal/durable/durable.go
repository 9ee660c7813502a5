// Package durable writes files and names so that they are there after a power cut. A name is
// only as durable as the directory it stands in: a caller that makes, renames or removes a name
// calls SyncDir before it reports success.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// newSuffix ends the name of the file that WriteFile writes until it is complete. A crash
// may leave such a file, which the next WriteFile of that path replaces.
const newSuffix = ".new"

// WriteFile replaces a file that only its owner may access, mode 0600. After a crash at
// any moment the file holds the old bytes or the new ones. Once WriteFile has returned
// nil, it holds the new ones.
func WriteFile(path string, b []byte) error {
	f, err := os.OpenFile(path+newSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+newSuffix))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was made, renamed or removed in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
