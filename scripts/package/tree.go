package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// node is a file or directory of a package. Packages contain nothing else.
type node struct {
	path     string // relative, without a trailing slash
	dir      bool
	mode     int64 // permissions
	uid, gid int
	data     []byte
}

// tree is the content of a package. Each path is in it once.
type tree []node

// file adds a file.
func (t *tree) file(name string, mode int64, data []byte) {
	*t = append(*t, node{path: name, mode: mode, data: data})
}

// copied adds a file of the source tree or of another directory.
func (t *tree) copied(name string, mode int64, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	t.file(name, mode, data)
	return nil
}

// matched returns the files that match any of the patterns. It is an error if there are
// none: a file that was renamed would otherwise be missing without notice.
func matched(patterns ...string) (names []string, err error) {
	for _, p := range patterns {
		some, err := filepath.Glob(p)
		if err != nil {
			return nil, err
		}
		names = append(names, some...)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no file %s", strings.Join(patterns, " or "))
	}
	return names, nil
}

// matching adds the files that match any of the patterns. They keep their names, in dir.
func (t *tree) matching(dir string, patterns ...string) error {
	names, err := matched(patterns...)
	if err != nil {
		return err
	}
	for _, from := range names {
		if err := t.copied(path.Join(dir, filepath.Base(from)), 0o644, from); err != nil {
			return err
		}
	}
	return nil
}

// complete sorts the tree and adds the directories that its paths need, with mode 0755.
func (t tree) complete() tree {
	have := map[string]bool{".": true}
	for _, n := range t {
		have[n.path] = true
	}
	for _, n := range slices.Clone(t) {
		for dir := path.Dir(n.path); !have[dir]; dir = path.Dir(dir) {
			have[dir] = true
			t = append(t, node{path: dir, dir: true, mode: 0o755})
		}
	}
	slices.SortFunc(t, func(a, b node) int { return strings.Compare(a.path, b.path) })
	return t
}

// tar returns the tree as an archive in which everything has the same time.
func (t tree) tar(at time.Time) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, n := range t.complete() {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: n.path, Mode: n.mode, Uid: n.uid, Gid: n.gid, ModTime: at, Size: int64(len(n.data)), Format: tar.FormatPAX}
		if n.dir {
			h.Typeflag, h.Name = tar.TypeDir, n.path+"/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(n.data); err != nil {
			return nil, err
		}
	}
	err := w.Close() // Close writes, so the bytes are complete only after it
	return buf.Bytes(), err
}

// zipped compresses without a name or a time in the header, as gzip -9n does.
func zipped(data []byte) ([]byte, error) { return compressed(data, gzip.BestCompression) }

// zipped is like the function zipped, but for large data: with -quick it compresses fast.
func (r *release) zipped(data []byte) ([]byte, error) {
	if r.quick {
		return compressed(data, gzip.BestSpeed)
	}
	return zipped(data)
}

func compressed(data []byte, level int) ([]byte, error) {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, level)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close() // as above
	return buf.Bytes(), err
}

// writeTo creates the tree in an empty directory, with the times and permissions of the
// package. The packing program sets the owners.
func (t tree) writeTo(dir string, at time.Time) error {
	t = t.complete()
	for _, n := range t {
		name := filepath.Join(dir, filepath.FromSlash(n.path))
		var err error
		if n.dir {
			err = os.Mkdir(name, 0o700)
		} else {
			err = os.WriteFile(name, n.data, 0o600)
		}
		if err == nil {
			err = os.Chmod(name, fs.FileMode(n.mode))
		}
		if err != nil {
			return err
		}
	}
	for _, n := range slices.Backward(t) { // creating an entry changes the time of its directory
		if err := os.Chtimes(filepath.Join(dir, filepath.FromSlash(n.path)), at, at); err != nil {
			return err
		}
	}
	return os.Chtimes(dir, at, at)
}

// unzipTar reads a compressed archive of files, such as helm makes.
func unzipTar(data []byte) (tree, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var t tree
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%s is no regular file", h.Name)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		t.file(path.Clean(h.Name), 0o644, content)
	}
}
