package file_test

import (
	"testing"

	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/file"
)

// BenchmarkRead reads 128 KiB at a time, as a kernel does, from the top of a chain of ten volumes
// whose blocks are in the page cache.
func BenchmarkRead(b *testing.B) {
	const size, step = 16 << 20, 128 << 10
	s, err := file.Open(b.TempDir(), nil)
	must(b, err)
	defer s.Close()
	parent := ""
	for i := range 10 {
		id := "v" + string(rune('0'+i))
		v, err := s.Create(b.Context(), id, parent, size)
		must(b, err)
		for off := int64(i * 4096); off+4096 <= size; off += 40 << 10 { // every tenth block
			_, err := v.WriteAt(blocktest.Content(uint64(i), 4096), off)
			must(b, err)
		}
		must(b, v.Close())
		must(b, s.Commit(b.Context(), id))
		parent = id
	}
	v, err := s.Open(b.Context(), parent)
	must(b, err)
	defer v.Close()
	buf := make([]byte, step)
	b.SetBytes(step)
	for i := 0; b.Loop(); i++ {
		if _, err := v.ReadAt(buf, int64(i)*step%size); err != nil {
			b.Fatal(err)
		}
	}
}
