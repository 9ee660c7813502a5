package view_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/view"
)

func TestCompileNamesByContent(t *testing.T) {
	x, _ := index(t, dir("d").xattrs("user.a", "1"), file("d/f", "text"), other("d/link", rootfs.Symlink).link("f"))
	at := t.TempDir()
	first, err := view.Compile(t.Context(), x, at)
	must(t, err)
	before, err := os.Stat(first)
	must(t, err)
	if before.Mode() != 0o444 || filepath.Dir(first) != at {
		t.Errorf("%s has mode %v", first, before.Mode())
	}
	must(t, view.Check(first))
	again, err := view.Compile(t.Context(), x, at)
	must(t, err)
	after, err := os.Stat(again)
	must(t, err)
	if first != again || !os.SameFile(before, after) {
		t.Errorf("compiled again, %s is now %s, or another file", first, again)
	}
	y, _ := index(t, dir("d").xattrs("user.a", "2"), file("d/f", "text"), other("d/link", rootfs.Symlink).link("f"))
	different, err := view.Compile(t.Context(), y, at)
	must(t, err)
	if different == first {
		t.Error("another tree has the same name")
	}
	names, err := os.ReadDir(at)
	if err != nil || len(names) != 2 {
		t.Errorf("the directory holds %v, %v", names, err)
	}
}

func TestCompileReplacesDamaged(t *testing.T) {
	x, _ := index(t, file("f", "text"))
	at := t.TempDir()
	image, err := view.Compile(t.Context(), x, at)
	must(t, err)
	good := read(t, image)
	for _, damaged := range []string{"", good[:5000], strings.Replace(good, "trusted", "Trusted", 1) + "x"} {
		must(t, os.Remove(image), os.WriteFile(image, []byte(damaged), 0o444))
		if err := view.Check(image); err == nil {
			t.Error("Check finds a damaged image good")
		}
		again, err := view.Compile(t.Context(), x, at)
		must(t, err)
		if again != image || read(t, image) != good {
			t.Error("a damaged image stays")
		}
	}
	for _, name := range []string{"x.img", "00.img", filepath.Base(image) + "x", strings.ToUpper(filepath.Base(image)), "missing/" + filepath.Base(image)} {
		if err := view.Check(filepath.Join(at, name)); err == nil {
			t.Errorf("Check finds %s good", name)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	whiteout := &gear.Index{Entries: []gear.Entry{{File: -1, Entry: rootfs.Entry{Path: "gone", Type: rootfs.Whiteout}}}}
	link := &gear.Index{Entries: []gear.Entry{{File: -1, Entry: rootfs.Entry{Path: "l", Type: rootfs.HardLink, Link: "nowhere"}}}}
	content := &gear.Index{Entries: []gear.Entry{{File: 7, Entry: rootfs.Entry{Path: "f", Type: rootfs.File, Size: 1}}}}
	root := &gear.Index{Entries: []gear.Entry{{File: -1, Entry: rootfs.Entry{Path: ".", Type: rootfs.Fifo}}}}
	order := &gear.Index{Entries: []gear.Entry{
		{File: -1, Entry: rootfs.Entry{Path: "d/a", Type: rootfs.Fifo}}, {File: -1, Entry: rootfs.Entry{Path: "e", Type: rootfs.Fifo}},
		{File: -1, Entry: rootfs.Entry{Path: "d/b", Type: rootfs.Fifo}}}}
	good, _ := index(t, file("f", "x"))
	target := &gear.Index{Entries: []gear.Entry{{File: -1, Entry: rootfs.Entry{Path: "d/l", Type: rootfs.Symlink, Link: strings.Repeat("t", 4096)}}}}
	for name, test := range map[string]struct {
		x    *gear.Index
		want string
	}{
		"whiteout": {whiteout, `"gone" is a whiteout`},
		"link":     {link, `"l" is a hard link to "nowhere"`},
		"content":  {content, `"f" is a file without content`},
		"root":     {root, `"." is the root`},
		"order":    {order, `"d" is there twice`},
		"target":   {target, `"d/l" has a link target of 4096 bytes`},
	} {
		at := t.TempDir()
		_, err := view.Compile(t.Context(), test.x, at)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
		if left, err := os.ReadDir(at); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind %v, %v", name, left, err)
		}
	}
	var e *erofs.Error
	if _, err := view.Compile(t.Context(), target, t.TempDir()); !errors.As(err, &e) || e.Path != "d/l" {
		t.Errorf("the error for a target is %v", err)
	}
	if _, err := view.Compile(t.Context(), good, "/nowhere"); err == nil {
		t.Error("a directory that is not there is no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := view.Compile(ctx, good, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestCompileUndescribed checks that an entry which no layer describes exists all the same.
func TestCompileUndescribed(t *testing.T) {
	x := &gear.Index{Files: []gear.File{gear.Empty()}, Entries: []gear.Entry{
		{File: -1, Entry: rootfs.Entry{Path: "a-b/c", Type: rootfs.Dir, Mode: 0o700}},
		{File: 0, Entry: rootfs.Entry{Path: "a-b/c/d/e/f", Type: rootfs.File, Mode: 0o600}},
		{File: -1, Entry: rootfs.Entry{Path: "a-b/c/d/g", Type: rootfs.Fifo}},
		{File: -1, Entry: rootfs.Entry{Path: "a-b2/c", Type: rootfs.Fifo}},
	}}
	r := newRig(t)
	r.image(x, "erofs", nil)
	for path, mode := range map[string]uint32{
		".": 0o40755, "a-b": 0o40755, "a-b/c": 0o40700, "a-b/c/d": 0o40755, "a-b/c/d/e": 0o40755, "a-b/c/d/e/f": 0o100600,
		"a-b/c/d/g": 0o10000, "a-b2": 0o40755, "a-b2/c": 0o10000,
	} {
		st := stat(t, r.in("erofs/"+path))
		if st.Mode != mode || st.Uid != 0 || st.Mtim.Sec != 0 {
			t.Errorf("%s has mode %o, owner %d, time %d", path, st.Mode, st.Uid, st.Mtim.Sec)
		}
	}
}

// TestCheckWantsUUID checks that an image of an earlier version, which has no UUID, is made anew.
func TestCheckWantsUUID(t *testing.T) {
	x, _ := index(t, file("f", "text"))
	file, err := view.Compile(t.Context(), x, t.TempDir())
	must(t, err)
	old := []byte(read(t, file))
	clear(old[1024+48:][:16])
	name := filepath.Join(t.TempDir(), fmt.Sprintf("%x%s", sha256.Sum256(old), view.Suffix))
	must(t, os.WriteFile(name, old, 0o444))
	if err := view.Check(name); err == nil || !strings.Contains(err.Error(), "UUID") {
		t.Errorf("an image without a UUID: %v", err)
	}
}
