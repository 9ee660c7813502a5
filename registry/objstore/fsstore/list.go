package fsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/objstore"
)

// errStopped ends a walk whose caller wants no more.
var errStopped = errors.New("list stopped")

// List walks the objects below prefix. See [objstore.Store]. It holds the
// names of one directory for each level of the tree, and an open descriptor
// for each. Files whose path is not a key are left out, as is everything that
// is not a regular file.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := s.begin(ctx); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		// Begin at the deepest directory that holds everything.
		dir, _ := split(prefix)
		if dir != "." && objstore.CheckKey(dir) != nil {
			return // no key begins like this
		}
		if top, _, _ := strings.Cut(dir, "/"); reserved(top) {
			return
		}
		w := walk{s: s, ctx: ctx, prefix: prefix, after: after, yield: yield}
		if err := w.dir(dir); err != nil && err != errStopped {
			yield(objstore.Info{}, fmt.Errorf("list objects %q: %w", prefix, err))
		}
	}
}

// walk is one run of List. Its ctx lives as long as the call that made it.
type walk struct {
	s             *Store
	ctx           context.Context
	prefix, after string
	yield         func(objstore.Info, error) bool
}

// child is a name in a directory. key is its full key, which ends with a slash for a
// directory. Children sorted by key are in the order of all keys below them: "a-b" < "a/"
// < "a0", although "a" < "a-b".
type child struct {
	key, name string
}

// dir walks the directory dir.
func (w *walk) dir(dir string) error {
	fd, err := w.s.paths.openDir(dir)
	if notThere(err) {
		return nil // removed since its name was read
	}
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	// The path is for file systems whose directories have no types of entries. There
	// ReadDir gets the type by path.
	f := os.NewFile(uintptr(fd), filepath.Join(w.s.root, dir))
	defer f.Close() // only read from
	entries, err := f.ReadDir(-1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read directory %s: %w", dir, err)
	}
	for _, c := range w.children(dir, entries) {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if sub, ok := strings.CutSuffix(c.key, "/"); ok {
			err = w.dir(sub)
		} else {
			err = w.file(fd, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// children returns what is to be walked in a directory, in order.
func (w *walk) children(dir string, entries []fs.DirEntry) []child {
	kept := make([]child, 0, len(entries))
	for _, e := range entries {
		key := e.Name()
		if dir != "." {
			key = dir + "/" + key
		} else if reserved(key) {
			continue
		}
		if objstore.CheckKey(key) != nil {
			continue
		}
		switch {
		case e.IsDir() && w.wantsDir(key+"/"):
			kept = append(kept, child{key + "/", e.Name()})
		case e.Type().IsRegular() && strings.HasPrefix(key, w.prefix) && key > w.after:
			kept = append(kept, child{key, e.Name()})
		}
	}
	slices.SortFunc(kept, func(a, b child) int { return cmp.Compare(a.key, b.key) })
	return kept
}

// wantsDir reports whether the walk can list a key that begins with dir. dir ends with a
// slash.
func (w *walk) wantsDir(dir string) bool {
	if !strings.HasPrefix(dir, w.prefix) && !strings.HasPrefix(w.prefix, dir) {
		return false
	}
	return dir > w.after || strings.HasPrefix(w.after, dir)
}

// file yields one object.
func (w *walk) file(dirfd int, c child) error {
	var st unix.Stat_t
	err := unix.Fstatat(dirfd, c.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT || err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // removed or exchanged since its name was read
	}
	if err != nil {
		return fmt.Errorf("stat object %s: %w", c.key, err)
	}
	if !w.yield(infoOf(c.key, &st), nil) {
		return errStopped
	}
	return nil
}
