package model

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// left holds directories that tools keep in a model's directory and that are not a part
// of it: the history of git, and the notes of huggingface-cli about downloads.
var left = map[string]bool{".git": true, ".cache": true}

// Dir returns the model of the files below a directory. A symbolic link to a file counts
// as the file, even if that is outside the directory, as in the cache of Hugging Face. A
// link to a directory, or anything that is not a file, is an error.
func Dir(dir string) (*Model, error) {
	m := &Model{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if left[d.Name()] && filepath.Dir(name) == filepath.Clean(dir) {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file; a model may have only files and directories", name)
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		open := func(context.Context) (io.ReadCloser, error) { return os.Open(name) }
		return m.add(file{filepath.ToSlash(rel), info.Size(), info.Mode()&0o111 != 0, open})
	})
	if err != nil {
		return nil, err
	}
	return m, m.check()
}
