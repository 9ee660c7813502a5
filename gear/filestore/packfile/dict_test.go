package packfile

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

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
		d := Train(bytes.Join(samples, nil), samples, zstd.SpeedBetterCompression)
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
		if d := Train(bytes.Join(few, nil), few, zstd.SpeedBetterCompression); d != nil {
			t.Errorf("samples %d: a dictionary of %d bytes", i, len(d))
		}
	}
	// The library may or may not make a dictionary of these. Both are fine.
	equal := slices.Repeat([][]byte{bytes.Repeat([]byte("same"), 2000)}, 100)
	Train(bytes.Join(equal, nil), equal, zstd.SpeedBetterCompression)
}
