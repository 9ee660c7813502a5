package cachedir

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// ViewID identifies a view. The zero value is the view that shows every complete file.
type ViewID uint64

// viewDigits is the length of the name of a view's directory.
const viewDigits = 12

// MaxViewID is the greatest ViewID: it has 48 bits.
const MaxViewID = ViewID(1)<<(4*viewDigits) - 1

// String returns the name of the view's directory.
func (id ViewID) String() string { return fmt.Sprintf("%0*x", viewDigits, uint64(id)) }

// viewsDir is the directory of the views.
const viewsDir = "views"

// View shows the complete files that somebody has proved to have. It is a directory of
// hard links, so views share disk space and page cache. It may be used concurrently.
type View struct {
	d     *Dir
	id    ViewID
	shown bitset // by index of the entry; guarded by d.mu
}

// bitset is a set of small numbers that grows as needed.
type bitset []uint64

func (b bitset) has(i uint32) bool { return int(i/64) < len(b) && b[i/64]>>(i%64)&1 != 0 }

func (b *bitset) add(i uint32) {
	for int(i/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

func (b bitset) remove(i uint32) {
	if b.has(i) {
		b[i/64] &^= 1 << (i % 64)
	}
}

// View returns a view, and creates its directory if necessary.
func (d *Dir) View(id ViewID) (*View, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.view(id)
}

// view is like View, for a caller that holds mu.
func (d *Dir) view(id ViewID) (*View, error) {
	if v := d.views[id]; v != nil {
		return v, nil
	}
	if id > MaxViewID {
		return nil, fmt.Errorf("view %s: %w", id, fs.ErrInvalid)
	}
	v := &View{d: d, id: id}
	if id != 0 {
		if err := os.Mkdir(v.Files(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make view %s: %w", id, err)
		}
	}
	d.views[id] = v
	return v, nil
}

// Views returns the existing views.
func (d *Dir) Views() []ViewID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.views))
}

// ID returns the number of the view.
func (v *View) ID() ViewID { return v.id }

// Files returns the directory of the files that the view shows, laid out as [Dir.Files].
// Each directory below it is created with its first file. All 256 of them take 1 MiB of
// disk space and, on a busy machine, a tenth of a second of the first start.
func (v *View) Files() string {
	if v.id == 0 {
		return v.d.Files()
	}
	return filepath.Join(v.d.root, viewsDir, v.id.String())
}

// path returns the path of a file in the view.
func (v *View) path(name gear.Name) string {
	digits := hex.EncodeToString(name[:])
	return v.Files() + "/" + digits[:2] + "/" + digits[2:]
}

// Has reports whether the view shows a file.
func (v *View) Has(name gear.Name) bool {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	return v.has(name)
}

// has is like Has, for a caller that holds mu.
func (v *View) has(name gear.Name) bool {
	id, ok := v.d.files.id(&name)
	return ok && (v.id == 0 || v.shown.has(id))
}

// OpenFile is like [Dir.OpenFile], for a file that the view shows. Errors:
// fs.ErrNotExist.
func (v *View) OpenFile(name gear.Name) (*os.File, error) {
	if !v.Has(name) {
		return nil, fmt.Errorf("file %x: %w", name, fs.ErrNotExist)
	}
	return v.d.OpenFile(name)
}

// Show makes the view show a complete file. The caller must have received all of its
// bytes from a source that the view is for. Errors: fs.ErrNotExist if the file is not in
// the cache, or not any more.
func (v *View) Show(name gear.Name) error {
	if v.id == 0 {
		return nil
	}
	return v.d.withRoom(0, func() error {
		v.d.mu.Lock()
		defer v.d.mu.Unlock()
		id, ok := v.d.files.id(&name)
		if !ok {
			return fmt.Errorf("file %x: %w", name, fs.ErrNotExist)
		}
		if v.shown.has(id) {
			return nil
		}
		if err := v.link(name); err != nil {
			return fmt.Errorf("show file in view %s: %w", v.id, err)
		}
		v.shown.add(id)
		v.d.stats.Shown++
		return nil
	})
}

// link puts a complete file into the view's directory.
func (v *View) link(name gear.Name) error {
	from, to := v.d.path(name), v.path(name)
	err := os.Link(from, to)
	switch {
	case errors.Is(err, fs.ErrExist): // the link of a file that was evicted and could not be removed here
		err = os.Remove(to)
	case errors.Is(err, fs.ErrNotExist):
		if err = os.Mkdir(filepath.Dir(to), 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	default:
		return err
	}
	if err != nil {
		return err
	}
	return os.Link(from, to)
}

// hide removes a file from all views. It is called before the file itself is removed, so
// that a crash between the two does not leave the file in a view. mu is held.
func (d *Dir) hide(name gear.Name) {
	id, ok := d.files.id(&name)
	if !ok {
		return
	}
	for _, v := range d.views {
		if !v.shown.has(id) {
			continue
		}
		v.shown.remove(id)
		if err := os.Remove(v.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Error("file cannot be removed from a view", "err", err)
		}
	}
}

// loadViews reads what the views show. No other goroutine has the Dir yet.
func (d *Dir) loadViews() error {
	dir := filepath.Join(d.root, viewsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 16, 64)
		if id := ViewID(n); err != nil || id == 0 || id.String() != e.Name() || !e.IsDir() {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
			continue
		}
		v, err := d.View(ViewID(n))
		if err == nil {
			err = v.load()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// load reads what a view shows, and removes everything that is no link to a complete
// file.
func (v *View) load() error {
	subs, err := os.ReadDir(v.Files())
	if err != nil {
		return err
	}
	for _, sub := range subs {
		dir := filepath.Join(v.Files(), sub.Name())
		if !sub.IsDir() {
			if err := os.Remove(dir); err != nil {
				return err
			}
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name, ok := parseName(sub.Name() + e.Name())
			id, known := v.d.files.id(&name)
			if ok && known && sameFile(v.path(name), v.d.path(name)) {
				v.shown.add(id)
			} else if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameFile reports whether two paths are links to the same file.
func sameFile(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Lstat(a, &x) == nil && unix.Lstat(b, &y) == nil && x.Ino == y.Ino && x.Dev == y.Dev
}

// Owns reports whether a directory is the directory of the complete files or of a view.
func (d *Dir) Owns(dir string) bool {
	return dir == d.Files() || filepath.Dir(dir) == filepath.Join(d.root, viewsDir)
}
