package upstream_test

import (
	"io"
	"net/http"
	"testing"

	"example.org/slipway/registry/mirror/upstream"
)

// BenchmarkSmallBlob compares the cost of a request with that of the same request by net/http.
func BenchmarkSmallBlob(b *testing.B) {
	s := serve(b, image)
	b.Run("upstream", func(b *testing.B) {
		u := open(b, s.URL, upstream.Options{})
		b.ReportAllocs()
		for b.Loop() {
			if err := getBlob(u, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("nethttp", func(b *testing.B) {
		url := s.URL + "/v2/library/app/blobs/" + string(blobDigest)
		c := &http.Client{Transport: &http.Transport{}}
		defer c.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			resp, err := c.Get(url)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				b.Fatal(err)
			}
			_ = resp.Body.Close()
		}
	})
}
