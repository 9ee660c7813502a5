package rebuild_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	kgzip "github.com/klauspost/compress/gzip"

	"example.org/slipway/gear/rebuild"
)

var benchPlain = flag.String("bench-plain", "", "the `file` whose first 16 MiB are compressed and rebuilt in benchmarks; default: the test's own binary")

// cpuTime returns the CPU time that this process has used. It says more than elapsed time on a
// machine that others use as well.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRebuild measures what a rebuild costs, and what making and verifying the recipe costs. It compares both with the CPU time that Go's gzip takes for the same bytes at level 6.
func BenchmarkRebuild(b *testing.B) {
	file := *benchPlain
	if file == "" {
		var err error
		if file, err = os.Executable(); err != nil {
			b.Fatal(err)
		}
	}
	plain, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	plain = plain[:min(len(plain), 16<<20)]
	began := cpuTime(b)
	goBlob := goZip(b, plain, gzip.DefaultCompression, nil)
	unit := cpuTime(b) - began
	type encoded struct {
		name string
		blob []byte
	}
	all := []encoded{{"go6", goBlob}, {"go1", goZip(b, plain, gzip.BestSpeed, nil)}, {"pgzip", pgzip(b, plain, 1<<20)}, {"gzip6", pipe(b, plain, "gzip", "-6")}}
	for level := 1; level <= 9; level++ {
		all = append(all, encoded{fmt.Sprint("klauspost", level), klauspost(b, plain, level)})
	}
	for _, e := range all {
		var r *rebuild.Recipe
		b.Run(e.name+"/make", func(b *testing.B) {
			measured(b, len(e.blob), unit, func() {
				var err error
				if r, err = rebuild.Make(context.Background(), bytes.NewReader(e.blob), &rebuild.MakeOptions{Verify: true}); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(e.name+"/rebuild", func(b *testing.B) {
			if r == nil {
				r = makeRecipe(b, e.blob, nil)
			}
			measured(b, len(e.blob), unit, func() { rebuildOnce(b, r, plain) })
			b.ReportMetric(1e6*float64(size(r))/float64(len(e.blob)), "recipe-ppm")
		})
	}
}

// klauspost compresses with klauspost/compress/gzip, of which only pgzip's level has a model.
func klauspost(tb testing.TB, plain []byte, level int) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := kgzip.NewWriterLevel(&out, level)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func rebuildOnce(b *testing.B, r *rebuild.Recipe, plain []byte) {
	if err := r.Rebuild(context.Background(), io.Discard, bytes.NewReader(plain), nil); err != nil {
		b.Fatal(err)
	}
}

// measured reports the rate in bytes of the blob, and the CPU time in multiples of a unit.
func measured(b *testing.B, blob int, unit time.Duration, do func()) {
	began := cpuTime(b)
	for b.Loop() {
		do()
	}
	took := (cpuTime(b) - began).Seconds() / float64(b.N)
	b.ReportMetric(float64(blob)/1e6/took, "blobMB/cpu-s")
	b.ReportMetric(took/unit.Seconds(), "x-go-gzip-6")
}
