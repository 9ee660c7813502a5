package filestore_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/fsstore"
)

// Types of a stream's records (docs/formats/gear-stream.md).
const (
	recordDict     = 1
	recordContents = 2
)

// TestStreamWithoutDictionary checks that a few contents come without a dictionary, as it
// is longer than they are, and that many come with it.
func TestStreamWithoutDictionary(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for kind, store := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, nil)
			b.objs = store
			b.newStore()
			contents := append(many(1, 600), noise(1, 200), nil)
			b.add("one", contents...)
			b.settle(true)
			few := append([][]byte{noise(1, 200), nil}, contents[7], contents[300], contents[8], contents[7])
			for what, c := range map[string]struct {
				contents [][]byte
				first    byte
			}{"few": {few, recordContents}, "one": {contents[9:10], recordContents}, "many": {contents, recordDict}} {
				b.check(c.contents...)
				var names []gear.Name
				for _, x := range c.contents {
					names = append(names, name(x))
				}
				var out bytes.Buffer
				must(t, b.s.Stream(b.ctx, &out, names, nil))
				if got := out.Bytes()[8]; got != c.first {
					t.Errorf("%s: the first record is of type %d, want %d", what, got, c.first)
				}
			}
		})
	}
}

// TestStreamWithoutDictionaryDamaged checks that a content that does not decode is sent
// as it is, so that the reader notices, and that the other contents still come.
func TestStreamWithoutDictionaryDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	root := t.TempDir()
	disk, err := fsstore.New(root, nil)
	must(t, err)
	t.Cleanup(func() { disk.Close() })
	b := newBed(t, nil)
	b.objs = disk
	b.newStore()
	contents := many(1, 600)
	b.add("one", contents...)
	b.settle(true)
	rows, err := gearfacts.NewFiles(b.cat.DB).Files(b.ctx, []gear.Name{name(contents[5])})
	must(t, err)
	if len(rows) != 1 || gear.Encoding(rows[0].Encoding) != gear.ZstdDict {
		t.Fatalf("content 5: got %+v, want one that needs a dictionary", rows)
	}
	for _, key := range b.keys() {
		path := filepath.Join(root, key)
		must(t, os.Chmod(path, 0o600))
		data, err := os.ReadFile(path)
		must(t, err)
		data[rows[0].Off+rows[0].Stored/2] ^= 0x55
		must(t, os.WriteFile(path, data, 0o600))
	}
	var out bytes.Buffer
	must(t, b.s.Stream(b.ctx, &out, []gear.Name{name(contents[4]), name(contents[5]), name(contents[6])}, nil))
	r := gear.NewStreamReader(&out)
	if it, err := r.Next(); err != nil || !bytes.Equal(it.Bytes(), contents[4]) {
		t.Errorf("the content before the damaged one: %v", err)
	}
	if it, err := r.Next(); err == nil && it.Failure == "" {
		t.Error("a damaged content was accepted")
	}
}
