package ext4_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/ext4"
	"example.org/slipway/volume/layouttest"
)

// chain is a device with its Image, to which trees are applied.
type chain struct {
	t     testing.TB
	file  string
	image *ext4.Image
}

func newChain(t testing.TB) *chain {
	return &chain{t, filepath.Join(t.TempDir(), "device"), ext4.New([16]byte{1, 2, 3, 15: 4})}
}

// next brings the device to a tree. It returns the plan and how many blocks the file system wrote.
// e2fsck must not complain.
func (c *chain) next(m *layouttest.Model) (*block.Plan, int64) {
	c.t.Helper()
	p, err := c.image.Next(m.Tree())
	if err != nil {
		c.t.Fatal(err)
	}
	meta := layouttest.Apply(c.t, c.file, p)
	layouttest.Check(c.t, "e2fsck", "-fn", c.file)
	return p, meta
}

// compare mounts the device and compares it with a tree.
func (c *chain) compare(tree *geartree.Tree) {
	c.t.Helper()
	dir, unmount := layouttest.Mount(c.t, c.file, "ext4", "ro,noload")
	want, got := layouttest.Expected(tree), layouttest.Described(c.t, dir)
	unmount()
	if !maps.Equal(want, got) {
		c.t.Fatalf("mounted (-want +got):\n%.8000s", cmp.Diff(want, got))
	}
}

// everything is a tree with one of everything.
func everything() *layouttest.Model {
	m := layouttest.New()
	m.Root.Mode, m.Root.UID, m.Root.Sec, m.Root.Nsec = erofs.Dir|0o1751, 3, 77, 5
	m.Root.Xattrs = []erofs.Xattr{{Name: "user.root", Value: "r"}}
	long := strings.Repeat("n", 255)
	m.Put("usr", layouttest.Dir(0o755)).Xattrs = []erofs.Xattr{{Name: "system.posix_acl_default", Value: layouttest.ACL}, {Name: "system.posix_acl_access", Value: layouttest.ACL}}
	ping := m.Put("usr/ping", layouttest.File(1, 70_000))
	ping.Mode, ping.UID, ping.GID, ping.Sec, ping.Nsec = erofs.File|0o6755, 1<<32-2, 70000, -5, 999999999
	ping.Xattrs = []erofs.Xattr{{Name: "user.b", Value: ""}, {Name: "security.capability", Value: layouttest.Capability}, {Name: "user.a", Value: "\x00\xff"}}
	m.Put("usr/empty", layouttest.File(0, 0))
	m.Put("oldest", layouttest.File(2, 4096)).Sec = ext4.MinTime
	m.Put("newest", layouttest.File(2, 4096)).Sec = ext4.MaxTime
	m.Put("\xe9\xff\n\" name", layouttest.File(3, 4097))
	m.Put(long+"/"+long, layouttest.Node(erofs.Node{Mode: erofs.Symlink | 0o777, Target: "x"}))
	for _, n := range []int{59, 60, 4095} {
		m.Put("links/"+strconv.Itoa(n), layouttest.Node(erofs.Node{Mode: erofs.Symlink | 0o777, Target: strings.Repeat("t", n),
			Xattrs: []erofs.Xattr{{Name: "trusted.l", Value: strings.Repeat("v", n%100*20)}}}))
	}
	null := m.Put("dev/null", layouttest.Node(erofs.Node{Mode: erofs.Char | 0o666, Major: 1, Minor: 3, Xattrs: []erofs.Xattr{{Name: "trusted.dev", Value: "d"}}}))
	m.Put("dev/disk", layouttest.Node(erofs.Node{Mode: erofs.Block | 0o660, Major: 4095, Minor: 1<<20 - 1}))
	m.Put("dev/whiteout", layouttest.Node(erofs.Node{Mode: erofs.Char}))
	m.Put("dev/fifo", layouttest.Node(erofs.Node{Mode: erofs.Fifo | 0o640}))
	m.Put("dev/sock", layouttest.Node(erofs.Node{Mode: erofs.Socket | 0o600}))
	m.Put("dev/!null", null)
	m.Put("ping", ping)
	m.Put("big", layouttest.File(4, 5)).Xattrs = []erofs.Xattr{
		{Name: "user." + strings.Repeat("x", 250), Value: strings.Repeat("v", 3000)}, {Name: "security.selinux", Value: strings.Repeat("s", 700)},
		{Name: "trusted.overlay.redirect", Value: "/ab"}}
	// The attributes do not fit into a block. Some are in the inode.
	m.Put("full", layouttest.Dir(0o700)).Xattrs = []erofs.Xattr{{Name: "trusted.a", Value: strings.Repeat("v", 60)}, {Name: "trusted.b", Value: strings.Repeat("v", 4000)}}
	return m
}

func TestEverything(t *testing.T) {
	c := newChain(t)
	m := everything()
	c.next(m)
	c.compare(m.Tree())
	if p, _ := c.next(m); len(p.Meta)+len(p.Files)+len(p.Zeros) > 0 {
		t.Errorf("the same tree again writes %d stretches and %d contents", len(p.Meta), len(p.Files))
	}
}

func TestRootAlone(t *testing.T) {
	c := newChain(t)
	c.next(layouttest.New())
	c.compare(layouttest.New().Tree())
}

// TestChains applies random trees, each derived from the previous one.
func TestChains(t *testing.T) {
	rounds := 3
	if s := os.Getenv("SLIPWAY_ROUNDS"); s != "" {
		rounds, _ = strconv.Atoi(s)
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(7, uint64(seed)))
			c, twin := newChain(t), ext4.New([16]byte{1, 2, 3, 15: 4})
			m := layouttest.New()
			for range 6 {
				m.Change(rnd, 1+rnd.IntN(80))
				p, _ := c.next(m)
				other, err := twin.Next(m.Tree())
				if err != nil || !reflect.DeepEqual(p, other) {
					t.Fatalf("the same trees have other plans, %v", err)
				}
				c.compare(m.Tree())
			}
		})
	}
}

// TestLinks adds and removes names of one file.
func TestLinks(t *testing.T) {
	c := newChain(t)
	m := layouttest.New()
	a := m.Put("a", layouttest.File(1, 10_000))
	m.Put("d/b", a)
	c.next(m)
	m.Put("z/c", a)
	if p, _ := c.next(m); len(p.Files) > 0 {
		t.Error("one more name writes the content again")
	}
	c.compare(m.Tree())
	m.Put("a", layouttest.File(2, 5000)) // no longer linked
	if p, _ := c.next(m); len(p.Files) != 1 {
		t.Errorf("%d contents are written", len(p.Files))
	}
	c.compare(m.Tree())
	m.Remove("d")
	m.Remove("z/c")
	m.Put("moved/there", a)
	if p, _ := c.next(m); len(p.Files) > 0 {
		t.Error("a file that moved is written again")
	}
	c.compare(m.Tree())
	m.Put("moved", layouttest.File(3, 1))
	m.Put("a/now/a/dir", layouttest.File(3, 1))
	c.next(m)
	c.compare(m.Tree())
}

// TestLayers applies trees as layers make them, including a link to a file of a layer below.
func TestLayers(t *testing.T) {
	layer := func(entries ...rootfs.Entry) *gear.Index {
		b := gear.NewBuilder(nil)
		for i, e := range entries {
			f := gear.File{}
			if e.Type == rootfs.File {
				f = layouttest.Content(uint64(i), e.Size)
			}
			if err := b.Add(e, f); err != nil {
				t.Fatal(err)
			}
		}
		x, err := b.Index()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	layers := []*gear.Index{
		layer(rootfs.Entry{Path: "bin/tool", Type: rootfs.File, Mode: 0o755, Size: 9000}, rootfs.Entry{Path: "etc/conf", Type: rootfs.File, Mode: 0o644, Size: 10}),
		layer(rootfs.Entry{Path: "a", Type: rootfs.HardLink, Link: "bin/tool"}),
		layer(rootfs.Entry{Path: "bin/tool", Type: rootfs.Whiteout}, rootfs.Entry{Path: "etc", Type: rootfs.Opaque}, rootfs.Entry{Path: "etc/new", Type: rootfs.Symlink, Link: "../a"}),
	}
	c := newChain(t)
	for i, contents := range []int{2, 0, 0} {
		x, err := gear.Flatten(layers[:i+1]...)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := geartree.Of(x)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.image.Next(tree)
		if err != nil || len(p.Files) != contents {
			t.Fatalf("layer %d writes %d contents, %v", i, len(p.Files), err)
		}
		layouttest.Apply(t, c.file, p)
		layouttest.Check(t, "e2fsck", "-fn", c.file)
		c.compare(tree)
	}
}

// image returns a tree like that of a small image.
func image(files int) *layouttest.Model {
	m := layouttest.New()
	for i := range files {
		m.Put(fmt.Sprintf("usr/lib/%d/%d/file-%d", i%7, i%31, i), layouttest.File(uint64(i), int64(i*37%30_000))).Sec = int64(i)
	}
	return m
}

// TestFewBlocks checks that changing one file changes few blocks, which are close to each other.
func TestFewBlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := newChain(t)
	m := image(5000)
	_, all := c.next(m)
	m.Put("usr/lib/0/0/file-0", layouttest.File(1<<40, 9000))
	p, meta := c.next(m)
	t.Logf("%d blocks for the tree, %d for a change", all, meta)
	// These are the inode, the bitmap and the descriptors of its blocks, and the superblock.
	if meta > 5 || len(p.Files) != 1 {
		t.Errorf("a file that changes writes %d blocks and %d contents", meta, len(p.Files))
	}
	m.Put("usr/lib/new", layouttest.File(1<<41, 9000))
	if p, meta = c.next(m); meta > 7 || len(p.Files) != 1 {
		t.Errorf("a new file writes %d blocks and %d contents", meta, len(p.Files))
	}
	// A clone copies whole objects: those of the superblock, the tables, old and new directories,
	// and contents.
	objects := map[int64]bool{}
	for _, b := range p.Meta {
		objects[b.Off>>22] = true
	}
	for _, f := range p.Files {
		objects[f.Extents[0].Off>>22] = true
	}
	if len(objects) > 4 {
		t.Errorf("a new file writes to %d objects of 4 MiB", len(objects))
	}
	m.Remove("usr/lib/3")
	if p, meta = c.next(m); meta > all/2 || len(p.Files) != 0 {
		t.Errorf("a directory that goes writes %d blocks and %d contents", meta, len(p.Files))
	}
	c.compare(m.Tree())
}

func TestLargeDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	c := newChain(t)
	m := layouttest.New()
	for i := range 50_000 {
		m.Put(fmt.Sprintf("d/%d%s", i, "-tail"[:i%6]), layouttest.Node(erofs.Node{Mode: erofs.Fifo | 0o600, Sec: int64(i)}))
	}
	c.next(m)
	list := func(want int) {
		t.Helper()
		dir, unmount := layouttest.Mount(t, c.file, "ext4", "ro,noload")
		defer unmount()
		entries, err := os.ReadDir(dir + "/d")
		if err != nil || len(entries) != want {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		for i := range 500 { // the kernel finds them
			info, err := entries[i*97].Info()
			if err != nil || info.Mode().Type() != entries[i*97].Type() {
				t.Fatalf("%v, %v", info, err)
			}
		}
	}
	list(50_000)
	for i := range 10_000 { // thins it out and makes it longer
		m.Remove(fmt.Sprintf("d/%d%s", i*5, "-tail"[:i*5%6]))
		m.Put(fmt.Sprintf("d/%d.%s", i, strings.Repeat("n", i%200)), layouttest.File(uint64(i), 1))
	}
	c.next(m)
	list(50_000)
	m.Remove("d")
	c.next(m)
	c.compare(m.Tree())
}

// TestDeepAndWide makes a file below 250 directories. Long runs also make a directory with more
// than 65,000 directories, and many files.
func TestDeepAndWide(t *testing.T) {
	c := newChain(t)
	m := layouttest.New()
	m.Put(strings.Repeat("d/", 250)+"file", layouttest.File(1, 100))
	c.next(m)
	c.compare(m.Tree())
	if os.Getenv("SLIPWAY_ROUNDS") == "" {
		return
	}
	for i := range 66_000 {
		m.Put(fmt.Sprintf("wide/%d", i), layouttest.Dir(0o755))
	}
	c.next(m)
	dir, unmount := layouttest.Mount(t, c.file, "ext4", "ro,noload")
	entries, err := os.ReadDir(dir + "/wide")
	if err != nil || len(entries) != 66_000 {
		t.Errorf("%d directories, %v", len(entries), err)
	}
	unmount()
	m.Remove("wide")
	for i := range 300_000 { // more than the tables of the first sixteen groups hold
		m.Put(fmt.Sprintf("many/%d/%d", i/500, i), layouttest.Node(erofs.Node{Mode: erofs.Fifo | 0o600, Sec: int64(i)}))
	}
	c.next(m)
	c.compare(m.Tree())
}

// TestLargeFiles makes files with more extents than an inode holds, across groups that begin with
// tables, on a device that grows.
func TestLargeFiles(t *testing.T) {
	c := newChain(t)
	m := layouttest.New()
	m.Put("a", layouttest.File(1, 700<<20))
	first, _ := c.next(m)
	c.compare(m.Tree())
	m.Put("b", layouttest.File(2, 5<<30+1))
	m.Put("c", layouttest.File(3, 60<<30))
	second, _ := c.next(m)
	if second.Size < first.Size+64<<30 {
		t.Errorf("the device grew from %d to %d bytes", first.Size, second.Size)
	}
	c.compare(m.Tree())
	m.Remove("b")
	m.Put("d", layouttest.File(4, 1<<20))
	third, _ := c.next(m)
	if third.Size < second.Size {
		t.Error("the device shrinks")
	}
	c.compare(m.Tree())
}

// TestWritable checks that containers can write to the file system of a device.
func TestWritable(t *testing.T) {
	c := newChain(t)
	m := image(1000)
	c.next(m)
	m.Remove("usr/lib/3")
	p, _ := c.next(m)
	dir, unmount := layouttest.Mount(t, c.file, "ext4", "rw")
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || int64(st.Bavail)*4096 < ext4.Free {
		t.Errorf("%d bytes are free, %v", int64(st.Bavail)*4096, err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.RemoveAll(dir + "/usr/lib/5"))
	must(os.WriteFile(dir+"/usr/lib/0/0/file-0", []byte(strings.Repeat("new", 50_000)), 0o600))
	must(os.Rename(dir+"/usr/lib/1", dir+"/moved"))
	must(os.MkdirAll(dir+"/new/dir", 0o700))
	for i := range 3000 {
		must(os.WriteFile(fmt.Sprintf("%s/new/dir/%d", dir, i), make([]byte, i*5), 0o600))
	}
	must(unix.Setxattr(dir+"/new", "user.x", []byte(strings.Repeat("v", 1000)), 0))
	must(os.Truncate(dir+"/new/dir/7", 200<<20))
	unmount()
	layouttest.Check(t, "e2fsck", "-fn", c.file)
	if st, err := os.Stat(c.file); err != nil || st.Size() != p.Size {
		t.Errorf("the device has %d bytes, %v", st.Size(), err)
	}
}
