package filestore

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/memstore"
)

// packOf returns a pack of plain contents.
func packOf(contents ...string) []byte {
	b := packHeader(nil)
	var files []gearfacts.File
	for _, c := range contents {
		files = append(files, gearfacts.File{Name: sha256.Sum256([]byte(c)), Size: int64(len(c)), Stored: int64(len(c))})
		b = append(b, c...)
	}
	return append(b, packFooter(nil, files)...)
}

func FuzzPack(f *testing.F) {
	f.Add(packOf("one", "", "three"))
	f.Add(packOf())
	cat, err := catalog.Open(f.Context(), filepath.Join(f.TempDir(), "catalog.db"), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { cat.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		objs := memstore.New(nil)
		s, err := New(cat, objs, &Options{Cache: &contentCache{newHot[[]byte](0)}})
		if err != nil {
			t.Fatal(err)
		}
		var digest gear.Name
		if err := objs.Put(t.Context(), packKey(digest), b, false); err != nil {
			t.Fatal(err)
		}
		files, size, err := s.readTable(t.Context(), digest)
		if err != nil {
			if !isDamage(err) {
				t.Fatalf("not told as damage: %v", err)
			}
			return
		}
		var total int64
		for i := range files {
			total += files[i].Stored
			err := s.verifyFile(t.Context(), &files[i], nil, true, true)
			if err != nil && !isDamage(err) {
				t.Fatalf("content %d: not told as damage: %v", i, err)
			}
		}
		if total > size || size != int64(len(b)) {
			t.Fatalf("contents of %d bytes in %d", total, size)
		}
	})
}

// TestPackGolden checks that the format does not change by accident.
func TestPackGolden(t *testing.T) {
	sum := sha256.Sum256(packOf("one", "", "three"))
	const want = "79ec6836961038d392edb5c5903d5a9c36ff4aaa8bde576607922091dc55d865"
	if got := fmt.Sprintf("%x", sum); got != want {
		t.Errorf("digest of the pack: %s, want %s", got, want)
	}
}

func TestTrainIsDeterministic(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	var samples [][]byte
	for i := range 300 {
		samples = append(samples, fmt.Appendf(nil, "%d: %s", i*i, bytes.Repeat(fmt.Appendf(nil, "the same %d words again and again; ", i%7), 20)))
	}
	var first []byte
	for i := range 5 {
		d := train(bytes.Join(samples, nil), samples, zstd.SpeedBetterCompression)
		if len(d) < segment {
			t.Fatalf("dictionary of %d bytes", len(d))
		}
		if first == nil {
			first = d
		}
		if !bytes.Equal(d, first) {
			t.Fatalf("run %d made another dictionary", i)
		}
	}
	same := slices.Repeat([][]byte{[]byte("the same")}, 100) // not enough variety for a dictionary
	for i, few := range [][][]byte{nil, samples[:5], make([][]byte, 100), same} {
		if d := train(bytes.Join(few, nil), few, zstd.SpeedBetterCompression); d != nil {
			t.Errorf("samples %d: a dictionary of %d bytes", i, len(d))
		}
	}
	// The library may or may not make a dictionary of these. Both are fine.
	equal := slices.Repeat([][]byte{bytes.Repeat([]byte("same"), 2000)}, 100)
	train(bytes.Join(equal, nil), equal, zstd.SpeedBetterCompression)
}

func TestHot(t *testing.T) {
	h := newHot[int](hotShards * 10)
	at := func(i int) gear.Name { return gear.Name{byte(i), byte(i >> 8), 7: 3} } // all in one shard
	for i := range 10 {
		h.put(at(i), i, 1)
	}
	h.get(at(0))
	for i := 10; i < 15; i++ {
		h.put(at(i), i, 1)
	}
	var have []int
	for i := range 15 {
		if v, ok := h.get(at(i)); ok {
			have = append(have, v)
		}
	}
	if len(have) != 10 || have[0] != 0 {
		t.Errorf("kept %v, want 10 with 0, which was asked for", have)
	}
	h.put(at(0), 100, 2)
	if v, _ := h.get(at(0)); v != 100 {
		t.Errorf("replaced by 100, got %d", v)
	}
	h.drop(at(0))
	if _, ok := h.get(at(0)); ok {
		t.Error("still there after drop")
	}
	h.put(at(99), 1, 6)
	if _, ok := h.get(at(99)); ok {
		t.Error("took a value that costs more than half")
	}
	for i := range 1000 {
		h.put(at(i), i, int64(1+i%5))
		n := at(i)
		if s, _ := h.shard(&n); s.cost > s.limit || len(s.at)+len(s.free) != len(s.slots) {
			t.Fatalf("after %d: cost %d of %d, %d+%d slots of %d", i, s.cost, s.limit, len(s.at), len(s.free), len(s.slots))
		}
	}
}

func TestParseTable(t *testing.T) {
	pack := packOf("one", "two")
	size := int64(len(pack))
	shape, err := parseTrailer(pack[size-trailerSize:], size)
	if err != nil {
		t.Fatal(err)
	}
	off := shape.footerOff(size)
	_, files, err := shape.parse(pack[:headerSize], pack[off:size-trailerSize], size)
	want := []gearfacts.File{
		{Name: sha256.Sum256([]byte("one")), Size: 3, Stored: 3, Off: 12},
		{Name: sha256.Sum256([]byte("two")), Size: 3, Stored: 3, Off: 15},
	}
	if diff := cmp.Diff(want, files); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, _, err := shape.parse(pack[:headerSize], pack[off:size-trailerSize], size-1); !errors.Is(err, errPack) {
		t.Errorf("of another size: %v", err)
	}
}
