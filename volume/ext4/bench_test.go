package ext4_test

import (
	"testing"

	"example.org/slipway/volume/ext4"
	"example.org/slipway/volume/layouttest"
)

// BenchmarkNext lays out a large image and one more layer over it that changes a file.
func BenchmarkNext(b *testing.B) {
	m := image(100_000)
	first := m.Tree()
	m.Put("usr/lib/0/0/file-0", layouttest.File(1<<40, 9000))
	second := m.Tree()
	for name, over := range map[string]bool{"first": false, "over": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if over {
					b.StopTimer()
				}
				x := ext4.New([16]byte{})
				if _, err := x.Next(first); err != nil {
					b.Fatal(err)
				}
				if !over {
					continue
				}
				b.StartTimer()
				if _, err := x.Next(second); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
