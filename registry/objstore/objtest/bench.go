package objtest

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/registry/objstore"
)

// Bench measures a store: small and large writes, one after another and side by side, and
// reads over a TCP connection, with the CPU time of the whole process, which includes the
// receiving side. open returns an empty store, which Bench closes.
func Bench(b *testing.B, open func(b *testing.B) objstore.Store) {
	s := open(b)
	defer s.Close()
	for _, size := range []int{4 << 10, 1 << 20, 16 << 20} {
		key := fmt.Sprintf("bench/%d/data", size)
		if err := s.Put(b.Context(), key, Content(1, size), false); err != nil {
			b.Fatalf("Put: %v", err)
		}
		b.Run(fmt.Sprintf("Get/%dKiB", size>>10), func(b *testing.B) { benchGet(b, s, key, int64(size)) })
	}
	b.Run("Stat", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Stat(b.Context(), "bench/4096/data"); err != nil {
				b.Fatal(err)
			}
		}
	})
	small := Content(2, 1000)
	b.Run("Put/1KB", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if err := s.Put(b.Context(), fmt.Sprintf("bench/put/%d/data", i), small, false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Put/1KB/parallel", func(b *testing.B) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.Put(b.Context(), fmt.Sprintf("bench/par/%p/data", pb), small, false); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	for _, size := range []int64{16 << 20, 128 << 20} {
		b.Run(fmt.Sprintf("Upload/%dMiB", size>>20), func(b *testing.B) { benchUpload(b, s, size) })
	}
}

func benchUpload(b *testing.B, s objstore.Store, size int64) {
	buf := Content(3, 256<<10)
	b.SetBytes(size)
	for b.Loop() {
		u, err := s.NewUpload(b.Context(), size)
		for err == nil && u.Size() < size {
			_, err = u.Write(buf)
		}
		if err == nil {
			err = u.Commit(b.Context(), "bench/upload/data")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func benchGet(b *testing.B, s objstore.Store, key string, size int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	drained := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
			c.Close()
		}
		drained <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		o, err := s.Get(b.Context(), key, 0, -1)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := o.WriteTo(c); n != size || err != nil {
			b.Fatalf("WriteTo: got %d, %v; want %d", n, err, size)
		}
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-before).Milliseconds())/(float64(size)*float64(b.N)/1e9), "cpu-ms/GB")
	c.Close()
	if err := <-drained; err != nil {
		b.Fatal(err)
	}
}

// cpuTime returns the CPU time of this process, in user and system mode.
func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
