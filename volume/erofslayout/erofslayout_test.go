package erofslayout_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/erofslayout"
	"example.org/slipway/volume/layouttest"
)

// compare checks the image of a tree by fsck.erofs and by mounting it.
func compare(t *testing.T, m *layouttest.Model) *block.Plan {
	t.Helper()
	p, err := erofslayout.Plan(m.Tree(), [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := erofslayout.Plan(m.Tree(), [16]byte{1}); err != nil || !cmp.Equal(p, again) {
		t.Fatalf("the same tree has another plan, %v", err)
	}
	file := filepath.Join(t.TempDir(), "device")
	layouttest.Apply(t, file, p)
	layouttest.Check(t, "fsck.erofs", file)
	dir, unmount := layouttest.Mount(t, file, "erofs", "ro")
	want, got := layouttest.Expected(m.Tree()), layouttest.Described(t, dir)
	unmount()
	if !maps.Equal(want, got) {
		t.Fatalf("mounted (-want +got):\n%.8000s", cmp.Diff(want, got))
	}
	return p
}

func TestTrees(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	rounds := 4
	if s := os.Getenv("SLIPWAY_ROUNDS"); s != "" {
		rounds, _ = strconv.Atoi(s)
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(9, uint64(seed)))
			m := layouttest.New()
			for range 3 {
				m.Change(rnd, 1+rnd.IntN(100))
				compare(t, m)
			}
		})
	}
}

// TestContents checks that each content is stored once, large and empty ones included, with an ACL
// present.
func TestContents(t *testing.T) {
	m := layouttest.New()
	m.Put("a", layouttest.File(1, 5<<30+1)).Sec = -1 << 40
	m.Put("b/a", layouttest.File(1, 5<<30+1))
	m.Put("b/link", m.At("a"))
	m.Put("b/empty", layouttest.File(2, 0))
	m.Put("b/block", layouttest.File(3, 4096)).Xattrs = []erofs.Xattr{{Name: "system.posix_acl_access", Value: layouttest.ACL},
		{Name: "user.large", Value: strings.Repeat("v", 20_000)}}
	if p := compare(t, m); len(p.Files) != 2 || p.Size > 6<<30 {
		t.Errorf("%d contents are placed on a device of %d bytes", len(p.Files), p.Size)
	}
	m = layouttest.New()
	if p := compare(t, m); len(p.Files) != 0 || p.Size != 8192 {
		t.Errorf("a root alone has %d contents and %d bytes", len(p.Files), p.Size)
	}
}

// TestFile mounts an image without a block device, as nodes do.
func TestFile(t *testing.T) {
	m := layouttest.New()
	m.Put("d/f", layouttest.File(1, 100_000))
	p, err := erofslayout.Plan(m.Tree(), [16]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	file, dir := filepath.Join(t.TempDir(), "device"), t.TempDir()
	layouttest.Apply(t, file, p)
	err = unix.Mount(file, dir, "erofs", unix.MS_RDONLY, "")
	if errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
		t.Skip("the kernel does not mount EROFS image files here")
	}
	if err != nil {
		t.Fatal(err)
	}
	got := layouttest.Described(t, dir)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(layouttest.Expected(m.Tree()), got); diff != "" {
		t.Errorf("mounted (-want +got):\n%s", diff)
	}
}

func TestErrors(t *testing.T) {
	var e *erofs.Error
	m := layouttest.New()
	m.Put("d/f", layouttest.File(1, 1)).Xattrs = []erofs.Xattr{{Name: "odd.name"}}
	if _, err := erofslayout.Plan(m.Tree(), [16]byte{}); !errors.As(err, &e) || e.Path != "d/f" {
		t.Errorf("an attribute that cannot be: %v", err)
	}
	m = layouttest.New()
	for i := range 3 {
		m.Put(fmt.Sprint(i), layouttest.File(uint64(i), 6<<40))
	}
	if _, err := erofslayout.Plan(m.Tree(), [16]byte{}); !errors.As(err, &e) || e.Path != "." {
		t.Errorf("18 TiB: %v", err)
	}
	tree := &geartree.Tree{
		Nodes: []erofs.Node{{Mode: erofs.Dir}, {Name: "a", Mode: erofs.File, Size: 1}, {Name: "b", Mode: erofs.File, Size: 2}},
		Files: []gear.File{layouttest.Content(1, 1)}, FileOf: []int32{-1, 0, 0},
	}
	if _, err := erofslayout.Plan(tree, [16]byte{}); !errors.As(err, &e) || e.Path != "b" {
		t.Errorf("one content of two sizes: %v", err)
	}
}
