package blocktest

import (
	"crypto/sha256"
	"io"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/chain"
)

// sumOf returns the SHA-256 of a committed volume.
func sumOf(tb testing.TB, s block.Store, id string) (sum [sha256.Size]byte) {
	tb.Helper()
	v, err := s.Open(tb.Context(), id)
	if err != nil {
		tb.Fatalf("Open %s: %v", id, err)
	}
	h := sha256.New()
	// The rest of the device is zeros, and too much to read. Any part that is not zeros is in the
	// list of changes.
	n := min(v.Size(), 64<<20)
	if _, err := io.CopyBuffer(h, io.NewSectionReader(v, 0, n), make([]byte, 1<<20)); err != nil {
		tb.Errorf("read %s: %v", id, err)
	}
	if err := v.Close(); err != nil {
		tb.Errorf("Close: %v", err)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// WantRecord checks that a record describes what a store has, and that a node may use it.
func WantRecord(tb testing.TB, s block.Store, r *volref.Record) {
	tb.Helper()
	withManifest := *r
	withManifest.Manifest = oci.SHA256([]byte("manifest"))
	if err := withManifest.Check(); err != nil {
		tb.Errorf("Check: %v", err)
	}
	if diff := cmp.Diff(s.Place(), r.Place); diff != "" {
		tb.Errorf("place: -want +got\n%s", diff)
	}
	parent := ""
	for i, l := range r.Layers {
		if l.Volume == "" {
			continue
		}
		info, err := s.Stat(tb.Context(), l.Volume)
		want := block.Info{ID: l.Volume, Parent: parent, Size: l.Size, Used: info.Used, Committed: true}
		if diff := cmp.Diff(want, info); diff != "" || err != nil {
			tb.Errorf("layer %d: %v, -want +got\n%s", i, err, diff)
		}
		parent = l.Volume
	}
}

// wantWhole checks that no incomplete volume is left.
func (t *suite) wantWhole() {
	t.Helper()
	infos, err := t.s.List(t.Context(), "")
	t.must(err, "List")
	for _, i := range infos {
		if !i.Committed {
			t.Errorf("left: %+v", i)
		}
	}
}

func (t *suite) build() {
	ctx := t.Context()
	for _, fs := range []string{volref.Ext4, volref.EROFS} {
		im := NewImage(t, 1, 3)
		var last block.Progress
		o := &block.BuildOptions{FS: fs, Progress: func(p block.Progress) { last = p }}
		rec, err := chain.Build(ctx, t.s, im.Layers, im.Source, o)
		t.must(err, "Build "+fs)
		WantRecord(t, t.s, rec)
		if last.Written != last.Total || last.Total == 0 {
			t.Errorf("%s: progress ended at %+v", fs, last)
		}
		fetches, contents, most := im.Source.Counts()
		if most != 1 || fetches > 3 {
			t.Errorf("%s: %d fetches of %d contents, one of them %d times", fs, fetches, contents, most)
		}
		// The same build is repeated, then builds of chains above and beside it.
		again, err := chain.Build(ctx, t.s, im.Layers, nil, o)
		t.must(err, "Build again")
		if diff := cmp.Diff(rec, again); diff != "" {
			t.Errorf("%s: built again: -first +second\n%s", fs, diff)
		}
		more := NewImage(t, 1, 4)
		o.Progress = nil
		rec4, err := chain.Build(ctx, t.s, more.Layers, more.Source, o)
		t.must(err, "Build of one more layer")
		WantRecord(t, t.s, rec4)
		if fs == volref.Ext4 {
			if diff := cmp.Diff(rec.Layers, rec4.Layers[:3]); diff != "" {
				t.Errorf("the layers below differ: -3 +4\n%s", diff)
			}
			if _, contents4, _ := more.Source.Counts(); contents4 >= contents {
				t.Errorf("one more layer took %d contents, three took %d", contents4, contents)
			}
		}
	}
	t.wantWhole()
}

// buildRace checks that concurrent builders make one chain.
func (t *suite) buildRace() {
	var wg sync.WaitGroup
	records := make([]*volref.Record, 4)
	images := make([]*Image, len(records))
	for i := range records {
		images[i] = NewImage(t, 2, 3+i%2)
	}
	for i := range records {
		wg.Go(func() {
			var err error
			if records[i], err = chain.Build(t.Context(), t.s, images[i].Layers, images[i].Source, nil); err != nil {
				t.Errorf("builder %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	fetched := 0
	for i, r := range records {
		WantRecord(t, t.s, r)
		if diff := cmp.Diff(records[1].Layers[:len(r.Layers)], r.Layers); diff != "" {
			t.Errorf("builder %d: -want +got\n%s", i, diff)
		}
		_, n, _ := images[i].Source.Counts()
		fetched += n
	}
	if _, alone := namesOf(images[1]); fetched > 2*alone {
		t.Errorf("together they fetched %d contents of %d", fetched, alone)
	}
	t.wantWhole()
}

// namesOf lists the contents of an image.
func namesOf(im *Image) (names map[gear.Name]bool, n int) {
	names = map[gear.Name]bool{}
	for _, l := range im.Layers {
		for _, f := range l.Index.Files {
			names[f.Name] = true
		}
	}
	return names, len(names)
}
