package cachedir_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// shown lists the files in a view's directory.
func shown(t *testing.T, v *cachedir.View) map[gear.Name]bool {
	t.Helper()
	out := map[gear.Name]bool{}
	paths, err := filepath.Glob(filepath.Join(v.Files(), "*", "*"))
	must(t, err)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		must(t, err)
		f := fileOf(b)
		if got := fmt.Sprintf("%x", f.Name); got != filepath.Base(filepath.Dir(path))+filepath.Base(path) {
			t.Fatalf("%s has the bytes of %s", path, got)
		}
		out[f.Name] = true
	}
	return out
}

// TestViewsModel makes all kinds of changes to a cache directory in random order. It compares what
// each view shows, by its methods and in its directory, with a model.
func TestViewsModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	options := &cachedir.Options{SyncEvery: -1}
	d, err := cachedir.Open(dir, options)
	must(t, err)
	defer func() { must(t, d.Close()) }()
	ids := []cachedir.ViewID{1, 77, cachedir.MaxViewID}
	var bodies [][]byte
	for i := range 24 {
		bodies = append(bodies, content(uint64(i), 300*(i+1)))
	}
	model := map[cachedir.ViewID]map[gear.Name]bool{}
	for _, id := range ids {
		model[id] = map[gear.Name]bool{}
	}
	gone := func(name gear.Name) {
		for _, id := range ids {
			delete(model[id], name)
		}
	}
	for step := range 250 {
		b := bodies[rng.IntN(len(bodies))]
		f, id := fileOf(b), ids[rng.IntN(len(ids))]
		path := filepath.Join(d.Files(), fmt.Sprintf("%x/%x", f.Name[:1], f.Name[1:]))
		v, err := d.View(id)
		must(t, err)
		what := ""
		switch rng.IntN(9) {
		case 0, 1:
			what = "publish"
			must(t, write(d, f, b))
		case 2, 3, 4:
			what = "show"
			err := v.Show(f.Name)
			if d.Has(f.Name) {
				must(t, err)
				model[id][f.Name] = true
			} else if !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("step %d: show of a file that is not there: %v", step, err)
			}
		case 5:
			what = "evict"
			d.Evict(1)
			for _, b := range bodies {
				if name := fileOf(b).Name; !d.Has(name) {
					gone(name)
				}
			}
		case 6:
			what = "damage"
			d.Damaged(f.Name, "the test says so")
			gone(f.Name)
		case 7:
			what = "removal by somebody else"
			must(t, ignoreNotExist(os.Remove(path)))
			if _, err := d.OpenFile(f.Name); !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			gone(f.Name)
		case 8:
			what = "restart"
			must(t, d.Close())
			if rng.IntN(2) == 0 { // with a file gone meanwhile, and garbage in the view
				must(t, ignoreNotExist(os.Remove(path)), os.MkdirAll(filepath.Join(v.Files(), "ab"), 0o700),
					os.WriteFile(filepath.Join(v.Files(), "ab", "dirt"), nil, 0o600), os.WriteFile(filepath.Join(v.Files(), "dirt"), nil, 0o600))
				gone(f.Name)
			}
			d, err = cachedir.Open(dir, options)
			must(t, err)
		}
		for _, id := range ids {
			v, err := d.View(id)
			must(t, err)
			have := shown(t, v)
			for _, b := range bodies {
				name := fileOf(b).Name
				if want := model[id][name]; v.Has(name) != want || have[name] != want {
					t.Fatalf("step %d, %s: view %s has file %x: %v, in its directory %v, want %v", step, what, id, name[:4], v.Has(name), have[name], want)
				}
			}
			if len(have) != len(model[id]) {
				t.Fatalf("step %d, %s: view %s has %d files in its directory, want %d", step, what, id, len(have), len(model[id]))
			}
		}
	}
}

// TestViewGrows counts the directories of a view: one at first, and one more for each prefix of a
// name.
func TestViewGrows(t *testing.T) {
	dir := t.TempDir()
	d, err := cachedir.Open(dir, nil)
	must(t, err)
	v, err := d.View(5)
	must(t, err)
	want := map[string]bool{}
	count := func(v *cachedir.View) {
		t.Helper()
		entries, err := os.ReadDir(v.Files())
		must(t, err)
		if len(entries) != len(want) {
			t.Fatalf("a view of files in %d directories has %d", len(want), len(entries))
		}
	}
	count(v)
	var names []gear.Name
	for i := range 40 {
		f := put(t, d, content(uint64(i), 500))
		must(t, v.Show(f.Name))
		want[fmt.Sprintf("%x", f.Name[:1])] = true
		names = append(names, f.Name)
		count(v)
	}
	if err := v.Show(gear.Name{1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("show of a file that is not there: %v", err)
	}
	must(t, d.Close())
	d = open(t, dir, nil)
	v, err = d.View(5)
	must(t, err)
	count(v)
	for _, name := range names {
		if !v.Has(name) {
			t.Errorf("after a restart %x is not shown", name[:4])
		}
	}
}

// TestViewsShare puts a file into two views. It takes its space once and is one inode.
func TestViewsShare(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	f := put(t, d, content(1, 100_000))
	before := d.Stats().Bytes
	var infos []os.FileInfo
	for id := range cachedir.ViewID(3) {
		v, err := d.View(id)
		must(t, err, v.Show(f.Name))
		file, err := v.OpenFile(f.Name)
		must(t, err)
		st, err := file.Stat()
		must(t, err, file.Close())
		infos = append(infos, st)
	}
	if !os.SameFile(infos[0], infos[1]) || !os.SameFile(infos[0], infos[2]) || d.Stats().Bytes != before {
		t.Errorf("views do not share a file: %d bytes, %d before", d.Stats().Bytes, before)
	}
	if st := d.Stats(); d.Evict(1) == 0 || d.Stats().Bytes != 0 || d.Stats().LateBytes != 0 {
		t.Errorf("a file in views is not freed: %+v, before %+v", d.Stats(), st)
	}
	if _, err := d.View(cachedir.MaxViewID + 1); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a view beyond the last: %v", err)
	}
}

// TestPartialOfViews puts chunks of one file into one view. The other view does not have them,
// before and after the file is complete and after a restart. It shows the file only when all chunks
// were also fetched for it.
func TestPartialOfViews(t *testing.T) {
	dir := t.TempDir()
	b := content(5, 5<<20+9)
	f := fileOf(b)
	put := func(v *cachedir.View, chunks ...int) {
		t.Helper()
		p, err := v.Partial(f)
		must(t, err)
		defer p.Close()
		for _, i := range chunks {
			must(t, p.PutChunk(i, chunk(b, i)))
		}
		if p.Left() == 0 {
			must(t, p.Complete(background))
		}
	}
	missing := func(v *cachedir.View, want int) {
		t.Helper()
		p, err := v.Partial(f)
		must(t, err)
		defer p.Close()
		if got := len(p.Missing(0, f.Size)); got != want || v.Has(f.Name) {
			t.Fatalf("view %s lacks %d chunks, want %d; has the file: %v", v.ID(), got, want, v.Has(f.Name))
		}
	}
	d, err := cachedir.Open(dir, nil)
	must(t, err)
	one, err := d.View(1)
	must(t, err)
	two, err := d.View(2)
	must(t, err)
	put(one, 0, 1, 2)
	missing(two, 6)
	put(one, 3, 4, 5)
	if !one.Has(f.Name) {
		t.Fatal("a file that is complete is not shown")
	}
	missing(two, 6)
	put(two, 5, 4)
	must(t, d.Close())
	d = open(t, dir, nil)
	one, err = d.View(1)
	must(t, err)
	two, err = d.View(2)
	must(t, err)
	if !one.Has(f.Name) {
		t.Error("a file is not shown after a restart")
	}
	missing(two, 4)
	put(two, 0, 1, 2, 3)
	file, err := two.OpenFile(f.Name)
	must(t, err)
	defer file.Close()
	got := make([]byte, f.Size)
	_, err = file.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, b) || d.Stats().Partial != 0 || d.Stats().Files != 1 {
		t.Errorf("after both are complete: %+v", d.Stats())
	}
}

func TestOwns(t *testing.T) {
	d := open(t, t.TempDir(), nil)
	v, err := d.View(9)
	must(t, err)
	for dir, want := range map[string]bool{d.Files(): true, v.Files(): true, filepath.Dir(d.Files()): false, filepath.Join(v.Files(), "ab"): false,
		v.Files() + "x/y": false, filepath.Dir(v.Files()): false, "": false} {
		if d.Owns(dir) != want {
			t.Errorf("%s is its own: %v", dir, !want)
		}
	}
}
