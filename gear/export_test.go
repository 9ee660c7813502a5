package gear_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// capNetRaw is a file capability of version 2: cap_net_raw+ep.
const capNetRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// aclUser is an access control list: the owner may read and write, user 1000 may read,
// the mask is r.
const aclUser = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00" +
	"\x04\x00\x00\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"

// buildTree makes a tree with one entry of each kind.
func buildTree(t testing.TB, dir string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	large := bytes.Repeat([]byte("0123456789abcdef"), (gear.LargeFile+5*gear.ChunkSize/2)/16)
	clear(large[gear.ChunkSize/2 : 3*gear.ChunkSize])
	must(t,
		write(in("etc/passwd"), "root:x:0:0\n"),
		write(in("a/b/c/d/deep"), "deep"),
		write(in("a-b"), "between a and a/b"),
		write(in("-"), "sorts before the root"),
		write(in("copy/1"), "twice"),
		write(in("copy/2"), "twice"),
		write(in("empty"), ""),
		write(in("zeros"), string(make([]byte, 1<<20))),
		write(in("large"), string(large)),
		write(in("large-copy"), string(large)),
		write(in("chunks"), string(large[:gear.LargeFile])),
		write(in("latin-\xe9\xff\n\" name"), "bytes"),
		write(in("bin/su"), "setuid"),
		write(in("bin/ping"), "capable"),
		write(in("bin/acl"), "listed"),
		write(in("locked/inside"), "x"),
		os.Symlink("/etc", in("outside")),
		os.Symlink("../\xe9", in("bin/link")),
		os.Link(in("bin/su"), in("a/su")),
		os.Link(in("bin/su"), in("bin/su2")),
		unix.Linkat(unix.AT_FDCWD, in("bin/link"), unix.AT_FDCWD, in("a/link"), 0),
		unix.Mkfifo(in("fifo"), 0o640),
		unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(in("disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70000))),
		os.Mkdir(in("tmp"), 0o755),
	)
	must(t,
		os.Lchown(in("bin/su"), 12, 34),
		unix.Chmod(in("bin/su"), 0o6751),
		unix.Chmod(in("tmp"), 0o1777),
		unix.Chmod(in("locked"), 0o500),
		unix.Chmod(in("empty"), 0),
		os.Lchown(in("outside"), 4294967294, 70000),
		os.Lchown(in("bin/ping"), 5, 6),
		os.Lchown(in("null"), 7, 8),
		unix.Setxattr(in("bin/ping"), "security.capability", []byte(capNetRaw), 0),
		unix.Setxattr(in("bin/acl"), "system.posix_acl_access", []byte(aclUser), 0),
		unix.Setxattr(in("a"), "system.posix_acl_default", []byte(aclUser), 0),
		unix.Setxattr(in("a"), "user.dir", []byte{0, 255}, 0),
		unix.Setxattr(in("etc/passwd"), "user.empty", nil, 0),
		unix.Setxattr(in("etc/passwd"), "trusted.t", []byte("v"), 0),
		unix.Lsetxattr(in("outside"), "trusted.link", []byte("l"), 0),
		unix.Lsetxattr(in("fifo"), "trusted.fifo", []byte("f"), 0),
		stamp(in("etc/passwd"), -5, 999999999),
		stamp(in("outside"), 1e9, 1),
		stamp(in("fifo"), 1e9+1, 2),
		stamp(in("bin/ping"), 1<<33, 123456789),
		stamp(in("a/b/c/d"), 1e9+2, 3),
		stamp(in("a/b/c"), 1e9+3, 4),
		stamp(in("locked"), 1e9+4, 5),
		unix.Chmod(dir, 0o751),
		stamp(dir, 1e9+5, 6),
	)
}

func TestExport(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	buildTree(t, dir)
	f := newFlat()
	f.apply(t, tarUpper(t, dir, nil))
	x, src := f.index()
	sock := gear.Entry{Entry: rootfs.Entry{Path: "sock", Type: rootfs.Socket, Mode: 0o600, Sec: 4}, File: -1}
	x.Entries = append(x.Entries, sock)
	slices.Reverse(x.Entries) // the order must not matter

	var last gear.ExportProgress
	out := export(t, x, src, &gear.ExportOptions{Progress: func(p gear.ExportProgress) { last = p }})
	got, want := describe(t, out), describe(t, dir)
	want["sock"] = "140600 0:0 4.000000000"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exported tree (-want +got):\n%s", diff)
	}
	if last.Files != last.TotalFiles || last.Bytes != last.TotalBytes || last.Fetched != last.ToFetch ||
		last.Files < 10 || last.Fetched >= last.Bytes || last.Fetched < 4<<20 {
		t.Errorf("progress at the end is %+v", last)
	}
	for _, name := range []string{"zeros", "large", "large-copy"} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(out, name), &st))
		if st.Blocks*512 > st.Size-900<<10 {
			t.Errorf("%s of %d bytes takes %d: its zeros are no hole", name, st.Size, st.Blocks*512)
		}
	}
}

// simple returns an index of files with the given contents, each named after its content.
func simple(contents ...string) (*gear.Index, *memSource) {
	f := newFlat()
	for _, c := range contents {
		p := "dir/" + strings.ReplaceAll(c, "/", "_")
		f.names[p] = sha256.Sum256([]byte(c))
		f.data[f.names[p]] = []byte(c)
		f.made++
		f.inodes[p] = f.made
		f.entries[p] = gear.Entry{Entry: rootfs.Entry{Path: p, Type: rootfs.File, Mode: 0o644,
			UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Size: int64(len(c))}}
	}
	return f.index()
}

// TestExportFetchesOnce counts how often the source is asked for each content.
func TestExportFetchesOnce(t *testing.T) {
	x, src := simple("one", "two", "three")
	for i := range 20 {
		e := x.Entries[i%3]
		e.Path = fmt.Sprintf("copies/%d", i)
		x.Entries = append(x.Entries, e)
	}
	x.Files = append(x.Files, gear.File{Name: gear.Name{1}, Size: 5}) // no entry refers to it
	src.got = make(chan gear.Name, 100)
	out := export(t, x, src, nil)
	if len(src.got) != 3 {
		t.Errorf("%d contents fetched, want 3", len(src.got))
	}
	for _, e := range x.Entries {
		b, err := os.ReadFile(filepath.Join(out, e.Path))
		if err != nil || sha256.Sum256(b) != x.Files[e.File].Name {
			t.Errorf("%s holds %q, %v", e.Path, b, err)
		}
	}
}

// TestExportBatches checks that a fetch asks for many files in one round trip, and for no
// more than a server takes at once.
func TestExportBatches(t *testing.T) {
	contents := make([]string, 4100)
	for i := range contents {
		contents[i] = fmt.Sprint(i)
	}
	x, src := simple(contents...)
	var calls, files atomic.Int32
	counting := fetchFunc(func(batch []gear.File, deliver func(int, io.Reader) error) error {
		calls.Add(1)
		files.Add(int32(len(batch)))
		return src.Fetch(t.Context(), batch, deliver)
	})
	out := export(t, x, counting, &gear.ExportOptions{Parallel: 2})
	if calls.Load() != 2 || files.Load() != 4100 {
		t.Errorf("%d fetches of %d files, want 2 of 4100", calls.Load(), files.Load())
	}
	for _, i := range []int{0, 2000, 4099} {
		if b, err := os.ReadFile(fmt.Sprintf("%s/dir/%d", out, i)); err != nil || string(b) != contents[i] {
			t.Errorf("file %d holds %q, %v", i, b, err)
		}
	}
}

func TestExportRefuses(t *testing.T) {
	file := func(path string) gear.Entry {
		return gear.Entry{Entry: rootfs.Entry{Path: path, Type: rootfs.File, Size: 1}}
	}
	link := func(path, target string) gear.Entry {
		return gear.Entry{Entry: rootfs.Entry{Path: path, Type: rootfs.HardLink, Link: target}}
	}
	node := func(path string, typ rootfs.Type) gear.Entry {
		return gear.Entry{Entry: rootfs.Entry{Path: path, Type: typ, Link: "/tmp"}}
	}
	sized := file("a")
	sized.Size = 2
	far := file("a")
	far.File = 3
	negative := file("a")
	negative.File = -1
	empty := file("a")
	empty.Size, empty.File = 0, 1
	chunked := file("a")
	chunked.Size, chunked.File = gear.LargeFile, 2
	tests := []struct {
		name    string
		entries []gear.Entry
		want    string
	}{
		{"parent", []gear.Entry{file("../a")}, `"../a"`},
		{"absolute", []gear.Entry{file("/a")}, `"/a" is not clean`},
		{"dots inside", []gear.Entry{file("a/../../b")}, `"a/../../b"`},
		{"empty path", []gear.Entry{file("")}, `"" is not clean`},
		{"NUL", []gear.Entry{file("a\x00b")}, `NUL`},
		{"twice", []gear.Entry{file("a"), node("a", rootfs.Dir)}, "twice"},
		{"through a symbolic link", []gear.Entry{node("l", rootfs.Symlink), file("l/a")}, `"l", which is not a directory`},
		{"deep through a file", []gear.Entry{file("f"), file("f/x/y/z")}, `"f", which is not a directory`},
		{"whiteout", []gear.Entry{node("w", rootfs.Whiteout)}, "flattened"},
		{"opaque", []gear.Entry{node("w", rootfs.Opaque)}, "flattened"},
		{"type", []gear.Entry{node("w", 99)}, "unknown type 99"},
		{"root is a link", []gear.Entry{node(".", rootfs.Symlink)}, "root is not a directory"},
		{"size", []gear.Entry{sized}, "2 bytes, its content 1"},
		{"table", []gear.Entry{far}, "content 3 is not in the table"},
		{"no content", []gear.Entry{negative}, "content -1 is not in the table"},
		{"empty with a name", []gear.Entry{empty}, "is empty"},
		{"chunk table", []gear.Entry{chunked}, "has 3 chunks"},
		{"dangling", []gear.Entry{link("h", "../../etc/passwd")}, "is not there"},
		{"to a directory", []gear.Entry{node("d", rootfs.Dir), link("h", "d")}, "a directory"},
		{"circle", []gear.Entry{link("h", "i"), link("i", "j"), link("j", "i")}, "a link itself"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			x := &gear.Index{Entries: tt.entries, Files: []gear.File{
				{Name: sha256.Sum256([]byte("a")), Size: 1}, {Name: gear.Name{1}},
				{Size: gear.LargeFile, Chunks: make([]gear.Name, 3)}}}
			src := &memSource{data: map[gear.Name][]byte{x.Files[0].Name: []byte("a")}}
			err := gear.Export(t.Context(), x, src, dir, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
			if left := describe(t, dir); len(left) != 1 {
				t.Errorf("something was made: %v", left)
			}
		})
	}
}

// fetchFunc is a source that a test makes misbehave.
type fetchFunc func([]gear.File, func(int, io.Reader) error) error

func (f fetchFunc) Fetch(_ context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	return f(files, deliver)
}

func TestExportBadSource(t *testing.T) {
	large := strings.Repeat("x", gear.LargeFile+gear.ChunkSize/2)
	give := func(s string) fetchFunc {
		return func(_ []gear.File, deliver func(int, io.Reader) error) error {
			return deliver(0, strings.NewReader(s))
		}
	}
	errLost := errors.New("connection lost")
	tests := []struct {
		name, content string
		src           fetchFunc
		want          string
	}{
		{"other bytes", "right", give("wrong"), "SHA-256"},
		{"shorter", "right", give("rig"), "ends after 3 of 5 bytes"},
		{"longer", "right", give("right!"), "longer than its 5 bytes"},
		{"chunk", large, give(large[:3<<20] + "y" + large[3<<20+1:]), "chunk 3 "},
		{"last chunk", large, give(large[:len(large)-1] + "y"), "chunk 4 "},
		{"nothing", "right", func([]gear.File, func(int, io.Reader) error) error { return nil }, "left out 1 of 1"},
		{"failing", "right", func([]gear.File, func(int, io.Reader) error) error { return errLost }, errLost.Error()},
		{"unasked", "right", func(_ []gear.File, d func(int, io.Reader) error) error {
			return d(1, strings.NewReader("right"))
		}, "not wanted"},
		{"again", "right", func(_ []gear.File, d func(int, io.Reader) error) error {
			return errors.Join(d(0, strings.NewReader("right")), d(0, strings.NewReader("right")))
		}, "not wanted"},
		{"torn", "right", func(_ []gear.File, d func(int, io.Reader) error) error {
			return d(0, io.MultiReader(strings.NewReader("ri"), &failingReader{errLost}))
		}, errLost.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x, _ := simple(tt.content)
			x.Entries[0].Path = "dir/file"
			dir := filepath.Join(t.TempDir(), "out")
			err := gear.Export(t.Context(), x, tt.src, dir, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error is %v, want one with %q", err, tt.want)
			}
			if tt.want != errLost.Error() && tt.want != "not wanted" && !strings.Contains(err.Error(), `"dir/file"`) {
				t.Errorf("error %v names no path", err)
			}
			if !strings.Contains(err.Error(), "export to "+dir+" is incomplete") {
				t.Errorf("error %v does not say that the export is incomplete", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "dir")); err != nil {
				t.Errorf("nothing is left to look at: %v", err)
			}
		})
	}
}

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestExportIntoFullDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, write(filepath.Join(dir, "mine"), "precious"))
	x, src := simple("one")
	err := gear.Export(t.Context(), x, src, dir, nil)
	if err == nil || !strings.Contains(err.Error(), `not empty: it holds "mine"`) {
		t.Errorf("error is %v", err)
	}
	if got := describe(t, dir); len(got) != 2 {
		t.Errorf("directory was changed: %v", got)
	}
}

// TestExportInherits exports to a directory that passes its access control list and group
// on to new files. The exported tree must not take them over.
func TestExportInherits(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	x, src := simple("one")
	x.Entries = append(x.Entries, gear.Entry{Entry: rootfs.Entry{Path: "sub", Type: rootfs.Dir, Mode: 0o755}})
	must(t,
		os.Chown(dir, 0, 4242), unix.Chmod(dir, 0o2777),
		unix.Setxattr(dir, "system.posix_acl_default", []byte(aclUser), 0))
	must(t, gear.Export(t.Context(), x, src, dir, nil))
	got := describe(t, dir)
	for name, want := range map[string]string{
		"dir/one": "100644 0:0 0.000000000 3 " + fmt.Sprintf("%x", sha256.Sum256([]byte("one"))),
		"sub":     "40755 0:0 0.000000000",
		"dir":     "40755 0:0 0.000000000", // needed as a parent, but not in the index
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestExportCancelled(t *testing.T) {
	x, src := simple("one", "two")
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	stop := fetchFunc(func(files []gear.File, deliver func(int, io.Reader) error) error {
		return src.Fetch(ctx, files, func(i int, r io.Reader) error {
			if calls.Add(1) == 2 {
				cancel()
			}
			return deliver(i, r)
		})
	})
	err := gear.Export(ctx, x, stop, filepath.Join(t.TempDir(), "out"), nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want %v", err, context.Canceled)
	}
}

// TestExportUnprivileged checks what happens with entries that an unprivileged process
// may not create.
func TestExportUnprivileged(t *testing.T) {
	var base string
	if os.Getenv("SLIPWAY_TEST_DIR") == "" {
		base = t.TempDir()
		must(t, unix.Chmod(base, 0o777), unix.Chmod(filepath.Dir(base), 0o755))
	}
	if !asNobody(t, base) {
		return
	}
	x, src := simple("one", "two")
	x.Entries[1].UID = 0
	x.Entries[1].Xattrs = []rootfs.Xattr{{Name: "user.ok", Value: "1"}, {Name: "security.capability", Value: capNetRaw}}
	x.Entries = append(x.Entries, gear.Entry{Entry: rootfs.Entry{Path: "null", Type: rootfs.CharDevice, Major: 1, Minor: 3}})
	err := gear.Export(t.Context(), x, src, filepath.Join(t.TempDir(), "strict"), nil)
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "needs root") {
		t.Errorf("error is %v, want one that asks for root", err)
	}
	lost := map[string]bool{}
	out := export(t, x, src, &gear.ExportOptions{Lost: func(path, what string, err error) { lost[path+": "+what] = true }})
	want := map[string]bool{"dir: owner 0:0": true, "dir/two: owner 0:65534": true, `dir/two: attribute "security.capability"`: true,
		"null: character device 1:3": true}
	if diff := cmp.Diff(want, lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if got := describe(t, out)["dir/two"]; !strings.HasSuffix(got, ` user.ok="1"`) {
		t.Errorf("dir/two is %q", got)
	}
}

// FuzzExport exports trees with hostile names. Nothing outside the directory may change.
func FuzzExport(f *testing.F) {
	f.Add([]byte("s l /..\nf l/x\nd a\nh b a\n"))
	f.Add([]byte("d a\ns a/b ../..\nf a/b/c\n"))
	f.Add([]byte("f a\nh b a\nh c b\nf ../x\n"))
	f.Add([]byte("p a\nd .\nh x a\n"))
	kinds := map[byte]rootfs.Type{'f': rootfs.File, 's': rootfs.Symlink, 'd': rootfs.Dir, 'h': rootfs.HardLink,
		'p': rootfs.Fifo, 'k': rootfs.Socket}
	f.Fuzz(func(t *testing.T, script []byte) {
		x := &gear.Index{Files: []gear.File{fileOf([]byte("data"))}}
		src := &memSource{data: map[gear.Name][]byte{x.Files[0].Name: []byte("data")}}
		for line := range bytes.SplitSeq(script, []byte("\n")) {
			part := strings.SplitN(string(line), " ", 3)
			if len(part) < 2 || len(part[0]) != 1 {
				continue
			}
			e := gear.Entry{Entry: rootfs.Entry{Path: part[1], Type: kinds[part[0][0]], Mode: 0o755,
				UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}}
			if e.Type == rootfs.File {
				e.Size = 4
			}
			if len(part) == 3 {
				e.Link = part[2]
			}
			x.Entries = append(x.Entries, e)
		}
		top := t.TempDir()
		must(t, os.Mkdir(filepath.Join(top, "out"), 0o755), write(filepath.Join(top, "victim"), "unharmed"))
		before := describe(t, top)
		// Any error is acceptable here.
		err := gear.Export(t.Context(), x, src, filepath.Join(top, "out"), nil)
		after := describe(t, top)
		for name := range after {
			if name == "out" || strings.HasPrefix(name, "out/") {
				delete(after, name)
			}
		}
		delete(before, "out")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("export (%v) changed what is outside (-before +after):\n%s", err, diff)
		}
	})
}
