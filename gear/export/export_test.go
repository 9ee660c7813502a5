package export_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/export"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/gear/treetest"
	"example.org/slipway/gear/upper"
)

func TestExport(t *testing.T) {
	treetest.NeedRoot(t)
	dir := t.TempDir()
	treetest.Build(t, dir)
	f := treetest.NewFlat()
	f.Apply(t, tarUpper(t, dir, nil))
	x, src := f.Index()
	sock := gear.Entry{Entry: rootfs.Entry{Path: "sock", Type: rootfs.Socket, Mode: 0o600, Sec: 4}, File: -1}
	x.Entries = append(x.Entries, sock)
	slices.Reverse(x.Entries) // the order must not matter

	var last export.Progress
	out := exported(t, x, src, &export.Options{Progress: func(p export.Progress) { last = p }})
	got, want := treetest.Describe(t, out), treetest.Describe(t, dir)
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
		treetest.Must(t, unix.Stat(filepath.Join(out, name), &st))
		if st.Blocks*512 > st.Size-900<<10 {
			t.Errorf("%s of %d bytes takes %d: its zeros are no hole", name, st.Size, st.Blocks*512)
		}
	}
}

// simple returns an index of files with the given contents, each at a path of its own.
func simple(contents ...string) (*gear.Index, *treetest.Source) {
	f := treetest.NewFlat()
	for _, c := range contents {
		p := "dir/" + strings.ReplaceAll(c, "/", "_")
		f.Put(gear.Entry{Entry: rootfs.Entry{Path: p, Type: rootfs.File, Mode: 0o644,
			UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Size: int64(len(c))}}, []byte(c))
	}
	return f.Index()
}

// TestExportFetchesOnce counts how often the source is asked for each content.
func TestExportFetchesOnce(t *testing.T) {
	x, src := simple("one", "two", "three")
	for i := range 20 {
		e := x.Entries[i%3]
		e.Path = fmt.Sprintf("copies/%d", i)
		x.Entries = append(x.Entries, e)
	}
	x.Files = append(x.Files, gear.File{Name: gear.Name{1}, Size: 5}) // used by no entry
	src.Got = make(chan gear.Name, 100)
	out := exported(t, x, src, nil)
	if len(src.Got) != 3 {
		t.Errorf("%d contents fetched, want 3", len(src.Got))
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
	out := exported(t, x, counting, &export.Options{Parallel: 2})
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
			src := &treetest.Source{Data: map[gear.Name][]byte{x.Files[0].Name: []byte("a")}}
			err := export.Tree(t.Context(), x, src, dir, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
			if left := treetest.Describe(t, dir); len(left) != 1 {
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
			err := export.Tree(t.Context(), x, tt.src, dir, nil)
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
	treetest.Must(t, treetest.Write(filepath.Join(dir, "mine"), "precious"))
	x, src := simple("one")
	err := export.Tree(t.Context(), x, src, dir, nil)
	if err == nil || !strings.Contains(err.Error(), `not empty: it holds "mine"`) {
		t.Errorf("error is %v", err)
	}
	if got := treetest.Describe(t, dir); len(got) != 2 {
		t.Errorf("directory was changed: %v", got)
	}
}

// TestExportInherits exports to a directory that passes its access control list and group on to
// new files. The exported tree must not inherit them.
func TestExportInherits(t *testing.T) {
	treetest.NeedRoot(t)
	dir := t.TempDir()
	x, src := simple("one")
	x.Entries = append(x.Entries, gear.Entry{Entry: rootfs.Entry{Path: "sub", Type: rootfs.Dir, Mode: 0o755}})
	treetest.Must(t,
		os.Chown(dir, 0, 4242), unix.Chmod(dir, 0o2777),
		unix.Setxattr(dir, "system.posix_acl_default", []byte(treetest.ACL), 0))
	treetest.Must(t, export.Tree(t.Context(), x, src, dir, nil))
	got := treetest.Describe(t, dir)
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
	err := export.Tree(ctx, x, stop, filepath.Join(t.TempDir(), "out"), nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want %v", err, context.Canceled)
	}
}

// TestExportOddEntries exports trees whose entries have attributes and devices as
// archivers of other systems write them: names that Linux does not know, values longer
// than a file can have, invalid access control lists. With Lost every tree is exported,
// and each attribute is either kept or reported.
func TestExportOddEntries(t *testing.T) {
	treetest.NeedRoot(t)
	names := []string{"user.a", "trusted.a", "security.a", "com.apple.provenance", "system.nfs4_acl", "system.posix_acl_access", "system.posix_acl_default", "user." + strings.Repeat("n", 300)}
	lengths := []int{0, 1, 60, 3000, 5000, 40_000, 65_535, 65_536, 70_000}
	rnd := rand.New(rand.NewPCG(7, 11))
	types := []rootfs.Type{rootfs.Dir, rootfs.File, rootfs.Symlink, rootfs.CharDevice, rootfs.Fifo}
	f := treetest.NewFlat()
	x, src := f.Index()
	if len(x.Files) == 0 {
		x.Files = append(x.Files, gear.Empty())
	}
	empty := slices.IndexFunc(x.Files, func(f gear.File) bool { return f.Size == 0 })
	if empty < 0 {
		t.Fatal("the index has no empty file")
	}
	for n := range 300 {
		e := gear.Entry{Entry: rootfs.Entry{Path: fmt.Sprintf("e%03d", n), Type: types[rnd.IntN(len(types))], Mode: 0o644}, File: -1}
		switch e.Type {
		case rootfs.File:
			e.File = int32(empty)
		case rootfs.Symlink:
			e.Link = "to"
		case rootfs.CharDevice:
			e.Major, e.Minor = 1+rnd.Uint32()>>rnd.IntN(32), rnd.Uint32()>>rnd.IntN(32)
		}
		for range rnd.IntN(4) {
			a := rootfs.Xattr{Name: names[rnd.IntN(len(names))], Value: strings.Repeat("v", lengths[rnd.IntN(len(lengths))])}
			if !slices.ContainsFunc(e.Xattrs, func(b rootfs.Xattr) bool { return a.Name == b.Name }) {
				e.Xattrs = append(e.Xattrs, a)
			}
		}
		x.Entries = append(x.Entries, e)
	}
	lost := map[string]string{}
	out := exported(t, x, src, &export.Options{Lost: func(path, what string, err error) { lost[path] += what + "\n" }})
	buf := make([]byte, 1<<17)
	for i := range x.Entries {
		e := &x.Entries[i]
		path := filepath.Join(out, e.Path)
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
		for _, a := range e.Xattrs {
			if a.Value == "" && strings.HasPrefix(a.Name, "system.posix_acl_") {
				continue // Linux takes an empty list for none
			}
			n, err := unix.Lgetxattr(path, a.Name, buf)
			if kept := err == nil && string(buf[:n]) == a.Value; !kept && !strings.Contains(lost[e.Path], a.Name[:min(len(a.Name), 60)]) {
				t.Errorf("%s of type %v: attribute %.60s of %d bytes is neither kept (%v) nor told of: %s", e.Path, e.Type, a.Name, len(a.Value), err, lost[e.Path])
			}
		}
	}
}

// TestExportUnprivileged checks what happens with entries that an unprivileged process
// may not create.
func TestExportUnprivileged(t *testing.T) {
	var base string
	if os.Getenv("SLIPWAY_TEST_DIR") == "" {
		base = t.TempDir()
		treetest.Must(t, unix.Chmod(base, 0o777), unix.Chmod(filepath.Dir(base), 0o755))
	}
	if !treetest.AsNobody(t, base) {
		return
	}
	x, src := simple("one", "two")
	x.Entries[1].UID = 0
	x.Entries[1].Xattrs = []rootfs.Xattr{{Name: "user.ok", Value: "1"}, {Name: "security.capability", Value: treetest.Capability}}
	x.Entries = append(x.Entries, gear.Entry{Entry: rootfs.Entry{Path: "null", Type: rootfs.CharDevice, Major: 1, Minor: 3}})
	err := export.Tree(t.Context(), x, src, filepath.Join(t.TempDir(), "strict"), nil)
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "needs root") {
		t.Errorf("error is %v, want one that asks for root", err)
	}
	lost := map[string]bool{}
	out := exported(t, x, src, &export.Options{Lost: func(path, what string, err error) { lost[path+": "+what] = true }})
	want := map[string]bool{"dir: owner 0:0": true, "dir/two: owner 0:65534": true, `dir/two: attribute "security.capability"`: true,
		"null: character device 1:3": true}
	if diff := cmp.Diff(want, lost); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if got := treetest.Describe(t, out)["dir/two"]; !strings.HasSuffix(got, ` user.ok="1"`) {
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
		x := &gear.Index{Files: []gear.File{treetest.FileOf([]byte("data"))}}
		src := &treetest.Source{Data: map[gear.Name][]byte{x.Files[0].Name: []byte("data")}}
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
		treetest.Must(t, os.Mkdir(filepath.Join(top, "out"), 0o755), treetest.Write(filepath.Join(top, "victim"), "unharmed"))
		before := treetest.Describe(t, top)
		// An error is fine, wherever it comes from.
		err := export.Tree(t.Context(), x, src, filepath.Join(top, "out"), nil)
		after := treetest.Describe(t, top)
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

// exported writes an index into a new directory.
func exported(t testing.TB, x *gear.Index, src gear.FileSource, opts *export.Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if err := export.Tree(t.Context(), x, src, dir, opts); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tarUpper(t testing.TB, dir string, opts *upper.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := upper.Tar(t.Context(), dir, &b, opts); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
