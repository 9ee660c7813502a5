package faultfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// names holds the changes of directories that no fsync of the directory has made durable. Its
// methods work on nil, for file systems whose names are durable at once.
type names struct {
	mu   sync.Mutex
	keep string // directory for unlinked and replaced files, on the same file system
	kept int
	log  []nameChange // in the order of the changes
}

// nameChange is one change; undo takes it back.
type nameChange struct {
	dir  string // the directory that has to be synced
	undo func() error
	gone string // the link kept for undo, or ""
}

// changed records a change in a directory.
func (n *names) changed(dir string, undo func() error, gone string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = append(n.log, nameChange{dir, undo, gone})
}

// made records that a file or directory was made at a path.
func (n *names) made(path string) {
	n.changed(filepath.Dir(path), func() error { return os.RemoveAll(path) }, "")
}

// keeping gives the file at a path a second name before the first name is removed. It returns
// "" if nothing is there.
func (n *names) keeping(path string) string {
	if n == nil {
		return ""
	}
	n.mu.Lock()
	n.kept++
	to := filepath.Join(n.keep, fmt.Sprint(n.kept))
	n.mu.Unlock()
	if err := os.Link(path, to); err != nil { // fails for a directory, which must be empty to be removed
		return ""
	}
	return to
}

// removed records that a file was unlinked after keeping.
func (n *names) removed(path, gone string) {
	if gone != "" {
		n.changed(filepath.Dir(path), func() error { return os.Rename(gone, path) }, gone)
	}
}

// renamed records a rename. replaced is what keeping returned for the target.
func (n *names) renamed(from, to, replaced string) {
	n.changed(filepath.Dir(to), func() error {
		err := os.Rename(to, from)
		if replaced != "" {
			err = errors.Join(err, os.Rename(replaced, to))
		}
		return err
	}, replaced)
}

// synced makes the changes in a directory durable.
func (n *names) synced(dir string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = slices.DeleteFunc(n.log, func(c nameChange) bool {
		if c.dir == dir && c.gone != "" {
			_ = os.Remove(c.gone) // a failure only costs space
		}
		return c.dir == dir
	})
}

// lose takes back changes that are not durable. In each directory, it takes back a random
// number of the last changes. It returns how many it took back.
func (n *names) lose(random *rand.Rand) (lost int, err error) {
	if n == nil {
		return 0, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	survives := map[string]bool{} // directories of which some change was left in place
	var errs []error
	for _, c := range slices.Backward(n.log) {
		if survives[c.dir] || random.IntN(2) == 0 {
			survives[c.dir] = true
			continue
		}
		lost++
		// What lies below a directory that is lost as well cannot be found any more.
		if err := c.undo(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	n.log = nil
	return lost, errors.Join(errs...)
}
