package filestore

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/hot"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/memstore"
)

// packOf returns a pack of plain contents.
func packOf(contents ...string) []byte {
	b := packfile.Header(nil)
	var files []gearfacts.File
	for _, c := range contents {
		files = append(files, gearfacts.File{Name: sha256.Sum256([]byte(c)), Size: int64(len(c)), Stored: int64(len(c))})
		b = append(b, c...)
	}
	return append(b, packfile.Footer(nil, files)...)
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
		s, err := New(cat, objs, &Options{Cache: hot.NewContents(0)})
		if err != nil {
			t.Fatal(err)
		}
		var digest gear.Name
		if err := objs.Put(t.Context(), packKey(digest), b, false); err != nil {
			t.Fatal(err)
		}
		files, size, err := s.readTable(t.Context(), digest)
		if err != nil {
			if !packfile.IsDamage(err) {
				t.Fatalf("not told as damage: %v", err)
			}
			return
		}
		var total int64
		for i := range files {
			total += files[i].Stored
			err := s.verifyFile(t.Context(), &files[i], nil, true, true)
			if err != nil && !packfile.IsDamage(err) {
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

func TestParseTable(t *testing.T) {
	pack := packOf("one", "two")
	size := int64(len(pack))
	shape, err := packfile.ParseTrailer(pack[size-packfile.TrailerSize:], size)
	if err != nil {
		t.Fatal(err)
	}
	off := shape.FooterOff(size)
	_, files, err := shape.Parse(pack[:packfile.HeaderSize], pack[off:size-packfile.TrailerSize], size)
	want := []gearfacts.File{
		{Name: sha256.Sum256([]byte("one")), Size: 3, Stored: 3, Off: 12},
		{Name: sha256.Sum256([]byte("two")), Size: 3, Stored: 3, Off: 15},
	}
	if diff := cmp.Diff(want, files); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, _, err := shape.Parse(pack[:packfile.HeaderSize], pack[off:size-packfile.TrailerSize], size-1); !errors.Is(err, packfile.ErrFormat) {
		t.Errorf("of another size: %v", err)
	}
}
