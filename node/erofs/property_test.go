package erofs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"example.org/slipway/node/erofs"
)

// genName draws names that sort around "." and "..", long names and odd names.
func genName(t *rapid.T) string {
	if rapid.IntRange(0, 9).Draw(t, "kind of name") == 0 {
		return strings.Repeat("z", rapid.IntRange(1, 255).Draw(t, "length"))
	}
	return rapid.StringMatching(`[-!./a\xff]{1,6}`).Filter(func(s string) bool {
		return s != "." && s != ".." && !strings.Contains(s, "/")
	}).Draw(t, "name")
}

// genXattrs draws attributes that are allowed for the type.
func genXattrs(t *rapid.T, mode uint32) []erofs.Xattr {
	names := []string{"trusted.t", "trusted.overlay.redirect", "security.s", "security.selinux"}
	kind := mode & erofs.TypeMask
	if kind == erofs.File || kind == erofs.Dir {
		names = append(names, "user.u", "user."+strings.Repeat("u", 250))
	}
	var xs []erofs.Xattr
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 3, rapid.ID).Draw(t, "attributes") {
		n := rapid.SampledFrom([]int{0, 1, 2, 3, 4, 60, 1000, 3900, 9000}).Draw(t, "length of value")
		xs = append(xs, erofs.Xattr{Name: name, Value: strings.Repeat("v", n)})
	}
	return xs
}

func genNode(t *rapid.T) erofs.Node {
	kind := rapid.SampledFrom([]uint32{erofs.Dir, erofs.Dir, erofs.File, erofs.File, erofs.Symlink, erofs.Char, erofs.Block, erofs.Fifo, erofs.Socket}).Draw(t, "type")
	n := erofs.Node{
		Name: genName(t),
		Mode: kind | rapid.Uint32Range(0, 0o7777).Draw(t, "mode"),
		UID:  rapid.SampledFrom([]uint32{0, 1, 65536, math.MaxUint32 - 1}).Draw(t, "owner"),
		GID:  rapid.SampledFrom([]uint32{0, 1, 65536, math.MaxUint32 - 1}).Draw(t, "group"),
		Sec:  rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"),
		Nsec: rapid.Uint32Range(0, 999999999).Draw(t, "ns"),
	}
	switch kind {
	case erofs.File:
		n.Size = rapid.Int64Range(0, erofs.MaxSize).Draw(t, "size")
	case erofs.Symlink:
		n.Target = strings.Repeat("t", rapid.IntRange(1, 4095).Draw(t, "length of target"))
	case erofs.Char, erofs.Block:
		n.Major = rapid.Uint32Range(0, 4095).Draw(t, "major")
		n.Minor = rapid.Uint32Range(0, 1<<20-1).Draw(t, "minor")
	}
	n.Xattrs = genXattrs(t, n.Mode)
	return n
}

// genTree draws a valid tree.
func genTree(t *rapid.T) []erofs.Node {
	root := genNode(t)
	root.Mode = root.Mode&^erofs.TypeMask | erofs.Dir
	root.Xattrs, root.Size, root.Target = genXattrs(t, root.Mode), 0, ""
	nodes := []erofs.Node{root}
	dirs, others := []int32{0}, []int32{}
	taken := map[string]bool{}
	for range rapid.IntRange(0, 60).Draw(t, "nodes") {
		n := genNode(t)
		if len(others) > 0 && rapid.IntRange(0, 5).Draw(t, "link") == 0 {
			n = erofs.Node{Name: n.Name, Link: rapid.SampledFrom(others).Draw(t, "to")}
		}
		n.Parent = rapid.SampledFrom(dirs).Draw(t, "in")
		key := fmt.Sprintf("%d/%s", n.Parent, n.Name)
		if taken[key] {
			continue
		}
		taken[key] = true
		switch at := int32(len(nodes)); {
		case n.Link != 0:
		case n.Mode&erofs.TypeMask == erofs.Dir:
			dirs = append(dirs, at)
		default:
			others = append(others, at)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// TestTrees mounts random trees and compares every node.
func TestTrees(t *testing.T) {
	dir := t.TempDir()
	file, at := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	rapid.Check(t, func(r *rapid.T) {
		nodes := genTree(r)
		var b bytes.Buffer
		if _, err := erofs.Write(&b, nodes, nil); err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			r.Fatal(err)
		}
		if err := fsck(t, file); err != nil {
			r.Fatal(err)
		}
		if err := unix.Mount(file, at, "erofs", unix.MS_RDONLY, ""); err != nil {
			r.Fatalf("mount: %v", err)
		}
		got := described(t, at)
		if err := unix.Unmount(at, 0); err != nil {
			t.Fatalf("unmount: %v", err)
		}
		if diff := cmp.Diff(expected(nodes), got); diff != "" {
			r.Fatalf("mounted (-want +got):\n%.4000s", diff)
		}
	})
}

// large returns a tree of n entries like those of an image, the same each time.
func large(n int) []erofs.Node {
	rnd := rand.New(rand.NewPCG(1, 2))
	nodes := []erofs.Node{{Mode: erofs.Dir | 0o755}}
	dirs := []int32{0}
	redirect := strings.Repeat("0123456789abcdef", 4)
	for i := 1; i < n; i++ {
		node := erofs.Node{
			Name: fmt.Sprintf("%x-%.*s", i, rnd.IntN(20), "abcdefghijklmnopqrst"), Parent: dirs[rnd.IntN(len(dirs))],
			Mode: erofs.File | 0o644, Size: rnd.Int64N(1 << 20), Sec: 1700000000 + int64(i),
			Xattrs: []erofs.Xattr{{Name: "trusted.overlay.metacopy"}, {Name: "trusted.overlay.redirect", Value: "/" + redirect[:2] + "/" + redirect[2:]}},
		}
		switch rnd.IntN(12) {
		case 0:
			node.Mode, node.Xattrs, node.Size = erofs.Dir|0o755, nil, 0
			dirs = append(dirs, int32(i))
		case 1:
			node.Mode, node.Xattrs, node.Size = erofs.Symlink|0o777, nil, 0
			node.Target = strings.Repeat("../", 1+rnd.IntN(9)) + node.Name
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func TestLargeTree(t *testing.T) {
	n := 30_000
	if os.Getenv("SLIPWAY_ROUNDS") != "" {
		n = 200_000
	}
	nodes := large(n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	size, err := erofs.Write(io.Discard, nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	perNode := float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	t.Logf("%d nodes, %.1f bytes each in the image, %.1f bytes each of memory", n, float64(size)/float64(n), perNode)
	if perNode > 100 {
		t.Errorf("writing allocates %.1f bytes for each node", perNode)
	}
	compare(t, nodes)
}

// TestLargeDirectory makes a directory of many names. The kernel must find each of them and no
// others.
func TestLargeDirectory(t *testing.T) {
	nodes := []erofs.Node{{Mode: erofs.Dir | 0o755}, {Name: "d", Mode: erofs.Dir | 0o755}}
	const n = 50_000
	for i := range n {
		// The names are not in byte order, and their lengths differ.
		nodes = append(nodes, erofs.Node{Name: fmt.Sprintf("%d%s", i, "-tail"[:i%6]), Parent: 1, Mode: erofs.File | 0o600, Size: int64(i)})
	}
	file := save(t, nodes)
	if err := fsck(t, file); err != nil {
		t.Fatal(err)
	}
	dir := mount(t, file)
	entries, err := os.ReadDir(filepath.Join(dir, "d"))
	if err != nil || len(entries) != n {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, node := range nodes[2:] {
		var st unix.Stat_t
		if err := unix.Stat(dir+"/d/"+node.Name, &st); err != nil || st.Size != node.Size {
			t.Fatalf("%q has %d bytes, %v", node.Name, st.Size, err)
		}
	}
	for i := range 1000 {
		if err := unix.Access(fmt.Sprintf("%s/d/%d.", dir, i*97), 0); !errors.Is(err, unix.ENOENT) {
			t.Fatalf("a name that is not there: %v", err)
		}
	}
}

// FuzzWrite makes nodes of any bytes. They are refused, or the image is sound.
func FuzzWrite(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01a\x00\x00\x41\xed\x00"))
	var seed bytes.Buffer
	for i := range 40 {
		seed.Write([]byte{2, 'n', byte('a' + i), byte(i / 3), byte(i % 5 * (i % 2)), byte(i * 16), 0xed, byte(i), 3, byte(i), 8, 'u', 's', 'e', 'r', '.', 'a', 'b', 'c', 0x10, byte(i)})
	}
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		_, err := erofs.Write(&out, decode(b), nil)
		if err != nil {
			if out.Len() > 0 {
				t.Fatalf("%d bytes were written before the error %v", out.Len(), err)
			}
			return
		}
		file := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := fsck(t, file); err != nil {
			t.Fatal(err)
		}
	})
}

// decode reads nodes from bytes. Most inputs lead to an error.
func decode(b []byte) []erofs.Node {
	next := func() byte {
		if len(b) == 0 {
			return 0
		}
		c := b[0]
		b = b[1:]
		return c
	}
	text := func(scale int) string {
		n := int(next())
		if n < 128 {
			n = min(n, len(b))
			s := string(b[:n])
			b = b[n:]
			return s
		}
		return strings.Repeat(string(rune(next())), (n-128)*scale)
	}
	nodes := []erofs.Node{{Mode: erofs.Dir | 0o755}}
	for len(b) > 0 {
		n := erofs.Node{Name: text(3), Parent: int32(int8(next())), Link: int32(int8(next()))}
		if n.Link > 64 {
			n.Link = 0
		}
		n.Mode = uint32(next())<<8 | uint32(next())
		switch next() % 8 {
		case 0:
			n.Target = text(40)
		case 1:
			n.Size = int64(uint64(next()) << (next() % 64))
		case 2:
			n.Major, n.Minor = uint32(next())<<(next()%32), uint32(next())<<(next()%32)
		case 3:
			for range next() % 12 {
				n.Xattrs = append(n.Xattrs, erofs.Xattr{Name: text(3), Value: text(600)})
			}
		case 4:
			n.Sec, n.Nsec = int64(int8(next()))<<56, uint32(next())<<24
		case 5:
			n.UID, n.GID = uint32(next())<<24, uint32(next())<<24
		}
		nodes = append(nodes, n)
	}
	return nodes
}
