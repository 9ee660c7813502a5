package rootfs_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	stdgzip "compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"example.org/slipway/gear/rootfs"
)

// benchLayer returns a gzip layer of 100 MB, half text and half machine code, in files of
// 64 bytes to 4 MiB.
var benchLayer = sync.OnceValues(func() ([]byte, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 4000)
	for i := range words {
		b := make([]byte, 2+rnd.IntN(9))
		for j := range b {
			b[j] = 'a' + byte(min(rnd.IntN(26), rnd.IntN(26)))
		}
		words[i] = string(b)
	}
	var text strings.Builder
	for text.Len() < 8<<20 {
		text.WriteString(words[min(rnd.IntN(4000), rnd.IntN(4000), rnd.IntN(4000))])
		text.WriteByte(" \n"[rnd.IntN(12)/11])
	}
	sources := [][]byte{[]byte(text.String()), code}
	var layer bytes.Buffer
	zw := gzip.NewWriter(&layer)
	tw := tar.NewWriter(zw)
	for i, total := 0, 0; total < 100e6; i++ {
		src := sources[i%2]
		n := 64 << rnd.IntN(17)
		off := rnd.IntN(len(src) - n)
		h := tar.Header{Name: fmt.Sprintf("dir%d/file%d", i%50, i), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(n)}
		if err := tw.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := tw.Write(src[off : off+n]); err != nil {
			return nil, err
		}
		total += n
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	err = zw.Close()
	return layer.Bytes(), err
})

// usage is wall-clock and processor time.
type usage struct{ wall, cpu time.Duration }

func measure(b *testing.B, f func() error) usage {
	b.Helper()
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	t0, c0 := time.Now(), cpu()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	return usage{time.Since(t0), cpu() - c0}
}

// readLayer reads a whole layer and returns its uncompressed size.
func readLayer(layer []byte) (int64, error) {
	r, err := rootfs.Open(context.Background(), bytes.NewReader(layer), nil)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for {
		_, err := r.Next()
		if err == io.EOF {
			sums, _ := r.Sums()
			return sums.Uncompressed, nil
		}
		if err == nil {
			_, err = r.WriteTo(io.Discard)
		}
		if err != nil {
			return 0, err
		}
	}
}

// BenchmarkReader compares the reader with a lower bound: the same gunzip, then both
// sums, one after the other on one core. It reports the ratios as cpu/floor and
// wall/floor.
func BenchmarkReader(b *testing.B) {
	layer, err := benchLayer()
	if err != nil {
		b.Fatal(err)
	}
	size, err := readLayer(layer)
	if err != nil {
		b.Fatal(err)
	}
	floor := func() error {
		zr, err := gzip.NewReader(bufio.NewReaderSize(bytes.NewReader(layer), 32<<10))
		if err != nil {
			return err
		}
		sha256.Sum256(layer)
		_, err = io.CopyBuffer(struct{ io.Writer }{sha256.New()}, struct{ io.Reader }{zr}, make([]byte, 256<<10))
		return err
	}
	var base, got usage
	b.SetBytes(size)
	for b.Loop() {
		b.StopTimer()
		f := measure(b, floor)
		b.StartTimer()
		r := measure(b, func() error { _, err := readLayer(layer); return err })
		base.wall, base.cpu = base.wall+f.wall, base.cpu+f.cpu
		got.wall, got.cpu = got.wall+r.wall, got.cpu+r.cpu
	}
	mb := float64(size) * float64(b.N) / 1e6
	b.ReportMetric(mb/base.cpu.Seconds(), "floor-MB/cpu-s")
	b.ReportMetric(mb/got.cpu.Seconds(), "MB/cpu-s")
	b.ReportMetric(got.cpu.Seconds()/base.cpu.Seconds(), "cpu/floor")
	b.ReportMetric(got.wall.Seconds()/base.wall.Seconds(), "wall/floor")
}

// BenchmarkSmallLayer measures the cost of opening a layer of one small file.
func BenchmarkSmallLayer(b *testing.B) {
	var a arc
	layer := gzipped(b, a.file(b, "f", "content").end())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readLayer(layer); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGunzip compares the gzip library with the standard one.
func BenchmarkGunzip(b *testing.B) {
	layer, err := benchLayer()
	if err != nil {
		b.Fatal(err)
	}
	size, err := readLayer(layer)
	if err != nil {
		b.Fatal(err)
	}
	for _, lib := range []struct {
		name string
		open func(io.Reader) (io.Reader, error)
	}{
		{"klauspost", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
		{"standard", func(r io.Reader) (io.Reader, error) { return stdgzip.NewReader(r) }},
	} {
		b.Run(lib.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				zr, err := lib.open(bufio.NewReaderSize(bytes.NewReader(layer), 32<<10))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{zr}, make([]byte, 256<<10)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
