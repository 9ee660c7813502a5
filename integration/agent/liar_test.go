package agent_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
)

// flipped changes one byte of an answer.
type flipped struct {
	http.ResponseWriter
	n int
}

func (f *flipped) Write(b []byte) (int, error) {
	c := make([]byte, len(b))
	for i := range b {
		c[i] = b[i]
		if f.n++; f.n == 120 {
			c[i] ^= 0x20
		}
	}
	return f.ResponseWriter.Write(c)
}

// short breaks off after some bytes, or continues for ever with other bytes.
type short struct {
	http.ResponseWriter
	left    int
	endless bool
}

func (s *short) WriteHeader(status int) {
	s.Header().Del("Content-Length")
	s.ResponseWriter.WriteHeader(status)
}

func (s *short) Write(b []byte) (int, error) {
	if len(b) < s.left {
		s.left -= len(b)
		return s.ResponseWriter.Write(b)
	}
	if _, err := s.ResponseWriter.Write(b[:s.left]); err != nil || !s.endless {
		panic(http.ErrAbortHandler)
	}
	junk := make([]byte, 64<<10)
	for {
		if _, err := s.ResponseWriter.Write(junk); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// TestRegistryFaults reads files of an image whose registry does everything but deliver them. A
// read must return the right bytes, or an error within the bound, and the right bytes when the
// registry is back.
func TestRegistryFaults(t *testing.T) {
	const files = 8
	s := slipway.Start(t, t.TempDir(), nil)
	for i, w := range []struct {
		name string
		how  fault
	}{
		{"gone", func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }},
		{"silent", func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }},
		{"out of order", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}},
		{"unauthorized", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
		}},
		{"not found", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) }},
		{"other bytes", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			pass.ServeHTTP(&flipped{ResponseWriter: w}, r)
		}},
		{"cut short", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			pass.ServeHTTP(&short{ResponseWriter: w, left: 60}, r)
		}},
		{"endless", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			pass.ServeHTTP(&short{ResponseWriter: w, left: 60, endless: true}, r)
		}},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			// Each fault gets its own image, because other nodes fetch what one node reads with its
			// profile.
			ref := push(t, s, fmt.Sprintf("team/app%d:v1", i), image(t, byte(i+1), files))
			g := behind(t, s)
			a := node.Start(t, quiet)
			dir := a.Mount(g.ref(ref))
			g.set(filesOnly(w.how))
			first, err := filepath.Glob(filepath.Join(dir, "files/0/*"))
			if err != nil || len(first) != files/2 {
				t.Fatalf("files %q, error %v", first, err)
			}
			began := time.Now()
			if b, err := os.ReadFile(first[0]); err == nil {
				t.Errorf("%d bytes were read", len(b))
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the error came after %s, with a bound of 4 s", took)
			}
			if _, err := a.TryStatus(); err != nil {
				t.Error(err)
			}
			g.set(nil)
			proc.Poll(t, 40*time.Second, "files of the registry that is back", func() bool {
				n, failed, wrong := check(t, dir)
				if n != files || wrong != 0 {
					t.Fatalf("%d files, %d are wrong", n, wrong)
				}
				return failed == 0
			})
			if strings.Contains(a.Log(), "panic") {
				t.Errorf("the agent panicked:\n%s", a.Log())
			}
			a.Run("umount", dir)
		})
	}
}
