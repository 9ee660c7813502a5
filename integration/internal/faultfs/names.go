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

// names are the changes of directories that no fsync of the directory has made
// durable. The methods work on nil, where names are durable at once.
type names struct {
	mu   sync.Mutex
	keep string // directory of what was unlinked or replaced, on the same file system
	kept int
	log  []nameChange // in order
}

// nameChange is one change, of which undo knows how to take it back.
type nameChange struct {
	dir  string // that must be synced
	undo func() error
	gone string // what is kept for undo, or ""
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

// made is for a file or directory that is new under a path.
func (n *names) made(path string) {
	n.changed(filepath.Dir(path), func() error { return os.RemoveAll(path) }, "")
}

// keeping gives what is at a path a second name, before the first one goes. It returns
// "" where there is nothing.
func (n *names) keeping(path string) string {
	if n == nil {
		return ""
	}
	n.mu.Lock()
	n.kept++
	to := filepath.Join(n.keep, fmt.Sprint(n.kept))
	n.mu.Unlock()
	if err := os.Link(path, to); err != nil { // also of a directory, which must be empty to go
		return ""
	}
	return to
}

// removed is for a file that was unlinked after keeping.
func (n *names) removed(path, gone string) {
	if gone != "" {
		n.changed(filepath.Dir(path), func() error { return os.Rename(gone, path) }, gone)
	}
}

// renamed is for a rename, where replaced is what keeping returned of the target.
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
			_ = os.Remove(c.gone) // only takes room
		}
		return c.dir == dir
	})
}

// lose takes back changes that are not durable: in each directory the last ones, by
// chance how many. It returns how many it took back.
func (n *names) lose(random *rand.Rand) (lost int, err error) {
	if n == nil {
		return 0, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	survives := map[string]bool{} // a directory of which a change was left as it is
	var errs []error
	for _, c := range slices.Backward(n.log) {
		if survives[c.dir] || random.IntN(2) == 0 {
			survives[c.dir] = true
			continue
		}
		lost++
		// What lies below a directory that is lost too cannot be found any more.
		if err := c.undo(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	n.log = nil
	return lost, errors.Join(errs...)
}
