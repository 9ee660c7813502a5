package web

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

// shelf holds images with indexes. It implements Files, and the part of Browse that the
// pages of files need.
type shelf struct {
	Browse
	manifests map[string]catalog.Manifest
	indexes   map[oci.Digest]*gear.Index
	blobs     map[oci.Digest][]byte
	profile   []gear.Name
	looks     int
	// fail is the error of MayLook, unread that of Look, and broken that of optional
	// parts of a page.
	fail, unread, broken error
	// share implements Share, and holders is the result of Holders.
	share   func(context.Context) (gearfacts.Share, error)
	holders gearfacts.Holders
}

func newShelf() *shelf {
	return &shelf{manifests: map[string]catalog.Manifest{}, indexes: map[oci.Digest]*gear.Index{}, blobs: map[oci.Digest][]byte{},
		share: func(context.Context) (gearfacts.Share, error) {
			return gearfacts.Share{Files: 5, Bytes: 500, Stored: 200, OwnFiles: 2, OwnBytes: 200, OwnStored: 100}, nil
		}, holders: gearfacts.Holders{Repositories: []string{"lib/app", "lib/other", "secret/one"}}}
}

func (s *shelf) Manifest(_ context.Context, repo string, d oci.Digest) (catalog.Manifest, error) {
	return s.Tag(context.Background(), repo, string(d))
}
func (s *shelf) Tag(_ context.Context, repo, ref string) (catalog.Manifest, error) {
	m, ok := s.manifests[repo+" "+ref]
	if !ok {
		return m, catalog.ErrNotFound
	}
	return m, nil
}
func (s *shelf) Content(_ context.Context, _ string, d oci.Digest, most int64) ([]byte, error) {
	b, ok := s.blobs[d]
	switch {
	case !ok:
		return nil, catalog.ErrNotFound
	case int64(len(b)) > most:
		return nil, errors.New("too large")
	}
	return b, nil
}
func (s *shelf) MayLook(_ context.Context, _ string, d oci.Digest) error {
	if s.fail != nil {
		return s.fail
	}
	if s.indexes[d] == nil {
		return gearregistry.ErrNotConverted
	}
	return nil
}
func (s *shelf) Look(_ context.Context, _ string, d oci.Digest) (*gear.Index, error) {
	s.looks++
	return s.indexes[d], s.unread
}
func (s *shelf) Profile(context.Context, string, oci.Digest) ([]gear.Name, error) {
	return s.profile, s.broken
}
func (s *shelf) Share(ctx context.Context, _ oci.Digest, _ []oci.Digest, _ string) (gearfacts.Share, error) {
	if s.broken != nil {
		return gearfacts.Share{}, s.broken
	}
	return s.share(ctx)
}
func (s *shelf) Holders(_ context.Context, names []gear.Name, _ int) ([]gearfacts.Holders, error) {
	out := make([]gearfacts.Holders, len(names))
	for i := range out {
		out[i] = s.holders
	}
	return out, s.broken
}
func (s *shelf) Converts(repo string) bool { return repo != "off/app" }

// content returns a file with the text.
func content(text string) gear.File {
	return gear.File{Name: sha256.Sum256([]byte(text)), Size: int64(len(text))}
}

// layer builds an index. The Link of a file entry is its content.
func layer(t testing.TB, entries ...rootfs.Entry) *gear.Index {
	t.Helper()
	b := gear.NewBuilder(nil)
	for _, e := range entries {
		f := gear.Empty()
		if e.Type == rootfs.File {
			f = content(e.Link)
			e.Link, e.Size = "", f.Size
		}
		if err := b.Add(e, f); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func file(path, text string) rootfs.Entry {
	return rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Link: text}
}

// push puts an image on the shelf.
func (s *shelf) push(repo, tag, config string, layers ...*gear.Index) oci.Digest {
	m := map[string]any{"config": oci.Descriptor{Digest: oci.SHA256([]byte(config))}}
	s.blobs[oci.SHA256([]byte(config))] = []byte(config)
	var list []oci.Descriptor
	for _, x := range layers {
		d := oci.SHA256(fmt.Appendf(nil, "%p", x))
		s.indexes[d] = x
		list = append(list, oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: d, Size: 1000})
	}
	m["layers"] = list
	return s.put(repo, tag, m)
}

func (s *shelf) put(repo, tag string, v any) oci.Digest {
	b, _ := json.Marshal(v)
	m := catalog.Manifest{Digest: oci.SHA256(b), Content: b}
	s.manifests[repo+" "+tag], s.manifests[repo+" "+string(m.Digest)] = m, m
	return m.Digest
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

const hostile = "a<script>alert(1)\n\u202egpj.exe\xff"

func testShelf(t testing.TB) *shelf {
	s := newShelf()
	base := layer(t, rootfs.Entry{Path: "bin", Type: rootfs.Dir, Mode: 0o755}, file("bin/sh", strings.Repeat("s", 3000)), rootfs.Entry{Path: "bin/ash", Type: rootfs.HardLink, Link: "bin/sh"},
		rootfs.Entry{Path: "bin/su", Type: rootfs.File, Mode: 0o4755, Link: "su", Xattrs: []rootfs.Xattr{{Name: "security.capability", Value: "x"}}},
		file("etc/old", "gone"), file("etc/conf", "one"), rootfs.Entry{Path: "lib", Type: rootfs.Symlink, Mode: 0o777, Link: "usr/lib"})
	top := layer(t, rootfs.Entry{Path: "etc/old", Type: rootfs.Whiteout}, file("etc/conf", "two!"), file("srv/data", strings.Repeat("d", 9000)), file("srv/"+hostile, "h"))
	s.push("lib/app", "v1", `{"architecture":"amd64","os":"linux","config":{"Env":["A=1","B=2"],"Cmd":["sh"]}}`, base)
	s.push("lib/app", "v2", `{"architecture":"amd64","os":"linux","config":{"Env":["A=3"],"Cmd":["sh","-c"],"Labels":{"x":"<b>"}}}`, base, top)
	s.profile = []gear.Name{content(strings.Repeat("s", 3000)).Name}
	return s
}

// TestTree checks the files of an image, by directory and by name.
func TestTree(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	all := holds(t, h, "/ui/tree/lib/app:v2", "Files of lib/app:v2", "1 of 5 contents", "bin", "srv", "By layer", "Only in this image", "100 B", "→", "usr/lib")
	if strings.Contains(all, "etc/old") {
		t.Error("a file that is gone is shown")
	}
	holds(t, h, "/ui/tree/lib/app:v2?path=bin", "setuid", "capabilities", "the same file as bin/ash", "opened", "4755", "2 files", "2.9 KiB")
	body := holds(t, h, "/ui/tree/lib/app:v2?path=srv", `a<script>alert(1)\n\u202egpj.exe\xff`)
	if _, raw := getRaw(h, "/ui/tree/lib/app:v2?path=srv"); strings.Contains(raw, "<script>alert") || strings.Contains(body, "\u202e") {
		t.Error("a name is not escaped")
	}
	holds(t, h, "/ui/tree/lib/app:v2?q=DAT", "1 names hold", "srv/data")
	holds(t, h, "/ui/tree/lib/app:v2?q=srv/d", "srv/data")
	holds(t, h, "/ui/tree/lib/app:v2?q=nothing-like-it", "Nothing is called so")
	if s.looks != 2 {
		t.Errorf("indexes were read %d times, want 2: the tree is to be kept", s.looks)
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
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	s.put("lib/chart", "v1", map[string]any{"layers": []oci.Descriptor{{MediaType: "application/vnd.cncf.helm.chart.content.v1.tar+gzip", Digest: oci.SHA256(nil)}}})
	holds(t, h, "/ui/tree/lib/chart:v1", "Not a file tree", "helm")
	s.put("lib/odd", "v1", []int{1})
	holds(t, h, "/ui/tree/lib/odd:v1", "Not an image")
	s.put("lib/none", "v1", map[string]any{"layers": []oci.Descriptor{}})
	holds(t, h, "/ui/tree/lib/none:v1", "No layers")
	new := map[string]any{"layers": []oci.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256(nil)}}}
	s.put("lib/new", "v1", new)
	s.put("off/app", "v1", new)
	holds(t, h, "/ui/tree/lib/new:v1", "Not converted", "slipway convert --all")
	holds(t, h, "/ui/tree/off/app:v1", "Conversion to Gear is off")
	s.fail = &gearregistry.PendingError{RetryAfter: time.Second}
	holds(t, h, "/ui/tree/lib/new:v1", "Not converted yet")
	holds(t, h, "/ui/tree/lib/app:v1", "Not converted yet")
	s.fail = &gearregistry.PendingError{Reason: "it <is> broken"}
	holds(t, h, "/ui/tree/lib/new:v1", "could not be converted", "it <is> broken", "--again")
	holds(t, h, "/ui/diff/lib/app?from=v1&to=v2", "could not be converted")
	s.fail = nil

	child := func(ref, os, arch string) oci.Descriptor {
		d := oci.Descriptor{Digest: s.manifests["lib/app "+ref].Digest}
		if os != "" {
			d.Platform = platformOf(os, arch)
		}
		return d
	}
	s.put("lib/app", "multi", map[string]any{"manifests": []oci.Descriptor{child("v1", "linux", "arm64"), child("v2", "linux", "amd64"), child("v1", "unknown", "unknown")}})
	holds(t, h, "/ui/tree/lib/app:multi", "linux/arm64", "<strong>linux/amd64</strong>", "srv")
	holds(t, h, "/ui/tree/lib/app:multi?platform=linux/arm64", "<strong>linux/arm64</strong>")
	holds(t, h, "/ui/tree/lib/app:multi?platform=plan9/mips", "No such platform", "linux/arm64, linux/amd64")
}

// TestDiff checks the differences between two tags.
func TestDiff(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
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
	changed := layer(t, rootfs.Entry{Path: "a", Type: rootfs.File, Mode: 0o755, UID: 5, Link: "x"}, rootfs.Entry{Path: "b", Type: rootfs.Symlink, Link: "y", Mode: 0o777}, rootfs.Entry{Path: "c", Type: rootfs.File, Mode: 0o644, Sec: 99, Link: "c"}, file("d", "d"))
	s.push("lib/two", "1", "{}", layer(t, file("a", "x"), rootfs.Entry{Path: "b", Type: rootfs.Symlink, Link: "x", Mode: 0o777}, file("c", "c"), rootfs.Entry{Path: "d", Type: rootfs.Dir, Mode: 0o755}, file("d/e", "e")))
	s.push("lib/two", "2", "{}", changed)
	body := holds(t, h, "/ui/diff/lib/two?from=1&to=2", "mode 0644, now 0755", "owner 0:0, now 5:0", "link to x, now to y", "directory is now file", "1 differ in their time only")
	if strings.Contains(body, "touched") {
		t.Error("what only the time of which changed is shown")
	}
	holds(t, h, "/ui/diff/lib/two?from=1&to=2&times=1", "touched", "1970-01-01")
}

// TestLargeTree checks that an image of 100,000 files in two layers is shown quickly.
func TestLargeTree(t *testing.T) {
	s := newShelf()
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
	s.push("lib/large", "v1", "{}", x)
	s.push("lib/large", "v2", "{}", x, y)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
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

func platformOf(os, arch string) *ocispec.Platform {
	return &ocispec.Platform{OS: os, Architecture: arch}
}

// TestTreesBounded checks that the least recently used trees are dropped first.
func TestTreesBounded(t *testing.T) {
	c := newTrees()
	for i := range 5 {
		c.put(&fileTree{key: fmt.Sprint(i), cost: treesBytes / 3})
		c.get("0")
	}
	for key, want := range map[string]bool{"0": true, "1": false, "2": false, "3": true, "4": true} {
		if got := c.get(key) != nil; got != want {
			t.Errorf("tree %s is kept: %t, want %t", key, got, want)
		}
	}
	if c.put(&fileTree{key: "huge", cost: 9 * treesBytes}); c.get("huge") == nil || c.order.Len() != 1 {
		t.Error("the last tree is not kept, or others with it")
	}
}

// FuzzShowName checks that every name is shown as plain, visible text.
func FuzzShowName(f *testing.F) {
	f.Add(hostile)
	f.Add("plain")
	f.Add("\uFFFD")
	f.Add("\U000E0001")
	f.Add(`a\x0a`)
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range showName(s) {
			if r == utf8.RuneError || !unicode.IsPrint(r) {
				t.Errorf("%q is shown as %q", s, showName(s))
			}
		}
		if i, ok := parseImage(s); ok && i.String() != s {
			t.Errorf("%q is read as %q", s, i)
		}
	})
}

// TestSquarify checks that the parts of a treemap fill it and lie within it.
func TestSquarify(t *testing.T) {
	for _, sizes := range [][]int64{{1}, {5, 5}, {600, 600, 400, 300, 200, 200, 100}, {1 << 60, 1, 1, 1}, {3, 2, 1, 1, 1, 1, 1, 1, 1, 1}} {
		var parts []part
		var total float64
		for _, n := range sizes {
			parts = append(parts, part{bytes: n})
			total += float64(n)
		}
		all := squarify(parts, rect{0, 0, 960, 220})
		if len(all) != len(parts) {
			t.Fatalf("%v: %d places", sizes, len(all))
		}
		for k, r := range all {
			if want := float64(sizes[k]) / total * 960 * 220; r.x < -.01 || r.y < -.01 || r.x+r.w > 960.01 || r.y+r.h > 220.01 || math.Abs(r.w*r.h-want) > 1 {
				t.Errorf("%v: part %d is at %+v, want area %.1f", sizes, k, r, want)
			}
		}
	}
}
