package images

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/registry/catalog/gearfacts"
)

const patience = 20 * time.Second

// The tests that render the pages need these constants.
const (
	MaxTreeBytes   = maxTreeBytes
	MaxHolders     = maxHolders
	MaxChoices     = maxChoices
	MaxShownConfig = maxShownConfig
	TreeRows       = treeRows
)

// pagesOf returns pages of a shelf, which are closed when the test ends.
func pagesOf(t *testing.T, s *Shelf) *Pages {
	t.Helper()
	p := New(Options{Browse: s, Files: s, Logger: slog.New(slog.DiscardHandler), Clock: time.Now, Base: "/ui/"})
	t.Cleanup(p.Close)
	return p
}

// treePage returns the data of the page of an image's files.
func treePage(t *testing.T, p *Pages, image string) *treeData {
	t.Helper()
	image, query, _ := strings.Cut(image, "?")
	at, ok := ParseRef(image)
	if !ok {
		t.Fatalf("%s names no image", image)
	}
	d, err := p.Tree(httptest.NewRequest("GET", "/ui/tree/"+image+"?"+query, nil), at, Viewer{Everywhere: true})
	if err != nil {
		t.Fatal(err)
	}
	return d.(*treeData)
}

// TestTreeCost checks that the cost of a tree is what it takes, hidden names and profiles
// included.
func TestTreeCost(t *testing.T) {
	path := strings.Repeat(strings.Repeat("n", 200)+"/", 10)
	x := Layer(t, rootfs.Entry{Path: "attributes", Type: rootfs.Dir, Mode: 0o755, Xattrs: []rootfs.Xattr{{Name: "user.x", Value: strings.Repeat("x", 100<<10)}}})
	below := Layer(t, File(path+"a", "a"), File(path+"b", "b"))
	hides := Layer(t, rootfs.Entry{Path: strings.Repeat("n", 200), Type: rootfs.Whiteout})
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

	s := AppShelf(t)
	p := pagesOf(t, s)
	treePage(t, p, "lib/app:v2")
	tree := p.trees.order.Front().Value.(*fileTree)
	var layers []*gear.Index
	for _, d := range tree.layers {
		layers = append(layers, s.Indexes[d])
	}
	bare, err := newFileTree("", layers)
	if err != nil {
		t.Fatal(err)
	}
	profile := tree.newProfile(s.Opened)
	with := bare.cost + profile.cost()
	if tree.cost != with || p.trees.bytes != with {
		t.Fatalf("with a profile %d bytes are kept and the tree takes %d, want %d", p.trees.bytes, tree.cost, with)
	}
	for i := range 3 * maxKept {
		p.trees.grew(tree, tree.keep(fmt.Sprint(i%(2*maxKept)), profile))
	}
	if want := with + int64(len(tree.profiles)-1)*profile.cost(); p.trees.bytes != want || tree.cost != want {
		t.Errorf("with %d profiles %d bytes are kept, want %d", len(tree.profiles), p.trees.bytes, want)
	}
	p.trees.put(&fileTree{key: "other", cost: 1})
	if p.trees.grew(tree, treesBytes); p.trees.get(tree.key) != nil || p.trees.bytes != 1 {
		t.Errorf("a tree that grew is kept, of %d bytes", p.trees.bytes)
	}
	if p.trees.grew(tree, 1); p.trees.bytes != 1 {
		t.Error("a tree that is not kept counts")
	}
}

// TestNoProfile checks that an absent profile takes no memory.
func TestNoProfile(t *testing.T) {
	tree, err := newFileTree("", []*gear.Index{Layer(t, File("a", "a"))})
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
	s := AppShelf(t)
	var running, most atomic.Int32
	held := make(chan struct{})
	s.CountShare = func(ctx context.Context) (gearfacts.Share, error) {
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
	p := pagesOf(t, s)
	x := Layer(t, File("a", "a"))
	counting := func(i int) bool {
		d := treePage(t, p, fmt.Sprintf("lib/app:n%d", i))
		if len(d.Largest) == 0 {
			t.Fatalf("image %d has no files: %+v", i, d.Problem)
		}
		return d.Share != nil && d.Share.Counting
	}
	for i := range maxCounts + 3 {
		s.Push("lib/app", fmt.Sprintf("n%d", i), fmt.Sprintf(`{"author":"%d"}`, i), x)
		if got, want := counting(i), i < maxCounts; got != want {
			t.Errorf("image %d is being counted: %t, want %t", i, got, want)
		}
	}
	if !counting(0) || len(p.trees.waiting) != maxCounts {
		t.Errorf("what is being counted was forgotten: %d wait", len(p.trees.waiting))
	}
	close(held)
	for deadline := time.Now().Add(patience); len(p.trees.waiting) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they are not counted")
		}
	}
	if d := treePage(t, p, fmt.Sprintf("lib/app:n%d", maxCounts-1)); d.Share == nil || d.Share.OwnStored != 100 {
		t.Errorf("what the last image shares is %+v", d.Share)
	}
	if most.Load() != 1 {
		t.Errorf("%d were counted at once", most.Load())
	}
}

// TestSelf checks that a link is made without parsing the query again.
func TestSelf(t *testing.T) {
	q := &request{r: httptest.NewRequest("GET", "/ui/tree/lib/app:v2?path=usr&only=1&"+strings.Repeat("a&", 9_000)+"from=7", nil)}
	if got, want := q.self("from", "9"), "/ui/tree/lib/app:v2?from=9&only=1&path=usr"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := testing.AllocsPerRun(20, func() { q.self("from", "9") }); n > 50 {
		t.Errorf("a link takes %v allocations", n)
	}
}

// TestCountedDirs checks that the directories of a difference's summary are bounded, and
// that further ones count in the totals.
func TestCountedDirs(t *testing.T) {
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
	s := AppShelf(t)
	p := pagesOf(t, s)
	for range walkers {
		p.trees.walking <- struct{}{}
	}
	for name, page := range map[string]func(context.Context) (any, error){
		"tree": func(ctx context.Context) (any, error) {
			return p.Tree(httptest.NewRequestWithContext(ctx, "GET", "/ui/tree/lib/app:v2", nil), Ref{"lib/app", "v2"}, Viewer{})
		},
		"diff": func(ctx context.Context) (any, error) {
			return p.Diff(httptest.NewRequestWithContext(ctx, "GET", "/ui/diff/lib/app?from=v1&to=v2", nil), "lib/app", Viewer{})
		},
	} {
		ctx, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if d, err := page(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s did not wait: %+v, %v", name, d, err)
		}
		end()
	}
	for range walkers {
		<-p.trees.walking
	}
	var many []rootfs.Entry
	for i := range 2 * checkEvery {
		many = append(many, File(fmt.Sprintf("%06d", i), "x"))
	}
	x := Layer(t, many...)
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
	p := pagesOf(t, AppShelf(t))
	p.trees.patience = 10 * time.Millisecond
	p.trees.making <- struct{}{}
	if d := treePage(t, p, "lib/app:v1"); d.Problem == nil || !strings.Contains(d.Problem.Text, "Another image is being read") {
		t.Errorf("the problem is %+v", d.Problem)
	}
	<-p.trees.making
	for _, busy := range []bool{false, true} { // a tree that is there need not be read
		if busy {
			p.trees.making <- struct{}{}
		}
		if d := treePage(t, p, "lib/app:v1"); d.Problem != nil || len(d.Layers) != 1 {
			t.Errorf("busy %t: the problem is %+v, and there are %d layers", busy, d.Problem, len(d.Layers))
		}
	}
}

// TestHardLinkRows checks that the bytes of rows are those of their directory: a second
// name of a file counts nothing.
func TestHardLinkRows(t *testing.T) {
	p := pagesOf(t, AppShelf(t))
	d := treePage(t, p, "lib/app:v2?path=bin")
	var large, marked int
	for _, r := range d.Rows {
		if r.Bytes == 3000 {
			large++
		}
		if slices.Contains(r.Marks, "the same file as bin/ash, 2.9 KiB") {
			marked++
		}
	}
	if large != 1 || marked != 1 {
		t.Errorf("a file counts in %d rows, and %d rows say that it is the same: %+v", large, marked, d.Rows)
	}
	tree := p.trees.order.Front().Value.(*fileTree)
	q := &request{Pages: p, r: httptest.NewRequest("GET", "/ui/tree/lib/app:v2", nil)}
	for i := range tree.x.Entries {
		if r := q.fileRow(tree, nil, int32(i), true); r.Bytes != tree.sum(int32(i)).Bytes {
			t.Errorf("%s is shown with %d bytes and sorted by %d", r.Name, r.Bytes, tree.sum(int32(i)).Bytes)
		}
	}
}

// TestTreemapRest checks that the last part of a treemap is the rest if there is one, and
// otherwise keeps its name.
func TestTreemapRest(t *testing.T) {
	for _, n := range []int{treemapParts, treemapParts + 1, treemapParts + 2} {
		entries := []rootfs.Entry{File("zzz-empty", "")}
		for i := range n {
			entries = append(entries, File(fmt.Sprintf("f%02d", i), strings.Repeat("x", 1000-i)))
		}
		tree, err := newFileTree("", []*gear.Index{Layer(t, entries...)})
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
