package check_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/storage"
)

// refusals are ways in which registries refuse a repository.
var refusals = map[string]func(http.ResponseWriter){
	"unauthorized": func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) },
	"challenge": func(w http.ResponseWriter) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	},
	"denied": func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"errors":[{"code":"DENIED"}]}`))
	},
	"denied by a proxy": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("<html>no</html>"))
	},
	"absent": func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("<html>404</html>"))
	},
	"no such method": func(w http.ResponseWriter) { w.WriteHeader(http.StatusMethodNotAllowed) },
}

// TestSourceRefusesSome repairs from another registry that refuses some repositories. The
// repair takes what that registry gives, and names the repositories that were refused. It
// does not give up their contents: with the right credentials the next repair gets them.
func TestSourceRefusesSome(t *testing.T) {
	b, source := newBed(t, nil, registry.Options{}), newBed(t, nil, registry.Options{})
	type image struct {
		repo    string
		content []byte
	}
	var images []image
	seed := uint64(0)
	shared := registrytest.Content(1000, 30_000)
	for _, repo := range []string{"fine", "absent", "challenge", "denied", "denied by a proxy", "no such method", "unauthorized", "zz"} {
		seed++
		im := image{strings.ReplaceAll(repo, " ", "-"), registrytest.Content(seed, 30_000)}
		images = append(images, im)
		for _, to := range []*bed{b, source} {
			to.PushManifest(im.repo, registrytest.ImageOf(to.PushBytes(im.repo, im.content), to.PushBytes(im.repo, shared)), "v1")
		}
	}
	want := registrytest.Reachable(t, b)
	var refuse atomic.Bool
	h := server.New(source, &server.Options{Logger: slog.New(slog.DiscardHandler)})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, no := range refusals {
			if refuse.Load() && strings.HasPrefix(r.URL.Path, "/v2/"+strings.ReplaceAll(name, " ", "-")+"/") {
				no(w)
				return
			}
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(srv.URL, nil)
	registrytest.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	for i, im := range images {
		b.Overwrite(storage.BlobKey(oci.SHA256(im.content)), im.content[:[]int{0, len(im.content) - 1}[i%2]])
	}
	b.Overwrite(storage.BlobKey(oci.SHA256(shared)), nil)

	refuse.Store(true)
	rep := b.Check(check.Options{Repair: true, From: check.Other(c, "")})
	if rep.Clean() {
		t.Error("a repair that could not get everything says that all is well")
	}
	for _, im := range images {
		if im.repo == "fine" || im.repo == "zz" {
			b.WantBlob(im.repo, im.content)
		}
		named := false
		for _, p := range rep.Problems {
			named = named || !p.Repaired && strings.Contains(p.Detail, "repository "+im.repo+" of the source refuses")
		}
		if refused := im.repo != "fine" && im.repo != "zz" && im.repo != "absent"; named != refused {
			t.Errorf("%s: the report names it as refused: %t, want %t", im.repo, named, refused)
		}
	}
	b.WantBlob("fine", shared)

	refuse.Store(false)
	b.Check(check.Options{Repair: true, From: check.Other(c, "")})
	registrytest.NoError(t, b.Clean(check.Options{}))
	if diff := cmp.Diff(want, registrytest.Reachable(t, b)); diff != "" {
		t.Errorf("after the second repair (-want +got):\n%s", diff)
	}
}
