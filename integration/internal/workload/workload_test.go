package workload_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/integration/internal/workload"
)

// forgetful is a minimal registry for the load. It can lose, corrupt and resurrect what it holds.
type forgetful struct {
	mu      sync.Mutex
	content map[string][]byte // by path
	buried  map[string][]byte // deleted content
}

func newForgetful() *forgetful {
	return &forgetful{content: map[string][]byte{}, buried: map[string][]byte{}}
}

func (f *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil { // the client left, so nothing of it counts
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	repo, _, upload := strings.Cut(r.URL.Path, "/blobs/uploads/")
	switch {
	case r.Method == http.MethodPost:
		w.Header().Set("Location", r.URL.Path+wire.Digest(append(body, byte(len(f.content))))+time.Now().String()[20:29])
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPatch:
		f.content[r.URL.Path] = append(f.content[r.URL.Path], body...)
		w.Header().Set("Location", r.URL.Path)
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPut && upload:
		blob, digest := append(f.content[r.URL.Path], body...), r.URL.Query().Get("digest")
		if wire.Digest(blob) != digest { // an earlier chunk was cut off
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		f.content[repo+"/blobs/"+digest] = blob
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut:
		f.content[r.URL.Path] = body
		dir := r.URL.Path[:strings.LastIndexByte(r.URL.Path, '/')+1]
		f.content[dir+wire.Digest(body)] = body
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodDelete:
		f.remove(r.URL.Path)
		w.WriteHeader(http.StatusAccepted)
	default:
		b, ok := f.content[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Docker-Content-Digest", wire.Digest(b))
		_, _ = w.Write(b)
	}
}

// remove deletes a path, and with a manifest's digest its tags.
func (f *forgetful) remove(path string) {
	gone := f.content[path]
	for p, b := range f.content {
		if p == path || strings.Contains(path, "sha256:") && strings.Contains(p, "/manifests/") && string(b) == string(gone) {
			f.buried[p] = b
			delete(f.content, p)
		}
	}
}

// TestLedger checks that the ledger accepts a registry that keeps its promises, and finds each way
// of breaking one.
func TestLedger(t *testing.T) {
	blob := func(p string) bool { return strings.Contains(p, "/blobs/sha256:") }
	tag := func(p string) bool { return strings.Contains(p, "/manifests/t") }
	for _, tt := range []struct {
		name    string
		breakIt func(f *forgetful) bool // returns false if there is nothing to break
		want    string
	}{
		{"sound", func(*forgetful) bool { return true }, ""},
		{"lost blob", func(f *forgetful) bool { return drop(f, blob) }, "is absent, want sha256:"},
		{"lost tag", func(f *forgetful) bool { return drop(f, tag) }, "is absent, want sha256:"},
		{"short blob", func(f *forgetful) bool {
			return change(f, blob, func(b []byte) []byte { return b[:len(b)-1] })
		}, "blob sha256:"},
		{"changed manifest", func(f *forgetful) bool {
			return change(f, tag, func(b []byte) []byte { return append([]byte(" "), b...) })
		}, "want sha256:"},
		{"deleted image is back", func(f *forgetful) bool {
			for p, b := range f.buried {
				if tag(p) {
					f.content[p] = b
					return true
				}
			}
			return false
		}, "want absent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newForgetful()
			server := httptest.NewServer(f)
			defer server.Close()
			client := wire.New(strings.TrimPrefix(server.URL, "http://"))
			defer client.Close()
			ledger := &workload.Ledger{}
			load := workload.Start(client, ledger, "p", 3, 42)
			proc.Poll(t, 30*time.Second, "a deleted tag", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				for p := range f.buried {
					if tag(p) {
						return true
					}
				}
				return false
			})
			if err := load.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := ledger.Settle(t.Context(), client); err != nil {
				t.Fatalf("before anything is broken: %v", err)
			}
			if !tt.breakIt(f) {
				t.Fatal("the load left nothing to break")
			}
			err := ledger.Check(t.Context(), client, ledger.Mark())
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func drop(f *forgetful, match func(string) bool) bool {
	for p := range f.content {
		if match(p) {
			delete(f.content, p)
			return true
		}
	}
	return false
}

func change(f *forgetful, match func(string) bool, to func([]byte) []byte) bool {
	for p, b := range f.content {
		if match(p) {
			f.content[p] = to(b)
			return true
		}
	}
	return false
}
