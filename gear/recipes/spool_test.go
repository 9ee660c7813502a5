package recipes

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// spooled returns how many bytes the unnamed files of rebuilt layers have, as the kernel
// says.
func (b *bed) spooled() (n int64) {
	b.t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	b.must(err)
	for _, fd := range fds {
		path := filepath.Join("/proc/self/fd", fd.Name())
		to, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(to, b.store.opts.TempDir) { // it may be closed by now
			continue
		}
		if info, err := os.Stat(path); err == nil {
			n += info.Size()
		}
	}
	return n
}

// TestSpoolBound reads dropped layers in any order, some at the same time, as clients do
// and as a pass does. The files of rebuilt layers must never have more bytes than the
// bound, or than the layers that are being read, and the layers read last must be kept
// within the bound.
func TestSpoolBound(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var layers [][]byte
	for i := range short(8, 6) {
		l := compressed(6, archive(uint64(1+i), 2+3*(i%4)))
		b.push(l)
		layers = append(layers, l)
	}
	b.drop()
	var sum, largest int64
	for _, l := range layers {
		sum += int64(len(l))
		largest = max(largest, int64(len(l)))
	}
	b.store.opts.KeepFor, b.store.opts.KeepBytes = time.Hour, sum/2
	r := rand.New(rand.NewPCG(3, 9))
	type reader struct {
		layer int
		obj   objstore.Object
	}
	var readers []reader
	reading := func() (n int64) {
		seen := map[int]bool{}
		for _, r := range readers {
			if !seen[r.layer] {
				seen[r.layer] = true
				n += int64(len(layers[r.layer]))
			}
		}
		return n
	}
	above := false
	for step := range short(200, 60) {
		if n := len(readers); n == 0 || n < 6 && r.IntN(2) == 0 {
			i := r.IntN(len(layers))
			d := oci.SHA256(layers[i])
			var obj objstore.Object
			var err error
			if r.IntN(2) == 0 {
				l, lookErr := gearfacts.NewRecipes(b.cat.DB).LayerRecipe(t.Context(), d)
				b.must(lookErr)
				obj, err = b.store.Rebuilt(t.Context(), &l)
			} else {
				obj, err = b.store.Get(t.Context(), storage.BlobKey(d), 1, -1) // the whole layer is rebuilt
			}
			b.must(err)
			readers = append(readers, reader{i, obj})
		} else {
			i := r.IntN(n)
			b.must(readers[i].obj.Close())
			readers = append(readers[:i], readers[i+1:]...)
		}
		most := max(b.store.opts.KeepBytes, reading())
		above = above || reading() > b.store.opts.KeepBytes
		if got := b.spooled(); got > most {
			t.Fatalf("step %d: files of %d bytes, want at most %d (layers of %d bytes are read, the bound is %d)", step, got, most, reading(), b.store.opts.KeepBytes)
		}
	}
	if !above {
		t.Error("no more than the bound was ever read at once")
	}
	for _, r := range readers {
		b.must(r.obj.Close())
	}
	if got := b.spooled(); got > b.store.opts.KeepBytes || got <= b.store.opts.KeepBytes-2*largest {
		t.Errorf("when nobody reads, files have %d bytes; want no more than %d, and no much less", got, b.store.opts.KeepBytes)
	}
	before := b.rebuilds()
	for range 2 {
		b.check("kept", layers[0])
	}
	if n := b.rebuilds() - before; n > 1 {
		t.Errorf("a layer that was read a moment ago was rebuilt %v times", n)
	}
}
