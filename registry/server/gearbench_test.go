package server_test

import (
	"net/http"
	"testing"

	"example.org/slipway/registry/server"
)

// sink is a ResponseWriter that discards everything.
type sink struct {
	header http.Header
	n      int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Write(p []byte) (int, error) { s.n += len(p); return len(p), nil }

// BenchmarkSmallGet compares the handler's time for a small file of the extension with that for a
// small blob, without the connection.
func BenchmarkSmallGet(b *testing.B) {
	m := newMemGear()
	bd := newBed(b, setup{server: server.Options{Gear: m}})
	data := random(1, 4096)
	targets := map[string]string{
		"blob": "/v2/alice/app/blobs/" + string(bd.push("alice/app", data)),
		"gear": gearAt + "files/" + digestOf(m.add("alice/app", data)),
	}
	for _, what := range []string{"blob", "gear"} {
		b.Run(what, func(b *testing.B) {
			r, err := http.NewRequest("GET", targets[what], nil)
			if err != nil {
				b.Fatal(err)
			}
			r.RemoteAddr = "127.0.0.1:1"
			w := &sink{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				bd.srv.ServeHTTP(w, r)
			}
			if want := b.N * len(data); w.n < want {
				b.Errorf("got %d bytes, want %d", w.n, want)
			}
		})
	}
}
