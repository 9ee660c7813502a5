package images_test

import (
	"crypto/sha256"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/web"
	"example.org/slipway/web/images"
)

// store is a shelf without lists of repositories.
type store struct {
	*images.Shelf
	web.Repositories
}

// open returns a handler of the pages, which is closed when the test ends.
func open(t testing.TB, s *images.Shelf, access web.Access) *web.Handler {
	t.Helper()
	h, err := web.New(&web.Options{Files: s, Browse: store{s, nil}, Access: access, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// visit requests a page from a handler.
func visit(t testing.TB, h http.Handler, path string) (status int, body string) {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, _ := io.ReadAll(w.Body)
	return w.Code, html.UnescapeString(string(b))
}

func holds(t testing.TB, h http.Handler, path string, texts ...string) string {
	t.Helper()
	status, body := visit(t, h, path)
	for range 100 { // shared files are counted in the background
		if !strings.Contains(body, "Being counted") {
			break
		}
		time.Sleep(20 * time.Millisecond)
		status, body = visit(t, h, path)
	}
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, body)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("%s lacks %q:\n%s", path, text, body)
		}
	}
	return body
}

// TestTree checks the files of an image, by directory and by name.
func TestTree(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	all := holds(t, h, "/ui/tree/lib/app:v2", "Files of lib/app:v2", "1 of 5 contents", "bin", "srv", "By layer", "Only in this image", "100 B", "→", "usr/lib")
	if strings.Contains(all, "etc/old") {
		t.Error("a file that is gone is shown")
	}
	holds(t, h, "/ui/tree/lib/app:v2?path=bin", "setuid", "capabilities", "the same file as bin/ash", "opened", "4755", "2 files", "2.9 KiB")
	body := holds(t, h, "/ui/tree/lib/app:v2?path=srv", `a<script>alert(1)\n\u202egpj.exe\xff`)
	if _, raw := getRaw(h, "/ui/tree/lib/app:v2?path=srv"); strings.Contains(raw, "<script>alert") || strings.Contains(body, "\u202e") {
		t.Error("a name is not escaped")
	}
	holds(t, h, "/ui/tree/lib/app:v2?q=DAT", "1 name holds", "srv/data")
	holds(t, h, "/ui/tree/lib/app:v2?q=srv/d", "srv/data")
	holds(t, h, "/ui/tree/lib/app:v2?q=nothing-like-it", "Nothing has this name")
	if s.Looks != 2 {
		t.Errorf("indexes were read %d times, want 2: the tree is to be kept", s.Looks)
	}
	for _, path := range []string{"lib/app:v3", "lib/app", "lib/app:", "LIB/app:v1", "lib/app:v2?path=bin/sh", "lib/app:v2?path=../..", "lib/app:v2?path=nowhere", "lib/app@sha256:12"} {
		if status, _ := visit(t, h, "/ui/tree/"+path); status != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", path, status)
		}
	}
	for _, path := range []string{"from=99999999999999999999", "from=-5", "from=77", "sort=%00", "path=/bin/", "q=%ff", "q=%27%3Cb%3E"} {
		holds(t, h, "/ui/tree/lib/app:v2?"+path)
	}
}

func getRaw(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, w.Body.String()
}

// TestTreeProblems checks that the page of an image whose files cannot be shown says why
// and what to do.
func TestTreeProblems(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	s.Put("lib/chart", "v1", map[string]any{"layers": []oci.Descriptor{{MediaType: "application/vnd.cncf.helm.chart.content.v1.tar+gzip", Digest: oci.SHA256(nil)}}})
	holds(t, h, "/ui/tree/lib/chart:v1", "Not a file tree", "helm")
	s.Put("lib/odd", "v1", []int{1})
	holds(t, h, "/ui/tree/lib/odd:v1", "Not an image")
	s.Put("lib/none", "v1", map[string]any{"layers": []oci.Descriptor{}})
	holds(t, h, "/ui/tree/lib/none:v1", "No layers")
	new := map[string]any{"layers": []oci.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256(nil)}}}
	s.Put("lib/new", "v1", new)
	s.Put("off/app", "v1", new)
	holds(t, h, "/ui/tree/lib/new:v1", "Not converted", "slipway convert --all")
	holds(t, h, "/ui/tree/off/app:v1", "Conversion to Gear is off")
	s.Fail = &gear.PendingError{RetryAfter: time.Second}
	holds(t, h, "/ui/tree/lib/new:v1", "Not converted yet")
	holds(t, h, "/ui/tree/lib/app:v1", "Not converted yet")
	s.Fail = &gear.PendingError{Reason: "it <is> broken"}
	holds(t, h, "/ui/tree/lib/new:v1", "could not be converted", "it <is> broken", "--again")
	holds(t, h, "/ui/diff/lib/app?from=v1&to=v2", "could not be converted")
	s.Fail = nil

	child := func(ref, os, arch string) oci.Descriptor {
		d := oci.Descriptor{Digest: s.Manifests["lib/app "+ref].Digest}
		if os != "" {
			d.Platform = images.PlatformOf(os, arch)
		}
		return d
	}
	s.Put("lib/app", "multi", map[string]any{"manifests": []oci.Descriptor{child("v1", "linux", "arm64"), child("v2", "linux", "amd64"), child("v1", "unknown", "unknown")}})
	holds(t, h, "/ui/tree/lib/app:multi", "linux/arm64", "<strong>linux/amd64</strong>", "srv")
	holds(t, h, "/ui/tree/lib/app:multi?platform=linux/arm64", "<strong>linux/arm64</strong>")
	holds(t, h, "/ui/tree/lib/app:multi?platform=plan9/mips", "No such platform", "linux/arm64, linux/amd64")
}

// TestDiff checks the differences between two tags.
func TestDiff(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	holds(t, h, "/ui/diff/lib/app", "Name two tags")
	holds(t, h, "/ui/diff/lib/app?from=v1&to=v2", "old", "removed", "content", "srv", "added", "1 of 2 layers", "in 3 new contents", "Variable A", "Variable B", "Label x", "<b>", `["sh","-c"]`)
	holds(t, h, "/ui/diff/lib/app?from=v1&to=v2&path=etc", "Only below", "conf")
	holds(t, h, "/ui/diff/lib/app?from=v1&to=v1", "Nothing differs here", "0 B")
	holds(t, h, "/ui/diff/lib/app?from=v1&to=v2&at=-7")
	for _, path := range []string{"lib/app?from=v1&to=v9", "lib/app?from=../x&to=v1", "LIB", ""} {
		if status, _ := visit(t, h, "/ui/diff/"+path); status != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", path, status)
		}
	}
	changed := images.Layer(t, rootfs.Entry{Path: "a", Type: rootfs.File, Mode: 0o755, UID: 5, Link: "x"}, rootfs.Entry{Path: "b", Type: rootfs.Symlink, Link: "y", Mode: 0o777}, rootfs.Entry{Path: "c", Type: rootfs.File, Mode: 0o644, Sec: 99, Link: "c"}, images.File("d", "d"))
	s.Push("lib/two", "1", "{}", images.Layer(t, images.File("a", "x"), rootfs.Entry{Path: "b", Type: rootfs.Symlink, Link: "x", Mode: 0o777}, images.File("c", "c"), rootfs.Entry{Path: "d", Type: rootfs.Dir, Mode: 0o755}, images.File("d/e", "e")))
	s.Push("lib/two", "2", "{}", changed)
	body := holds(t, h, "/ui/diff/lib/two?from=1&to=2", "mode 0644, now 0755", "owner 0:0, now 5:0", "link to x, now to y", "directory is now file", "1 differs in its time only")
	if strings.Contains(body, "touched") {
		t.Error("what only the time of which changed is shown")
	}
	holds(t, h, "/ui/diff/lib/two?from=1&to=2&times=1", "touched", "1970-01-01")
}

// TestLargeTree checks that an image of 100,000 files in two layers is shown quickly.
func TestLargeTree(t *testing.T) {
	s := images.NewShelf()
	b, top := gear.NewBuilder(nil), gear.NewBuilder(nil)
	for i := range 100_000 {
		path := fmt.Sprintf("usr/lib/package-%03d/dir-%d/file-%d.py", i/500, i%7, i)
		if i >= 60_000 {
			path = fmt.Sprintf("flat/file-%d", i)
		}
		f := gear.File{Name: sha256.Sum256([]byte(path)), Size: int64(i + 1)}
		to := b
		if i%10 == 0 {
			to = top
		}
		if err := to.Add(rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Size: f.Size}, f); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	y, err := top.Index()
	if err != nil {
		t.Fatal(err)
	}
	s.Push("lib/large", "v1", "{}", x)
	s.Push("lib/large", "v2", "{}", x, y)
	h := open(t, s, nil)
	for i, path := range []string{"tree/lib/large:v2", "tree/lib/large:v2", "tree/lib/large:v2?path=flat", "tree/lib/large:v2?path=flat&sort=name&from=20000", "tree/lib/large:v2?q=file-9", "diff/lib/large?from=v1&to=v2", "diff/lib/large?from=v1&to=v2"} {
		began := time.Now()
		body := holds(t, h, "/ui/"+path)
		took := time.Since(began)
		t.Logf("%-50s %8v, %d KiB", path, took.Round(time.Millisecond/10), len(body)>>10)
		if i > 0 && i != 5 && took > 2*time.Second { // below 200 ms on a quiet machine
			t.Errorf("%s took %v", path, took)
		}
	}
	holds(t, h, "/ui/tree/lib/large:v2?path="+url.QueryEscape("usr/lib/package-003"), "500 files")
}
