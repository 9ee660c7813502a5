package volumes_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/treecmp"
	"example.org/slipway/integration/internal/wire"
)

// chain returns the chain ID of an image.
func (p pushed) chain(t testing.TB) (id string) {
	t.Helper()
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(p.bundle.Blobs[len(p.bundle.Blobs)-1].Data, &config); err != nil {
		t.Fatal(err)
	}
	for _, d := range config.RootFS.DiffIDs {
		if id == "" {
			id = d
		} else {
			id = wire.Digest([]byte(id + " " + d))
		}
	}
	return id
}

// shown calls do with what a container of an image would see.
func (n *node) shown(p pushed, writable bool, do func(dir string)) {
	n.t.Helper()
	err := n.Shown(n.t.Context(), p.chain(n.t), writable, func(dir string) error { do(dir); return nil })
	if err != nil {
		n.t.Fatalf("%v\n%s", err, n.Logs())
	}
}

// equal compares what containers of an image see on two nodes.
func equal(t testing.TB, p pushed, want, got *node, writable bool) {
	t.Helper()
	want.shown(p, writable, func(a string) {
		got.shown(p, writable, func(b string) {
			lines, err := treecmp.Compare(a, b, &treecmp.Options{Ignore: func(path, aspect string) bool {
				// An ext4 file system may have its own lost+found. If no layer describes the root,
				// its time is that of unpacking.
				return path == "lost+found" || path == "." && aspect == "mtime"
			}})
			if err != nil || len(lines) > 0 {
				t.Errorf("the volume has another tree than overlayfs, error %v:\n%s", err, strings.Join(lines, "\n"))
			}
		})
	})
}

// TestEqual compares images in both file systems, with and without clones, with overlayfs's tree of
// them.
func TestEqual(t *testing.T) {
	t.Parallel()
	for _, w := range []struct{ fs, way string }{{"ext4", ctrnode.VolumeLocal}, {"erofs", ctrnode.VolumeLocal}, {"ext4", ctrnode.VolumeNetwork}} {
		t.Run(w.fs+" "+w.way, func(t *testing.T) {
			b := newBed(t, w.fs)
			images := []pushed{b.push("team/app:v1", image(t, 1, 1)), b.push("team/strange:v1", strange(t))}
			plain, volumes := b.node(ctrnode.Plain, nil), b.node(w.way, func(o *ctrnode.Options) { o.Only = true })
			before := volumes.leftovers()
			for _, p := range images {
				if st := b.built(p, w.fs); len(st.Records) != 1 {
					t.Errorf("%d records, want one", len(st.Records))
				}
				plain.pull(p)
				volumes.pull(p)
				volumes.comes(p, asVolume)
				equal(t, p, plain, volumes, w.way == ctrnode.VolumeNetwork)
			}
			volumes.check(images[0], good(ofImage))
			volumes.check(images[0], good(ofImage+8), "write")
			volumes.remove(before, images...)
			b.empty()
		})
	}
}

// TestShared checks that versions of an image share the volumes of their common layers, and the
// blocks.
func TestShared(t *testing.T) {
	b := newBed(t, "ext4")
	stored := func() int64 {
		tr, err := b.c.Traffic()
		if err != nil {
			t.Fatal(err)
		}
		return tr.StoredBytes
	}
	var first []string
	var grew []int64
	for v := range byte(3) {
		before := stored()
		p := b.push(fmt.Sprintf("team/app:v%d", v), image(t, 2, v))
		st := b.built(p, "ext4")
		grew = append(grew, stored()-before)
		var names []string
		for _, l := range st.Records[0].Layers {
			names = append(names, l.Volume)
		}
		if v == 0 {
			first = names
		}
		if len(names) != 3 || !slices.Equal(names[:2], first[:2]) || v > 0 && names[2] == first[2] {
			t.Errorf("volumes of version %d %q, of the first %q", v, names, first)
		}
	}
	t.Logf("the versions took %d bytes each", grew)
	if n := len(b.images()); n != 5 {
		t.Errorf("%d volumes for three images of three layers, want 5: %q", n, b.images())
	}
	// Blobs are in the registry's directory; the cluster holds only volumes.
	for _, g := range grew[1:] {
		if g > grew[0]/2 {
			t.Errorf("a further version took %d bytes of the cluster, the first %d", g, grew[0])
		}
	}
}
