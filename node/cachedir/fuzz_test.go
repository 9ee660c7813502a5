package cachedir_test

import (
	"bytes"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"version":1,"boot":"x","durable":7,"failed":true}`))
	f.Add([]byte(`{"version":1,"durable":4294967295}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if durable, err := cachedir.ParseState(b); err == nil && durable >= 1<<30 || err != nil && durable != 0 {
			t.Errorf("generation %d, %v", durable, err)
		}
	})
}

func FuzzBitmap(f *testing.F) {
	file := gear.File{Name: gear.Name{1}, Size: 10<<20 + 1, Chunks: make([]gear.Name, 11)}
	good := cachedir.NewMap(file)
	f.Add(good)
	good[len(good)-2] = 0xff
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := cachedir.ParseMap(b)
		if err == nil && !bytes.Equal(again, b) {
			t.Errorf("%x is read as %x", b, again)
		}
	})
}
