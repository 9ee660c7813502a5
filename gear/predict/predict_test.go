package predict_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/gear/rootfs"
)

// files are the contents of a tree by path. A value that begins with -> is a symbolic link.
type files map[string]string

// tree makes an image of files.
func tree(t testing.TB, all files) *predict.Tree {
	t.Helper()
	return predict.NewTree(index(t, all))
}

func index(t testing.TB, all files) *gear.Index {
	t.Helper()
	b := gear.NewBuilder(nil)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		e, f := rootfs.Entry{Path: p, Type: rootfs.File, Mode: 0o755, Size: int64(len(all[p]))}, gear.File{}
		if to, ok := strings.CutPrefix(all[p], "->"); ok {
			e = rootfs.Entry{Path: p, Type: rootfs.Symlink, Mode: 0o777, Link: to}
		} else {
			f = gear.File{Name: sha256.Sum256([]byte(all[p])), Size: int64(len(all[p]))}
		}
		if err := b.Add(e, f); err != nil {
			t.Fatalf("%s: %v", p, err)
		}
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// open opens the contents of a tree.
func (all files) open(f gear.File) (io.ReaderAt, error) {
	for _, text := range all {
		if sha256.Sum256([]byte(text)) == f.Name {
			return strings.NewReader(text), nil
		}
	}
	return nil, errors.New("no such content")
}

// names are the contents of paths.
func (all files) names(paths ...string) []gear.Name {
	var out []gear.Name
	for _, p := range paths {
		out = append(out, sha256.Sum256([]byte(all[p])))
	}
	return out
}

// paths are a path of each predicted file, in order, with its origin.
func (all files) paths(t testing.TB, got []predict.File) []string {
	t.Helper()
	out := []string{}
	for _, f := range got {
		at := slices.IndexFunc(slices.Sorted(maps.Keys(all)), func(p string) bool { return sha256.Sum256([]byte(all[p])) == f.Name })
		if at < 0 {
			t.Fatalf("%x is predicted and not of the image", f.Name)
		}
		out = append(out, f.From.String()+" "+slices.Sorted(maps.Keys(all))[at])
	}
	return out
}

var learnt = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// donor is an image that has opened the files at some paths.
func donor(t testing.TB, all files, paths ...string) *predict.Donor {
	t.Helper()
	d := predict.NewDonor(tree(t, all), "sha256:donor", "linux/amd64", []string{"/app"}, all.names(paths...), learnt)
	b, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := predict.DecodeDonor(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, again); diff != "" {
		t.Fatalf("a donor is another one when it was decoded (-want +got)\n%s", diff)
	}
	return again
}

func TestInherit(t *testing.T) {
	for name, test := range map[string]struct {
		old    files
		opened []string
		now    files
		want   []string
	}{
		"a path that stays, in the donor's order": {
			files{"b": "1", "a": "2"}, []string{"b", "a"},
			files{"a": "3", "b": "4", "c": "5"}, []string{"series b", "series a"}},
		"through a link": {
			files{"lib/libc.so": "1"}, []string{"lib/libc.so"},
			files{"lib": "->usr/lib", "usr/lib/libc.so": "2"}, []string{"series usr/lib/libc.so"}},
		"from a tree whose /usr is merged into one where it is not": {
			files{"lib": "->usr/lib", "usr/lib/libc.so": "1", "usr/share/x": "2"}, []string{"usr/lib/libc.so", "usr/share/x"},
			files{"lib/libc.so": "3", "usr/share/x": "4", "share/x": "5"}, []string{"series lib/libc.so", "series usr/share/x"}},
		"a dotted version": {
			files{"lib/libssl.so.1.1": "1", "lib/libx.so.1.1": "x"}, []string{"lib/libssl.so.1.1"},
			files{"lib/libssl.so.3.0": "2", "lib/libx.so.3.0": "y"}, []string{"series lib/libssl.so.3.0"}},
		"a plain number": {
			files{"opt/app-7/main.jar": "1"}, []string{"opt/app-7/main.jar"},
			files{"opt/app-8/main.jar": "2"}, []string{"series opt/app-8/main.jar"}},
		"a hash": {
			files{"js/main.0a1b2c3d4e.js": "1"}, []string{"js/main.0a1b2c3d4e.js"},
			files{"js/main.ffee0099aa.js": "2"}, []string{"series js/main.ffee0099aa.js"}},
		"a content that moved": {
			files{"old/data": "1"}, []string{"old/data"},
			files{"new/thing": "1", "new/other": "2"}, []string{"series new/thing"}},
		"one of many alike is no reason for all": {
			files{"z/p1": "1", "z/p2": "2", "z/p3": "3", "z/p4": "4"}, []string{"z/p3"},
			files{"z/p5": "5", "z/p6": "6", "z/p7": "7"}, []string{}},
		"most of many alike are": {
			files{"z/p1": "1", "z/p2": "2", "z/p3": "3"}, []string{"z/p1", "z/p3"},
			files{"z/p5": "5", "z/p6": "6"}, []string{"series z/p5", "series z/p6"}},
		"a directory that is read as a whole": {
			files{"m/a.so": "1", "m/b.so": "2", "m/c.so": "3", "m/d.so": "4", "m/e.so": "5", "m/x.txt": "6"}, []string{"m/a.so", "m/b.so", "m/c.so", "m/d.so", "m/e.so"},
			files{"m/a.so": "1", "m/new.so": "7", "m/y.txt": "8"}, []string{"series m/a.so", "series m/new.so"}},
		"nothing of an image that changed all paths": {
			files{"a/b": "1", "c/d": "2"}, []string{"a/b", "c/d"},
			files{"w/x": "3", "y/z": "4"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := predict.Inherit(tree(t, test.now), donor(t, test.old, test.opened...))
			if diff := cmp.Diff(test.want, test.now.paths(t, got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestLikest has donors of which the last learnt is not the likest.
// TestMergedUsr compares predictions for the same image with /usr merged and not: they
// have the same contents, whichever of the two kinds the donor is.
func TestMergedUsr(t *testing.T) {
	split := func(p string) string {
		if strings.HasPrefix(p, "usr/share/") {
			return p
		}
		return strings.TrimPrefix(p, "usr/")
	}
	rapid.Check(t, func(rt *rapid.T) {
		paths := rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) string {
			return "usr/" + rapid.SampledFrom([]string{"bin", "lib", "lib/x86_64", "lib64", "share/doc"}).Draw(rt, "directory") + "/" +
				rapid.SampledFrom([]string{"sh", "libx.so.1.2", "libx.so.1.3", "libx.so.2", "m1.py", "m2.py", "m3.py", "m4.py", "m5.py", "m6.py"}).Draw(rt, "name")
		}), 1, 20, rapid.ID[string])
		image := func(label string) (merged, unmerged files) {
			merged, unmerged = files{"bin": "->usr/bin", "lib": "->usr/lib", "lib64": "->usr/lib64"}, files{}
			for _, p := range paths.Draw(rt, label) {
				merged[p] = label + p
				unmerged[split(p)] = label + p
			}
			return merged, unmerged
		}
		oldMerged, oldUnmerged := image("old")
		var opened, openedUnmerged []string
		for _, p := range slices.Sorted(maps.Keys(oldMerged)) {
			if strings.HasPrefix(p, "usr/") && rapid.Bool().Draw(rt, "opened "+p) {
				opened, openedUnmerged = append(opened, p), append(openedUnmerged, split(p))
			}
		}
		nowMerged, nowUnmerged := image("now")
		predicted := func(d *predict.Donor, now files) []gear.Name {
			names := predict.Names(predict.Inherit(tree(t, now), d))
			slices.SortFunc(names, func(a, b gear.Name) int { return bytes.Compare(a[:], b[:]) })
			return names
		}
		want := predicted(donor(t, oldMerged, opened...), nowMerged)
		for kind, got := range map[string][]gear.Name{
			"merged to unmerged":   predicted(donor(t, oldMerged, opened...), nowUnmerged),
			"unmerged to merged":   predicted(donor(t, oldUnmerged, openedUnmerged...), nowMerged),
			"unmerged to unmerged": predicted(donor(t, oldUnmerged, openedUnmerged...), nowUnmerged),
		} {
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatalf("%s: other files than from merged to merged (-want +got)\n%s", kind, diff)
			}
		}
	})
}

func TestLikest(t *testing.T) {
	base := files{"app": "1"}
	for i := range 300 {
		base[fmt.Sprintf("lib/v20/%d", i)] = fmt.Sprint("20/", i)
	}
	other := files{"app": "2"}
	for i := range 300 {
		other[fmt.Sprintf("lib/v18/%d", i)] = fmt.Sprint("18/", i)
	}
	now := maps.Clone(base)
	now["app"] = "3"
	like, unlike := donor(t, base, "app", "lib/v20/1"), donor(t, other, "app", "lib/v18/1")
	unlike.Learnt = learnt.Add(time.Hour)
	cmd := []string{"/app"}
	if got := predict.Likest(tree(t, now), "linux/amd64", cmd, []*predict.Donor{unlike, like}); got != like {
		t.Errorf("got %+v", got)
	}
	if got := predict.Likest(tree(t, now), "linux/arm64", cmd, []*predict.Donor{unlike, like}); got != nil {
		t.Errorf("of another platform: got %+v", got)
	}
	twin := *like
	twin.Learnt = learnt.Add(time.Minute)
	if got := predict.Likest(tree(t, now), "linux/amd64", cmd, []*predict.Donor{like, &twin}); got != &twin {
		t.Error("of two that are alike the older one is taken")
	}
}

// elfOf makes a minimal dynamic program or library of 64 bits.
func elfOf(interp string, needed ...string) string {
	strs, offs := "\x00", []uint64{}
	for _, n := range needed {
		offs = append(offs, uint64(len(strs)))
		strs += n + "\x00"
	}
	const head, phs, sh = 64, 56, 64
	var body bytes.Buffer
	put := func(v any) { _ = binary.Write(&body, binary.LittleEndian, v) } // a buffer takes everything
	at := uint64(head + 2*phs)
	interpAt := at
	at += uint64(len(interp) + 1)
	strAt := at
	at += uint64(len(strs))
	at = (at + 7) &^ 7
	dynAt := at
	dynLen := uint64(16 * (len(offs) + 1))
	shAt := dynAt + dynLen
	body.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	put([]uint16{3, 62})
	put(uint32(1))
	put([]uint64{0, head, shAt})
	put(uint32(0))
	put([]uint16{head, phs, 2, sh, 3, 0})
	for _, p := range [][3]uint64{{3, interpAt, uint64(len(interp) + 1)}, {2, dynAt, dynLen}} {
		put([]uint32{uint32(p[0]), 4})
		put([]uint64{p[1], p[1], p[1], p[2], p[2], 1})
	}
	body.WriteString(interp + "\x00" + strs)
	for uint64(body.Len()) < dynAt {
		body.WriteByte(0)
	}
	for _, o := range offs {
		put([]uint64{1, o})
	}
	put([]uint64{0, 0})
	for _, s := range []struct {
		kind    uint32
		at, len uint64
		link    uint32
	}{{}, {3, strAt, uint64(len(strs)), 0}, {6, dynAt, dynLen, 1}} {
		put([]uint32{0, s.kind})
		put([]uint64{0, s.at, s.at, s.len})
		put([]uint32{s.link, 0})
		put([]uint64{1, 16})
	}
	return body.String()
}

func TestStatic(t *testing.T) {
	all := files{
		"bin":                                "->usr/bin",
		"lib":                                "->usr/lib",
		"entry.sh":                           "#!/bin/sh\nexec \"$@\"\n",
		"usr/bin/sh":                         elfOf("/lib/ld.so", "libc.so"),
		"usr/bin/app":                        elfOf("/lib/ld.so", "libx.so", "libc.so"),
		"usr/bin/never":                      elfOf("/lib/ld.so", "libnever.so"),
		"usr/lib/ld.so":                      "ld",
		"usr/lib/libc.so":                    elfOf("", "ld.so"),
		"usr/lib/libnever.so":                "never",
		"opt/x/libx.so":                      elfOf(""),
		"etc/ld.so.cache":                    "cache",
		"etc/ld.so.conf.d/x.conf":            "# comment\n/opt/x\n",
		"usr/bin/tool":                       "#!/usr/bin/env python3\nimport json\n",
		"usr/bin/env":                        elfOf("/lib/ld.so"),
		"usr/bin/python3":                    "->python3.9",
		"usr/bin/python3.9":                  elfOf("/lib/ld.so", "libc.so") + "py",
		"usr/lib/python3.9/os.py":            "import abc\n",
		"usr/lib/python3.9/abc.py":           "# abc",
		"usr/lib/python3.9/json/__init__.py": "from .decoder import JSONDecoder\n",
		"usr/lib/python3.9/json/__pycache__/decoder.cpython-39.pyc": "compiled",
		"usr/lib/python3.9/json/decoder.py":                         "import re\n",
		"usr/lib/python3.9/re.py":                                   "# re",
		"usr/lib/python3.9/unused.py":                               "# unused",
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"/entry.sh", "app", "-v"}, []string{"entry.sh", "usr/bin/app", "usr/bin/sh", "usr/lib/ld.so", "etc/ld.so.cache", "opt/x/libx.so", "usr/lib/libc.so"}},
		{[]string{"tool"}, []string{"usr/bin/tool", "usr/bin/env", "usr/bin/python3.9", "usr/lib/python3.9/json/__init__.py", "usr/lib/ld.so", "etc/ld.so.cache",
			"usr/lib/python3.9/os.py", "usr/lib/python3.9/abc.py", "usr/lib/libc.so", "usr/lib/python3.9/json/__pycache__/decoder.cpython-39.pyc", "usr/lib/python3.9/re.py"}},
		{[]string{"missing"}, nil},
		{nil, nil},
	} {
		got := all.paths(t, predict.Static(tree(t, all), predict.Command{Args: test.args}, all.open))
		want := []string{}
		for _, p := range test.want {
			want = append(want, "closure "+p)
		}
		slices.Sort(got) // the order within a program is nobody's business
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got)\n%s", test.args, diff)
		}
	}
}

// TestComplete has a new version of a program that needs one more library.
func TestComplete(t *testing.T) {
	old := files{"app": elfOf("", "liba.so"), "lib/liba.so": elfOf(""), "same": elfOf("", "libold.so"), "lib/libold.so": "old"}
	now := maps.Clone(old)
	now["app"], now["lib/libb.so"] = elfOf("", "liba.so", "libb.so"), "b"
	d := donor(t, old, "app", "lib/liba.so", "same")
	got := predict.Complete(tree(t, now), d, predict.Inherit(tree(t, now), d), predict.Command{}, now.open)
	// A program that did not change was seen to open its library, or not to.
	want := []string{"series app", "series lib/liba.so", "series same", "closure lib/libb.so"}
	if diff := cmp.Diff(want, now.paths(t, got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestVotes checks that votes spend no more than their bounds.
func TestVotes(t *testing.T) {
	all := files{"big": strings.Repeat("b", 1<<20+1), "own": "o"}
	order := []string{"big"}
	for i := range 20 {
		p := fmt.Sprintf("m%02d", i)
		all[p] = p + strings.Repeat("x", 1<<19)
		order = append(order, p)
	}
	tr := tree(t, all)
	voted := append([]gear.Name{{1, 2, 3}}, all.names(append(order, "own")...)...)
	got := predict.Votes(tr, []predict.File{{Name: all.names("own")[0], From: predict.Closure}}, voted)
	want := []string{"closure own", "vote m00", "vote m01", "vote m02", "vote m03", "vote m04", "vote m05", "vote m06"}
	if diff := cmp.Diff(want, all.paths(t, got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestHostile gives any donor to any image: whatever it says, the prediction is a list of
// files of the image, each once.
func TestHostile(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b1", "b2", "c.1.2", "c.1.3", "0a1b2c3d", "..", ".", "", "lib.so.6", "x.py", "é\xff"})
	rapid.Check(t, func(rt *rapid.T) {
		all := files{}
		for range rapid.IntRange(1, 30).Draw(rt, "files") {
			p := fmt.Sprintf("%s/%d", rapid.SampledFrom([]string{"a", "b1", "c.1.2"}).Draw(rt, "dir"), rapid.IntRange(0, 40).Draw(rt, "name"))
			all[p] = fmt.Sprint(rapid.IntRange(0, 20).Draw(rt, "content"))
			if rapid.Bool().Draw(rt, "link") {
				all[p+"l"] = "->" + strings.Join(rapid.SliceOfN(part, 1, 6).Draw(rt, "to"), "/") + "x"
			}
		}
		x := index(t, all)
		d := &predict.Donor{Platform: "p"}
		for range rapid.IntRange(0, 30).Draw(rt, "opened") {
			d.Opened = append(d.Opened, predict.Opened{
				Path: strings.Join(rapid.SliceOfN(part, 0, 5).Draw(rt, "path"), "/"), Key: rapid.Uint64().Draw(rt, "key"),
				Alike: [2]int{rapid.Int().Draw(rt, "alike"), 1}, AlikeOpened: [2]int{rapid.Int().Draw(rt, "opened"), 1}})
		}
		for range rapid.IntRange(0, 3).Draw(rt, "whole") {
			d.Whole = append(d.Whole, predict.Whole{Dir: part.Draw(rt, "dir"), Suffix: rapid.SampledFrom([]string{"", ".py"}).Draw(rt, "suffix")})
		}
		tr := predict.NewTree(x)
		predict.Likest(tr, "p", nil, []*predict.Donor{d})
		got := predict.Complete(tr, d, predict.Inherit(tr, d), predict.Command{}, all.open)
		had := map[gear.Name]bool{}
		for _, f := range got {
			if had[f.Name] || !slices.ContainsFunc(x.Files, func(o gear.File) bool { return o.Name == f.Name }) {
				rt.Fatalf("%x is predicted twice or is not of the image", f.Name)
			}
			had[f.Name] = true
		}
	})
}

// TestMany has a profile of 100,000 files of an image whose paths all look alike. If each of
// them were compared with all others, that would take hours.
func TestMany(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const n = 100_000
	old, now := files{}, files{}
	var opened []string
	for i := range n {
		p := fmt.Sprintf("d%d/f%d.js", i/1000, i)
		now["e"+p[1:]] = fmt.Sprint("new ", i)
		if opened = append(opened, p); i < predict.MaxFiles {
			old[p] = fmt.Sprint("old ", i)
		}
	}
	d := donor(t, old, opened...)
	if len(d.Opened) != predict.MaxFiles {
		t.Errorf("%d files are kept", len(d.Opened))
	}
	for i := range d.Opened {
		d.Opened[i].Path = fmt.Sprintf("e%d/f%d.js", i/1000, i+n) // no path exists unchanged
	}
	if got := predict.Inherit(tree(t, now), d); len(got) != predict.MaxFiles {
		t.Errorf("%d files are predicted", len(got))
	}
}

func FuzzDecodeDonor(f *testing.F) {
	b, err := donor(f, files{"a": "1", "b": "2"}, "b").Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	now := files{"a": "1", "b": "3"}
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := predict.DecodeDonor(raw)
		if err != nil {
			if !errors.Is(err, predict.ErrDonor) {
				t.Errorf("%v", err)
			}
			return
		}
		predict.Inherit(tree(t, now), d)
		if _, err := d.Encode(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzLoads gives any bytes to what looks for libraries and modules.
func FuzzLoads(f *testing.F) {
	f.Add([]byte(elfOf("/lib/ld.so", "libc.so", "libx.so")))
	f.Add([]byte("#!/usr/bin/env -S python3\nfrom .. import a\nimport a.b.c, d\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if bytes.HasPrefix(raw, []byte("->")) {
			return
		}
		all := files{"app": string(raw), "a.py": string(raw) + "#", "lib/libc.so": "c"}
		predict.Static(tree(t, all), predict.Command{Args: []string{"/app", "a.py"}}, all.open)
	})
}
