package logs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Source is where a record comes from.
type Source struct {
	// File is the file's name; that of an archive and of the file in it, with a colon
	// between.
	File string
	// Record is the record's number in the file, from 1.
	Record int64
}

// Files lists the files of paths: a directory stands for all regular files below it
// whose names do not begin with a dot, in order of their names; whatever else is named
// itself, such as a pipe, is taken. The size is that of all regular files. That there is
// none at all is an error.
func Files(paths []string) (files []string, size int64, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, 0, fmt.Errorf("list logs: %w", err)
		}
		if !info.IsDir() {
			files = append(files, path)
			if info.Mode().IsRegular() {
				size += info.Size()
			}
			continue
		}
		path = filepath.Clean(path) + string(filepath.Separator) // what a link points at
		err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if file != path && strings.HasPrefix(d.Name(), ".") {
				if d.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
			info, err := os.Stat(file) // of what a link points at
			if err != nil {
				return err
			}
			if info.Mode().IsRegular() {
				files, size = append(files, file), size+info.Size()
			}
			return nil
		})
		if err != nil {
			return nil, 0, fmt.Errorf("list logs: %w", err)
		}
	}
	if len(files) == 0 {
		return nil, 0, fmt.Errorf("list logs: there are no files in %s", strings.Join(paths, ", "))
	}
	return files, size, nil
}
