package client_test

import (
	"archive/tar"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	gearclient "example.org/slipway/gear/client"
)

func TestInspect(t *testing.T) {
	b := newBed(t)
	lower := layer(t, dir("a"), file("a/one", "1"), file("a/two", "22"), file("a/two2", "22"), link(tar.TypeLink, "a/h", "a/one"), link(tar.TypeSymlink, "s", "a"), file("big", noise(1, 5000)))
	upper := layer(t, file("a/.wh.one", ""), file("a/.wh.h", ""), file("three", "333"), file("three2", "333"))
	b.pushImage("app", "v1", "linux/amd64", [][]byte{lower, upper})
	b.pushImage("app", "v2", "linux/amd64", [][]byte{lower})
	b.pushImage("app", "v3", "linux/amd64", [][]byte{layer(t, file("x", "333"), file("y", "22"))})
	b.pushImage("app", "v4", "linux/arm64", [][]byte{lower})
	b.pushImage("app", "v5", "linux/amd64", [][]byte{[]byte(strings.Repeat("this is no tar. ", 100))})
	_, err := b.Convert(t.Context(), "app", "v1", gearclient.ConvertOptions{})
	must(t, err)
	img := b.image("app", "v1")
	for _, tag := range []string{"v2", "v3"} {
		_, err := b.Index(t.Context(), b.image("app", tag)) // converts the image
		must(t, err)
	}
	if _, err := b.Index(t.Context(), b.image("app", "v5")); err == nil {
		t.Error("v5 has an index")
	}
	r, err := b.Inspect(t.Context(), img, gearclient.InspectOptions{Top: 2})
	must(t, err)
	want := gearclient.Stats{Dirs: 1, Files: 5, Symlinks: 1, Bytes: 5010, Distinct: 3, DistinctBytes: 5005}
	if diff := cmp.Diff(want, r.Whole); diff != "" {
		t.Errorf("as a whole (-want +got):\n%s", diff)
	}
	want = gearclient.Stats{Dirs: 1, Files: 4, Symlinks: 1, HardLinks: 1, Bytes: 5005, Distinct: 3, DistinctBytes: 5003}
	if diff := cmp.Diff(want, r.Layers[0].Stats); diff != "" {
		t.Errorf("layer 1 (-want +got):\n%s", diff)
	}
	if l := r.Layers[1]; l.Whiteouts != 2 || l.Digest != img.Layers[1].Digest || l.Stored != img.Layers[1].Size {
		t.Errorf("layer 2: got %+v", l)
	}
	if diff := cmp.Diff([]gearclient.Duplicate{{Size: 3, Paths: []string{"three", "three2"}}, {Size: 2, Paths: []string{"a/two", "a/two2"}}}, r.Duplicates); diff != "" {
		t.Errorf("duplicates (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]gearclient.FileSize{{Path: "big", Size: 5000}, {Path: "three", Size: 3}}, r.Largest); diff != "" {
		t.Errorf("largest (-want +got):\n%s", diff)
	}
	must(t, b.CompareTags(t.Context(), r, img, 10))
	if diff := cmp.Diff([]gearclient.Shared{{With: "app:v3", Files: 2, Bytes: 5}, {With: "app:v2", Files: 2, Bytes: 5002}}, r.Shared); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&gearclient.Shared{Files: 3, Bytes: 5005}, r.SharedAny); diff != "" {
		t.Errorf("shared with any (-want +got):\n%s", diff)
	}
	if len(r.Skipped) != 2 || !strings.HasPrefix(r.Skipped[0], "v5: ") || !strings.Contains(r.Skipped[1], "v4: ") {
		t.Errorf("skipped: got %q", r.Skipped)
	}
	var tree []string
	for n := range gearclient.Tree(r.Index()) {
		tree = append(tree, strings.Repeat(" ", n.Depth)+n.Type+" "+n.Path)
		if n.Path == "a" && n.Size != 4 {
			t.Errorf("a has %d bytes below it, want 4", n.Size)
		}
	}
	if want := []string{" directory a", "  file a/two", "  file a/two2", " file big", " symlink s", " file three", " file three2"}; !slices.Equal(tree, want) {
		t.Errorf("tree: got %q, want %q", tree, want)
	}

	// The Gear image is the same except for its layer.
	g, err := b.Inspect(t.Context(), b.image("app", "v1-gear"), gearclient.InspectOptions{})
	must(t, err)
	if !g.Gear || g.Original != img.Manifest.Digest || len(g.Layers) != 1 || g.Whole != r.Whole || g.IndexBytes != r.IndexBytes {
		t.Errorf("got %+v", g)
	}
}
