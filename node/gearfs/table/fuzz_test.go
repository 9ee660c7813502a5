package table_test

import (
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/table"
)

func FuzzTable(f *testing.F) {
	b, err := table.Encode([]gear.File{{Name: gear.Name{2}, Size: 7}, {Name: gear.Name{1}, Size: 5 << 20, Chunks: make([]gear.Name, 5)}, gear.Empty()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := table.Parse(b); err == nil && (got.Len()*48 > len(b) || got.Bytes() < int64(got.Len())) {
			t.Errorf("%d bytes are read as %d files of %d bytes", len(b), got.Len(), got.Bytes())
		}
	})
}
