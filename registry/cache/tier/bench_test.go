package tier_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
)

// drained returns a TCP connection whose other end discards everything.
func drained(b *testing.B) *net.TCPConn {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Close()
		<-done
	})
	return c.(*net.TCPConn)
}

func cpu(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// benchSend sends an object to a client repeatedly. The CPU time is that of both ends.
func benchSend(b *testing.B, size int64, send func(w io.Writer) (int64, error)) {
	c := drained(b)
	b.SetBytes(size)
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		if n, err := send(c); n != size || err != nil {
			b.Fatalf("sent %d of %d: %v", n, size, err)
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

func sendObject(s objstore.Store, key string) func(w io.Writer) (int64, error) {
	return func(w io.Writer) (int64, error) {
		o, err := s.Get(context.Background(), key, 0, -1)
		if err != nil {
			return 0, err
		}
		n, err := o.WriteTo(w)
		if cerr := o.Close(); err == nil {
			err = cerr
		}
		return n, err
	}
}

// BenchmarkRAMHit compares a hit in RAM with a store in memory.
func BenchmarkRAMHit(b *testing.B) {
	for _, size := range []int{4 << 10, 256 << 10, 4 << 20} {
		m := memstore.New(nil)
		key := "docker/registry/v2/blobs/sha256/ab/" + fmt.Sprintf("%064d", size) + "/data"
		if err := m.Put(b.Context(), key, objtest.Content(1, size), false); err != nil {
			b.Fatal(err)
		}
		s := open(b, m, &tier.Options{RAMBytes: 64 << 20, LargeObject: -1})
		b.Run(fmt.Sprintf("%dKiB/memstore", size>>10), func(b *testing.B) { benchSend(b, int64(size), sendObject(m, key)) })
		b.Run(fmt.Sprintf("%dKiB/tier", size>>10), func(b *testing.B) { benchSend(b, int64(size), sendObject(s, key)) })
	}
}

// BenchmarkGet measures a hit in RAM without sending it.
func BenchmarkGet(b *testing.B) {
	m := memstore.New(nil)
	key := "docker/registry/v2/blobs/sha256/ab/" + fmt.Sprintf("%064d", 1) + "/data"
	if err := m.Put(b.Context(), key, make([]byte, 1000), false); err != nil {
		b.Fatal(err)
	}
	s := open(b, m, &tier.Options{RAMBytes: 64 << 20, LargeObject: -1})
	for name, st := range map[string]objstore.Store{"memstore": m, "tier": s} {
		get := func() {
			o, err := st.Get(context.Background(), key, 0, -1)
			if err == nil {
				err = o.Close()
			}
			if err != nil {
				b.Error(err)
			}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				get()
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					get()
				}
			})
		})
	}
}

// BenchmarkSSDHit compares a hit on the SSD with a file that is opened and sent.
func BenchmarkSSDHit(b *testing.B) {
	for _, size := range []int64{1 << 20, 64 << 20} {
		dir := b.TempDir()
		key := madeKey(size, 1)
		s := open(b, newMade(), &tier.Options{SSDBytes: 256 << 20, Dir: dir})
		mustGet(b, s, key)
		idle(b, s)
		path := filepath.Join(dir, "native")
		if err := os.WriteFile(path, objtest.Content(1, int(size)), 0o600); err != nil {
			b.Fatal(err)
		}
		native := func(w io.Writer) (int64, error) {
			f, err := os.Open(path)
			if err != nil {
				return 0, err
			}
			defer f.Close()
			return io.Copy(w, f)
		}
		for range 2 { // the order must not matter
			b.Run(fmt.Sprintf("%dMiB/native", size>>20), func(b *testing.B) { benchSend(b, size, native) })
			b.Run(fmt.Sprintf("%dMiB/tier", size>>20), func(b *testing.B) { benchSend(b, size, sendObject(s, key)) })
		}
	}
}

// BenchmarkStart measures a start with 100,000 files.
func BenchmarkStart(b *testing.B) {
	const files = 100_000
	dir := b.TempDir()
	o := &tier.Options{SSDBytes: 1 << 40, Dir: dir}
	for i := range files {
		name := fmt.Sprintf("%02x/%02x%030x-%x-%x", i%256, i%256, i, i+1, 1000)
		if i < 256 {
			if err := os.Mkdir(filepath.Join(dir, name[:2]), 0o700); err != nil {
				b.Fatal(err)
			}
		}
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	for b.Loop() {
		s, err := tier.New(memstore.New(nil), o)
		if err != nil {
			b.Fatal(err)
		}
		if n := s.Status().SSD.Entries; n != files {
			b.Fatalf("found %d files, want %d", n, files)
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
