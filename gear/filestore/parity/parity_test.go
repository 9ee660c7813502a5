package parity_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

// bed is a guard over a catalogue and an object store.
type bed struct {
	t     *testing.T
	ctx   context.Context
	cat   *catalog.Catalog
	objs  objstore.Store
	guard *parity.Guard
}

// guarded returns a bed whose groups have so many parity files.
func guarded(t *testing.T, files int) *bed {
	t.Helper()
	b := &bed{t: t, ctx: t.Context(), objs: memstore.New(nil)}
	var err error
	b.cat, err = catalog.Open(b.ctx, filepath.Join(t.TempDir(), "catalog.db"), nil)
	must(t, err)
	t.Cleanup(func() { must(t, b.cat.Close()) })
	b.guard = parity.New(b.cat.DB, b.objs, parity.Options{Files: files})
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gfMul multiplies in GF(2^8) with the polynomial 0x11d, bit by bit.
func gfMul(a, b byte) (p byte) {
	for ; b > 0; b >>= 1 {
		if b&1 == 1 {
			p ^= a
		}
		high := a & 0x80
		a <<= 1
		if high != 0 {
			a ^= 0x1d
		}
	}
	return p
}

func gfInv(a byte) byte {
	for b := 1; b < 256; b++ {
		if gfMul(a, byte(b)) == 1 {
			return byte(b)
		}
	}
	panic("0 has no inverse")
}

// parityMatrix returns the last n rows of the matrix in docs/formats/gear-parity.md.
func parityMatrix(k, n int) [][]byte {
	v := make([][]byte, k+n)
	for r := range v {
		v[r] = make([]byte, k)
		p := byte(1)
		for c := range v[r] {
			v[r][c] = p
			p = gfMul(p, byte(r))
		}
	}
	// V × T^-1: the same operations on the columns of V that make T the unit matrix.
	for i := range k {
		for c := i; v[i][i] == 0; c++ {
			for r := range v {
				v[r][i], v[r][c] = v[r][c], v[r][i]
			}
		}
		inv := gfInv(v[i][i])
		for r := range v {
			v[r][i] = gfMul(v[r][i], inv)
		}
		for c := range k {
			if f := v[i][c]; c != i && f != 0 {
				for r := range v {
					v[r][c] ^= gfMul(f, v[r][i])
				}
			}
		}
	}
	return v[k:]
}

// putPack stores a pack of any bytes and records it.
func (b *bed) putPack(content []byte) gearfacts.Object {
	b.t.Helper()
	o := gearfacts.Object{Digest: gear.Name(sha256.Sum256(content)), Size: int64(len(content))}
	must(b.t, b.objs.Put(b.ctx, "slipway/gear/packs/"+hex.EncodeToString(o.Digest[:]), content, false))
	must(b.t, gearfacts.NewFiles(b.cat.DB).Record(b.ctx, gearfacts.Record{Packs: []gearfacts.NewPack{{Digest: o.Digest, Size: o.Size}}}))
	return o
}

func (b *bed) object(key string) []byte {
	b.t.Helper()
	o, err := b.objs.Get(b.ctx, key, 0, -1)
	must(b.t, err)
	defer o.Close()
	content, err := io.ReadAll(o)
	must(b.t, err)
	return content
}

// group protects packs and records it.
func (b *bed) group(packs []gearfacts.Object) (files []gearfacts.Object) {
	b.t.Helper()
	must(b.t, b.guard.Protect(b.ctx, packs, func(g gearfacts.Group) error {
		files = g.Files
		return gearfacts.NewParity(b.cat.DB).Put(b.ctx, g)
	}))
	return files
}

func parityPath(o gearfacts.Object) string {
	return "slipway/gear/parity/" + hex.EncodeToString(o.Digest[:])
}

func packPath(o gearfacts.Object) string {
	return "slipway/gear/packs/" + hex.EncodeToString(o.Digest[:])
}

// TestParityFormat compares parity files with what the format says, worked out by slow
// arithmetic of the test's own.
func TestParityFormat(t *testing.T) {
	t.Parallel()
	for _, shape := range []struct{ packs, files int }{{1, 1}, {2, 1}, {3, 2}, {10, 1}, {10, 4}, {1, 3}} {
		b := guarded(t, shape.files)
		r := rand.New(rand.NewPCG(uint64(shape.packs), uint64(shape.files)))
		var packs []gearfacts.Object
		var contents [][]byte
		longest := 0
		for range shape.packs {
			c := make([]byte, 1+r.IntN(3000))
			for i := range c {
				c[i] = byte(r.Uint32())
			}
			contents = append(contents, c)
			packs = append(packs, b.putPack(c))
			longest = max(longest, len(c))
		}
		files := b.group(packs)
		if len(files) != shape.files {
			t.Fatalf("%+v: %d files", shape, len(files))
		}
		for pos, row := range parityMatrix(shape.packs, shape.files) {
			want := append([]byte("SLPARIT\x01"), byte(shape.packs), byte(shape.files), byte(pos))
			for _, p := range packs {
				want = append(want, p.Digest[:]...)
				want = append(want, byte(p.Size), byte(p.Size>>8), 0, 0, 0, 0, 0, 0)
			}
			for i := range longest {
				var sum byte
				for c, content := range contents {
					if i < len(content) {
						sum ^= gfMul(row[c], content[i])
					}
				}
				want = append(want, sum)
			}
			if got := b.object(parityPath(files[pos])); !bytes.Equal(got, want) {
				t.Errorf("%+v: parity file %d of %d bytes is not as the format says (%d bytes)", shape, pos, len(got), len(want))
			}
		}
	}
}

// TestParityGolden checks that parity files never change.
func TestParityGolden(t *testing.T) {
	t.Parallel()
	b := guarded(t, 2)
	files := b.group([]gearfacts.Object{b.putPack([]byte("the first pack")), b.putPack([]byte("another, longer pack")), b.putPack([]byte("x"))})
	for pos, want := range []string{goldenParity0, goldenParity1} {
		if got := hex.EncodeToString(b.object(parityPath(files[pos]))[8+3+3*40:]); got != want {
			t.Errorf("file %d: got %s, want %s", pos, got, want)
		}
	}
}

const (
	goldenParity0 = "6d060a540e0c005f544c1f0f040e72207061636b"
	goldenParity1 = "f435767a5f624386cbbab542147cb71da72f3f7f"
)

// TestParityLosses loses any objects of groups. As many as there are parity files may be
// lost; beyond that, nothing is made again, and what is left is not touched.
func TestParityLosses(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		files := 1 + r.IntN(3)
		b := guarded(t, files)
		var packs []gearfacts.Object
		var keys []string
		for range 1 + r.IntN(10) {
			c := make([]byte, 1+r.IntN(600_000)) // more than a block, and not a multiple
			for i := range c {
				c[i] = byte(r.Uint32())
			}
			packs = append(packs, b.putPack(c))
			keys = append(keys, packPath(packs[len(packs)-1]))
		}
		for _, f := range b.group(packs) {
			keys = append(keys, parityPath(f))
		}
		good := map[string][]byte{}
		for _, k := range keys {
			good[k] = b.object(k)
		}
		lost := r.Perm(len(keys))[:1+r.IntN(min(len(keys), files+1))]
		for _, i := range lost {
			b.spoil(r, keys[i], good[keys[i]])
		}
		left := map[string][]byte{}
		for i, p := range packs {
			err := b.guard.Repair(b.ctx, p.Digest)
			if len(lost) <= files && (err != nil || !bytes.Equal(b.object(keys[i]), good[keys[i]])) {
				t.Errorf("seed %d: %d of %d objects lost with %d files: %v", seed, len(lost), len(keys), files, err)
			}
			if o, e := b.objs.Get(b.ctx, keys[i], 0, -1); e == nil {
				left[keys[i]], _ = io.ReadAll(o)
				o.Close()
			}
			if err == nil && !bytes.Equal(left[keys[i]], good[keys[i]]) {
				t.Errorf("seed %d: a pack counts as repaired and is not", seed)
			}
		}
		for i := range packs {
			if !slices.Contains(lost, i) && !bytes.Equal(left[keys[i]], good[keys[i]]) {
				t.Errorf("seed %d: a repair changed a sound pack", seed)
			}
		}
	}
}

// unread is a store of which some objects cannot be read for now.
type unread struct {
	objstore.Store
	keys map[string]bool
}

// Get implements objstore.Store.
func (u *unread) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if u.keys[key] {
		return nil, &fs.PathError{Op: "open", Path: key, Err: syscall.EMFILE}
	}
	return u.Store.Get(ctx, key, off, n)
}

// TestRepairVerdict loses some objects of groups while others cannot be read for a reason
// that passes. A pack counts as lost only if it is lost whatever the others hold, and a
// reader asks again at once otherwise.
func TestRepairVerdict(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 4))
		files := 1 + r.IntN(3)
		b := guarded(t, files)
		u := &unread{Store: b.objs, keys: map[string]bool{}}
		b.guard = parity.New(b.cat.DB, u, parity.Options{Files: files})
		var packs []gearfacts.Object
		var keys []string
		for i := range 1 + r.IntN(5) {
			packs = append(packs, b.putPack([]byte(fmt.Sprint("pack ", i, " of ", seed))))
			keys = append(keys, packPath(packs[i]))
		}
		for _, f := range b.group(packs) {
			keys = append(keys, parityPath(f))
		}
		good := b.object(keys[0])
		lost, closed := 0, 0
		for i, key := range keys {
			switch {
			case i == 0 || r.IntN(4) == 0:
				b.spoil(r, key, b.object(key))
				lost++
			case r.IntN(4) == 0:
				u.keys[key] = true
				closed++
			}
		}
		for range 2 {
			err := b.guard.Repaired(b.ctx, packs[0].Digest)
			var busy *objstore.BusyError
			want, ok := "made again", err == nil
			switch {
			case lost > files:
				want, ok = "lost", errors.Is(err, parity.ErrNoParity)
			case lost+closed > files:
				want, ok = "busy", errors.As(err, &busy) && !errors.Is(err, parity.ErrNoParity)
			}
			if seen[want]++; !ok {
				t.Errorf("seed %d: %d of %d objects lost and %d closed with %d files: %v; want: %s", seed, lost, len(keys), closed, files, err, want)
			}
		}
		clear(u.keys)
		if err := b.guard.Repaired(b.ctx, packs[0].Digest); (err == nil) != (lost <= files) || err == nil && !bytes.Equal(b.object(keys[0]), good) {
			t.Errorf("seed %d: when all can be read, with %d lost and %d files: %v", seed, lost, files, err)
		}
	}
	if len(seen) != 3 {
		t.Errorf("not all verdicts occurred: %v", seen)
	}
}

// spoil damages or deletes an object.
func (b *bed) spoil(r *rand.Rand, key string, good []byte) {
	b.t.Helper()
	bad := bytes.Clone(good)
	switch r.IntN(3) {
	case 0:
		must(b.t, b.objs.Delete(b.ctx, key))
		return
	case 1:
		bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
	case 2:
		bad = bad[:r.IntN(len(bad))]
	}
	must(b.t, b.objs.Put(b.ctx, key, bad, false))
}

// TestProtectRefuses checks that no parity is recorded of packs that are not what their
// digests say, or that are not in use, and that what was written for it goes.
func TestProtectRefuses(t *testing.T) {
	t.Parallel()
	b := guarded(t, 1)
	one, two := b.putPack([]byte("one pack")), b.putPack([]byte("two packs"))
	record := func(g gearfacts.Group) error { return gearfacts.NewParity(b.cat.DB).Put(b.ctx, g) }
	good := b.object(packPath(two))
	for what, do := range map[string]func() error{
		"flipped": func() error { return b.objs.Put(b.ctx, packPath(two), []byte("two pacts"), false) },
		"cut":     func() error { return b.objs.Put(b.ctx, packPath(two), []byte("two"), false) },
		"gone":    func() error { return b.objs.Delete(b.ctx, packPath(two)) },
	} {
		must(t, do())
		var damaged *parity.DamagedError
		if err := b.guard.Protect(b.ctx, []gearfacts.Object{one, two}, record); !errors.As(err, &damaged) || damaged.Pack != two.Digest {
			t.Errorf("%s: %v; want the damaged pack", what, err)
		}
		must(t, b.objs.Put(b.ctx, packPath(two), good, false))
	}
	unknown := gearfacts.Object{Digest: gear.Name(sha256.Sum256([]byte("unknown"))), Size: 7}
	must(t, b.objs.Put(b.ctx, packPath(unknown), []byte("unknown"), false))
	if err := b.guard.Protect(b.ctx, []gearfacts.Object{one, unknown}, record); err == nil {
		t.Error("a pack that is not in use was recorded")
	}
	groups, err := gearfacts.NewParity(b.cat.DB).Groups(b.ctx, gear.Name{})
	must(t, err)
	if len(groups) > 0 {
		t.Errorf("%d groups were recorded", len(groups))
	}
	must(t, b.guard.Sweep(b.ctx))
	for info, err := range b.objs.List(b.ctx, "slipway/gear/parity/", "") {
		must(t, err)
		t.Errorf("%s is left", info.Key)
	}
	files := b.group([]gearfacts.Object{one, two})
	must(t, b.guard.Sweep(b.ctx))
	if _, err := b.objs.Stat(b.ctx, parityPath(files[0])); err != nil {
		t.Errorf("a sweep deleted a parity file that a group has: %v", err)
	}
}

// TestSweepShared sweeps from another process while one makes the parity of a group. No
// file of the group may go. What nobody records goes later.
func TestSweepShared(t *testing.T) {
	now := time.Now()
	b := guarded(t, 2)
	b.objs = memstore.New(&memstore.Options{Now: func() time.Time { return now }})
	process := func() *parity.Guard {
		return parity.New(b.cat.DB, b.objs, parity.Options{Files: 2, Shared: true})
	}
	other := process()
	b.guard = process()
	packs := []gearfacts.Object{b.putPack([]byte("one")), b.putPack([]byte("two"))}
	var files []gearfacts.Object
	must(t, b.guard.Protect(b.ctx, packs, func(g gearfacts.Group) error {
		files = g.Files
		return errors.Join(other.Sweep(b.ctx), gearfacts.NewParity(b.cat.DB).Put(b.ctx, g))
	}))
	for _, f := range files {
		b.object(parityPath(f))
	}
	now = now.Add(-2 * time.Hour)
	must(t, b.objs.Put(b.ctx, "slipway/gear/parity/"+hex.EncodeToString(make([]byte, 32)), []byte("left"), false))
	must(t, other.Sweep(b.ctx))
	n := 0
	for _, err := range b.objs.List(b.ctx, "slipway/gear/parity/", "") {
		must(t, err)
		n++
	}
	if n != len(files) {
		t.Errorf("%d parity files, want %d", n, len(files))
	}
}
