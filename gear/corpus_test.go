package gear_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/rootfs"
)

// nowhere is a sink that has everything.
type nowhere struct{}

func (nowhere) Missing(_ context.Context, names []gear.Name) ([]bool, error) {
	return make([]bool, len(names)), nil
}

func (nowhere) Put(context.Context, gear.File, gear.Content) error { panic("not asked for") }

// TestCorpus converts the layers that SLIPWAY_LAYERS, a list of files, names and
// tells how long their indexes are and how long things take.
func TestCorpus(t *testing.T) {
	list := os.Getenv("SLIPWAY_LAYERS")
	if list == "" {
		t.Skip("SLIPWAY_LAYERS names no layers")
	}
	var layers []*gear.Index
	var entries, files, regular, bytesAll int
	for _, name := range filepath.SplitList(list) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		got, err := gear.Convert(t.Context(), f, gear.Want{}, nowhere{}, nil)
		f.Close()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		converted := time.Since(begin)
		var buf bytes.Buffer
		begin = time.Now()
		if err := got.Index.Encode(&buf); err != nil {
			t.Fatal(err)
		}
		encoded := time.Since(begin)
		begin = time.Now()
		x, err := gear.Decode(bytes.NewReader(buf.Bytes()), nil)
		if err != nil {
			t.Fatal(err)
		}
		decoded := time.Since(begin)
		n := 0
		for _, e := range x.Entries {
			if e.Type == rootfs.File {
				n++
			}
		}
		chunks := 0
		for _, f := range x.Files {
			chunks += len(f.Chunks)
		}
		t.Logf("%.12s %4d MB: %6d entries %6d regular %6d contents %5d chunks: %8d bytes, %.2f per regular file, %.2f but names, %.2f but chunks; convert %v encode %v decode %v",
			filepath.Base(name), got.Sums.Uncompressed>>20, len(x.Entries), n, len(x.Files), chunks, buf.Len(),
			float64(buf.Len())/float64(max(n, 1)), float64(buf.Len()-32*(len(x.Files)+chunks))/float64(max(len(x.Entries), 1)),
			float64(buf.Len()-32*chunks)/float64(max(n, 1)), converted, encoded, decoded)
		layers = append(layers, x)
		entries, files, regular, bytesAll = entries+len(x.Entries), files+len(x.Files), regular+n, bytesAll+buf.Len()-32*chunks
	}
	t.Logf("all: %d entries, %d regular, %d contents, %d bytes but chunks, %.2f per regular file", entries, regular, files, bytesAll,
		float64(bytesAll)/float64(max(regular, 1)))
	begin := time.Now()
	flat, err := gear.Flatten(layers...)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	var buf bytes.Buffer
	if err := flat.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	t.Logf("flattened in %v: %d entries, %d contents, %d bytes", took, len(flat.Entries), len(flat.Files), buf.Len())
}
