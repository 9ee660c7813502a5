package ext4_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"example.org/slipway/node/erofs"
	"example.org/slipway/volume/layouttest"
)

// source turns fuzz input into random numbers, and continues with a plain sequence after its end.
type source struct {
	b []byte
	n uint64
}

func (s *source) Uint64() uint64 {
	if len(s.b) < 2 {
		s.n++
		return s.n * 0x9E3779B97F4A7C15
	}
	v := uint64(binary.LittleEndian.Uint16(s.b))
	s.b = s.b[2:]
	return v * 0x9E3779B97F4A7C15
}

// FuzzNext changes a tree as the input says, and gives a file the beginning of the input as an
// access control list. e2fsck must not complain about the result.
func FuzzNext(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("some changes to a tree, in the order of these bytes"))
	f.Add([]byte(layouttest.ACL))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, m := newChain(t), layouttest.New()
		rnd := rand.New(&source{b: b})
		for range 3 {
			m.Change(rnd, 1+rnd.IntN(20))
			p, err := c.image.Next(m.Tree())
			if err != nil {
				t.Fatal(err)
			}
			layouttest.Apply(t, c.file, p)
		}
		m.Put("acl", layouttest.File(1, 1)).Xattrs = []erofs.Xattr{{Name: "system.posix_acl_access", Value: string(b[:min(len(b), 100)])}}
		if p, err := c.image.Next(m.Tree()); err == nil {
			layouttest.Apply(t, c.file, p)
		}
		layouttest.Check(t, "e2fsck", "-fn", c.file)
	})
}
