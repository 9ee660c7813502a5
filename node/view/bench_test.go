package view_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/view"
)

// imageSizes are the sizes of a Debian root with two language runtimes, and of a source tree.
var imageSizes = []int{13_569, 105_000}

// largeIndex returns an index of about n entries like those of an image.
func largeIndex(t testing.TB, n int) *gear.Index {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	b := gear.NewBuilder(nil)
	for made := 0; made < n; {
		at := fmt.Sprintf("usr/%x", rnd.Uint32N(40))
		for range rnd.IntN(4) {
			at += fmt.Sprintf("/dir-%x", rnd.Uint32N(6))
		}
		for range 1 + rnd.IntN(40) {
			e := rootfs.Entry{Path: fmt.Sprintf("%s/%x%.*s", at, rnd.Uint32(), rnd.IntN(20), "abcdefghijklmnopqrst"), Type: rootfs.File,
				Mode: 0o644, Sec: 1_700_000_000 + int64(made)}
			f := gear.File{Size: 1 + rnd.Int64N(100_000)}
			for i := range f.Name {
				f.Name[i] = byte(rnd.Uint32())
			}
			e.Size = f.Size
			if rnd.IntN(12) == 0 {
				e.Type, e.Size, e.Link = rootfs.Symlink, 0, "../"+strings.Repeat("x", rnd.IntN(30))
			}
			must(t, b.Add(e, f))
			made++
		}
	}
	x, err := b.Index()
	must(t, err)
	x, err = gear.Flatten(x)
	must(t, err)
	return x
}

// BenchmarkCompile measures the way from an index to a synced file.
func BenchmarkCompile(b *testing.B) {
	for _, n := range imageSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := largeIndex(b, n)
			dir := b.TempDir()
			b.ReportAllocs()
			for b.Loop() {
				file, err := view.Compile(b.Context(), x, dir)
				must(b, err)
				st, err := os.Stat(file)
				must(b, err, os.Remove(file))
				b.ReportMetric(float64(st.Size())/float64(len(x.Entries)), "bytes/entry")
			}
		})
	}
}

// BenchmarkMount mounts an image and an overlay, and unmounts them.
func BenchmarkMount(b *testing.B) {
	for _, n := range imageSizes {
		for _, loop := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/loop=%v", n, loop), func(b *testing.B) { benchmarkMount(b, largeIndex(b, n), loop, false) })
		}
	}
}

// BenchmarkFirstWalk also mounts, and looks at every entry. native is an overlay over the same tree
// in ordinary directories, whose inodes the kernel keeps.
func BenchmarkFirstWalk(b *testing.B) {
	x := largeIndex(b, imageSizes[0])
	b.Run("file", func(b *testing.B) { benchmarkMount(b, x, false, true) })
	b.Run("loop", func(b *testing.B) { benchmarkMount(b, x, true, true) })
	b.Run("native", func(b *testing.B) {
		r := newRig(b)
		for _, e := range x.Entries {
			path := r.in("tree/" + e.Path)
			switch e.Type {
			case rootfs.Dir:
				must(b, os.MkdirAll(path, 0o755))
			case rootfs.Symlink:
				must(b, os.Symlink(e.Link, path))
			default:
				must(b, os.WriteFile(path, nil, 0o644), os.Truncate(path, e.Size))
			}
		}
		r.mkdir("merged")
		o := r.standard()
		o.Lower, o.Data = []string{r.in("above"), r.in("tree")}, nil
		for b.Loop() {
			must(b, view.Overlay(r.in("merged"), o), walkAll(r.in("merged")), view.UnmountBelow(r.dir))
		}
	})
}

func benchmarkMount(b *testing.B, x *gear.Index, loop, walk bool) {
	r := newRig(b)
	file, err := view.Compile(b.Context(), x, r.mkdir("images"))
	must(b, err)
	o := r.standard()
	r.mkdir("merged")
	for b.Loop() {
		must(b, view.MountImage(file, r.in("erofs"), &view.ImageOptions{Loop: loop}), view.Overlay(r.in("merged"), o))
		if walk {
			must(b, walkAll(r.in("merged")))
		}
		must(b, view.UnmountBelow(r.dir))
	}
}

func walkAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		return unix.Lstat(path, &st)
	})
}
