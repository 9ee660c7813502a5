package s3store_test

import (
	"fmt"
	"io"
	"testing"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/objtest"
)

// benchSize is the size of the objects, in bytes.
const benchSize = 256 << 20

func BenchmarkVersity(b *testing.B) {
	srv := backendtest.S3(b)
	o := options(srv, srv.Bucket(b))
	o.PartSize = 0
	s := open(b, o)
	piece := objtest.Content(1, 256<<10)
	send := func(b *testing.B, begin func() (objstore.Upload, error)) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for b.Loop() {
			u, err := begin()
			for err == nil && u.Size() < benchSize {
				_, err = u.Write(piece)
			}
			if err == nil {
				err = u.Commit(b.Context(), "a/b")
			}
			must(b, err)
		}
	}
	b.Run("Staged", func(b *testing.B) {
		send(b, func() (objstore.Upload, error) { return s.NewUpload(b.Context(), -1) })
	})
	b.Run("Keyed", func(b *testing.B) {
		send(b, func() (objstore.Upload, error) { return s.NewUploadFor(b.Context(), "a/b", -1) })
	})
	b.Run("Get", func(b *testing.B) {
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for b.Loop() {
			o, err := s.Get(b.Context(), "a/b", 0, -1)
			must(b, err)
			n, err := o.WriteTo(io.Discard)
			if err == nil && n != benchSize {
				err = fmt.Errorf("got %d bytes", n)
			}
			must(b, err)
			must(b, o.Close())
		}
	})
	b.Run("Get4KiB", func(b *testing.B) {
		must(b, s.Put(b.Context(), "a/small", piece[:4096], false))
		for b.Loop() {
			o, err := s.Get(b.Context(), "a/small", 0, -1)
			must(b, err)
			_, err = o.WriteTo(io.Discard)
			must(b, err)
			must(b, o.Close())
		}
	})
}
