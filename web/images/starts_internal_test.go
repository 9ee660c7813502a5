package images

import (
	"fmt"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
)

// TestStarts checks what the page says about starts of an image and of an index, and who may know the
// names of nodes.
func TestStarts(t *testing.T) {
	at := func(ms int) *time.Duration { return new(time.Duration(ms) * time.Millisecond) }
	b := fleet.NewBook(nil)
	manifest := oci.SHA256([]byte("m"))
	for i := range maxStarts + 2 {
		s := &fleet.Start{Began: time.Unix(int64(i), 0), More: 7, Files: []fleet.StartFile{
			{Path: "there", Asked: at(0), Here: at(10), Wanted: at(20)}, {Path: "late", Asked: at(0), Here: at(30 + i), Wanted: at(20)},
			{Path: "never came", Wanted: at(99)}, {Path: "in vain", Asked: at(0), Here: at(500)}}}
		if err := b.Add("client", "app", &fleet.Report{Node: fmt.Sprint("n", i), Image: "app:1", Manifest: string(manifest), Start: s}); err != nil {
			t.Fatal(err)
		}
	}
	image := &imageData{Repo: "app", Kind: Kind{Image: true}}
	image.Manifest.Digest = manifest
	index := &imageData{Repo: "app", Kind: Kind{Image: true, Index: true}, Parts: []partRow{{Descriptor: oci.Descriptor{Digest: manifest}}}}
	for _, admin := range []bool{false, true} {
		for _, d := range []*imageData{image, index} {
			q := &request{&Pages{opts: Options{Starts: b}}, Viewer{Admin: admin}, nil}
			got := q.starts(d)
			if len(got) != maxStarts {
				t.Fatalf("%d starts are shown, want %d", len(got), maxStarts)
			}
			first := got[0]
			if first.Wanted != 3 || first.Waited != 1 || first.Last != *at(34) || first.More != 7 || !first.Began.Equal(time.Unix(4, 0)) {
				t.Errorf("the last start is %+v", first)
			}
			if (first.Node == "n4") != admin || (first.Node == "") == admin {
				t.Errorf("administrator %v: the node is %q", admin, first.Node)
			}
		}
	}
	q := &request{&Pages{}, Viewer{}, nil}
	if got := q.starts(image); got != nil {
		t.Errorf("without reports %d starts are shown", len(got))
	}
}
