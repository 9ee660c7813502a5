package cachedir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"example.org/slipway/node/cachedir"
)

// BenchmarkPublish publishes 1,000 files of 4 KiB. It measures the checkpoint that makes them
// durable separately, and for comparison fsync and rename of each file.
func BenchmarkPublish(b *testing.B) {
	const files = 1000
	bodies := make([][]byte, files)
	seed := uint64(0)
	fill := func() {
		for i := range bodies {
			seed++
			bodies[i] = content(seed, 4096)
		}
	}
	b.Run("checkpoint", func(b *testing.B) {
		d := open(b, b.TempDir(), &cachedir.Options{SyncEvery: -1})
		for b.Loop() {
			b.StopTimer()
			fill()
			b.StartTimer()
			for i := range bodies {
				w, err := d.Create(fileOf(bodies[i]))
				must(b, err)
				_, err = w.Write(bodies[i])
				must(b, err, w.Commit())
			}
			b.StopTimer()
			must(b, d.Sync())
			b.StartTimer()
		}
		b.ReportMetric(float64(b.N*files)/b.Elapsed().Seconds(), "files/s")
	})
	b.Run("with Sync", func(b *testing.B) {
		d := open(b, b.TempDir(), &cachedir.Options{SyncEvery: -1})
		for b.Loop() {
			b.StopTimer()
			fill()
			b.StartTimer()
			for i := range bodies {
				put(b, d, bodies[i])
			}
			must(b, d.Sync())
		}
		b.ReportMetric(float64(b.N*files)/b.Elapsed().Seconds(), "files/s")
	})
	b.Run("fsync of each", func(b *testing.B) {
		dir := b.TempDir()
		for b.Loop() {
			b.StopTimer()
			fill()
			b.StartTimer()
			for i := range bodies[:100] {
				f, err := os.Create(filepath.Join(dir, "tmp"))
				must(b, err)
				_, err = f.Write(bodies[i])
				must(b, err, f.Sync(), f.Close(), os.Rename(f.Name(), filepath.Join(dir, fmt.Sprint(i))))
			}
		}
		b.ReportMetric(float64(b.N*100)/b.Elapsed().Seconds(), "files/s")
	})
}

// BenchmarkStart opens a directory of 20,000 files and reports the memory for each.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	d, err := cachedir.Open(dir, &cachedir.Options{SyncEvery: -1})
	must(b, err)
	const files = 20_000
	for i := range files {
		put(b, d, fmt.Appendf(nil, "file %d", i))
	}
	must(b, d.Close())
	var before, after runtime.MemStats
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		d, err = cachedir.Open(dir, nil)
		must(b, err)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if s := d.Stats(); s.Files != files || s.Rehashed != 0 {
			b.Fatalf("%+v", s)
		}
		must(b, d.Close())
		b.StartTimer()
	}
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/files, "B/file")
	b.ReportMetric(float64(b.N*files)/b.Elapsed().Seconds(), "files/s")
}
