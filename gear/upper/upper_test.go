package upper_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/export"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/gear/treetest"
	"example.org/slipway/gear/upper"
)

func tarUpper(t testing.TB, dir string, opts *upper.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := upper.Tar(t.Context(), dir, &b, opts); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// headers lists a tar: the type and name of each member, and the target of a link.
func headers(t testing.TB, layer []byte) []string {
	t.Helper()
	var out []string
	tr := tar.NewReader(bytes.NewReader(layer))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		treetest.Must(t, err)
		line := string(h.Typeflag) + " " + h.Name
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		out = append(out, line)
	}
}

// overlay is a mounted overlay.
type overlay struct{ lower, upper, work, merged string }

// mount mounts an overlay over lower. The test fills lower first.
func (o *overlay) mount(t testing.TB, options string) {
	t.Helper()
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s%s", o.lower, o.upper, o.work, options)
	if err := unix.Mount("overlay", o.merged, "overlay", 0, data); err != nil {
		t.Skipf("overlayfs with %q cannot be mounted here: %v", options, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(o.merged, 0); err != nil {
			t.Error(err)
		}
	})
}

func newOverlay(t testing.TB) *overlay {
	t.Helper()
	treetest.NeedRoot(t)
	dir := t.TempDir()
	o := &overlay{dir + "/lower", dir + "/upper", dir + "/work", dir + "/merged"}
	for _, d := range []string{o.lower, o.upper, o.work, o.merged} {
		treetest.Must(t, os.Mkdir(d, 0o755))
	}
	return o
}

// checkCommit compares the merged directory with lower + the tar of upper.
func (o *overlay) checkCommit(t testing.TB, opts *upper.Options) {
	t.Helper()
	f := treetest.NewFlat()
	f.Apply(t, tarUpper(t, o.lower, nil))
	layer := tarUpper(t, o.upper, opts)
	f.Apply(t, layer)
	x, src := f.Index()
	want := treetest.Describe(t, o.merged)
	if diff := cmp.Diff(want, treetest.Describe(t, exported(t, x, src, nil))); diff != "" {
		t.Errorf("lower and upper layer (-merged +layers):\n%s\n%s", diff, strings.Join(headers(t, layer), "\n"))
	}
	x, err := gear.Flatten(convert(t, tarUpper(t, o.lower, nil)), convert(t, layer))
	treetest.Must(t, err)
	if diff := cmp.Diff(want, treetest.Describe(t, exported(t, x, src, nil))); diff != "" {
		t.Errorf("flattened indexes (-merged +exported):\n%s", diff)
	}
}

// convert returns the index of a layer.
func convert(t testing.TB, layer []byte) *gear.Index {
	t.Helper()
	r, err := rootfs.Open(t.Context(), bytes.NewReader(layer), nil)
	treetest.Must(t, err)
	defer r.Close()
	b := gear.NewBuilder(nil)
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		treetest.Must(t, err)
		var f gear.File
		if e.Type == rootfs.File {
			content, err := io.ReadAll(r)
			treetest.Must(t, err)
			f = treetest.FileOf(content)
		}
		treetest.Must(t, b.Add(*e, f))
	}
	x, err := b.Index()
	treetest.Must(t, err)
	return x
}

func TestTarUpper(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	o := newOverlay(t)
	treetest.Build(t, o.lower)
	treetest.Must(t,
		treetest.Write(o.lower+"/gone/sub/file", "1"), treetest.Write(o.lower+"/remade/old", "1"),
		treetest.Write(o.lower+"/turns/into", "1"), treetest.Write(o.lower+"/becomes", "a directory"),
		treetest.Write(o.lower+"/keep/me", "1"), treetest.Write(o.lower+"/touched", "1"),
		unix.Setxattr(o.lower+"/touched", "user.was", []byte("here"), 0))
	o.mount(t, "")
	m := func(name string) string { return filepath.Join(o.merged, name) }
	treetest.Must(t,
		os.RemoveAll(m("gone")), os.Remove(m("copy/1")), os.Remove(m("fifo")),
		os.RemoveAll(m("remade")), treetest.Write(m("remade/new"), "2"),
		os.RemoveAll(m("turns")), treetest.Write(m("turns"), "a file"),
		os.Remove(m("becomes")), treetest.Write(m("becomes/a/directory"), "2"),
		treetest.Write(m("etc/passwd"), "changed"), treetest.Write(m("new/file"), "new"),
		unix.Chmod(m("touched"), 0o4711), unix.Chmod(m("keep"), 0o700),
		os.Rename(m("bin/acl"), m("tmp/acl")),
		os.Link(m("new/file"), m("new/link")), os.Link(m("new/file"), m("a/other")),
		os.Symlink("nowhere", m("new/sym")),
		unix.Mknod(m("new/zero"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))),
		unix.Mkfifo(m("new/fifo"), 0o600), treetest.Write(m("new/\xff"), "\x00"),
		unix.Setxattr(m("new"), "trusted.overlay.opaque", []byte("mine"), 0),
		unix.Setxattr(m("new/file"), "user.overlay.opaque", []byte("y"), 0),
		os.Lchown(m("new/sym"), 3, 4), os.Lchown(m("null"), 3, 4), unix.Chmod(m("."), 0o711),
		treetest.Stamp(m("new/file"), 5, 6), treetest.Stamp(m("new"), 7, 8), treetest.Stamp(m("."), 9, 10),
	)
	o.checkCommit(t, nil)
	o.checkCommit(t, &upper.Options{Merged: o.merged})
	first := tarUpper(t, o.upper, nil)
	if !bytes.Equal(first, tarUpper(t, o.upper, nil)) {
		t.Error("two tars of one directory differ")
	}
	if !bytes.Equal(first, tarUpper(t, o.upper, &upper.Options{Merged: o.merged})) {
		t.Error("the tar read through the mount differs")
	}
	want := []string{"5 ./", "5 a/", "0 a/other", "5 becomes/", "0 becomes/.wh..wh..opq", "5 becomes/a/", "0 becomes/a/directory"}
	if diff := cmp.Diff(want, headers(t, first)[:len(want)]); diff != "" {
		t.Errorf("tar begins (-want +got):\n%s", diff)
	}
}

// TestTarUpperRandom makes random changes to overlays, of the kinds that a container may
// make.
func TestTarUpperRandom(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			o := newOverlay(t)
			rnd := rand.New(rand.NewPCG(seed, 1))
			for range 25 {
				randomStep(rnd, o.lower)
			}
			options := []string{"", ",redirect_dir=on,metacopy=on", ",index=on,xino=off"}[seed%3]
			o.mount(t, options)
			for range 25 {
				randomStep(rnd, o.merged)
			}
			if options != ",redirect_dir=on,metacopy=on" {
				o.checkCommit(t, nil)
			}
			o.checkCommit(t, &upper.Options{Merged: o.merged})
		})
	}
}

// randomStep changes something below dir. It ignores what cannot be done.
func randomStep(rnd *rand.Rand, dir string) {
	name := func() string {
		p := dir
		for range 1 + rnd.IntN(3) {
			p += "/" + string(rune('a'+rnd.IntN(3)))
		}
		return p
	}
	p := name()
	switch rnd.IntN(12) {
	case 0, 1, 2:
		_ = treetest.Write(p, fmt.Sprint(rnd.IntN(5)))
	case 3:
		_ = os.MkdirAll(p, 0o700)
	case 4, 5:
		_ = os.RemoveAll(p)
	case 6, 7:
		_ = os.Rename(p, name())
	case 8:
		_ = os.Link(p, name())
	case 9:
		_ = unix.Chmod(p, uint32(rnd.IntN(0o10000)))
	case 10:
		_ = unix.Lsetxattr(p, "trusted.overlay.opaque", []byte("y"), 0)
	case 11:
		_ = os.Symlink(path.Base(name()), p) // the target stays inside
	}
}

// TestTarUpperPartial reads upper directories that hold only a part of the changes.
func TestTarUpperPartial(t *testing.T) {
	for option, want := range map[string]string{"redirect_dir": `"moved" was renamed`, "metacopy": `"file" has its content`} {
		t.Run(option, func(t *testing.T) {
			o := newOverlay(t)
			treetest.Must(t, treetest.Write(o.lower+"/dir/one", "1"), treetest.Write(o.lower+"/dir/two", "2"), treetest.Write(o.lower+"/dir/sub/three", "3"),
				treetest.Write(o.lower+"/file", "content"))
			o.mount(t, ","+option+"=on")
			treetest.Must(t, unix.Chmod(o.merged+"/file", 0o600))
			if option == "redirect_dir" {
				treetest.Must(t, os.Rename(o.merged+"/dir", o.merged+"/moved"), treetest.Write(o.merged+"/moved/two", "changed"),
					os.Remove(o.merged+"/moved/one"), treetest.Write(o.merged+"/moved/four", "4"),
					os.Link(o.merged+"/moved/four", o.merged+"/four"))
			}
			err := upper.Tar(t.Context(), o.upper, io.Discard, nil)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "merged") {
				t.Errorf("error is %v, want one with %s", err, want)
			}
			o.checkCommit(t, &upper.Options{Merged: o.merged})
		})
	}
}

// TestTarUpperMarks checks the marks that overlayfs keeps in extended attributes.
func TestTarUpperMarks(t *testing.T) {
	treetest.NeedRoot(t)
	dir := t.TempDir()
	for _, ns := range []string{"trusted", "user"} {
		d := filepath.Join(dir, ns)
		treetest.Must(t,
			treetest.Write(d+"/x/gone", ""), treetest.Write(d+"/x/full", "not empty"), treetest.Write(d+"/x/stays", ""), treetest.Write(d+"/y/new", "1"),
			unix.Setxattr(d+"/x", ns+".overlay.opaque", []byte("x"), 0),
			unix.Setxattr(d+"/y", ns+".overlay.opaque", []byte("y"), 0),
			unix.Setxattr(d+"/y", ns+".overlay.impure", []byte("y"), 0),
			unix.Setxattr(d+"/x/gone", ns+".overlay.whiteout", nil, 0),
			unix.Setxattr(d+"/x/full", ns+".overlay.whiteout", nil, 0),
			unix.Setxattr(d+"/x/stays", ns+".overlay.overlay.whiteout", []byte("1"), 0),
			unix.Setxattr(d+"/x/stays", ns+".overlay.overlay.overlay.opaque", []byte("2"), 0),
			unix.Setxattr(d+"/x/stays", ns+".overlay.origin", []byte("3"), 0),
			unix.Setxattr(d+"/x/stays", ns+".overlays", []byte("4"), 0),
			unix.Setxattr(d+"/x/stays", "security.selinux", []byte("host"), 0),
		)
	}
	want := []string{"5 ./",
		"5 trusted/", "5 trusted/x/", "0 trusted/x/full", "0 trusted/x/.wh.gone", "0 trusted/x/stays",
		"5 trusted/y/", "0 trusted/y/.wh..wh..opq", "0 trusted/y/new",
		"5 user/", "5 user/x/", "0 user/x/full", "0 user/x/gone", "0 user/x/stays", "5 user/y/", "0 user/y/new"}
	layer := tarUpper(t, dir, nil)
	if diff := cmp.Diff(want, headers(t, layer)); diff != "" {
		t.Errorf("overlay without userxattr (-want +got):\n%s", diff)
	}
	checkXattrs(t, layer, "trusted/x/stays", []rootfs.Xattr{{Name: "trusted.overlay.overlay.opaque", Value: "2"},
		{Name: "trusted.overlay.whiteout", Value: "1"}, {Name: "trusted.overlays", Value: "4"}})
	checkXattrs(t, layer, "user/x/stays", []rootfs.Xattr{{Name: "user.overlay.origin", Value: "3"},
		{Name: "user.overlay.overlay.overlay.opaque", Value: "2"}, {Name: "user.overlay.overlay.whiteout", Value: "1"},
		{Name: "user.overlays", Value: "4"}})

	layer = tarUpper(t, filepath.Join(dir, "user"), &upper.Options{UserXattr: true})
	want = []string{"5 ./", "5 x/", "0 x/full", "0 x/.wh.gone", "0 x/stays", "5 y/", "0 y/.wh..wh..opq", "0 y/new"}
	if diff := cmp.Diff(want, headers(t, layer)); diff != "" {
		t.Errorf("overlay with userxattr (-want +got):\n%s", diff)
	}
	checkXattrs(t, layer, "x/stays", []rootfs.Xattr{{Name: "user.overlay.overlay.opaque", Value: "2"},
		{Name: "user.overlay.whiteout", Value: "1"}, {Name: "user.overlays", Value: "4"}})
}

func checkXattrs(t testing.TB, layer []byte, name string, want []rootfs.Xattr) {
	t.Helper()
	f := treetest.NewFlat()
	f.Apply(t, layer)
	if diff := cmp.Diff(want, f.Entries[name].Xattrs); diff != "" {
		t.Errorf("attributes of %s (-want +got):\n%s", name, diff)
	}
}

func TestTarUpperRefuses(t *testing.T) {
	treetest.NeedRoot(t)
	tests := []struct {
		name  string
		build func(dir string) error
		want  string
	}{
		{"whiteout name", func(d string) error { return treetest.Write(d+"/sub/.wh.x", "") }, `"sub/.wh.x" cannot`},
		{"attribute name", func(d string) error {
			return errors.Join(treetest.Write(d+"/f", ""), unix.Setxattr(d+"/f", "user.a=b", []byte("c"), 0))
		}, `"user.a=b" of "f"`},
		{"missing", os.Remove, "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "upper")
			treetest.Must(t, os.Mkdir(dir, 0o755), tt.build(dir))
			err := upper.Tar(t.Context(), dir, io.Discard, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %s", err, tt.want)
			}
		})
	}
}

func TestTarUpperSkipsSockets(t *testing.T) {
	treetest.NeedRoot(t)
	dir := t.TempDir()
	treetest.Must(t, unix.Mknod(dir+"/sock", unix.S_IFSOCK|0o600, 0), treetest.Write(dir+"/file", ""))
	var skipped []string
	layer := tarUpper(t, dir, &upper.Options{Skipped: func(path, why string) { skipped = append(skipped, path+": "+why) }})
	if diff := cmp.Diff([]string{"5 ./", "0 file"}, headers(t, layer)); diff != "" {
		t.Errorf("tar (-want +got):\n%s", diff)
	}
	if len(skipped) != 1 || !strings.HasPrefix(skipped[0], "sock: sockets") {
		t.Errorf("skipped are %q", skipped)
	}
}

// TestTarUpperUnprivileged checks that TarUpper asks for root. Without root it cannot
// recognise opaque directories, and the tar would be wrong.
func TestTarUpperUnprivileged(t *testing.T) {
	var dir string
	if os.Getenv("SLIPWAY_TEST_DIR") == "" {
		dir = t.TempDir()
		treetest.Must(t, unix.Chmod(dir, 0o777), unix.Chmod(filepath.Dir(dir), 0o755))
	}
	if !treetest.AsNobody(t, dir) {
		return
	}
	dir = t.TempDir()
	err := upper.Tar(t.Context(), dir, io.Discard, nil)
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "without root") {
		t.Errorf("error is %v, want one that asks for root", err)
	}
	tarUpper(t, dir, &upper.Options{UserXattr: true})
}

// writerFunc is a writer that calls the function for every write.
type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestTarUpperLargeChanges changes a large file while it is streamed.
func TestTarUpperLargeChanges(t *testing.T) {
	treetest.NeedRoot(t)
	for _, size := range []int64{5, 40 << 20} { // truncated, extended
		name := filepath.Join(t.TempDir(), "large")
		treetest.Must(t, treetest.Write(name, "x"), os.Truncate(name, 30<<20))
		total := 0
		w := writerFunc(func(p []byte) {
			if total += len(p); total > 10<<20 && total-len(p) <= 10<<20 {
				treetest.Must(t, os.Truncate(name, size))
			}
		})
		err := upper.Tar(t.Context(), filepath.Dir(name), w, nil)
		if !errors.Is(err, upper.ErrChanged) || !strings.Contains(err.Error(), `"large"`) {
			t.Errorf("error is %v, want %v and the name", err, upper.ErrChanged)
		}
	}
}

// TestTarUpperRetries changes a file during its first reading, or during each one. The
// kernel asks the test for permission before each read, and the test changes the file
// before it grants it.
func TestTarUpperRetries(t *testing.T) {
	treetest.NeedRoot(t)
	for _, changes := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "file")
			treetest.Must(t, treetest.Write(name, "before"), treetest.Stamp(name, 1, 1))
			opens := watchReads(t, name, func(n int) {
				if n <= changes {
					treetest.Must(t, treetest.Stamp(name, int64(1+n), 1))
				}
			})
			var b bytes.Buffer
			err := upper.Tar(t.Context(), filepath.Dir(name), &b, nil)
			if changes == 2 {
				if !errors.Is(err, upper.ErrChanged) || !strings.Contains(err.Error(), `"file"`) {
					t.Errorf("error is %v, want %v and the name", err, upper.ErrChanged)
				}
				return
			}
			treetest.Must(t, err)
			f := treetest.NewFlat()
			f.Apply(t, b.Bytes())
			if got := f.Entries["file"].Sec; got != int64(1+changes) {
				t.Errorf("time is %d, want %d", got, 1+changes)
			}
			if got := opens(); got != changes+1 {
				t.Errorf("%d readings, want %d", got, changes+1)
			}
		})
	}
}

// watchReads calls before(n) ahead of the first read of the nth opening of the file. The
// returned function reports how many readings there were.
func watchReads(t *testing.T, name string, before func(n int)) func() int {
	t.Helper()
	fan, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	if err != nil {
		t.Skipf("fanotify is not available: %v", err)
	}
	if err := unix.FanotifyMark(fan, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, name); err != nil {
		unix.Close(fan)
		t.Skipf("fanotify has no permission events: %v", err)
	}
	if err := unix.FanotifyMark(fan, unix.FAN_MARK_ADD, unix.FAN_ACCESS_PERM, unix.AT_FDCWD, name); err != nil {
		unix.Close(fan)
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fan), "fanotify")
	done := make(chan int)
	go func() {
		opens, fresh := 0, false
		buf := make([]byte, 4096)
		for {
			n, err := events.Read(buf)
			if err != nil {
				done <- opens
				return
			}
			// Each event is 24 bytes: length u32, version u8, reserved u8, metadata
			// length u16, mask u64, descriptor i32, process i32.
			for b := buf[:n]; len(b) >= 24; b = b[24:] {
				mask := uint64(b[8]) | uint64(b[9])<<8 | uint64(b[10])<<16
				if mask&unix.FAN_OPEN_PERM != 0 {
					opens, fresh = opens+1, true
				} else if fresh {
					fresh = false
					before(opens)
				}
				answer := append(slices.Clone(b[16:20]), unix.FAN_ALLOW, 0, 0, 0)
				fd := int(b[16]) | int(b[17])<<8
				_, err := events.Write(answer)
				if unix.Close(fd); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	stopped := false
	stop := func() int {
		stopped = true
		events.Close()
		return <-done
	}
	t.Cleanup(func() {
		if !stopped {
			stop()
		}
	})
	return stop
}

// FuzzTarUpper reads directories with any names and attributes. The tar must parse, be
// sorted, hold clean paths only, and come out the same a second time.
func FuzzTarUpper(f *testing.F) {
	f.Add([]byte("f a/b\nx a user.overlay.opaque y\nw c\nh d a/b\n"))
	f.Add([]byte("f .wh.x\ns \xff ../..\nx \xff trusted.a\n"))
	f.Add([]byte("f a\nx a user.overlay.overlay.whiteout 1\nf a-b\nf ab\n"))
	f.Add([]byte("d a\nx a user.overlay.redirect /b\n"))
	f.Fuzz(func(t *testing.T, script []byte) {
		dir := t.TempDir()
		buildScript(t, dir, script)
		opts := &upper.Options{UserXattr: true}
		var a, b bytes.Buffer
		if err := upper.Tar(t.Context(), dir, &a, opts); err != nil {
			return // such as a name no layer can hold
		}
		treetest.Must(t, upper.Tar(t.Context(), dir, &b, opts))
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Error("two tars of one directory differ")
		}
		fl := treetest.NewFlat()
		fl.Apply(t, a.Bytes())
		for _, p := range slices.Collect(maps.Keys(fl.Entries)) {
			if clean, err := rootfs.CleanPath(p); err != nil || clean != p {
				t.Errorf("path %q: %q, %v", p, clean, err)
			}
		}
	})
}

// buildScript makes the entries that the lines of a script describe and leaves out those
// that cannot be made. It makes symbolic links last, so that no entry is made through
// them.
func buildScript(t *testing.T, dir string, script []byte) {
	root, err := os.OpenRoot(dir)
	treetest.Must(t, err)
	defer root.Close()
	var links [][]string
	for line := range bytes.SplitSeq(script, []byte("\n")) {
		part := append(strings.SplitN(string(line), " ", 4), "", "", "")
		name := filepath.Join(dir, path.Join("/", part[1]))
		if name == dir || strings.Contains(string(line), "\x00") {
			continue
		}
		switch part[0] {
		case "f":
			_ = treetest.Write(name, part[2])
		case "d":
			_ = os.MkdirAll(name, 0o755)
		case "w":
			_ = unix.Mknod(name, unix.S_IFCHR, 0)
		case "h":
			_ = os.Link(filepath.Join(dir, path.Join("/", part[2])), name)
		case "x":
			_ = unix.Lsetxattr(name, part[2], []byte(part[3]), 0)
		case "s":
			links = append(links, part)
		}
	}
	for _, part := range links {
		_ = root.Symlink(part[2], strings.TrimPrefix(path.Join("/", part[1]), "/"))
	}
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
