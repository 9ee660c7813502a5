package view_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/view"
)

func TestParseMounts(t *testing.T) {
	text := `24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
36 24 0:30 / /mnt/a\040b\011c\012d\134e\043f ro,nodev - erofs /images/x\040y.img ro,user_xattr,acl,cache_strategy=readaround
37 36 0:31 /sub /m rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/a\:b:/c\134:/d::/e::/f,upperdir=/u\054v,workdir=/w,metacopy=on,volatile
38 36 0:32 / /n ro - overlay - ro,lowerdir+=/a:b,lowerdir+=/c\054d,datadir+=/e\134f,userxattr
39 36 0:33 / /p rw - fuse.x none rw
`
	want := []view.Mount{
		{ID: 24, Parent: 1, Dir: "/", Type: "ext4", Source: "/dev/root", Options: []string{"rw"}},
		{ID: 36, Parent: 24, Dir: "/mnt/a b\tc\nd\\e#f", Type: "erofs", Source: "/images/x y.img", ReadOnly: true,
			Options: []string{"ro", "user_xattr", "acl", "cache_strategy=readaround"}},
		{ID: 37, Parent: 36, Dir: "/m", Type: "overlay", Source: "overlay", Options: []string{
			"rw", `lowerdir=/a\:b:/c\134:/d::/e::/f`, `upperdir=/u\054v`, "workdir=/w", "metacopy=on", "volatile"}},
		{ID: 38, Parent: 36, Dir: "/n", Type: "overlay", Source: "-", ReadOnly: true, Options: []string{
			"ro", "lowerdir+=/a:b", `lowerdir+=/c\054d`, `datadir+=/e\134f`, "userxattr"}},
		{ID: 39, Parent: 36, Dir: "/p", Type: "fuse.x", Source: "none", Options: []string{"rw"}},
	}
	got, err := view.ParseMounts(strings.NewReader(text))
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	for i, want := range map[int]view.OverlayOptions{
		2: {Lower: []string{"/a:b", "/c:/d"}, Data: []string{"/e", "/f"}, Upper: "/u,v", Work: "/w", Metacopy: true, Volatile: true},
		3: {Lower: []string{"/a:b", "/c,d"}, Data: []string{`/e\f`}, ReadOnly: true, UserXattr: true},
		4: {},
	} {
		if diff := cmp.Diff(want, got[i].Layers()); diff != "" {
			t.Errorf("layers of mount %d (-want +got):\n%s", i, diff)
		}
	}
	for _, bad := range []string{"x", "1 2 3 4 5 6", "1 2 3 4 5 6 - a", "a 2 3 4 5 6 - a b c", "1 b 3 4 5 6 - a b c", " - "} {
		if got, err := view.ParseMounts(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add(`37 36 0:31 /sub /m rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/a\:b:/c\134:/d::/e::/f,upperdir=/u\054v,workdir=/w`, "/a")
	f.Add(`38 36 0:32 / /n\04 ro - overlay - ro,lowerdir+=\`, `\:,`)
	f.Fuzz(func(t *testing.T, text, path string) {
		mounts, err := view.ParseMounts(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, m := range mounts {
			m.Layers()
		}
		// A path that was escaped for the kernel is read back unchanged.
		if strings.ContainsAny(path, "\n \x00") || path == "" {
			return
		}
		var b strings.Builder
		for i := range len(view.EscapePath(path)) { // as the kernel writes it
			switch c := view.EscapePath(path)[i]; c {
			case ',', '\\', '\t', '=':
				b.WriteString(map[byte]string{',': `\054`, '\\': `\134`, '\t': `\011`, '=': `\075`}[c])
			default:
				b.WriteByte(c)
			}
		}
		line := "1 2 0:1 / /m rw - overlay overlay rw,lowerdir=" + b.String() + ":/b::" + b.String()
		mounts, err = view.ParseMounts(strings.NewReader(line))
		if err != nil || len(mounts) != 1 {
			t.Fatal(mounts, err)
		}
		if o := mounts[0].Layers(); !slices.Equal(o.Lower, []string{path, "/b"}) || !slices.Equal(o.Data, []string{path}) {
			t.Fatalf("%q is read back as %q, %q", path, o.Lower, o.Data)
		}
	})
}

func TestMounted(t *testing.T) {
	r := newRig(t)
	at := r.mkdir("at")
	if m, ok, err := view.Mounted(at); ok || err != nil {
		t.Errorf("mounted is %+v, %v", m, err)
	}
	must(t, os.Symlink(r.dir, r.in("alias")))
	must(t,
		unix.Mount("first", at, "tmpfs", 0, ""), unix.Mount("second", at, "tmpfs", unix.MS_RDONLY, ""),
		os.Mkdir(r.in("at-other"), 0o700), unix.Mount("other", r.in("at-other"), "tmpfs", 0, ""))
	for _, path := range []string{at, at + "/", r.in("alias/at"), r.dir + "/./at"} {
		if m, ok, err := view.Mounted(path); !ok || err != nil || m.Source != "second" || !m.ReadOnly || m.Dir != at {
			t.Errorf("%s: mounted is %+v, %v, %v", path, m, ok, err)
		}
	}
	if all, err := view.Mounts(at); err != nil || len(all) != 2 || all[0].Source != "first" || all[1].Parent != all[0].ID {
		t.Errorf("mounts are %+v, %v", all, err)
	}
	if all, err := view.Mounts("/"); err != nil || len(all) < 4 {
		t.Errorf("all mounts are %+v, %v", all, err)
	}
	if m, ok, err := view.Mounted(filepath.Join(r.dir, "no/where")); ok || err != nil {
		t.Errorf("mounted is %+v, %v", m, err)
	}
}

func TestUnmount(t *testing.T) {
	r := newRig(t)
	at := r.mkdir("at")
	if lazy, err := view.Unmount(at); lazy || err != nil {
		t.Errorf("nothing mounted: %v, %v", lazy, err)
	}
	if lazy, err := view.Unmount(r.dir + "/nowhere"); lazy || err != nil {
		t.Errorf("no directory: %v, %v", lazy, err)
	}
	must(t, unix.Mount("x", at, "tmpfs", 0, ""))
	f, err := os.Create(filepath.Join(at, "f"))
	must(t, err)
	defer f.Close()
	if lazy, err := view.Unmount(at); !lazy || err != nil {
		t.Errorf("in use: %v, %v", lazy, err)
	}
	if _, err := f.WriteString("still there"); err != nil {
		t.Error(err)
	}
	// Mounts on mounts, and an image below the overlay that needs it.
	in := r.container(file("d/f", "x"))
	must(t, unix.Mount("y", in("d"), "tmpfs", 0, ""), os.Mkdir(in("d/e"), 0o700), unix.Mount("z", in("d/e"), "tmpfs", 0, ""))
	if all, err := view.Mounts(r.dir); err != nil || len(all) != 4 {
		t.Errorf("mounts are %+v, %v", all, err)
	}
	must(t, view.UnmountBelow(r.dir))
	if all, err := view.Mounts(r.dir); err != nil || len(all) > 0 {
		t.Errorf("mounts are %+v, %v", all, err)
	}
}
