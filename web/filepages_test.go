package web

import (
	"context"
	"errors"
	"fmt"
	"html"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/catalog/gearfacts"
)

// requestOf returns a request of a handler, without serving it.
func requestOf(h *Handler, path string) *request {
	return &request{h: h, r: httptest.NewRequest("GET", path, nil), w: httptest.NewRecorder()}
}

// TestTreeMemory checks that an image is not shown if it would take too much memory for
// any reason, and that a layer that occurs many times is read once.
func TestTreeMemory(t *testing.T) {
	s := newShelf()
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	one := layer(t, file("a", "a"))
	s.push("lib/app", "often", "{}", slices.Repeat([]*gear.Index{one}, 64)...)
	holds(t, h, "/ui/tree/lib/app:often", "1 B, in 1 entries")
	if s.looks != 1 {
		t.Errorf("a layer was read %d times", s.looks)
	}
	value := strings.Repeat("x", 512<<10)
	var large []rootfs.Entry
	for i := range maxTreeBytes>>19 + 1 {
		large = append(large, rootfs.Entry{Path: fmt.Sprintf("d%04d", i), Type: rootfs.Dir, Mode: 0o755, Xattrs: []rootfs.Xattr{{Name: "user.x", Value: value}}})
	}
	s.push("lib/app", "large", "{}", layer(t, large...))
	holds(t, h, "/ui/tree/lib/app:large", "Too many files")
	shared := large[0].Xattrs
	for i := range large {
		large[i].Xattrs = shared // as decoded: all share one row of attributes
	}
	s.push("lib/app", "alike", "{}", layer(t, large...))
	holds(t, h, "/ui/tree/lib/app:alike", "d0000")
}

// TestTreeCost checks that the cost of a tree is what it takes, hidden names and profiles
// included.
func TestTreeCost(t *testing.T) {
	path := strings.Repeat(strings.Repeat("n", 200)+"/", 10)
	x := layer(t, rootfs.Entry{Path: "attributes", Type: rootfs.Dir, Mode: 0o755, Xattrs: []rootfs.Xattr{{Name: "user.x", Value: strings.Repeat("x", 100<<10)}}})
	below := layer(t, file(path+"a", "a"), file(path+"b", "b"))
	hides := layer(t, rootfs.Entry{Path: strings.Repeat("n", 200), Type: rootfs.Whiteout})
	for name, test := range map[string]struct {
		layers []*gear.Index
		least  int64
	}{"attributes": {[]*gear.Index{x}, 100 << 10}, "hidden names": {[]*gear.Index{below, hides}, 2 * int64(len(path))}} {
		tree, err := newFileTree("", test.layers)
		if err != nil {
			t.Fatal(err)
		}
		if tree.cost < test.least || tree.cost > test.least+10_000 {
			t.Errorf("%s: the cost is %d, want %d and little more", name, tree.cost, test.least)
		}
	}

	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	holds(t, h, "/ui/tree/lib/app:v2")
	tree := h.trees.order.Front().Value.(*fileTree)
	var layers []*gear.Index
	for _, d := range tree.layers {
		layers = append(layers, s.indexes[d])
	}
	bare, err := newFileTree("", layers)
	if err != nil {
		t.Fatal(err)
	}
	profile := tree.newProfile(s.profile)
	with := bare.cost + profile.cost()
	if tree.cost != with || h.trees.bytes != with {
		t.Fatalf("with a profile %d bytes are kept and the tree takes %d, want %d", h.trees.bytes, tree.cost, with)
	}
	for i := range 3 * maxKept {
		h.trees.grew(tree, tree.keep(fmt.Sprint(i%(2*maxKept)), profile))
	}
	if want := with + int64(len(tree.profiles)-1)*profile.cost(); h.trees.bytes != want || tree.cost != want {
		t.Errorf("with %d profiles %d bytes are kept, want %d", len(tree.profiles), h.trees.bytes, want)
	}
	h.trees.put(&fileTree{key: "other", cost: 1})
	if h.trees.grew(tree, treesBytes); h.trees.get(tree.key) != nil || h.trees.bytes != 1 {
		t.Errorf("a tree that grew is kept, of %d bytes", h.trees.bytes)
	}
	if h.trees.grew(tree, 1); h.trees.bytes != 1 {
		t.Error("a tree that is not kept counts")
	}
}

// TestNoProfile checks that an absent profile takes no memory.
func TestNoProfile(t *testing.T) {
	tree, err := newFileTree("", []*gear.Index{layer(t, file("a", "a"))})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		if tree.newProfile(nil) != nil {
			t.Error("there is a profile of nothing")
		}
	}); n != 0 {
		t.Errorf("it takes %v allocations", n)
	}
}

// TestShareTurns checks that shared files are counted for one image at a time, and that
// only some requests wait for it.
func TestShareTurns(t *testing.T) {
	s := testShelf(t)
	var running, most atomic.Int32
	held := make(chan struct{})
	s.share = func(ctx context.Context) (gearfacts.Share, error) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		select {
		case <-held:
		case <-ctx.Done():
		}
		return gearfacts.Share{OwnStored: 100}, ctx.Err()
	}
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	x := layer(t, file("a", "a"))
	page := func(i int) string {
		status, body := visit(t, h, fmt.Sprintf("/ui/tree/lib/app:n%d", i))
		if status != http.StatusOK || !strings.Contains(body, "Largest files") {
			t.Fatalf("image %d: %d %s", i, status, body)
		}
		return body
	}
	for i := range maxCounts + 3 {
		s.push("lib/app", fmt.Sprintf("n%d", i), fmt.Sprintf(`{"author":"%d"}`, i), x)
		if got, want := strings.Contains(page(i), "Being counted"), i < maxCounts; got != want {
			t.Errorf("image %d is being counted: %t, want %t", i, got, want)
		}
	}
	if body := page(0); !strings.Contains(body, "Being counted") || len(h.trees.waiting) != maxCounts {
		t.Errorf("what is being counted was forgotten:\n%s", body)
	}
	close(held)
	for deadline := time.Now().Add(patience); len(h.trees.waiting) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they are not counted")
		}
	}
	holds(t, h, fmt.Sprintf("/ui/tree/lib/app:n%d", maxCounts-1), "100 B")
	if most.Load() != 1 {
		t.Errorf("%d were counted at once", most.Load())
	}
}

// TestTreeWithout checks that the files are shown even if the optional parts of the page
// fail.
func TestTreeWithout(t *testing.T) {
	s := testShelf(t)
	s.broken = errors.New("the catalogue does not answer")
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	for _, path := range []string{"lib/app:v2", "lib/app:v2?path=srv"} {
		body := holds(t, h, "/ui/tree/"+path, "data")
		for _, part := range []string{"Only in this image", "Opened at start", "Other repositories"} {
			if strings.Contains(body, part) {
				t.Errorf("%s has %q", path, part)
			}
		}
	}
}

// lent is the Access of a user who may pull lib/*, and who may also manage the registry.
type lent struct{ admin bool }

func (l lent) Open() bool { return false }
func (l lent) Authenticate(*http.Request) (*auth.Identity, error) {
	return &auth.Identity{Name: "alice"}, nil
}
func (l lent) Listed(_ *auth.Identity, repo string) bool { return strings.HasPrefix(repo, "lib/") }
func (l lent) Allowed(_ *auth.Identity, repo string, act auth.Action) bool {
	return act == auth.Admin && l.admin || act == auth.Pull && strings.HasPrefix(repo, "lib/")
}

// TestHolders checks that a user who may not see a repository learns nothing of its
// content.
func TestHolders(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s, Access: lent{}}, timing{})
	before := holds(t, h, "/ui/tree/lib/app:v2?path=srv", "data")
	for i := range maxHolders {
		s.holders.Repositories = append(s.holders.Repositories, fmt.Sprintf("secret/%d", i))
	}
	s.holders.More = true
	if after := holds(t, h, "/ui/tree/lib/app:v2?path=srv"); after != before {
		t.Errorf("what others hold changes the page:\n%s\n%s", before, after)
	}
	h, _ = open(t, &Options{Files: s, Browse: s, Access: lent{admin: true}}, timing{})
	holds(t, h, "/ui/tree/lib/app:v2?path=srv", "Other repositories", "52 or more")
	s.holders.Repositories = []string{"lib/app"}
	holds(t, h, "/ui/tree/lib/app:v2?path=srv", "not known")
	s.holders.More = false
	holds(t, h, "/ui/tree/lib/app:v2?path=srv", "none")
}

// TestSelf checks that a link is made without parsing the query again.
func TestSelf(t *testing.T) {
	h, _ := open(t, &Options{}, timing{})
	q := requestOf(h, "/ui/tree/lib/app:v2?path=usr&only=1&"+strings.Repeat("a&", 9_000)+"from=7")
	if got, want := q.self("from", "9"), "/ui/tree/lib/app:v2?from=9&only=1&path=usr"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := testing.AllocsPerRun(20, func() { q.self("from", "9") }); n > 50 {
		t.Errorf("a link takes %v allocations", n)
	}
}

// part returns an entry of an index.
func (s *shelf) part(tag, os, arch, version string) oci.Descriptor {
	p := platformOf(os, arch)
	p.OSVersion = version
	return oci.Descriptor{Digest: s.manifests["lib/app "+tag].Digest, Platform: p}
}

// TestPlatforms checks that each platform of an index can be chosen and is then shown.
func TestPlatforms(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	s.put("lib/app", "windows", map[string]any{"manifests": []oci.Descriptor{s.part("v1", "windows", "amd64", "1"), s.part("v2", "windows", "amd64", "2"), s.part("v1", "windows", "amd64", "2")}})
	for path, srv := range map[string]bool{"": false, "?platform=windows/amd64+1": false, "?platform=windows/amd64+2": true} {
		if got := strings.Contains(holds(t, h, "/ui/tree/lib/app:windows"+path, "windows/amd64 1", "windows/amd64 2"), "srv"); got != srv {
			t.Errorf("%s: the files of the second are shown: %t, want %t", path, got, srv)
		}
	}
	holds(t, h, "/ui/tree/lib/app:windows?platform=windows/amd64", "No such platform", "windows/amd64 1, windows/amd64 2")
	s.put("lib/app", "twice", map[string]any{"manifests": []oci.Descriptor{s.part("v1", "linux", "arm64", ""), s.part("v2", "linux", "arm64", "")}})
	for _, path := range []string{"", "?platform=linux/arm64"} {
		if body := holds(t, h, "/ui/tree/lib/app:twice"+path, "<strong>linux/arm64</strong>"); strings.Contains(body, "srv") || strings.Count(body, "linux/arm64</") != 1 {
			t.Errorf("%q: of two for a platform it is not the first:\n%s", path, body)
		}
	}
	var many []oci.Descriptor
	for i := range 3 * maxChoices {
		many = append(many, s.part("v1", "linux", fmt.Sprint("cpu", i), ""))
	}
	s.put("lib/app", "many", map[string]any{"manifests": many})
	body := holds(t, h, "/ui/tree/lib/app:many?platform=linux/cpu250", "<strong>linux/cpu250</strong>", "and 199 more")
	if n := strings.Count(body, "platform=linux%2Fcpu") - strings.Count(body, "platform=linux%2Fcpu250"); n != maxChoices {
		t.Errorf("%d other platforms are linked", n)
	}
	inner := s.put("lib/app", "inner", map[string]any{"manifests": many})
	s.put("lib/app", "outer", map[string]any{"manifests": []oci.Descriptor{{Digest: inner, Platform: platformOf("linux", "amd64")}}})
	holds(t, h, "/ui/tree/lib/app:outer", "Not an image", "names another index")
}

// TestDiffPlatform checks that the page of a difference names its platform and lets the
// reader choose another.
func TestDiffPlatform(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	s.put("lib/app", "a", map[string]any{"manifests": []oci.Descriptor{s.part("v1", "linux", "arm64", ""), s.part("v2", "linux", "s390x", "")}})
	s.put("lib/app", "b", map[string]any{"manifests": []oci.Descriptor{s.part("v1", "linux", "riscv64", ""), s.part("v2", "linux", "s390x", "")}})
	s.put("lib/app", "c", map[string]any{"manifests": []oci.Descriptor{s.part("v1", "linux", "mips", "")}})
	holds(t, h, "/ui/tree/lib/app:a?platform=linux/s390x", "diff/lib/app?platform=linux%2Fs390x&to=a")
	holds(t, h, "/ui/diff/lib/app?to=a&platform=linux/s390x", `<option value="linux/s390x" selected>`)
	holds(t, h, "/ui/diff/lib/app?from=a&to=b", "lib/app:a</a> for <bdi>linux/s390x</bdi>", "lib/app:b</a> for <bdi>linux/s390x</bdi>", "Nothing differs here",
		`tree/lib/app:a?platform=linux%2Fs390x`, `<option value="linux/arm64">`, `<option value="linux/riscv64">`)
	holds(t, h, "/ui/diff/lib/app?from=a&to=v2&platform=linux/arm64", "lib/app:a</a> for <bdi>linux/arm64</bdi>", "srv", `<option value="linux/arm64" selected>`)
	holds(t, h, "/ui/diff/lib/app?from=a&to=c", "for different platforms", "linux/arm64", "linux/mips")
	holds(t, h, "/ui/diff/lib/app?from=a&to=b&platform=linux/arm64", "No such platform", "lib/app:b: This image is for linux/riscv64")
}

// TestDiffConfigs checks that unreadable configs are not compared as if they were empty.
func TestDiffConfigs(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	x := layer(t, file("a", "a"))
	s.push("lib/app", "odd", `[]`, x)
	s.push("lib/app", "large", `{"author":"`+strings.Repeat("x", maxShownConfig)+`"}`, x)
	gone := `{"author":"nobody"}`
	s.push("lib/app", "gone", gone, x)
	delete(s.blobs, oci.SHA256([]byte(gone)))
	for tag, why := range map[string]string{"odd": "not of the form", "large": "too large", "gone": "is not here"} {
		for _, path := range []string{"from=v1&to=" + tag, "from=" + tag + "&to=v1"} {
			if body := holds(t, h, "/ui/diff/lib/app?"+path, "Settings are not compared. lib/app:"+tag, why, "File by file"); strings.Contains(body, "Variable A") {
				t.Errorf("%s: an absent config is compared", path)
			}
		}
	}
	s.push("lib/app", "v6", `{"os":"linux","architecture":"arm","variant":"v6","created":"2026-01-01T00:00:00Z"}`, x)
	s.push("lib/app", "v7", `{"os":"linux","architecture":"arm","variant":"v7","created":"2026-01-02T00:00:00Z"}`, x)
	if body := holds(t, h, "/ui/diff/lib/app?from=v6&to=v7", "linux/arm/v6", "linux/arm/v7"); strings.Contains(body, "Made") {
		t.Error("when an image was made is taken for a setting")
	}
}

// TestDiffPages checks pages of changes that begin beyond the list, at an invalid place
// and within the list.
func TestDiffPages(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	var many []rootfs.Entry
	for i := range 2*treeRows + 50 {
		many = append(many, file(fmt.Sprintf("many/%04d", i), "x"))
	}
	s.push("lib/app", "many", "{}", layer(t, many...))
	const diff = "/ui/diff/lib/app?from=v1&to=many"
	for _, at := range []int{math.MaxInt, 1 << 40} {
		body := holds(t, h, fmt.Sprintf("%s&at=%d", diff, at), "The list ends before this page", "Rows before")
		if strings.Contains(body, "Rows behind") || strings.Contains(body, "at=-") || strings.Contains(body, "Nothing differs") {
			t.Errorf("at %d:\n%s", at, body)
		}
	}
	first := holds(t, h, diff, "Rows behind")
	if odd := holds(t, h, diff+"&at=5abc"); strings.Contains(odd, "Rows before") || len(odd) != len(first) {
		t.Error("an odd place is not the first")
	}
	holds(t, h, diff+"&at=400", "many", "0399", "Rows before")
}

// TestDiffWhere checks that the rows of a difference's summary do not overlap, and that
// they lead to what they count.
func TestDiffWhere(t *testing.T) {
	s := newShelf()
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	s.push("lib/app", "1", "{}", layer(t, file("top", "1"), file("usr/one", "1"), file("usr/lib/deep/two", "1")))
	s.push("lib/app", "2", "{}", layer(t, file("top", "2"), file("usr/one", "2"), file("usr/lib/deep/two", "2")))
	const diff = "/ui/diff/lib/app?from=1&to=2"
	holds(t, h, diff, "directly in /usr<", "directly in /<", ">/usr/lib<", "path=usr%2Flib", "only=1&path=usr&")
	for path, want := range map[string][]string{"&path=usr&only=1": {"one"}, "&only=1": {"top"}, "&path=usr/lib": {"two"}, "&path=usr": {"one", "two"}} {
		body := holds(t, h, diff+path, "Only ", "Show all")
		for _, name := range []string{"top", "one", "two"} {
			if got := strings.Contains(body, "<bdi>"+name+"</bdi>"); got != slices.Contains(want, name) {
				t.Errorf("%s: %s is listed: %t", path, name, got)
			}
		}
	}
	d, dirs := &diffData{}, map[string]*dirChange{}
	for i := range maxCountedDirs + 5 {
		d.count(change{what: "added"}, dirs, fmt.Sprintf("a%d/b/c", i), nil, &gear.Entry{})
	}
	if len(dirs) != maxCountedDirs || !d.Uncounted || d.Added.Entries != maxCountedDirs+5 {
		t.Errorf("%d directories, uncounted %t, %d entries", len(dirs), d.Uncounted, d.Added.Entries)
	}
}

// TestWalkers checks that pages that walk a whole tree wait for their turn, and end when
// no client waits for them.
func TestWalkers(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	for range walkers {
		h.trees.walking <- struct{}{}
	}
	for _, path := range []string{"tree/lib/app:v2", "diff/lib/app?from=v1&to=v2"} {
		ctx, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/ui/"+path, nil).WithContext(ctx))
		end()
		if w.Body.Len() > 0 {
			t.Errorf("%s did not wait:\n%s", path, w.Body)
		}
	}
	for range walkers {
		<-h.trees.walking
	}
	var many []rootfs.Entry
	for i := range 2 * checkEvery {
		many = append(many, file(fmt.Sprintf("%06d", i), "x"))
	}
	x := layer(t, many...)
	tree, err := newFileTree("", []*gear.Index{x})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := tree.search(ctx, "0"); !errors.Is(err, context.Canceled) {
		t.Errorf("a search that nobody waits for: %v", err)
	}
	n := 0
	if err := compareTrees(ctx, x, x, func(string, *gear.Entry, *gear.Entry) { n++ }); !errors.Is(err, context.Canceled) || n > checkEvery {
		t.Errorf("a comparison that nobody waits for: %v, after %d entries", err, n)
	}
}

// TestTreeBusy checks that a request for an image is answered with the reason while
// another image is being read.
func TestTreeBusy(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	h.trees.patience = 10 * time.Millisecond
	h.trees.making <- struct{}{}
	holds(t, h, "/ui/tree/lib/app:v1", "Another image is being read")
	<-h.trees.making
	holds(t, h, "/ui/tree/lib/app:v1", "By layer")
	h.trees.making <- struct{}{}
	holds(t, h, "/ui/tree/lib/app:v1", "By layer")
	<-h.trees.making
}

// TestHardLinkRows checks that the bytes of rows are those of their directory: a second
// name of a file counts nothing.
func TestHardLinkRows(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	body := holds(t, h, "/ui/tree/lib/app:v2?path=bin", "the same file as bin/ash, 2.9 KiB")
	if strings.Count(body, `<td class="number">2.9 KiB</td>`) != 1 {
		t.Errorf("a file counts twice:\n%s", body)
	}
	tree := h.trees.order.Front().Value.(*fileTree)
	q := requestOf(h, "/ui/tree/lib/app:v2")
	for i := range tree.x.Entries {
		if r := q.fileRow(tree, nil, int32(i), true); r.Bytes != tree.sum(int32(i)).Bytes {
			t.Errorf("%s is shown with %d bytes and sorted by %d", r.Name, r.Bytes, tree.sum(int32(i)).Bytes)
		}
	}
}

// TestShowNames checks that two different names never look the same.
func TestShowNames(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{"a\n", `a\n`, `a\\n`, `a\x0a`, "a\\\n", "\xff", `\xff`, "\uFFFD", `\ufffd`, "\xef\xbf", "\u202e", `\u202e`, "\U000E0001", `\U000e0001`, "\u0e00" + "01", `C:\dir`, `C:\\dir`, `\`, `\\`} {
		got := showName(s)
		if before, ok := seen[got]; ok {
			t.Errorf("%q and %q are both shown as %s", before, s, got)
		}
		seen[got] = s
	}
	if got := showName(`C:\dir`); got != `C:\dir` {
		t.Errorf("a backslash that misleads nobody is shown as %s", got)
	}
}

// TestWhyNoFiles checks that the reason shown leads to the cause.
func TestWhyNoFiles(t *testing.T) {
	s := testShelf(t)
	h, _ := open(t, &Options{Files: s, Browse: s}, timing{})
	for _, err := range []error{gear.ErrTooLarge, gear.ErrVersion, gear.ErrInvalid} {
		s.unread = fmt.Errorf("%w: \u202e", err)
		body := holds(t, h, "/ui/tree/lib/app:v1", "The index cannot be read", err.Error(), "--again")
		if strings.Contains(body, "\u202e") {
			t.Error("the error turns the text")
		}
	}
	s.unread = nil
	layers := func(mediaType string) map[string]any {
		return map[string]any{"layers": []oci.Descriptor{{MediaType: mediaType, Digest: oci.SHA256(nil), URLs: []string{"https://example.org/"}}}}
	}
	for mediaType, want := range map[string]string{
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    "registries do not keep it",
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": "registries do not keep it",
		"application/vnd.oci.image.layer.v1.tar+gzip+encrypted":        "Encrypted",
		"application/vnd.cncf.helm.chart.content.v1.tar+gzip":          "Not a file tree",
	} {
		s.put("lib/app", "odd", layers(mediaType))
		if body := holds(t, h, "/ui/tree/lib/app:odd", want); want != "Not a file tree" && strings.Contains(body, "charts") {
			t.Errorf("%s is called a chart", mediaType)
		}
	}
	s.put("lib/app", "away", layers("application/vnd.oci.image.layer.v1.tar"))
	s.fail = oci.Errorf(oci.CodeBlobUnknown, "no layer")
	if body := holds(t, h, "/ui/tree/lib/app:away", "names another place"); strings.Contains(body, "first pull") {
		t.Error("a layer that is elsewhere is promised")
	}
	s.fail = &gearregistry.PendingError{Reason: "bad\u202e"}
	holds(t, h, "/ui/tree/lib/app:v1", `bad\u202e`)
	s.fail = nil

	deep := strings.Repeat("d/", 250)
	var few []rootfs.Entry
	for i := range 40 {
		few = append(few, file(fmt.Sprintf("%02d/%sf", i, deep), "x"))
	}
	s.push("lib/app", "deep", "{}", layer(t, few...))
	holds(t, h, "/ui/tree/lib/app:deep", "Too many files")
}

// TestTreemapRest checks that the last part of a treemap is the rest if there is one, and
// otherwise keeps its name.
func TestTreemapRest(t *testing.T) {
	for _, n := range []int{treemapParts, treemapParts + 1, treemapParts + 2} {
		entries := []rootfs.Entry{file("zzz-empty", "")}
		for i := range n {
			entries = append(entries, file(fmt.Sprintf("f%02d", i), strings.Repeat("x", 1000-i)))
		}
		tree, err := newFileTree("", []*gear.Index{layer(t, entries...)})
		if err != nil {
			t.Fatal(err)
		}
		from, to, _ := tree.dir("")
		places := tree.children(from, to)
		tree.bySize(places)
		drawn := html.UnescapeString(string(treemap(tree, nil, places)))
		if got, want := strings.Contains(drawn, "everything else"), n > treemapParts+1; got != want {
			t.Errorf("of %d files there is a rest: %t, want %t", n, got, want)
		}
	}
}
