package rootfs_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear/rootfs"
)

// mk builds an archive without its end-of-archive blocks.
type mk = func(testing.TB, *arc)

func TestMembers(t *testing.T) {
	long := strings.Repeat("directory/", 30) + "file"
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	acl := "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff=\n"
	for _, tt := range []struct {
		name string
		make mk
		want []rootfs.Entry
	}{
		{"every type", func(tb testing.TB, a *arc) {
			h := tar.Header{Mode: 0o755, Uid: 1, Gid: 2, ModTime: time.Unix(7, 0)}
			for _, m := range []struct {
				typ        byte
				name, link string
			}{
				{tar.TypeDir, "./", ""}, {tar.TypeDir, "d/", ""}, {tar.TypeReg, "d/f", ""}, {tar.TypeSymlink, "d/s", "../../x/./y"},
				{tar.TypeLink, "d/h", "/./d/f"}, {tar.TypeChar, "d/c", ""}, {tar.TypeBlock, "d/b", ""}, {tar.TypeFifo, "d/p", ""},
			} {
				h.Typeflag, h.Name, h.Linkname = m.typ, m.name, m.link
				h.Devmajor, h.Devminor = 0, 0
				if m.typ == tar.TypeChar || m.typ == tar.TypeBlock {
					h.Devmajor, h.Devminor = 8, 1<<20-1
				}
				a.add(tb, h, "")
			}
		}, []rootfs.Entry{
			{Path: ".", Type: rootfs.Dir, Mode: 0o755, UID: 1, GID: 2, Sec: 7},
			{Path: "d", Type: rootfs.Dir, Mode: 0o755, UID: 1, GID: 2, Sec: 7},
			{Path: "d/f", Type: rootfs.File, Mode: 0o755, UID: 1, GID: 2, Sec: 7},
			{Path: "d/s", Type: rootfs.Symlink, Mode: 0o755, UID: 1, GID: 2, Sec: 7, Link: "../../x/./y"},
			{Path: "d/h", Type: rootfs.HardLink, Mode: 0o755, UID: 1, GID: 2, Sec: 7, Link: "d/f"},
			{Path: "d/c", Type: rootfs.CharDevice, Mode: 0o755, UID: 1, GID: 2, Sec: 7, Major: 8, Minor: 1<<20 - 1},
			{Path: "d/b", Type: rootfs.BlockDevice, Mode: 0o755, UID: 1, GID: 2, Sec: 7, Major: 8, Minor: 1<<20 - 1},
			{Path: "d/p", Type: rootfs.Fifo, Mode: 0o755, UID: 1, GID: 2, Sec: 7},
		}},
		{"whiteouts", func(tb testing.TB, a *arc) {
			a.file(tb, "a/.wh.gone", "content is of no account")
			a.file(tb, "a/.wh..wh..opq", "")
			a.file(tb, ".wh..wh..opq", "")
			a.add(tb, tar.Header{Name: "a/.wh.dir/", Typeflag: tar.TypeDir}, "")
			a.add(tb, tar.Header{Name: "a/.wh.link", Typeflag: tar.TypeLink, Linkname: "../x"}, "")
			a.file(tb, ".wh..hidden", "")
			a.file(tb, ".wh.."+"a"+strings.Repeat("n", 253), "")
			a.add(tb, tar.Header{Name: "a/overlay", Typeflag: tar.TypeChar}, "")
			a.file(tb, "a/x.wh.y", "")
		}, []rootfs.Entry{
			{Path: "a/gone", Type: rootfs.Whiteout},
			{Path: "a", Type: rootfs.Opaque},
			{Path: ".", Type: rootfs.Opaque},
			{Path: "a/dir", Type: rootfs.Whiteout},
			{Path: "a/link", Type: rootfs.Whiteout},
			{Path: ".hidden", Type: rootfs.Whiteout},
			{Path: ".a" + strings.Repeat("n", 253), Type: rootfs.Whiteout},
			{Path: "a/overlay", Type: rootfs.CharDevice},
			{Path: "a/x.wh.y", Type: rootfs.File, Mode: 0o644},
		}},
		{"AUFS's own", func(tb testing.TB, a *arc) {
			a.add(tb, tar.Header{Name: ".wh..wh.plnk/", Typeflag: tar.TypeDir}, "")
			a.file(tb, ".wh..wh.plnk/12.34", "x").file(tb, "d/.wh..wh.orph", "").file(tb, ".wh..wh..", "").file(tb, ".wh..wh.aufs", "")
		}, nil},
		{"duplicates stay", func(tb testing.TB, a *arc) {
			a.file(tb, "f", "one").file(tb, "./f", "three")
		}, []rootfs.Entry{
			{Path: "f", Type: rootfs.File, Mode: 0o644, Size: 3}, {Path: "f", Type: rootfs.File, Mode: 0o644, Size: 5},
		}},
		{"hard link to a lower layer", func(tb testing.TB, a *arc) {
			a.add(tb, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "lower/../lower/f", Mode: 0o4711}, "")
		}, []rootfs.Entry{{Path: "h", Type: rootfs.HardLink, Link: "lower/f", Mode: 0o4711}}},
		{"names not UTF-8", func(tb testing.TB, a *arc) {
			a.file(tb, "caf\xe9", "").pax('x', "path", "\xff\xfe"+long).raw('0', "x", "", nil)
		}, []rootfs.Entry{
			{Path: "caf\xe9", Type: rootfs.File, Mode: 0o644}, {Path: "\xff\xfe" + long, Type: rootfs.File, Mode: 0o644},
		}},
		{"GNU long names", func(tb testing.TB, a *arc) {
			a.add(tb, tar.Header{Name: long, Typeflag: tar.TypeSymlink, Linkname: "/" + long, Format: tar.FormatGNU}, "")
		}, []rootfs.Entry{{Path: long, Type: rootfs.Symlink, Link: "/" + long}}},
		{"ustar prefix", func(tb testing.TB, a *arc) {
			a.raw('0', "name", "", func(b []byte) { copy(b[345:], "some/prefix") })
		}, []rootfs.Entry{{Path: "some/prefix/name", Type: rootfs.File, Mode: 0o644}}},
		{"V7", func(tb testing.TB, a *arc) {
			v7 := func(b []byte) { clear(b[257:]) }
			a.raw(0, "dir/", "", v7).raw(0, "dir/file", "abc", v7)
		}, []rootfs.Entry{
			{Path: "dir", Type: rootfs.Dir, Mode: 0o644}, {Path: "dir/file", Type: rootfs.File, Mode: 0o644, Size: 3},
		}},
		{"contiguous file", func(tb testing.TB, a *arc) { a.raw('7', "f", "abc", nil) },
			[]rootfs.Entry{{Path: "f", Type: rootfs.File, Mode: 0o644, Size: 3}}},
		{"mode with more bits", func(tb testing.TB, a *arc) {
			a.raw('0', "f", "", func(b []byte) { copy(b[100:], "0107755\x00") })
		}, []rootfs.Entry{{Path: "f", Type: rootfs.File, Mode: 0o7755}}},
		{"times", func(tb testing.TB, a *arc) {
			for _, m := range []string{"1700000000.123456789", "-1.25", "-0.5", "-62135596800", "0.0000000019"} {
				a.pax('x', "mtime", m).raw('0', "f", "", nil)
			}
			a.raw('0', "f", "", func(b []byte) { copy(b[136:148], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xf6") })
		}, []rootfs.Entry{
			{Path: "f", Type: rootfs.File, Mode: 0o644, Sec: 1700000000, Nsec: 123456789},
			{Path: "f", Type: rootfs.File, Mode: 0o644, Sec: -2, Nsec: 750000000},
			{Path: "f", Type: rootfs.File, Mode: 0o644, Sec: -1, Nsec: 500000000},
			{Path: "f", Type: rootfs.File, Mode: 0o644, Sec: -62135596800},
			{Path: "f", Type: rootfs.File, Mode: 0o644, Nsec: 1},
			{Path: "f", Type: rootfs.File, Mode: 0o644, Sec: -10},
		}},
		{"owners", func(tb testing.TB, a *arc) {
			for _, id := range []string{"4294967294", "-2", "-1", "4294967295"} {
				a.pax('x', "uid", id, "gid", "5").raw('0', "f", "", nil)
			}
		}, []rootfs.Entry{
			{Path: "f", Type: rootfs.File, Mode: 0o644, UID: math.MaxUint32 - 1, GID: 5},
			{Path: "f", Type: rootfs.File, Mode: 0o644, UID: math.MaxUint32 - 1, GID: 5},
			{Path: "f", Type: rootfs.File, Mode: 0o644, UID: 0, GID: 5},
			{Path: "f", Type: rootfs.File, Mode: 0o644, UID: 0, GID: 5},
		}},
		{"extended attributes", func(tb testing.TB, a *arc) {
			a.pax('x',
				"SCHILY.xattr.user.b", "first", "SCHILY.xattr.security.capability", capability,
				"SCHILY.xattr.system.posix_acl_access", acl, "SCHILY.xattr.user.b", "last", "SCHILY.xattr.user.empty", "",
				"SCHILY.acl.access", "user::rw-", "RHT.security.selinux", "s0").raw('0', "f", "", nil)
			a.raw('0', "g", "", nil)
		}, []rootfs.Entry{
			{Path: "f", Type: rootfs.File, Mode: 0o644, Xattrs: []rootfs.Xattr{
				{Name: "security.capability", Value: capability}, {Name: "system.posix_acl_access", Value: acl},
				{Name: "user.b", Value: "last"}, {Name: "user.empty"},
			}},
			{Path: "g", Type: rootfs.File, Mode: 0o644},
		}},
		{"libarchive's attributes", func(tb testing.TB, a *arc) {
			a.pax('x',
				"LIBARCHIVE.xattr.user.a%3Db%25", base64.StdEncoding.EncodeToString([]byte(capability)),
				"LIBARCHIVE.xattr.user.raw", base64.RawStdEncoding.EncodeToString([]byte("\xfb\xff\xfe\x00")),
				"LIBARCHIVE.xattr.user.url", base64.RawURLEncoding.EncodeToString([]byte("\xfb\xff\xfe\x00")),
				"LIBARCHIVE.xattr.user.both", "b3RoZXI", "SCHILY.xattr.user.both", "star's",
				"LIBARCHIVE.xattr.user.%3D", "b3RoZXI", "SCHILY.xattr.user.%3D", "star's",
				"LIBARCHIVE.creationtime", "7").raw('5', "d", "", nil)
		}, []rootfs.Entry{{Path: "d", Type: rootfs.Dir, Mode: 0o644, Xattrs: []rootfs.Xattr{
			{Name: "user.%3D", Value: "star's"}, {Name: "user.a=b%", Value: capability}, {Name: "user.both", Value: "star's"},
			{Name: "user.raw", Value: "\xfb\xff\xfe\x00"}, {Name: "user.url", Value: "\xfb\xff\xfe\x00"},
		}}}},
		{"libarchive's attributes that cannot be read", func(tb testing.TB, a *arc) {
			long := strings.Repeat("%", 250)
			a.pax('x', "LIBARCHIVE.xattr.user.x", "!!", "LIBARCHIVE.xattr.user.%zz", "eA", "LIBARCHIVE.xattr.a%00b", "", "LIBARCHIVE.xattr.", "eA",
				"LIBARCHIVE.xattr."+long, "eA", "LIBARCHIVE.xattr.user.good", "eA").raw('5', "d", "", nil)
		}, []rootfs.Entry{{Path: "d", Type: rootfs.Dir, Mode: 0o644, Xattrs: []rootfs.Xattr{
			{Name: "LIBARCHIVE.xattr.", Value: "eA"}, {Name: "LIBARCHIVE.xattr.a%00b"}, {Name: "LIBARCHIVE.xattr.user.%zz", Value: "eA"},
			{Name: "LIBARCHIVE.xattr.user.x", Value: "!!"}, {Name: "user.good", Value: "x"},
		}}}},
		{"global header", func(tb testing.TB, a *arc) {
			a.pax('g', "comment", "0123abcd", "path", "../ignored", "SCHILY.xattr.user.x", "ignored").raw('0', "f", "", nil)
		}, []rootfs.Entry{{Path: "f", Type: rootfs.File, Mode: 0o644}}},
		{"links have no content", func(tb testing.TB, a *arc) {
			size := func(b []byte) { copy(b[124:], "00000001000\x00"); copy(b[157:], "target") }
			a.raw('1', "h", "", size).raw('2', "s", "", size).raw('5', "d", "", size)
		}, []rootfs.Entry{
			{Path: "h", Type: rootfs.HardLink, Mode: 0o644, Link: "target"}, {Path: "s", Type: rootfs.Symlink, Mode: 0o644, Link: "target"},
			{Path: "d", Type: rootfs.Dir, Mode: 0o644},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a arc
			tt.make(t, &a)
			layer := a.end()
			for kind, b := range map[string][]byte{"plain": layer, "gzip": gzipped(t, layer), "zstd": zstded(t, layer)} {
				list, sums := read(t, b, nil)
				if diff := cmp.Diff(tt.want, entriesOf(list)); diff != "" {
					t.Errorf("%s: entries (-want +got):\n%s", kind, diff)
				}
				want := rootfs.Sums{
					Compression: sums.Compression, Digest: sha256.Sum256(b), Compressed: int64(len(b)),
					DiffID: sha256.Sum256(layer), Uncompressed: int64(len(layer)),
				}
				if diff := cmp.Diff(want, sums); diff != "" {
					t.Errorf("%s: sums (-want +got):\n%s", kind, diff)
				}
			}
		})
	}
}

func TestBadMembers(t *testing.T) {
	symlink := func(target string) mk {
		return func(tb testing.TB, a *arc) { a.pax('x', "linkpath", target).raw('2', "bad", "", nil) }
	}
	hardLink := func(target string) mk {
		return func(tb testing.TB, a *arc) { a.pax('x', "linkpath", target).raw('1', "bad", "", nil) }
	}
	with := func(records ...string) mk {
		return func(tb testing.TB, a *arc) { a.pax('x', records...).raw('0', "bad", "", nil) }
	}
	named := func(name string) mk {
		return func(tb testing.TB, a *arc) { a.raw('0', name, "", nil) }
	}
	device := func(field string) mk {
		return func(tb testing.TB, a *arc) { a.raw('3', "bad", "", func(b []byte) { copy(b[329:], field) }) }
	}
	for _, tt := range []struct {
		name  string
		make  mk
		entry string // entry the error names
		text  string // text the error contains
	}{
		{"escape", named("../x"), "../x", "leaves the root"},
		{"absolute escape", named("/../x"), "/../x", "leaves the root"},
		{"whiteout that escapes", named("../.wh.x"), "../.wh.x", "leaves the root"},
		{"whiteout of nothing", named("d/.wh."), "d/.wh.", "whiteout"},
		{"whiteout of the directory", named("d/.wh.."), "d/.wh..", "whiteout"},
		{"whiteout of the parent", named("d/.wh..."), "d/.wh...", "whiteout"},
		{"below a whiteout", named(".wh.d/f"), ".wh.d/f", "is a whiteout"},
		{"long segment", with("path", strings.Repeat("n", 256)), strings.Repeat("n", 256), "256 bytes"},
		{"long path", with("path", strings.Repeat("n/", 2048)+"n"), strings.Repeat("n/", 256) + "...", "4097 bytes"},
		{"long whiteout", with("path", ".wh."+strings.Repeat("n", 256)), ".wh." + strings.Repeat("n", 256), "256 bytes"},
		{"NUL in a sparse name", with("GNU.sparse.major", "0", "GNU.sparse.minor", "1", "GNU.sparse.numblocks", "0",
			"GNU.sparse.map", "", "GNU.sparse.name", "a\x00b", "GNU.sparse.size", "0"), "a\x00b", "NUL"},
		{"file for a root", named("./"), "./", "root is not a directory"},
		{"symlink to nothing", func(tb testing.TB, a *arc) { a.raw('2', "bad", "", nil) }, "bad", "without a target"},
		{"long symlink", symlink(strings.Repeat("t", 4096)), "bad", "4096 bytes"},
		{"hard link that escapes", hardLink("../etc/passwd"), "bad", "leaves the root"},
		{"hard link to itself", hardLink("./x/../bad"), "bad", "itself"},
		{"hard link to the root", hardLink("/"), "bad", "root"},
		{"hard link to nothing", func(tb testing.TB, a *arc) { a.raw('1', "bad", "", nil) }, "bad", "root"},
		{"huge uid", with("uid", "4294967296"), "bad", "4294967296"},
		{"huge negative gid", with("gid", "-2147483649"), "bad", "-2147483649"},
		{"negative device", device("\xff\xff\xff\xff\xff\xff\xff\xff"), "bad", "device number -1"},
		{"huge device", device("\x80\x00\x00\x01\x00\x00\x00\x00"), "bad", "device number 4294967296"},
		{"attribute without a name", with("SCHILY.xattr.", "x"), "bad", "extended attribute"},
		{"attribute with a long name", with("SCHILY.xattr."+strings.Repeat("n", 256), "x"), "bad", "extended attribute"},
		{"multi-volume", func(tb testing.TB, a *arc) { a.raw('M', "bad", "", nil) }, "bad", "unknown type 'M'"},
		{"volume label", func(tb testing.TB, a *arc) { a.raw('V', "bad", "", nil) }, "bad", "unknown type 'V'"},
		{"future sparse version", with("GNU.sparse.major", "2", "GNU.sparse.minor", "0"), "bad", "unknown version"},
		{"negative sparse size", with("GNU.sparse.major", "0", "GNU.sparse.minor", "1", "GNU.sparse.numblocks", "0",
			"GNU.sparse.map", "", "GNU.sparse.size", "-1"), "first", "invalid tar header"},
		{"negative size", with("size", "-1"), "first", "invalid tar header"},
		{"bad number", with("mtime", "noon"), "first", "invalid tar header"},
		{"NUL in a path", with("path", "a\x00b"), "first", "invalid tar header"},
		{"bad checksum", func(tb testing.TB, a *arc) { a.raw('0', "bad", "", nil); a.Bytes()[a.Len()-512]++ }, "first", "invalid tar header"},
		{"one zero block", func(tb testing.TB, a *arc) { a.pad(strings.Repeat("\x00", 512)).raw('0', "bad", "", nil) }, "first", "invalid tar header"},
		{"long PAX header", with("comment", strings.Repeat("x", 1<<20)), "first", "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a arc
			a.file(t, "first", "content")
			tt.make(t, &a)
			err := readError(t, a.end(), nil)
			if f := place(t, err); f.Entry != tt.entry || f.Offset < 1024 {
				t.Errorf("got entry %q at byte %d, want %q after byte 1024", f.Entry, f.Offset, tt.entry)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %q, want %q in it", err, tt.text)
			}
		})
	}
}

// TestSparse reads one file in every sparse form. The file is a hole, "data" and a hole.
func TestSparse(t *testing.T) {
	const size = 1 << 20
	content := make([]byte, size)
	copy(content[4096:], "data")
	octal := func(b []byte, n int) { copy(b, fmt.Sprintf("%011o\x00", n)) }
	for name, make := range map[string]mk{
		"old GNU": func(tb testing.TB, a *arc) {
			a.raw('S', "f", "data", func(b []byte) {
				copy(b[257:], "ustar  \x00")
				octal(b[386:], 4096)
				octal(b[398:], 4)
				octal(b[410:], size)
				octal(b[422:], 0)
				octal(b[483:], size)
			})
		},
		"0.0": func(tb testing.TB, a *arc) {
			a.pax('x', "GNU.sparse.size", "1048576", "GNU.sparse.numblocks", "2", "GNU.sparse.offset", "4096", "GNU.sparse.numbytes", "4",
				"GNU.sparse.offset", "1048576", "GNU.sparse.numbytes", "0").raw('0', "f", "data", nil)
		},
		"0.1": func(tb testing.TB, a *arc) {
			a.pax('x', "GNU.sparse.size", "1048576", "GNU.sparse.numblocks", "2", "GNU.sparse.name", "./f",
				"GNU.sparse.map", "4096,4,1048576,0").raw('0', "GNUSparseFile.1/f", "data", nil)
		},
		"1.0": func(tb testing.TB, a *arc) {
			var m arc
			m.pad("2\n4096\n4\n1048576\n0\n").WriteString("data")
			a.pax('x', "GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.name", "f", "GNU.sparse.realsize", "1048576").
				raw('0', "GNUSparseFile.1/f", m.String(), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var a arc
			make(t, &a)
			list, _ := read(t, a.end(), nil)
			if got, want := sumOf(t, list), sha256.Sum256(content); got != want {
				t.Errorf("content: got sum %x, want %x", got, want)
			}
			if e := list[0]; e.Path != "f" || e.Type != rootfs.File || e.Size != size {
				t.Errorf("got %+v", e.Entry)
			}
		})
	}
}

// TestHugeFile reads sizes beyond 2^33 in all three encodings. The archive ends where the
// content would begin.
func TestHugeFile(t *testing.T) {
	const size = 1<<33 + 5
	for name, make := range map[string]mk{
		"PAX": func(tb testing.TB, a *arc) { a.pax('x', "size", fmt.Sprint(int64(size))).raw('0', "f", "", nil) },
		"base 256": func(tb testing.TB, a *arc) {
			a.raw('0', "f", "", func(b []byte) {
				clear(b[124:136])
				b[124] = 0x80
				binary.BigEndian.PutUint64(b[128:], size)
			})
		},
		"octal of 12 digits": func(tb testing.TB, a *arc) {
			a.raw('0', "f", "", func(b []byte) { copy(b[124:], fmt.Sprintf("%012o", int64(size))) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			var a arc
			make(t, &a)
			r := open(t, a.Bytes(), nil)
			e, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if e.Size != size {
				t.Errorf("got %d bytes, want %d", e.Size, int64(size))
			}
		})
	}
}
