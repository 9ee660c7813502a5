package poolfs_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fusetest"
	"example.org/slipway/node/poolfs"
)

// modes lists the ways in which a worker can serve, for the environment of [pool.hold].
var modes = map[string]string{"passthrough": "", "cached": "POOLFS_NOPASS=1"}

func readAll(b testing.TB, path string, buf []byte) {
	f, err := fusetest.Open(path, unix.O_RDONLY)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Read(buf); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens and closes one file repeatedly, in one process and in four.
func BenchmarkOpen(b *testing.B) {
	for name, mode := range modes {
		b.Run(name, func(b *testing.B) {
			p := newPool(b, 3*patience)
			path := p.path(p.fill(b, 30, 4096)[0])
			p.hold(nil, mode)
			readAll(b, path, make([]byte, 4096))
			b.ReportAllocs()
			for b.Loop() {
				fd, err := unix.Open(path, unix.O_RDONLY, 0)
				if err != nil {
					b.Fatal(err)
				}
				unix.Close(fd)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "opens/s")
		})
	}
}

// BenchmarkSmallFiles opens, reads and closes 1,000 files. "first" uses files that no process
// opened before.
func BenchmarkSmallFiles(b *testing.B) {
	for name, mode := range modes {
		for _, first := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/first=%v", name, first), func(b *testing.B) {
				buf := make([]byte, 64<<10)
				p := newPool(b, 3*patience)
				var names [][32]byte
				for range 1000 * 8 { // for -benchtime 5x
					if len(names) == 1000 && !first {
						break
					}
					names = append(names, p.put(b, fmt.Appendf(nil, "%d %s", len(names), strings.Repeat("x", 8000))))
				}
				p.hold(nil, mode)
				readAll(b, p.path(names[len(names)-1]), buf)
				if !first {
					for _, n := range names {
						readAll(b, p.path(n), buf)
					}
				}
				i := 0
				for b.Loop() {
					for range 1000 {
						readAll(b, p.path(names[i%len(names)]), buf)
						i++
					}
				}
				if first && i > len(names) {
					b.Fatalf("%d files are too few for %d first opens", len(names), i)
				}
			})
		}
	}
}

// BenchmarkBigFile reads 500 MB from the page cache of the cache directory. With "first" the file
// is not in the page cache of the pool.
func BenchmarkBigFile(b *testing.B) {
	const size = 500 << 20
	native := filepath.Join(b.TempDir(), "native")
	for name, mode := range map[string]string{"native": "native", "passthrough": "", "cached": "POOLFS_NOPASS=1"} {
		for _, first := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/first=%v", name, first), func(b *testing.B) {
				p := newPool(b, 3*patience)
				content := p.fill(b, 31, size)[0]
				path := p.path(content)
				if mode == "native" {
					path = native
					if err := os.Rename(filepath.Join(p.origin.dir, poolfs.PathOf(content)), native); err != nil {
						b.Fatal(err)
					}
				} else {
					p.hold(nil, mode)
				}
				buf := make([]byte, 1<<20)
				if !first || mode == "native" {
					readAll(b, path, buf)
				}
				b.SetBytes(size)
				for b.Loop() {
					readAll(b, path, buf)
					if first && mode == "POOLFS_NOPASS=1" {
						b.StopTimer()
						dropCached(b, path)
						b.StartTimer()
					}
				}
			})
		}
	}
}

func dropCached(b *testing.B, path string) {
	f, err := fusetest.Open(path, unix.O_RDONLY)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		b.Fatal(err)
	}
}
