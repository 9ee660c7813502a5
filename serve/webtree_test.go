package serve_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/oci"
)

// treeLayer is a layer of files.
func treeLayer(t testing.TB, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// pushTree pushes an image with one layer of files.
func (s *instance) pushTree(repo, tag string, files map[string]string, edits ...func(*http.Request)) {
	s.t.Helper()
	layer := treeLayer(s.t, files)
	d := s.pushBlob(repo, layer, edits...)
	c := s.pushBlob(repo, "{}", edits...)
	m := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`,
		oci.MediaTypeOCIManifest, c, d, len(layer))
	s.want(http.StatusCreated, "PUT", "/v2/"+repo+"/manifests/"+tag, m, append(edits, isManifest)...)
}

// TestFilePages reads the files of images and the differences between their tags from a server.
func TestFilePages(t *testing.T) {
	t.Parallel()
	s := start(t, setup{yaml: "gear: {rules: [{repositories: ['off/**'], convert: off}]}\n"})
	shared := strings.Repeat("many have this. ", 1000)
	s.pushTree("lib/app", "v1", map[string]string{"etc/conf": "one", "lib/shared": shared})
	s.pushTree("lib/app", "v2", map[string]string{"etc/conf": "two", "lib/shared": shared})
	s.pushTree("lib/other", "v1", map[string]string{"lib/shared": shared})
	s.pushTree("off/app", "v1", map[string]string{"a": "never converted"})

	// The shares of an image are cached for some minutes. All images must be converted before they
	// are counted.
	for _, image := range []string{"lib/app:v2", "lib/other:v1"} {
		s.holds("/ui/tree/"+image+"?path=lib", "shared")
	}
	s.holds("/ui/tree/lib/app:v1", "etc", "15.6 KiB", "in 2 of 3 contents")
	s.holds("/ui/tree/lib/other:v1", "15.6 KiB")
	s.holds("/ui/tree/lib/app:v2?path=lib", "shared", "<td>1</td>")
	s.holds("/ui/diff/lib/app?from=v1&to=v2", "conf", "content", "3 B")
	s.holds("/ui/tree/off/app:v1", "Conversion to Gear is off")
	s.want(http.StatusNotFound, "GET", "/ui/tree/lib/app:v9", "")
}

// TestFilePagesAccess checks that a client that may not see a repository learns neither its files
// nor that others share them.
func TestFilePagesAccess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, path, htpasswd(t, "root", "r", "alice", "a"))
	s := start(t, setup{yaml: "auth:\n  htpasswd: {path: " + path + ", realm: here}\n  access:\n" +
		"  - {subjects: [root], repositories: ['**'], actions: ['*', admin]}\n  - {subjects: [alice], repositories: ['lib/*'], actions: [pull]}\n"})
	root, alice := basic("root", "r"), basic("alice", "a")
	shared := strings.Repeat("a file that two have. ", 1000)
	s.pushTree("lib/app", "v1", map[string]string{"shared": shared}, root)
	s.pushTree("hidden/app", "v1", map[string]string{"shared": shared}, root)
	poll(t, "the layers are converted", func() bool {
		return strings.Contains(s.do("GET", "/ui/tree/hidden/app:v1", "", root).body, "<td>1</td>")
	})
	body := s.want(http.StatusOK, "GET", "/ui/tree/lib/app:v1", "", alice).body
	if !strings.Contains(body, "shared") || strings.Contains(body, "<td>1</td>") || !strings.Contains(body, "Only in this image of the repository") {
		t.Errorf("alice sees\n%s", body)
	}
	for _, hidden := range []string{"tree/hidden/app:v1", "diff/hidden/app?from=v1&to=v1", "diff/hidden/app"} {
		got := s.want(http.StatusNotFound, "GET", "/ui/"+hidden, "", alice).body
		if none := s.want(http.StatusNotFound, "GET", "/ui/"+strings.Replace(hidden, "hidden", "nowhere", 1), "", alice).body; got != none {
			t.Errorf("%s: a hidden repository looks unlike one that is not there:\n%s\n%s", hidden, got, none)
		}
	}
}
