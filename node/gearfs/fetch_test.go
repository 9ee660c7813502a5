package gearfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

func TestOpen(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 20), content(7, 5<<20), content(8, 20<<20+5))...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	for _, f := range tr.files {
		n.check(tr, f)
		if size, ok := n.Size(poolfs.Key{Name: f.Name}); !ok || size != f.Size {
			t.Errorf("size %d, %v; want %d", size, ok, f.Size)
		}
		key, size, ok := n.Resolve(poolfs.NodeID(poolfs.Key{Name: f.Name}))
		if !ok || key.Name != f.Name || size != f.Size {
			t.Errorf("resolve: %x, %d, %v", key, size, ok)
		}
	}
	eventually(t, "all files are complete", func() bool { return n.cache.Stats().Files == len(tr.files) })
	asked := src.requests.Load() + src.ranges.Load()
	for _, f := range tr.files {
		n.check(tr, f)
		c, err := n.Open(t.Context(), poolfs.Key{Name: f.Name})
		must(t, err)
		if c.File() == nil {
			t.Errorf("a complete file of %d bytes is not given for passthrough", f.Size)
		}
		must(t, c.Close())
	}
	if got := src.requests.Load() + src.ranges.Load(); got != asked {
		t.Errorf("%d requests for what is local", got-asked)
	}
	if _, err := n.Open(t.Context(), poolfs.Key{Name: gear.Name{1}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name no image has: %v", err)
	}
	must(t, n.RemoveImage("sha256:1"))
	if _, err := n.Open(t.Context(), poolfs.Key{Name: tr.files[0].Name}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a cached file without an image: %v", err)
	}
}

// TestOnce has a hundred callers open each file at the same moment, through two images.
func TestOnce(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 30), content(7, 6<<20))...)
	src := newSource(tr)
	gate := make(chan struct{})
	src.request = func(ctx context.Context, _ []gear.File) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.add("sha256:2", tr, "a")
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for k := range 5 {
				n.check(tr, tr.files[(i+k)%len(tr.files)])
			}
		})
	}
	eventually(t, "many wait", func() bool { return n.Status().Waiting >= 90 })
	if got := src.requests.Load(); got > 6 {
		t.Errorf("%d streams at a time, want 6 at most", got)
	}
	close(gate)
	wg.Wait()
	if got := src.mostAsked(); got != 1 {
		t.Errorf("a file was asked for %d times", got)
	}
	if got := src.requests.Load(); got > 60 {
		t.Errorf("%d requests for 31 files that were asked for together", got)
	}
}

// TestGather checks that files requested while all streams are busy are fetched in one request.
func TestGather(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 50)...)
	src := newSource(tr)
	gate := make(chan struct{})
	src.request = func(ctx context.Context, _ []gear.File) error {
		<-gate
		return nil
	}
	n := newNode(t, gearfs.Options{Streams: 1}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	var wg sync.WaitGroup
	for _, f := range tr.files {
		wg.Go(func() { n.check(tr, f) })
	}
	eventually(t, "all wait", func() bool { return n.Status().Waiting == 50 })
	close(gate)
	wg.Wait()
	if got := src.requests.Load(); got > 3 {
		t.Errorf("%d requests, want the first and one for the rest", got)
	}
}

// TestPriorities checks that awaited files overtake a profile, and that a profile overtakes the
// background.
func TestPriorities(t *testing.T) {
	var contents [][]byte
	for i := range 500 {
		contents = append(contents, content(uint64(i), 20_000))
	}
	tr := makeTree(t, contents...)
	src := newSource(tr)
	gate := make(chan struct{})
	src.request = func(ctx context.Context, _ []gear.File) error {
		<-gate
		return nil
	}
	n := newNode(t, gearfs.Options{Streams: 1, Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	must(t, n.Background("sha256:1", true))
	eventually(t, "the background begins", func() bool { return src.requests.Load() == 1 })
	var rest []gear.File // files that the running request does not fetch
	src.mu.Lock()
	first := len(src.order)
	for _, f := range tr.files {
		if src.asked[f.Name] == 0 {
			rest = append(rest, f)
		}
	}
	src.mu.Unlock()
	var profile []gear.Name
	for _, f := range rest[1:51] {
		profile = append(profile, f.Name)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := n.Prefetch(t.Context(), "sha256:1", profile); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the profile is queued", func() bool { return n.Status().Queued[1] == 50 })
	wg.Go(func() { n.check(tr, rest[0]) })
	eventually(t, "somebody waits", func() bool { return n.Status().Waiting == 1 })
	close(gate)
	wg.Wait()
	eventually(t, "the image is complete", func() bool { return n.Status().Images[0].Complete })
	if diff := cmp.Diff(append([]gear.Name{rest[0].Name}, profile...), src.order[first:first+51]); diff != "" {
		t.Errorf("asked for after the first request (-want +got)\n%s", diff)
	}
	if st := n.Status().Images[0]; st.LocalFiles != 500 || src.mostAsked() != 1 {
		t.Errorf("%d files local, one asked for %d times", st.LocalFiles, src.mostAsked())
	}
}

// TestBackgroundPauses checks that a running background request pauses while somebody waits for
// something else.
func TestBackgroundPauses(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 100), manyFiles(2, 1)...)...)
	wanted := tr.files[100]
	back := makeTree(t, manyFiles(1, 100)...)
	src := newSource(tr)
	demand, waiting := make(chan struct{}), make(chan struct{})
	src.request = func(_ context.Context, files []gear.File) error {
		if files[0].Name == wanted.Name {
			<-demand
		}
		return nil
	}
	src.hook = func(f gear.File, r io.Reader) (io.Reader, error) {
		if f.Name != wanted.Name {
			<-waiting
		}
		return r, nil
	}
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", back, "a")
	n.add("sha256:2", tr, "a")
	must(t, n.Background("sha256:1", true))
	eventually(t, "the background begins", func() bool { return src.requests.Load() == 1 })
	var wg sync.WaitGroup
	wg.Go(func() { n.check(tr, wanted) })
	eventually(t, "the other request begins", func() bool { return src.requests.Load() == 2 && n.Status().Waiting == 1 })
	close(waiting)
	for range 20 {
		time.Sleep(5 * time.Millisecond) // it must not continue meanwhile
		if got := n.cache.Stats().Files; got > 1 {
			t.Fatalf("%d files of the background came while somebody waited", got)
		}
	}
	close(demand)
	wg.Wait()
	eventually(t, "the image is complete", func() bool { return n.Status().Images[0].Complete })
}

// TestBackgroundRests checks that the background does not start while files are opened one after
// the other, although nobody waits in between.
func TestBackgroundRests(t *testing.T) {
	const rest = 500 * time.Millisecond
	tr := makeTree(t, manyFiles(1, 100)...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{BackgroundRest: rest, Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.check(tr, tr.files[0])
	began := time.Now()
	must(t, n.Background("sha256:1", true))
	for i := 1; i < 5 && time.Since(began) < rest; i++ {
		time.Sleep(rest / 5) // what the container does between two files
		if st := n.Status().Images[0]; st.BackgroundFiles > 0 && time.Since(began) < rest {
			t.Fatalf("%d files of the background came %v after the last that was opened", st.BackgroundFiles, time.Since(began))
		}
		n.check(tr, tr.files[i])
		began = time.Now()
	}
	eventually(t, "the image is complete", func() bool { return n.Status().Images[0].Complete })
	if took := time.Since(began); took < rest*9/10 {
		t.Errorf("it was complete %v after the last file was opened, want %v at least", took, rest)
	}
}

// TestBackgroundSparesProcessors checks that the completion of an image pauses while others want
// the processors, except for what somebody asks for.
func TestBackgroundSparesProcessors(t *testing.T) {
	gearfs.Busy(t)
	tr := makeTree(t, append(manyFiles(1, 50), content(9, 8<<20))...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	must(t, n.Background("sha256:1", true))
	came := func() int64 { return n.Status().Images[0].BackgroundFiles }
	eventually(t, "the background begins", func() bool { return came() > 0 })
	began, before := time.Now(), came()
	time.Sleep(2500 * time.Millisecond)
	if got := came() - before; got > 4 {
		t.Errorf("%d files came in %v, want one a second", got, time.Since(began))
	}
	// These are the last files of the request that pauses.
	began = time.Now()
	n.check(tr, tr.files[len(tr.files)-2])
	n.check(tr, tr.files[len(tr.files)-1])
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("files that somebody opened took %v", took)
	}
}

// TestReadersOfStream checks that the pauses of a background request which streams a large file do
// not delay the readers of that file.
func TestReadersOfStream(t *testing.T) {
	gearfs.Busy(t)
	tr := makeTree(t, content(9, 20<<20))
	src := newSource(tr)
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	must(t, n.Background("sha256:1", true))
	eventually(t, "the background begins", func() bool { return src.ranges.Load() > 0 })
	began := time.Now()
	n.check(tr, tr.files[0])
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("reading a file of 20 chunks took %v, beside a stream that rests a second for each", took)
	}
}

// TestRestInTheWay checks that a request does not pause while something more urgent waits for its
// end, because nothing else may run beside it.
func TestRestInTheWay(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	gearfs.Busy(t)
	tr, other := makeTree(t, manyFiles(1, 60)...), makeTree(t, content(2, 5000))
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy, Streams: 1}, map[string]gearfs.Source{"a": newSource(tr), "b": newSource(other)})
	n.add("sha256:1", tr, "a")
	n.add("sha256:2", other, "b")
	must(t, n.Background("sha256:1", true))
	eventually(t, "the background begins", func() bool { return n.Status().Images[0].BackgroundFiles > 0 })
	began := time.Now()
	n.check(other, other.files[0])
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a file took %v, behind 60 others that rest a second for each", took)
	}
}

// TestEagerGoesOnWhileSomebodyWaits checks that the rest of an image which is fetched eagerly leaves
// the processors to others only while nobody waits for a file.
func TestEagerGoesOnWhileSomebodyWaits(t *testing.T) {
	gearfs.Busy(t)
	var contents [][]byte
	for i := range 100 {
		contents = append(contents, content(uint64(i), 10_000))
	}
	tr, other := makeTree(t, contents...), makeTree(t, content(1000, 5000))
	hung, release := newSource(other), make(chan struct{})
	hung.request = func(ctx context.Context, _ []gear.File) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(tr), "b": hung})
	n.add("sha256:1", tr, "a")
	n.add("sha256:2", other, "b")
	n.ObserveLink("a", time.Millisecond, 1<<20, 10*time.Second) // the start does not wait for all files
	var profile []gear.Name
	for _, f := range tr.files[:80] {
		profile = append(profile, f.Name)
	}
	got, err := n.Prefetch(t.Context(), "sha256:1", profile)
	must(t, err)
	local := func() int64 { return int64(n.Status().Images[0].LocalFiles) }
	if got.Decision.Mode != gearfs.Eager || got.Files != 80 {
		t.Fatalf("%d files are local after %+v", local(), got)
	}
	opened := make(chan error, 1)
	go func() {
		_, err := n.read(other.files[0])
		opened <- err
	}()
	began := time.Now()
	eventually(t, "all files are local", func() bool { return local() == 100 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the rest took %v while somebody waited", took)
	}
	close(release)
	must(t, <-opened)
}

// TestRestInShortRequests checks that the files of an eager start beyond its profile come in short
// requests. A file that the start wants next then does not wait for many others.
func TestRestInShortRequests(t *testing.T) {
	t.Parallel()
	const size, perSec = 50_000, 4 << 20
	var contents [][]byte
	for i := range 100 {
		contents = append(contents, content(uint64(i), size))
	}
	tr := makeTree(t, contents...)
	var profile []gear.Name
	for _, f := range tr.files[:80] {
		profile = append(profile, f.Name)
	}
	src := newSource(tr)
	var mu sync.Mutex
	longest := map[bool]int{} // files of a request, by whether it is for the profile
	src.request = func(_ context.Context, files []gear.File) error {
		mu.Lock()
		defer mu.Unlock()
		known := slices.Contains(profile, files[0].Name)
		longest[known] = max(longest[known], len(files))
		return nil
	}
	src.hook = func(_ gear.File, r io.Reader) (io.Reader, error) {
		time.Sleep(size * time.Second / perSec)
		return r, nil
	}
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.ObserveLink("a", time.Millisecond, perSec, time.Second)
	got, err := n.Prefetch(t.Context(), "sha256:1", profile)
	must(t, err)
	if got.Decision.Mode != gearfs.Eager || got.Files != 80 {
		t.Fatalf("prefetched %+v", got)
	}
	eventually(t, "all files are local", func() bool { return n.Status().Images[0].LocalFiles == 100 })
	mu.Lock()
	defer mu.Unlock()
	// A sixteenth of a second brings five files, and the last one may exceed it.
	if longest[true] < 40 || longest[false] > 6 {
		t.Errorf("the longest request for the profile has %d files, the longest for the rest %d; want many and 6 at most", longest[true], longest[false])
	}
}

func TestPrefetch(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 200), content(9, 5<<20))...)
	src := newSource(tr)
	profile := []gear.Name{tr.files[200].Name, {9}} // one large file, and one that only another version has
	for i := 50; i > 0; i-- {
		profile = append(profile, tr.files[i].Name)
	}
	src.profile = profile
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.check(tr, tr.files[3])
	before := src.requests.Load()
	got, err := n.Prefetch(t.Context(), "sha256:1", nil)
	must(t, err)
	if got.Files != 50 || got.Left != 0 || got.Decision.Mode != gearfs.Lazy {
		t.Errorf("prefetched %+v, want 50 files", got)
	}
	if r := src.requests.Load() - before; r > 2 { // the large one is longer than a request
		t.Errorf("%d requests for one profile", r)
	}
	for _, name := range profile {
		if name != (gear.Name{9}) && !n.cache.Has(name) {
			t.Errorf("file %x is not local", name)
		}
	}
	if n.cache.Has(tr.files[100].Name) {
		t.Error("a file that the profile does not name was fetched")
	}
	if got, err = n.Prefetch(t.Context(), "sha256:1", nil); err != nil || got.Files != 0 {
		t.Errorf("again: %+v, %v", got, err)
	}
	if _, err := n.Prefetch(t.Context(), "sha256:9", nil); !errors.Is(err, gearfs.ErrUnknown) {
		t.Errorf("unknown image: %v", err)
	}
	// The stored profile is used after a restart, without the registry.
	n.stop()
	n.src = nil
	n.start()
	if got, err = n.Prefetch(t.Context(), "sha256:1", nil); err != nil || got.Files != 0 || got.Decision.Mode != gearfs.Lazy {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	if p, err := n.Profile("sha256:1"); err != nil || len(p.Files) != 51 {
		t.Errorf("kept profile of %d names, %v", len(p.Files), err)
	}
}

func TestPrefetchBound(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 5)...)
	src := newSource(tr)
	gate := make(chan struct{})
	src.request = func(ctx context.Context, _ []gear.File) error {
		<-gate
		return nil
	}
	n := newNode(t, gearfs.Options{Mode: gearfs.Eager, PrefetchWait: 30 * time.Millisecond}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	got, err := n.Prefetch(t.Context(), "sha256:1", nil)
	must(t, err)
	if got.Files != 5 || got.Left != 5 || got.Took > 10*time.Second {
		t.Errorf("prefetched %+v", got)
	}
	close(gate)
	eventually(t, "they come nevertheless", func() bool { return n.cache.Stats().Files == 5 })
}

func TestDecision(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 2000), content(1, 3<<20), content(2, 3<<20))...)
	var profile []gear.Name
	for _, f := range tr.files[:100] {
		profile = append(profile, f.Name)
	}
	for name, c := range map[string]struct {
		rtt, took time.Duration
		bytes     int64
		profile   []gear.Name
		want      gearfs.Mode
	}{
		"unknown link":                  {0, 0, 0, profile, gearfs.Lazy},
		"slow, with a profile":          {20 * time.Millisecond, 10 * time.Second, 5 << 20, profile, gearfs.Lazy},
		"fast and far, no profile":      {50 * time.Millisecond, time.Second, 100 << 20, []gear.Name{}, gearfs.Eager},
		"fast and near, with a profile": {200 * time.Microsecond, time.Second, 100 << 20, profile, gearfs.Lazy},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(tr)})
			n.add("sha256:1", tr, "a")
			n.ObserveLink("a", c.rtt, c.bytes, c.took)
			got, err := n.Prefetch(t.Context(), "sha256:1", c.profile)
			must(t, err)
			if got.Decision.Mode != c.want || got.Decision.Reason == "" {
				t.Errorf("decided %+v, want %s", got.Decision, c.want)
			}
			if diff := cmp.Diff(got.Decision, n.Status().Images[0].Decision); diff != "" {
				t.Errorf("the status has another decision (-got +status)\n%s", diff)
			}
		})
	}
}

// TestRanges reads a very large file at random and in order.
func TestRanges(t *testing.T) {
	body := content(1, 40<<20+123)
	tr := makeTree(t, body)
	f := tr.files[0]
	src := newSource(tr)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	c, err := n.Open(t.Context(), poolfs.Key{Name: f.Name})
	must(t, err)
	if c.File() != nil {
		t.Error("a partial file is given for passthrough")
	}
	r := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 4096)
	var offs []int64
	for range 5 {
		offs = append(offs, r.Int64N(5)*(8<<20)+r.Int64N(1<<20-4096))
	}
	for _, off := range offs {
		m, err := c.ReadAt(t.Context(), buf, off)
		must(t, err)
		if !bytes.Equal(buf[:m], body[off:off+int64(m)]) {
			t.Fatalf("other bytes at %d", off)
		}
	}
	if got := src.ranges.Load(); got > 5 || n.Status().Images[0].DemandBytes > 5<<20 {
		t.Errorf("%d ranges, %d bytes for 5 small reads: %v", got, n.Status().Images[0].DemandBytes, src.spans)
	}
	before := src.ranges.Load()
	n.check(tr, f) // through another handle, in order
	if got := src.ranges.Load() - before; got > 16 {
		t.Errorf("%d ranges for 40 MiB in order: %v", got, src.spans)
	}
	must(t, c.Close(), c.Close())
	eventually(t, "the file is published", func() bool { return n.cache.Has(f.Name) })
	n.check(tr, f)
}

func TestLargeRestart(t *testing.T) {
	body := content(1, 20<<20)
	tr := makeTree(t, body)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	c, err := n.Open(t.Context(), poolfs.Key{Name: tr.files[0].Name})
	must(t, err)
	buf := make([]byte, 100)
	_, err = c.ReadAt(t.Context(), buf, 3<<20)
	must(t, err, c.Close())
	n.stop()
	n.src = nil // the registry is gone
	n.start()
	c, err = n.Open(t.Context(), poolfs.Key{Name: tr.files[0].Name})
	must(t, err)
	if _, err := c.ReadAt(t.Context(), buf, 3<<20+50); err != nil || !bytes.Equal(buf, body[3<<20+50:][:100]) {
		t.Errorf("what was there before the restart: %v", err)
	}
	must(t, c.Close())
}

func TestImages(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 10), content(5, 5<<20))...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.add("sha256:1", tr, "b") // a second pull adds a source
	lie := fileOf(content(5, 5<<20))
	lie.Chunks = append([]gear.Name{{1}}, lie.Chunks[1:]...)
	wrongSize := tr.files[0]
	wrongSize.Size++
	neighbour := tr.files[0]
	neighbour.Name[20]++
	for name, c := range map[string]struct {
		f    gear.File
		want error
	}{"chunks": {lie, gearfs.ErrConflict}, "size": {wrongSize, gearfs.ErrConflict}, "node": {neighbour, poolfs.ErrCollision}} {
		b := gear.NewBuilder(nil)
		must(t, b.Add(entry("x", c.f.Size), c.f))
		x, err := b.Index()
		must(t, err)
		if err := n.AddImage(gearfs.ImageSpec{Chain: "sha256:2"}, x); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := n.AddImage(gearfs.ImageSpec{Chain: "../x"}, tr.index); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a chain that is a path: %v", err)
	}
	n.stop()
	n.start()
	st := n.Status()
	if len(st.Images) != 1 || len(st.Images[0].Sources) != 2 || st.Images[0].Sources[0].Registry != "b" || st.Images[0].Files != 11 {
		t.Errorf("images after a restart: %+v", st.Images)
	}
	x, err := n.Index("sha256:1")
	must(t, err)
	if diff := cmp.Diff(tr.index, x); diff != "" {
		t.Errorf("index (-want +got)\n%s", diff)
	}
	must(t, n.RemoveImage("sha256:1"), n.RemoveImage("sha256:1"))
	n.stop()
	n.start()
	if n.HasImage("sha256:1") {
		t.Error("a removed image is back")
	}
}

// TestManyImages starts many images that share files at the same time.
func TestManyImages(t *testing.T) {
	shared := manyFiles(1, 100)
	var trees []*tree
	for i := range 20 {
		trees = append(trees, makeTree(t, append(manyFiles(i+2, 50), shared...)...))
	}
	src := newSource(trees...)
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	var wg sync.WaitGroup
	for i, tr := range trees {
		n.add(fmt.Sprintf("sha256:%d", i), tr, "a")
		wg.Go(func() {
			var profile []gear.Name
			for _, f := range tr.files[20:120] {
				profile = append(profile, f.Name)
			}
			if _, err := n.Prefetch(t.Context(), fmt.Sprintf("sha256:%d", i), profile); err != nil {
				t.Error(err)
			}
			for _, f := range tr.files {
				n.check(tr, f)
			}
		})
	}
	wg.Wait()
	if got := src.mostAsked(); got != 1 {
		t.Errorf("a file was asked for %d times", got)
	}
}

var _ io.Reader = (*ctxReader)(nil)
