//go:build ceph

package rbd_test

import (
	"fmt"
	"testing"

	"example.org/slipway/volume/block"
)

const benchSize = 60 << 20

// BenchmarkObjects measures the effect of the object size on building a volume of 60 MB from pieces
// of 12 KiB, and on using it.
func BenchmarkObjects(b *testing.B) {
	data := content(1, benchSize)
	for _, order := range []int{18, 20, 22} {
		b.Run(fmt.Sprintf("objects of %d KiB", 1<<order>>10), func(b *testing.B) {
			o, _ := options(b)
			o.ObjectSize = 1 << order
			s := open(b, o)
			n := 0
			b.Run("build", func(b *testing.B) {
				b.SetBytes(benchSize)
				for b.Loop() {
					n++
					build(b, s, fmt.Sprint("v", n), data)
				}
			})
			v, err := s.Open(b.Context(), "v1")
			must(b, err)
			b.Run("read by 1 MiB", func(b *testing.B) {
				b.SetBytes(benchSize)
				for b.Loop() {
					for off := 0; off < benchSize; off += 1 << 20 {
						wantBytes(b, v, int64(off), data[off:off+1<<20])
					}
				}
			})
			must(b, v.Close())
			b.Run("open and close", func(b *testing.B) {
				for b.Loop() {
					v, err := s.Open(b.Context(), "v1")
					must(b, err)
					must(b, v.Close())
				}
			})
			b.Run("clone and remove", func(b *testing.B) {
				for b.Loop() {
					v, err := s.Create(b.Context(), "c-1", "v1", 8<<30)
					must(b, err)
					must(b, v.Close())
					must(b, s.Remove(b.Context(), "c-1"))
				}
			})
			b.Run("stat", func(b *testing.B) {
				for b.Loop() {
					_, err := s.Stat(b.Context(), "v1")
					must(b, err)
				}
			})
		})
	}
}

func build(b *testing.B, s block.Store, id string, data []byte) {
	v, err := s.Create(b.Context(), id, "", 8<<30)
	must(b, err)
	const piece = 12 << 10
	for off := 0; off < len(data); off += piece {
		_, err := v.WriteAt(data[off:min(off+piece, len(data))], int64(off))
		must(b, err)
	}
	must(b, v.Flush())
	must(b, v.Close())
	must(b, s.Commit(b.Context(), id))
}
