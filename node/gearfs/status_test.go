package gearfs_test

import (
	"errors"
	"fmt"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/gearfs"
)

// TestSummary checks that it agrees with Status and examines few files at a time.
func TestSummary(t *testing.T) {
	const files = 300
	tr := makeTree(t, manyFiles(1, files)...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	looks := func(removed int64, most int, want bool, wantAt int) {
		t.Helper()
		if got, at := n.Covers("sha256:1", removed, most); got != want || at != wantAt {
			t.Errorf("got complete %v, next file %d, want %v, %d", got, at, want, wantAt)
		}
	}
	summary := func(want int) {
		t.Helper()
		st, complete := n.Summary()
		full := n.Status()
		whole := 0
		for i := range full.Images {
			if full.Images[i].LocalFiles == full.Images[i].Files {
				whole++
			}
			one, err := n.Image(full.Images[i].Chain)
			must(t, err)
			if one.LocalFiles != full.Images[i].LocalFiles || st.Images[i].Opens != full.Images[i].Opens || st.Images[i].LocalFiles != 0 {
				t.Errorf("got %+v and %+v, want %+v", one, st.Images[i], full.Images[i])
			}
		}
		if complete != want || whole != want {
			t.Errorf("%d images are complete, Status says %d, want %d", complete, whole, want)
		}
	}
	looks(0, 100, false, 0)
	summary(0)
	fetchAll := func() {
		for _, f := range tr.files {
			n.check(tr, f)
		}
	}
	fetchAll()
	looks(0, 100, false, 100)
	looks(0, 100, false, 200)
	looks(0, 100, true, 0)
	looks(0, 0, true, 0) // nothing was removed
	looks(1, 100, true, 100)
	looks(2, 100, true, 200)
	looks(2, 100, true, 0)
	looks(2, 100, true, 100) // a file was removed during that round
	looks(2, 200, true, 0)
	looks(2, 0, true, 0)
	summary(1)
	n.cache.Evict(1 << 40)
	summary(0)
	fetchAll()
	summary(1)
	if _, err := n.Image("sha256:2"); !errors.Is(err, gearfs.ErrUnknown) {
		t.Errorf("got %v, want %v", err, gearfs.ErrUnknown)
	}
}

// BenchmarkSummary measures ten images of 100,000 files, of which none are local, and Status of the
// same images for comparison.
func BenchmarkSummary(b *testing.B) {
	n := newNode(b, gearfs.Options{}, map[string]gearfs.Source{"a": newSource()})
	for i := range 10 {
		t := gear.NewBuilder(nil)
		for k := range 100_000 {
			f := fileOf(fmt.Appendf(nil, "%d %d", i, k))
			must(b, t.Add(rootfs.Entry{Path: fmt.Sprintf("%d/%d", k%100, k), Type: rootfs.File, Mode: 0o644, Size: f.Size}, f))
		}
		x, err := t.Index()
		must(b, err)
		n.add(fmt.Sprintf("sha256:%d", i), &tree{index: x}, "a")
	}
	b.Run("summary", func(b *testing.B) {
		for b.Loop() {
			n.Summary()
		}
	})
	b.Run("status", func(b *testing.B) {
		for b.Loop() {
			n.Status()
		}
	})
}
