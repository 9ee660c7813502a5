package gearfs_test

import (
	"context"
	"io/fs"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
)

// asksProfile counts the requests for the profile. It does not answer before their context ends.
type asksProfile struct {
	*fakeSource
	asked atomic.Int64
}

func (s *asksProfile) Profile(ctx context.Context) (starts.Profile, error) {
	s.asked.Add(1)
	<-ctx.Done()
	return starts.Profile{}, fs.ErrNotExist
}

// TestPrefetchLocal starts containers of an image that is local. No source is asked, and
// nothing waits, until a file is missing.
func TestPrefetchLocal(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 40)...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{RecordFor: time.Minute}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	for _, f := range tr.files {
		n.check(tr, f)
	}
	requests := src.requests.Load()
	slow := &asksProfile{fakeSource: newSource(tr)}
	n.stop()
	n.src["a"] = slow
	n.start()
	for range 2 {
		got, err := n.Prefetch(t.Context(), "sha256:1", nil)
		must(t, err)
		if d := got.Decision; d.MissingFiles != 0 || d.Mode != gearfs.Eager || got.Files != 0 {
			t.Errorf("decision %+v for %d files", d, got.Files)
		}
	}
	if a, r := slow.asked.Load(), slow.requests.Load(); a != 0 || r != 0 {
		t.Errorf("the registry was asked for the profile %d times, and %d times for files", a, r)
	}
	if src.requests.Load() != requests {
		t.Error("files were asked for again")
	}
	n.cache.Damaged(tr.files[3].Name, "the test says so")
	got, err := n.Prefetch(t.Context(), "sha256:1", []gear.Name{tr.files[3].Name})
	must(t, err)
	if got.Decision.MissingFiles != 1 || got.Files != 1 || !n.cache.Has(tr.files[3].Name) {
		t.Errorf("after a loss: decision %+v, %d files", got.Decision, got.Files)
	}
}

// TestPrefetchCounts checks that the decision knows what is missing, whatever came or went since
// the last one.
func TestPrefetchCounts(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 20)...)
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": newSource(tr)})
	n.add("sha256:1", tr, "a")
	want := func(files int) {
		t.Helper()
		for range 2 {
			got, err := n.Prefetch(t.Context(), "sha256:1", []gear.Name{})
			must(t, err)
			if got.Decision.MissingFiles != files {
				t.Errorf("%d files are missing, want %d", got.Decision.MissingFiles, files)
			}
		}
	}
	want(20)
	n.check(tr, tr.files[0])
	n.check(tr, tr.files[1])
	want(18)
	n.cache.Damaged(tr.files[0].Name, "the test says so")
	want(19)
	n.check(tr, tr.files[0])
	want(18)
	n.cache.Evict(1 << 40)
	want(20)
}
