package agent_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/fsdiff"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// mixed returns an image of one layer, with all kinds of files below the names that fsdiff uses.
func mixed() (*imagetest.Bundle, imagetest.Layer) {
	rng := rand.NewChaCha8([32]byte{7})
	a := new(imagetest.Archive).Dir("./")
	attributes := func(h tar.Header, list map[string]string) tar.Header {
		h.PAXRecords = map[string]string{}
		for name, value := range list {
			h.PAXRecords["SCHILY.xattr."+name] = value
		}
		return h
	}
	letters := []string{"a", "b", "c", "d", "e"}
	linked := map[string]tar.Header{}
	n := 0
	for _, top := range letters[:4] {
		a.Dir(top + "/")
		for _, mid := range letters[:3] {
			a.Dir(top + "/" + mid + "/")
			for _, leaf := range letters[:4] {
				n++
				size := []int{0, 17, 5000, 70_000, 900_000}[n%5]
				if n%13 == 0 {
					size = 3<<20 + 5 // stored in chunks
				}
				_, data := content(rng, size)
				h := tar.Header{Typeflag: tar.TypeReg, Name: top + "/" + mid + "/" + leaf, Mode: []int64{0o644, 0o755, 0o4755, 0o600}[n%4], Uid: n % 3 * 500}
				switch n % 6 {
				case 1:
					h = attributes(h, map[string]string{"user.x": "value", "trusted.y": "\x00\x01"})
				case 2:
					h = attributes(h, map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"})
				}
				a.Add(h, data)
				linked[h.Name] = h
			}
			switch mid {
			case "b":
				a.Add(tar.Header{Typeflag: tar.TypeFifo, Name: top + "/b/e"}, nil)
			case "c":
				a.Add(tar.Header{Typeflag: tar.TypeChar, Name: top + "/c/e", Devmajor: 1, Devminor: 3}, nil)
			}
		}
		link := linked[top+"/a/b"] // what runtimes take from a link's header, tar takes from the file
		a.Add(tar.Header{Typeflag: tar.TypeLink, Name: top + "/d", Linkname: link.Name, Mode: link.Mode, Uid: link.Uid}, nil).Symlink(top+"/e", "a/c")
	}
	a.Symlink("e", "a")
	layer := a.Layer()
	return imagetest.Compose(runtime.GOARCH, nil, []imagetest.Layer{layer}), layer
}

// unpacked returns the layer's tree as tar unpacks it.
func unpacked(t testing.TB, layer imagetest.Layer) string {
	t.Helper()
	dir := t.TempDir()
	archive := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(archive, layer.Tar, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", dir, "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-xpf", archive).CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v: %s", err, out)
	}
	return dir
}

// plainOverlay mounts an overlay as a runtime without the agent does.
func plainOverlay(t testing.TB, lower string) (dir string, unmount func()) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "merged")
	var errs []error
	for _, name := range []string{"upper", "work", "merged"} {
		errs = append(errs, os.Mkdir(filepath.Join(top, name), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, top, top)
	if err := errors.Join(append(errs, unix.Mount("overlay", dir, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options))...); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
}

// TestDifferential runs random operations on a writable lazy tree and on a plain overlay of the
// same image, and expects the same answers. It does so when the node holds no files, part of the
// files, or all of them, and with a cache that has no room for half of them.
//
//	SLIPWAY_DIFFERENTIAL=500   number of rounds of 2,000 operations
//	SLIPWAY_DIFFERENTIAL_SEED  the first round's seed
func TestDifferential(t *testing.T) {
	tool.NeedRoot(t)
	const ops = 2000
	limits := []string{"getflags", "acl-lower", "copy-lower", "watch-linked"} // see docs/nodes.md
	rounds, seed := 10, 1
	for name, n := range map[string]*int{"SLIPWAY_DIFFERENTIAL": &rounds, "SLIPWAY_DIFFERENTIAL_SEED": &seed} {
		if text := os.Getenv(name); text != "" {
			var err error
			if *n, err = strconv.Atoi(text); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	s := slipway.Start(t, t.TempDir(), nil)
	bundle, layer := mixed()
	ref, lower := push(t, s, "team/mixed:v1", bundle), unpacked(t, layer)
	roomy, tight := node.Start(t, quiet), node.Start(t, quiet+"cache: {max_bytes: 8MiB}\n")
	for i := range rounds {
		a := roomy
		if i%2 == 1 {
			a = tight
		}
		a.Allow(0)
		lazy := a.Mount(ref, "--rw", filepath.Join(t.TempDir(), "upper"))
		plain, unmount := plainOverlay(t, lower)
		err := fsdiff.Run(plain, lazy, fsdiff.Options{Seed: uint64(seed + i), Ops: ops, Without: limits})
		a.Run("umount", lazy)
		unmount()
		if err != nil {
			t.Errorf("round %d: %v", i, err)
		}
	}
}
