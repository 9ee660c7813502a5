package format_test

import (
	"bytes"
	"fmt"
	"testing"

	"example.org/slipway/registry/cache/tier/format"
)

func mark(boot string, order []uint64) []byte {
	m := format.Mark{Boot: boot, Order: order}
	return m.Encode()
}

func FuzzMark(f *testing.F) {
	f.Add(mark("", nil))
	f.Add(mark("b0c2", []uint64{1, 2, 1<<63 | 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := format.DecodeMark(b)
		if err != nil {
			return
		}
		if again := m.Encode(); !bytes.Equal(again, b) {
			t.Errorf("%x becomes %x", b, again)
		}
	})
}

func FuzzFooter(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 48))
	f.Fuzz(func(t *testing.T, b []byte) {
		ft, err := format.DecodeFooter(b)
		if err != nil {
			return
		}
		if again := ft.Encode(); !bytes.Equal(again[:], b) {
			t.Errorf("%x becomes %x", b, again)
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add(fmt.Sprintf("%032x-1f-3e8", 7))
	f.Add("-")
	f.Fuzz(func(t *testing.T, name string) {
		k, seq, size, ok := format.ParseName(name)
		if ok && (fmt.Sprintf("%x-%x-%x", k[:], seq, size) != name || size <= 0) {
			t.Errorf("%q is read as %x, %d, %d", name, k, seq, size)
		}
	})
}

func TestMark(t *testing.T) {
	b := mark("boot", []uint64{5, 1, 1<<63 | 9})
	if _, err := format.DecodeMark(b); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x10
		if _, err := format.DecodeMark(bad); err == nil {
			t.Errorf("a mark with byte %d changed is read", i)
		}
		if _, err := format.DecodeMark(b[:i]); err == nil {
			t.Errorf("the first %d bytes of a mark are read", i)
		}
	}
}
