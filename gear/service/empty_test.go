package service_test

import (
	"bytes"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestEmptyLayers pushes layers without members in every form that runtimes take: no byte at all,
// archives of only zero blocks or of less than these, and both compressed. Each becomes an index
// without entries.
func TestEmptyLayers(t *testing.T) {
	var empty, framed bytes.Buffer
	for to, what := range map[*bytes.Buffer][]byte{&empty: nil, &framed: make([]byte, 1024)} {
		w, err := zstd.NewWriter(to, zstd.WithZeroFrames(true))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(what); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b := newBed(t, setup{})
	for form, data := range map[string][]byte{
		"nothing": nil, "half of the end": make([]byte, 512), "the end": make([]byte, 1024), "a record": make([]byte, 10240),
		"gzip of nothing": zipped(nil), "gzip of the end": zipped(make([]byte, 1024)), "zstd of nothing": empty.Bytes(), "zstd of the end": framed.Bytes(),
	} {
		_, d := b.push(ours, data)
		b.wait(d)
		x, err := b.index(ours, d)
		if err != nil || len(x.Entries) != 0 || len(x.Files) != 0 {
			t.Errorf("%s: the index is %+v, error %v", form, x, err)
		}
	}
}
