package integration

import (
	"archive/tar"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tool"
)

// nastyLayers returns the layers of each case by name. They are made by hand, and each holds
// something that an unpacker can get wrong.
func nastyLayers(t *testing.T) map[string][]imagetest.Layer {
	t.Helper()
	return map[string][]imagetest.Layer{
		"names":             {namesLayer(), latin1Layer()},
		"links":             linkLayers(),
		"links-below":       linkBelowLayers(),
		"links-overwritten": {overwrittenLinkLayer()},
		"symlinked-parents": symlinkedParentLayers(),
		"symlinked-below":   symlinkedBelowLayers(),
		"whiteouts":         whiteoutLayers(),
		"opaque":            opaqueLayers(),
		"duplicates":        {duplicatesLayer()},
		"replacements":      replacementLayers(),
		"modes":             {modesLayer()},
		"attributes":        attributeLayers(),
		"times":             {timesLayer()},
		"sparse-gnu":        {sparseLayer(t, "gnu")},
		"sparse-posix":      {sparseLayer(t, "posix")},
		"contents":          contentLayers(),
		"implied":           impliedLayers(),
		"compressions":      compressionLayers(),
		"no-root":           {new(imagetest.Archive).Dir("d/").File("d/f", "no entry for the root").Layer()},
		"empty":             {new(imagetest.Archive).Layer()},
	}
}

// base returns an archive that starts with the root directory.
func base() *imagetest.Archive { return new(imagetest.Archive).Dir("./") }

func namesLayer() imagetest.Layer {
	long := strings.Repeat("l", 255)
	deep := strings.Repeat(strings.Repeat("d", 199)+"/", 10)
	a := base()
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "pax-" + long[4:], Format: tar.FormatPAX}, []byte("pax"))
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "gnu-" + long[4:], Format: tar.FormatGNU}, []byte("gnu"))
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: deep + "pax", Format: tar.FormatPAX}, []byte("deep"))
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: deep + "gnu", Format: tar.FormatGNU}, []byte("deep"))
	a.Add(tar.Header{Typeflag: tar.TypeLink, Name: "link-pax", Linkname: deep + "pax", Format: tar.FormatPAX}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeLink, Name: "link-gnu", Linkname: deep + "gnu", Format: tar.FormatGNU}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeSymlink, Name: "far-pax", Linkname: strings.Repeat("../", 300) + "x", Format: tar.FormatPAX}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeSymlink, Name: "far-gnu", Linkname: strings.Repeat("../", 300) + "x", Format: tar.FormatGNU}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("u", 90) + "/" + strings.Repeat("s", 90), Format: tar.FormatUSTAR}, []byte("ustar prefix"))
	a.File("new\nline", "1").File("back\\slash", "2").File("*?[a]", "3").File("  spaces  ", "4").File("-dash", "5")
	a.File("größe/日本/\U0001f433", "6").File("e\u0301 and \u00e9 differ: e\u0301", "7").File("e\u0301 and \u00e9 differ: \u00e9", "8")
	a.File("./dotted", "9").File("/absolute", "10").File("twice//slashed", "11").File("./a/./b", "12").File("up/../aside", "13")
	a.File("...", "14").File("..two", "15").File("a.wh.b", "16").File("wh.x", "17")
	return a.Layer()
}

// latin1Layer has names and targets that are not UTF-8. Only GNU headers can hold them without
// declaring an encoding.
func latin1Layer() imagetest.Layer {
	a := base()
	gnu := func(kind byte, name, target string, data string) {
		a.Add(tar.Header{Typeflag: kind, Name: name, Linkname: target, Format: tar.FormatGNU}, []byte(data))
	}
	gnu(tar.TypeDir, "gr\xf6\xdfe/", "", "")
	gnu(tar.TypeReg, "gr\xf6\xdfe/\xff\xfe\x80", "", "no UTF-8")
	gnu(tar.TypeSymlink, "gr\xf6\xdfe/link", "\xff\xfe\x80", "")
	gnu(tar.TypeLink, "gr\xf6\xdfe/h\xe4rter", "gr\xf6\xdfe/\xff\xfe\x80", "")
	gnu(tar.TypeReg, "\xc3", "", "the first half of a letter")
	return a.Layer()
}

func linkLayers() []imagetest.Layer {
	lower := base().File("low", "from below").File("pair-a", "pair").Hardlink("pair-b", "pair-a").
		File("d/file", "in a directory").Hardlink("z/first-name", "d/file").
		Symlink("sym", "low").Hardlink("sym-too", "sym").
		Add(tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, nil).Hardlink("fifo-too", "fifo").
		Add(tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, nil).Hardlink("null-too", "null").
		File("empty", "").Hardlink("empty-too", "empty").
		Hardlink("./dot-slash", "./low").Hardlink("rooted", "/low")
	for i := range 20 {
		lower.Hardlink(fmt.Sprintf("many/%02d", i), "low")
	}
	// One of two linked names is hidden; the other must keep the content.
	upper := base().File(".wh.pair-a", "").File("low", "low, but another").Dir("d/").File("d/.wh.file", "")
	return []imagetest.Layer{lower.Layer(), upper.Layer()}
}

// linkBelowLayers have hard links to files of the layer below. Not every
// unpacker can follow them.
func linkBelowLayers() []imagetest.Layer {
	at := time.Unix(1_600_000_000, 0)
	lower := base().Add(tar.Header{Typeflag: tar.TypeReg, Name: "low", ModTime: at}, []byte("from below")).
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "pair-a", ModTime: at}, []byte("pair")).Hardlink("pair-b", "pair-a").
		Add(tar.Header{Typeflag: tar.TypeSymlink, Name: "sym", Linkname: "low", ModTime: at}, nil).
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "gone", ModTime: at}, []byte("gone"))
	upper := base().Hardlink("up-low", "low").Hardlink("up-pair", "pair-b").Hardlink("up-sym", "sym").
		Hardlink("up-up-low", "up-low").File("own", "of this layer").Hardlink("a-own", "own").Hardlink("kept", "gone")
	third := base().File(".wh.pair-a", "").File("own", "own, but another").File(".wh.gone", "")
	return []imagetest.Layer{lower.Layer(), upper.Layer(), third.Layer()}
}

// overwrittenLinkLayer replaces names of linked files with other entries.
func overwrittenLinkLayer() imagetest.Layer {
	a := base().File("one", "first").Hardlink("two", "one").File("one", "second")
	a.File("x", "x").Hardlink("y", "x").Symlink("x", "y")
	a.File("p", "p").Hardlink("q", "p").Hardlink("r", "q").File("q", "new q")
	a.File("same", "same").Hardlink("same2", "same").Hardlink("same2", "same")
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "m", Mode: 0o600}, []byte("m"))
	a.Add(tar.Header{Typeflag: tar.TypeLink, Name: "n", Linkname: "m", Mode: 0o600, ModTime: time.Unix(1_600_000_000, 0)}, nil)
	return a.Layer()
}

// symlinkedParentLayers have entries whose parents are symbolic links, as the
// merged /usr of distributions makes them.
func symlinkedParentLayers() []imagetest.Layer {
	a := base().Dir("usr/").Dir("usr/lib/").Dir("usr/bin/").Symlink("lib", "usr/lib").Symlink("bin", "/usr/bin").
		File("lib/through-relative", "1").File("bin/through-absolute", "2").
		Symlink("twice", "lib").File("twice/over", "3").
		Dir("deep/er/").Symlink("deep/up", "../usr").File("deep/up/lib/by-dotdot", "4").
		Symlink("escape", "../../../../usr").File("escape/stays-inside", "5").
		Symlink("self/loop", "../usr/lib").File("self/loop/new", "6").
		Hardlink("linked", "lib/through-relative")
	b := base().Dir("usr/").Dir("usr/lib/").File("usr/lib/second", "in the target, as dpkg does").File("usr/lib/.wh.through-relative", "")
	return []imagetest.Layer{a.Layer(), b.Layer()}
}

// symlinkedBelowLayers have entries whose parents are symbolic links of the
// layer below.
func symlinkedBelowLayers() []imagetest.Layer {
	a := base().Dir("usr/").Dir("usr/lib/").File("usr/lib/old", "1").Symlink("lib", "usr/lib").Symlink("lib2", "/usr/lib")
	b := base().File("lib/new", "2").Dir("lib2/").File("lib2/new", "3")
	return []imagetest.Layer{a.Layer(), b.Layer()}
}

func whiteoutLayers() []imagetest.Layer {
	a := base().File("gone", "x").File("stays", "x").Dir("dir/").File("dir/a", "a").File("dir/b", "b").
		Dir("whole/").File("whole/x/y/z", "z").Symlink("sym", "stays").Symlink("sym-stays", "stays").
		File("back", "old").Dir("back-dir/").File("back-dir/old", "old").File("back-dir2/old", "old").
		Dir("emptied/").File("emptied/only", "x").File("deep/er/est", "x").File("deep/er/stays", "x")
	b := base().File(".wh.gone", "").Dir("dir/").File("dir/.wh.a", "").File(".wh.whole", "").File(".wh.sym", "").
		File(".wh.never-was", "").File(".wh.back", "").File("back", "new, after its whiteout").
		File(".wh.back-dir", "").Dir("back-dir/").File("back-dir/new", "new").
		Dir("emptied/").File("emptied/.wh.only", "").Dir("deep/").Dir("deep/er/").File("deep/er/.wh.est", "")
	c := base().File("gone", "is back").File("whole", "is a file now").File("back-dir2/.wh.old", "")
	d := base().File(".wh.gone", "").Dir("dir/").File("dir/.wh.b", "").File("dir/a", "a is back")
	return []imagetest.Layer{a.Layer(), b.Layer(), c.Layer(), d.Layer()}
}

func opaqueLayers() []imagetest.Layer {
	const opaque = ".wh..wh..opq"
	a := base()
	for _, d := range []string{"first", "last", "empty", "sub", "twice", "bare"} {
		a.Dir(d+"/").File(d+"/old", "old").Dir(d+"/in/").File(d+"/in/old", "old")
	}
	b := base().
		Dir("first/").File("first/"+opaque, "").File("first/new", "new").
		Dir("last/").File("last/new", "new").File("last/"+opaque, "").
		Dir("empty/").File("empty/"+opaque, "").
		Dir("sub/").Dir("sub/in/").File("sub/in/"+opaque, "").File("sub/in/new", "new").
		Dir("twice/").File("twice/"+opaque, "").File("twice/b", "b")
	c := base().Dir("twice/").File("twice/"+opaque, "").File("twice/c", "c").Dir("first/").File("first/third", "3").
		Dir("fresh/").File("fresh/"+opaque, "").File("fresh/x", "opaque over nothing")
	return []imagetest.Layer{a.Layer(), b.Layer(), c.Layer()}
}

func duplicatesLayer() imagetest.Layer {
	a := base().File("f", "first").File("f", "second and longer").File("f", "third")
	a.File("file-dir", "file").Dir("file-dir/").File("file-dir/in", "in")
	a.Dir("dir-file/").File("dir-file/in", "in").File("dir-file", "file")
	a.Dir("dir-link/").File("dir-link/in", "in").Symlink("dir-link", "f")
	a.Symlink("link-dir", "f").Dir("link-dir/").File("link-dir/in", "in")
	a.Symlink("link-file", "f").File("link-file", "file, not through the link")
	a.Add(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o700, Uid: 5}, nil).File("d/in", "in")
	a.Add(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o1777, Gid: 6}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "mode", Mode: 0o4755}, []byte("m")).File("mode", "plain again")
	a.File("./f2", "as ./f2").File("f2", "as f2")
	return a.Layer()
}

func replacementLayers() []imagetest.Layer {
	a := base().File("file-dir", "f").Dir("dir-file/").File("dir-file/in", "in").File("dir-file/deep/in", "in").
		Symlink("link-dir", "dir-file").Symlink("link-file", "file-dir").Dir("dir-link/").File("dir-link/in", "in").
		Add(tar.Header{Typeflag: tar.TypeFifo, Name: "fifo-file"}, nil).File("file-fifo", "f").
		File("same", "same").Add(tar.Header{Typeflag: tar.TypeDir, Name: "meta/", Mode: 0o700}, nil).File("meta/in", "in")
	b := base().Dir("file-dir/").File("file-dir/in", "in").File("dir-file", "file").Dir("link-dir/").File("link-dir/own", "own").
		File("link-file", "file").Symlink("dir-link", "same").File("fifo-file", "f").
		Add(tar.Header{Typeflag: tar.TypeFifo, Name: "file-fifo"}, nil).
		Add(tar.Header{Typeflag: tar.TypeDir, Name: "meta/", Mode: 0o2775, Uid: 33, Gid: 44}, nil)
	c := base().File("file-dir", "f again").Dir("dir-file/").File("dir-file/other", "other")
	return []imagetest.Layer{a.Layer(), b.Layer(), c.Layer()}
}

func modesLayer() imagetest.Layer {
	a := base()
	for _, mode := range []int64{0o400, 0o111, 0o644, 0o755, 0o777, 0o1755, 0o2755, 0o4755, 0o6711, 0o7777} {
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("f%04o", mode), Mode: mode, Uid: 1000, Gid: 100}, []byte("x"))
		a.Add(tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("d%04o/", mode), Mode: mode, Uid: 65534, Gid: 65534}, nil)
	}
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "big-ids", Uid: 2_000_000, Gid: 4_000_000_000}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeSymlink, Name: "owned-link", Linkname: "nowhere", Uid: 7, Gid: 8}, nil)
	a.Dir("dev/").Add(tar.Header{Typeflag: tar.TypeBlock, Name: "dev/loop", Devmajor: 7, Devminor: 200, Mode: 0o660, Gid: 6}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeChar, Name: "dev/large", Devmajor: 259, Devminor: 70000, Mode: 0o600}, nil)
	a.Add(tar.Header{Typeflag: tar.TypeFifo, Name: "dev/fifo", Mode: 0o622}, nil)
	return a.Layer()
}

// attributeLayers has extended attributes in the second layer's directory, too,
// where those of the layer below must not show.
func attributeLayers() []imagetest.Layer {
	with := func(kind byte, name string, attrs map[string]string) tar.Header {
		records := map[string]string{}
		for k, v := range attrs {
			records["SCHILY.xattr."+k] = v
		}
		return tar.Header{Typeflag: kind, Name: name, PAXRecords: records, Format: tar.FormatPAX}
	}
	// cap_net_raw+ep, as setcap writes it (VFS_CAP_REVISION_2).
	capability := string([]byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	a := base()
	a.Add(with(tar.TypeReg, "ping", map[string]string{"security.capability": capability}), []byte("#!"))
	// With an ACL the bits of the group are its mask.
	withACL := with(tar.TypeReg, "acl", map[string]string{"system.posix_acl_access": acl(6, 4)})
	withACL.Mode = 0o660
	a.Add(withACL, []byte("acl"))
	withACL = with(tar.TypeDir, "acls/", map[string]string{"system.posix_acl_access": acl(7, 5), "system.posix_acl_default": acl(7, 1)})
	withACL.Mode = 0o770
	a.Add(withACL, nil)
	// Made in a directory with a default ACL, and not to inherit it.
	a.Add(with(tar.TypeReg, "acls/plain", nil), []byte("x"))
	a.Add(with(tar.TypeDir, "acls/plain-dir/", nil), nil)
	a.Add(with(tar.TypeReg, "user", map[string]string{"user.one": "1", "user.two": strings.Repeat("2", 2000), "user.with.dots and space": "x\n=y"}), []byte("user"))
	a.Add(with(tar.TypeReg, "empty", map[string]string{"user.bytes": "\x01\xff\xfe"}), nil)
	a.Add(with(tar.TypeDir, "dir/", map[string]string{"user.low": "low", "user.both": "low"}), nil)
	a.Add(with(tar.TypeReg, "replaced", map[string]string{"user.low": "low"}), []byte("x"))
	a.Add(with(tar.TypeReg, "trusted", map[string]string{"trusted.mine": "root's"}), []byte("x"))
	b := base()
	b.Add(with(tar.TypeDir, "dir/", map[string]string{"user.up": "up", "user.both": "up"}), nil)
	b.Add(with(tar.TypeReg, "replaced", map[string]string{"user.up": "up"}), []byte("y"))
	return []imagetest.Layer{a.Layer(), b.Layer()}
}

// acl is a POSIX ACL as the kernel stores it: owner with perm, user 1000 with
// named, group and mask with perm, others with nothing.
func acl(perm, named uint16) string {
	const none = 0xffffffff
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, perm, none}, {0x02, named, 1000}, {0x04, 0, none}, {0x10, perm, none}, {0x20, 0, none}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return string(b)
}

func timesLayer() imagetest.Layer {
	a := base()
	for i, at := range []time.Time{
		time.Unix(0, 0), time.Unix(0, 1), time.Unix(1_700_000_000, 123_456_789), time.Unix(1_700_000_000, 999_999_999),
		time.Unix(-1, 0), time.Unix(-1, 500_000_000), time.Unix(-86_400, 250_000_000), time.Unix(4_102_444_800, 0), time.Unix(1<<33+5, 7),
	} {
		h := tar.Header{Format: tar.FormatPAX, ModTime: at}
		h.Typeflag, h.Name = tar.TypeReg, fmt.Sprintf("f%d", i)
		a.Add(h, []byte("x"))
		h.Typeflag, h.Name = tar.TypeDir, fmt.Sprintf("d%d/", i)
		a.Add(h, nil).File(fmt.Sprintf("d%d/in", i), "made after its directory")
		h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, fmt.Sprintf("l%d", i), "f0"
		a.Add(h, nil)
	}
	a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "gnu-negative", Format: tar.FormatGNU, ModTime: time.Unix(-12345, 0)}, []byte("x"))
	return a.Layer()
}

// sparseLayer is what GNU tar makes of files with holes, which no other archiver
// at hand writes.
func sparseLayer(t *testing.T, format string) imagetest.Layer {
	t.Helper()
	dir := t.TempDir()
	for name, size := range map[string]int64{"holes": 3 << 20, "hole-only": 1 << 20, "big": 9 << 20, "at-end": 1<<20 + 17} {
		f, err := os.Create(filepath.Join(dir, format+"-"+name))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		for i := range 40 { // more parts than one header describes
			if at := int64(i) * 200_000; name != "hole-only" && at+4096 <= size {
				if _, err := f.WriteAt([]byte(strings.Repeat(fmt.Sprint(i), 2048)), at); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "sparse.tar")
	tool.NewEnv(dir).Run(t, tool.System(t, "tar"), "--create", "--blocking-factor=1", "--sparse", "--format="+format, "--file="+path, "--mtime=@1600000000", ".")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 4<<20 {
		t.Fatalf("the archive of sparse files has %d bytes: it has their holes", len(b))
	}
	return new(imagetest.Archive).Raw(b).Layer()
}

// contentLayers has files around the sizes at which contents are cut up.
func contentLayers() []imagetest.Layer {
	random := make([]byte, 10<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(random) // never fails
	text := strings.Repeat("all work and no play makes a large file\n", 200_000)
	const cut = 4 << 20
	a := base().File("empty", "").File("one", "x").File("empty-too", "")
	for _, n := range []int{511, 512, 513, cut - 1, cut, cut + 1, 5 << 20, 10 << 20} {
		a.File(fmt.Sprintf("random-%d", n), string(random[:n]))
	}
	for _, n := range []int{cut - 1, cut, cut + 1, 5<<20 + 1000, 7_900_000} {
		a.File(fmt.Sprintf("text-%d", n), text[:n])
	}
	a.File("zeros", strings.Repeat("\x00", 6<<20))
	b := base().File("again", string(random[:5<<20])).File("text-one-byte-less", text[:7_899_999]).
		File("looks-like-gzip", "\x1f\x8b\x08\x00").File("looks-like-zstd", "\x28\xb5\x2f\xfd")
	return []imagetest.Layer{a.Layer(), b.Layer()}
}

// impliedLayers has files in directories without an entry of their own.
func impliedLayers() []imagetest.Layer {
	a := base().File("a/b/c/file", "1").
		Add(tar.Header{Typeflag: tar.TypeDir, Name: "special/", Mode: 0o2770, Uid: 10, Gid: 20}, nil).File("special/in", "2").
		Symlink("s/y/m", "x").File("late/in", "3").
		Add(tar.Header{Typeflag: tar.TypeDir, Name: "late/", Mode: 0o711}, nil)
	b := base().File("special/in2", "its directory is described below only").File("a/b/new/file", "4").File("late/.wh.in", "")
	return []imagetest.Layer{a.Layer(), b.Layer()}
}

func compressionLayers() []imagetest.Layer {
	var layers []imagetest.Layer
	for i := range 8 {
		layers = append(layers, base().File(fmt.Sprintf("layer%d", i), strings.Repeat(fmt.Sprint("layer ", i), 5000)).File("top", fmt.Sprint(i)).Layer())
	}
	// A layer that occurs twice, and the empty one.
	return append(layers, layers[2], new(imagetest.Archive).Layer())
}
