package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Source is where a record comes from.
type Source struct {
	// File is the file's name. For a file in an archive it is both names with a colon between them.
	File string
	// Record is the record's number in the file, from 1.
	Record int64
}

// Files lists the files of paths. A directory stands for all regular files below it whose
// names do not begin with a dot, in order of their names. Any other path, such as a pipe,
// is taken as it is. size is the total size of all regular files. It is an error if there
// are no files at all.
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
		path = filepath.Clean(path) + string(filepath.Separator) // the target of a link
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
			info, err := os.Stat(file) // of the target of a link
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a link whose target was removed, or a file that was rotated away just now
			}
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
