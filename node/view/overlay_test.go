package view_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/view"
)

// TestOrder checks which lower directories may be at which place.
func TestOrder(t *testing.T) {
	for _, test := range []struct {
		name     string
		lower    []string
		metacopy bool
		err      error // of reading the file of the image "erofs"
	}{
		{"alone", []string{"erofs"}, false, nil},
		{"below", []string{"plain", "erofs"}, false, nil},
		{"above", []string{"erofs", "plain"}, false, unix.EPERM},
		{"above image", []string{"erofs", "erofs2"}, false, unix.EPERM},
		{"above, metacopy", []string{"erofs", "plain"}, true, nil},
		{"above image, metacopy", []string{"erofs", "erofs2"}, true, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			x, c := index(t, file("one", "1"))
			y, d := index(t, file("two", "2"))
			r.image(x, "erofs", nil)
			r.image(y, "erofs2", nil)
			r.store(c, "cache")
			r.store(d, "cache")
			r.write("plain/three", "3")
			o := view.OverlayOptions{Data: []string{r.in("cache")}, Upper: r.mkdir("upper"), Work: r.mkdir("work"), Metacopy: test.metacopy}
			for _, l := range test.lower {
				o.Lower = append(o.Lower, r.in(l))
			}
			in := r.overlay("merged", o)
			if got, err := os.ReadFile(in("one")); !errors.Is(err, test.err) || err == nil && string(got) != "1" {
				t.Errorf("one: %q, %v", got, err)
			}
			for name, lower := range map[string]string{"two": "erofs2", "three": "plain"} {
				if _, err := os.ReadFile(in(name)); slices.Contains(test.lower, lower) != (err == nil) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestOddPaths uses directories whose names need escaping or are long, with both ways of mounting.
func TestOddPaths(t *testing.T) {
	long := strings.Repeat("L", 200)
	for _, odd := range []string{"a:b", "a::b", "a,b", `a\b`, `a\:b`, `\`, "a b", "a=b", "a\tb\n", "#", "ä\xff", "upperdir=x,", long + "/" + long} {
		for name, mount := range map[string]func(string, view.OverlayOptions) error{"by parts": view.Overlay, "by page": view.OverlayByPage} {
			t.Run(fmt.Sprintf("%.12q %s", odd, name), func(t *testing.T) {
				r := newRig(t)
				x, c := index(t, file("f", "hello"))
				file, err := view.Compile(t.Context(), x, r.mkdir(odd+"/images"))
				must(t, err, view.MountImage(file, r.mkdir(odd+"/erofs"), nil))
				r.store(c, odd+"/pool")
				o := view.OverlayOptions{
					Lower: []string{r.mkdir(odd + "/above"), r.in(odd + "/erofs")}, Data: []string{r.mkdir(odd + "/cache"), r.in(odd + "/pool")},
					Upper: r.mkdir(odd + "/upper"), Work: r.mkdir(odd + "/work"),
				}
				must(t, mount(r.mkdir(odd+"/merged"), o))
				if got := read(t, r.in(odd+"/merged/f")); got != "hello" {
					t.Errorf("the file holds %q", got)
				}
				m, ok, err := view.Mounted(r.in(odd + "/merged"))
				if err != nil || !ok || m.Type != "overlay" {
					t.Fatalf("mounted is %+v, %v, %v", m, ok, err)
				}
				if diff := cmp.Diff(o, m.Layers()); diff != "" {
					t.Errorf("read back (-want +got):\n%s", diff)
				}
				m, ok, err = view.Mounted(o.Lower[1])
				if err != nil || !ok || m.Type != "erofs" || m.Source != file || !m.ReadOnly {
					t.Errorf("the image is %+v, %v, %v", m, ok, err)
				}
			})
		}
	}
}

// TestManyLower uses more directories than a page of options holds.
func TestManyLower(t *testing.T) {
	r := newRig(t)
	x, c := index(t, file("image", "image"))
	r.image(x, "erofs", nil)
	o := r.standard()
	r.store(c, "cache")
	o.Lower = nil
	for i := range 300 {
		name := fmt.Sprintf("lower-%d-%s", i, strings.Repeat("x", 60))
		r.write(fmt.Sprintf("%s/%d", name, i), "here")
		o.Lower = append(o.Lower, r.in(name))
	}
	o.Lower = append(o.Lower, r.in("erofs"))
	in := r.overlay("merged", o)
	entries, err := os.ReadDir(in(""))
	if err != nil || len(entries) != 301 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if read(t, in("image")) != "image" || read(t, in("0")) != "here" || read(t, in("299")) != "here" {
		t.Error("wrong contents")
	}
	m, ok, err := view.Mounted(in(""))
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if diff := cmp.Diff(o, m.Layers()); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if err := view.OverlayByPage(r.mkdir("page"), o); !errors.Is(err, unix.E2BIG) {
		t.Errorf("by page: %v", err)
	}
	for i := range 300 {
		o.Lower = append([]string{r.mkdir(fmt.Sprintf("more-%d", i))}, o.Lower...)
	}
	if err := view.Overlay(r.mkdir("page"), o); err == nil || !strings.Contains(err.Error(), "too many lower directories") {
		t.Errorf("beyond what the kernel takes: %v", err)
	}
}

func TestOverlayErrors(t *testing.T) {
	r := newRig(t)
	low := r.mkdir("low")
	r.write("file", "")
	for name, test := range map[string]struct {
		o    view.OverlayOptions
		want string
	}{
		"no lower":       {view.OverlayOptions{}, "no lower directory"},
		"unnamed":        {view.OverlayOptions{Lower: []string{low, ""}}, "no name"},
		"unnamed data":   {view.OverlayOptions{Lower: []string{low}, Data: []string{""}}, "no name"},
		"upper alone":    {view.OverlayOptions{Lower: []string{low}, Upper: low}, "go together"},
		"both":           {view.OverlayOptions{Lower: []string{low}, UserXattr: true, Metacopy: true}, "exclude"},
		"missing":        {view.OverlayOptions{Lower: []string{r.in("nowhere")}}, "nowhere"},
		"missing data":   {view.OverlayOptions{Lower: []string{low}, Data: []string{r.in("nowhere")}}, "nowhere"},
		"no directory":   {view.OverlayOptions{Lower: []string{r.in("file")}}, "file"},
		"upper is lower": {view.OverlayOptions{Lower: []string{low}, Upper: low, Work: r.mkdir("work")}, ""},
	} {
		err := view.Overlay(r.mkdir("merged"), test.o)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if mounts, err := view.Mounts(r.dir); err != nil || len(mounts) > 0 {
		t.Errorf("left behind %v, %v", mounts, err)
	}
}

func TestReadOnly(t *testing.T) {
	r := newRig(t)
	x, c := index(t, file("f", "x"))
	r.image(x, "erofs", nil)
	r.store(c, "cache")
	o := r.standard()
	o.ReadOnly = true
	for i, o := range []view.OverlayOptions{{Lower: o.Lower[1:], Data: o.Data}, {Lower: o.Lower, Data: o.Data}, o} {
		in := r.overlay(fmt.Sprint("merged", i), o)
		if got := read(t, in("f")); got != "x" {
			t.Errorf("%d: the file holds %q", i, got)
		}
		if err := os.WriteFile(in("g"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%d: writing: %v", i, err)
		}
		if m, ok, err := view.Mounted(in("")); err != nil || !ok || !m.ReadOnly || !m.Layers().ReadOnly {
			t.Errorf("%d: mounted is %+v, %v", i, m, err)
		}
	}
}

// TestMetacopy checks that a change of owner copies no data, and that the file can still be opened.
func TestMetacopy(t *testing.T) {
	r := newRig(t)
	text := strings.Repeat("x", 4<<20)
	x, c := index(t, file("f", text))
	r.image(x, "erofs", nil)
	r.store(c, "cache")
	o := r.standard()
	o.Metacopy = true
	in := r.overlay("merged", o)
	must(t, os.Chown(in("f"), 7, 8))
	if st := stat(t, r.in("upper/f")); st.Blocks > 64 || st.Uid != 7 {
		t.Errorf("the upper file takes %d bytes and belongs to %d", st.Blocks*512, st.Uid)
	}
	if read(t, in("f")) != text {
		t.Error("the file holds something else")
	}
	if m, _, err := view.Mounted(in("")); err != nil || !m.Layers().Metacopy {
		t.Errorf("read back: %+v, %v", m, err)
	}
}

func TestVolatile(t *testing.T) {
	r := newRig(t)
	o := r.standard()
	o.Volatile, o.Data = true, nil
	o.Lower = o.Lower[:1]
	in := r.overlay("merged", o)
	if m, _, err := view.Mounted(in("")); err != nil || !m.Layers().Volatile {
		t.Errorf("read back: %+v, %v", m, err)
	}
	if _, err := os.Stat(filepath.Join(o.Work, "work", "incompat", "volatile")); err != nil {
		t.Error(err)
	}
}

// TestUserXattr mounts overlays whose marks are in user.overlay.*.
func TestUserXattr(t *testing.T) {
	r := newRig(t)
	r.write("low/d/f", "x")
	o := view.OverlayOptions{Lower: []string{r.in("low")}, Upper: r.mkdir("upper"), Work: r.mkdir("work"), UserXattr: true}
	in := r.overlay("merged", o)
	must(t, os.RemoveAll(in("d")), os.Mkdir(in("d"), 0o755))
	if got := xattr(t, r.in("upper/d"), "user.overlay.opaque"); got != "y" {
		t.Errorf("an opaque directory is marked %q", got)
	}
	if m, _, err := view.Mounted(in("")); err != nil || !m.Layers().UserXattr {
		t.Errorf("read back: %+v, %v", m, err)
	}
}

func TestMountImage(t *testing.T) {
	for _, loop := range []bool{false, true} {
		r := newRig(t)
		x, _ := index(t, file("f", "hello"), other("link", rootfs.Symlink).link("f"))
		at := r.image(x, "erofs", &view.ImageOptions{Loop: loop})
		m, ok, err := view.Mounted(at)
		if err != nil || !ok || m.Type != "erofs" || strings.HasPrefix(m.Source, "/dev/loop") != loop {
			t.Fatalf("mounted is %+v, %v, %v", m, ok, err)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(at, &st))
		if want := int64(unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID | unix.ST_NOEXEC); st.Flags&want != want {
			t.Errorf("mounted with flags %#x", st.Flags)
		}
		lazy, err := view.Unmount(at)
		if lazy || err != nil {
			t.Errorf("unmount: %v, %v", lazy, err)
		}
		if _, ok, err := view.Mounted(at); ok || err != nil {
			t.Errorf("still mounted: %v, %v", ok, err)
		}
		if loop {
			backing, err := os.ReadFile("/sys/block/" + filepath.Base(m.Source) + "/loop/backing_file")
			if err == nil && strings.HasPrefix(string(backing), r.dir) {
				t.Errorf("%s stays on %s", m.Source, backing)
			}
		}
	}
}

func TestMountImageErrors(t *testing.T) {
	r := newRig(t)
	r.write("garbage", strings.Repeat("garbage", 10000))
	at := r.mkdir("erofs")
	for _, loop := range []bool{false, true} {
		for _, file := range []string{"garbage", "missing", "erofs"} {
			if err := view.MountImage(r.in(file), at, &view.ImageOptions{Loop: loop}); err == nil {
				t.Errorf("%s is mounted", file)
			}
		}
	}
	if err := view.MountImage(r.in("garbage"), r.in("nowhere"), nil); err == nil {
		t.Error("mounted nowhere")
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(t, err)
	for _, b := range backing {
		if text, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(text), r.dir) {
			t.Errorf("a loop device stays on %s", text)
		}
	}
}

func TestPrepareUpper(t *testing.T) {
	r := newRig(t)
	root := dir(".").mode(0o1751).xattrs("system.posix_acl_default", acl, "trusted.overlay.opaque", "y",
		"user.long", strings.Repeat("no file system of disks holds it ", 1900), "user.root", "r")
	root.UID, root.GID, root.Sec, root.Nsec = 5, 6, 1234, 5678
	x, c := index(t, root, file("f", "x"))
	at := r.image(x, "erofs", nil)
	r.store(c, "cache")
	o := view.OverlayOptions{Lower: []string{at}, Data: []string{r.in("cache")}, Upper: r.in("c/upper"), Work: r.in("c/work")}
	must(t, view.PrepareUpper(at, o.Upper, o.Work))
	in := r.overlay("merged", o)
	st := stat(t, in(""))
	if st.Mode != 0o41751 || st.Uid != 5 || st.Gid != 6 || st.Mtim.Sec != 1234 || st.Mtim.Nsec != 5678 {
		t.Errorf("the root is %+v", st)
	}
	for name, want := range map[string]string{"user.root": "r", "trusted.overlay.opaque": "y", "system.posix_acl_default": acl} {
		if got := xattr(t, in(""), name); got != want {
			t.Errorf("%s of the root is %q", name, got)
		}
	}
	if got := read(t, in("f")); got != "x" {
		t.Errorf("the file holds %q", got)
	}
	// Existing directories stay as they are.
	must(t, os.Chmod(o.Upper, 0o700), view.PrepareUpper(at, o.Upper, o.Work))
	if st := stat(t, o.Upper); st.Mode != 0o40700 {
		t.Errorf("an upper directory in use has mode %o", st.Mode)
	}
	if err := view.PrepareUpper(r.in("nowhere"), r.in("c/other"), o.Work); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a lower directory: %v", err)
	}
}

// TestOlderKernel checks that options the kernel does not know are distinguished from those it
// refuses.
func TestOlderKernel(t *testing.T) {
	needRoot(t)
	for key, want := range map[string]bool{"futuredir+": true, "lowerdir+": false} {
		old, err := view.OlderKernel(key, "/nowhere")
		if old != want || err == nil {
			t.Errorf("%s: %v, %v", key, old, err)
		}
	}
}
