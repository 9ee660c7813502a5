package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"

	"example.org/slipway/agent/api"
)

// TestDamagedRecords damages the records of an image's layers in every way, one or both of them.
// Afterwards the image, and the containers of containerd that used it, can be mounted, unless
// nothing is left that describes the image.
func TestDamagedRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	img := b.push("team/app", 0, map[string]string{"a": "first"}, map[string]string{"b": "second"})
	ctx, sn := b.snapshots()
	chain := b.pull(ctx, sn, img)
	var files [2]string
	for i, chain := range []string{img.diffIDs[0], chain} {
		files[i] = filepath.Join(layoutOf(b.cfg).Chains, strings.Replace(chain, ":", "-", 1), "record.json")
	}
	container := func(when string) {
		t.Helper()
		ctx, sn := b.snapshots()
		mounts, err := sn.Prepare(ctx, "container", chain)
		if err != nil {
			t.Fatalf("%s: a container: %v", when, err)
		}
		b.in(mounts, func(dir string) {
			b.read(filepath.Join(dir, "a"), "first")
			b.read(filepath.Join(dir, "b"), "second")
		})
		b.remove(ctx, sn, "container")
	}
	mounted := func(when string) {
		t.Helper()
		at := filepath.Join(b.dir, "at")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := b.caller.Mount(t.Context(), api.MountRequest{Image: img.ref, Dir: at}); err != nil {
			t.Fatalf("%s: a mount: %v", when, err)
		}
		b.read(filepath.Join(at, "a"), "first")
		b.read(filepath.Join(at, "b"), "second")
		if err := b.caller.Umount(t.Context(), at); err != nil {
			t.Error(err)
		}
	}
	container("before")
	for how, damage := range map[string]func(this, other []byte) []byte{
		"emptied":   func([]byte, []byte) []byte { return nil },
		"cut":       func(this, _ []byte) []byte { return this[:len(this)/2] },
		"zeroed":    func(this, _ []byte) []byte { return make([]byte, len(this)) },
		"another's": func(_, other []byte) []byte { return other },
		"odd": func(this, _ []byte) []byte {
			return bytes.Replace(this, []byte(`"layers": [`), []byte(`"layers": {`), 1)
		},
	} {
		for which := 1; which < 4; which++ {
			for _, forgotten := range []bool{false, true} {
				when := how + []string{"", ", the lower", ", the upper", ", both"}[which]
				b.end()
				var before [2][]byte
				var err error
				for i, name := range files {
					if before[i], err = os.ReadFile(name); err != nil {
						t.Fatal(err)
					}
				}
				for i, name := range files {
					if which>>i&1 == 0 {
						continue
					}
					if err := os.WriteFile(name, damage(before[i], before[1-i]), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if forgotten {
					when += ", and forgotten"
					if err := os.RemoveAll(layoutOf(b.cfg).indexes); err != nil {
						t.Fatal(err)
					}
				}
				b.start()
				if which == 3 || which == 2 && forgotten { // only a registry can tell
					mounted(when)
				}
				container(when)
				mounted(when)
				container(when)
			}
		}
	}
}

// TestWhyUnpacked pulls and mounts an image with a layer that its registry cannot convert. The
// error of the mount names the layer and says why, and so does the explanation after the pull.
func TestWhyUnpacked(t *testing.T) {
	b := newVolumeBed(t, "local", "ext4", "gear, plain")
	img := b.pushLayers("team/odd", tarOf(t, map[string]string{"a": "first"}), bytes.Repeat([]byte("no archive "), 100))
	b.mountsOnceConverted(img, "could not convert it")
	ctx, sn := b.snapshots()
	keys := []string{"extract"}
	parent := ""
	for i, diff := range img.diffIDs {
		at := chainID(parent, diff)
		_, err := sn.Prepare(ctx, keys[0], parent, snapshots.WithLabels(img.labels(i, at)))
		if i == 1 && err != nil {
			t.Fatalf("the layer that containerd is to unpack: %v", err)
		}
		parent = at
	}
	text := b.explain(img.ref)
	for _, part := range []string{string(img.layers[1]), "could not convert it"} {
		if !strings.Contains(text, part) {
			t.Errorf("the explanation lacks %q:\n%s", part, text)
		}
	}
	b.remove(ctx, sn, keys...)
}

// mountsOnceConverted waits until a mount of an image fails for a reason, which must name its last
// layer.
func (b *volumeBed) mountsOnceConverted(img *image, reason string) {
	b.t.Helper()
	at := filepath.Join(b.dir, "at")
	if err := os.MkdirAll(at, 0o755); err != nil {
		b.t.Fatal(err)
	}
	var failed error
	b.eventually("the reason", func() error {
		_, failed = b.caller.Mount(b.t.Context(), api.MountRequest{Image: img.ref, Dir: at})
		if failed == nil || !strings.Contains(failed.Error(), reason) {
			return failed
		}
		return nil
	})
	if failed == nil || !strings.Contains(failed.Error(), string(img.layers[len(img.layers)-1])) {
		b.t.Errorf("the mount: %v; it should name the layer", failed)
	}
}
