package gearfs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
)

// overlay mounts an overlay over a plain copy of a tree. It stands in for an overlay whose
// contents are elsewhere. This makes no difference, because only the overlay is watched.
func overlay(t testing.TB, tr *tree) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting an overlay needs root")
	}
	root := t.TempDir()
	for _, d := range []string{"lower", "upper", "work", "mnt"} {
		must(t, os.Mkdir(filepath.Join(root, d), 0o755))
	}
	for i := range tr.index.Entries {
		e := &tr.index.Entries[i]
		if e.File < 0 {
			continue
		}
		path := filepath.Join(root, "lower", e.Path)
		at := time.Unix(e.Sec, 0)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, tr.body[tr.index.Files[e.File].Name], 0o644), os.Chtimes(path, at, at))
	}
	mnt := filepath.Join(root, "mnt")
	must(t, unix.Mount("overlay", mnt, "overlay", 0, "lowerdir="+root+"/lower,upperdir="+root+"/upper,workdir="+root+"/work"))
	t.Cleanup(func() { must(t, unix.Unmount(mnt, 0)) })
	return mnt
}

// fetch makes all files of a tree local.
func (n *node) fetch(tr *tree) {
	for _, f := range tr.files {
		n.check(tr, f)
	}
}

// run starts a container as an agent does.
func (n *node) run(id, chain, mount string) {
	n.t.Helper()
	must(n.t, n.ContainerStarted(id, chain, mount))
	_, err := n.Prefetch(n.t.Context(), chain, nil)
	must(n.t, err)
}

// opens runs a process that opens files in the given order.
func opens(t testing.TB, mnt string, paths ...string) {
	t.Helper()
	cmd := exec.Command("cat", paths...)
	cmd.Dir = mnt
	must(t, cmd.Run())
}

// TestRecording sees opens of cached files by fanotify, in order and each once, also below a bind
// mount, and makes a profile of them.
func TestRecording(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 40)...)
	mnt := overlay(t, tr)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{RecordFor: time.Minute}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.fetch(tr)
	n.run("c1", "sha256:1", mnt)
	opens(t, mnt, "dir5/file5", "dir3/file3", "dir5/file5")
	must(t, os.WriteFile(filepath.Join(mnt, "new"), []byte("not of the image"), 0o644))
	opens(t, mnt, "new")
	bind := filepath.Join(t.TempDir(), "bind")
	must(t, os.Mkdir(bind, 0o755), unix.Mount(mnt, bind, "", unix.MS_BIND, ""))
	opens(t, bind, "dir1/file1")
	must(t, unix.Unmount(bind, unix.MNT_DETACH))
	want := []gear.Name{tr.files[5].Name, tr.files[3].Name, tr.files[1].Name}
	eventually(t, "three files are recorded", func() bool { return n.Status().Containers[0].Recorded == 3 })
	n.ContainerStopped("c1")
	eventually(t, "the profile is reported", func() bool { return len(src.report()) > 0 })
	if diff := cmp.Diff(want, src.report()); diff != "" {
		t.Errorf("reported (-want +got)\n%s", diff)
	}
	if p, err := n.Profile("sha256:1"); err != nil || !slices.Equal(predict.Names(p.Files), want) {
		t.Errorf("kept profile %x, %v", p, err)
	}
	if len(n.Status().Containers) != 0 {
		t.Error("the container is still there")
	}
	// A start that the profile covers by half is recorded as such.
	n.run("c2", "sha256:1", mnt)
	opens(t, mnt, "dir5/file5", "dir6/file6")
	n.ContainerStopped("c2")
	eventually(t, "what is new is added to the profile", func() bool {
		p, err := n.Profile("sha256:1")
		return err == nil && slices.Equal(predict.Names(p.Files), append(want, tr.files[6].Name))
	})
	got, err := n.Prefetch(t.Context(), "sha256:1", nil)
	must(t, err)
	if h := got.Decision.HitShare; h > 0.945 || h < 0.9 {
		t.Errorf("hit share %v after one miss in two", h)
	}
}

// TestReportsTellTheTruth starts containers that open any part of a profile of any origin, and
// another file. A watched start reports exactly what it opened, in order, and the first report
// replaces what was inferred. If opens may have been missed, the start reports what was seen
// and that the list is incomplete, because a predicted file must not count as wanted.
func TestReportsTellTheTruth(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 12)...)
	mnt := overlay(t, tr)
	for i, c := range []struct {
		predicted, opened []int
		origins           string
		watched           bool
	}{
		{[]int{1, 2, 3}, []int{2}, "ooo", true},
		{[]int{1, 2, 3}, []int{3, 1}, "sss", true},
		{[]int{1, 2, 3}, []int{2, 7}, "scv", true},
		{[]int{1, 2, 3}, []int{5}, "ccc", true},
		{[]int{1, 2, 3}, []int{2, 5}, "ooo", false},
		{[]int{1, 2, 3}, []int{2, 5}, "sco", false},
		{nil, []int{4, 2}, "", false},
	} {
		src := newSource(tr)
		for _, k := range c.predicted {
			src.profile = append(src.profile, tr.files[k].Name)
		}
		src.origins = c.origins
		n := newNode(t, gearfs.Options{RecordFor: time.Minute, Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
		n.add("sha256:1", tr, "a")
		_, err := n.Prefetch(t.Context(), "sha256:1", nil)
		must(t, err)
		at := ""
		if c.watched {
			at = mnt
		}
		n.run("c", "sha256:1", at)
		var want []gear.Name
		for _, k := range c.opened {
			want = append(want, tr.files[k].Name)
			if c.watched {
				opens(t, mnt, fmt.Sprintf("dir%d/file%d", k%7, k))
			}
			if !c.watched || !slices.Contains(c.predicted, k) {
				n.check(tr, tr.files[k]) // an open of a file that is not local asks the pool
			}
		}
		eventually(t, "all opens are seen", func() bool { return n.Status().Containers[0].Recorded == len(want) })
		n.ContainerStopped("c")
		eventually(t, "the start is over", func() bool {
			s, err := n.Start("sha256:1")
			return err == nil && s != nil && s.Over
		})
		kept := func() []gear.Name {
			p, err := n.Profile("sha256:1")
			must(t, err)
			return predict.Names(p.Files)
		}
		eventually(t, "the start is reported", func() bool { return slices.Equal(src.report(), want) })
		src.mu.Lock()
		whole := src.whole
		src.mu.Unlock()
		if whole != c.watched {
			t.Errorf("%d: watched %t and reported as the whole start: %t", i, c.watched, whole)
		}
		if c.watched && c.origins != "ooo" && !slices.Equal(kept(), want) {
			t.Errorf("%d: %d files are kept in place of what was inferred, want %d", i, len(kept()), len(want))
		}
		if !c.watched && c.predicted != nil && len(kept()) != 4 {
			t.Errorf("%d: %d files are kept, want the three that were predicted and the new one", i, len(kept()))
		}
		n.stop()
	}
}

// TestWatchSeesWhatComes starts containers on a node that has nothing of the image. Whatever is
// fetched before or after the start, opens of it are seen.
func TestWatchSeesWhatComes(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 40)...)
	mnt := overlay(t, tr)
	for _, c := range []struct {
		mode    gearfs.Mode
		profile []int
	}{{gearfs.Lazy, []int{1, 2, 3}}, {gearfs.Lazy, nil}, {gearfs.Eager, []int{1, 2, 3}}, {gearfs.Eager, nil}} {
		src := newSource(tr)
		n := newNode(t, gearfs.Options{RecordFor: time.Minute, Mode: c.mode}, map[string]gearfs.Source{"a": src})
		n.add("sha256:1", tr, "a")
		names := []gear.Name{}
		for _, k := range c.profile {
			names = append(names, tr.files[k].Name)
		}
		must(t, n.ContainerStarted("c", "sha256:1", mnt))
		_, err := n.Prefetch(t.Context(), "sha256:1", names)
		must(t, err)
		var want []gear.Name
		for _, k := range []int{2, 9, 17} {
			want = append(want, tr.files[k].Name)
			if c.mode == gearfs.Eager {
				eventually(t, "the rest comes", func() bool { return n.cache.Has(tr.files[k].Name) })
			}
			if !n.cache.Has(tr.files[k].Name) {
				n.check(tr, tr.files[k]) // an open of a file that is not local asks the pool
			}
			opens(t, mnt, fmt.Sprintf("dir%d/file%d", k%7, k))
			eventually(t, "the open is seen", func() bool { return n.Status().Containers[0].Recorded == len(want) })
		}
		n.ContainerStopped("c")
		eventually(t, "the start is reported", func() bool { return slices.Equal(src.report(), want) })
		src.mu.Lock()
		if !src.whole {
			t.Errorf("%s with %d files in the profile is reported as seen in part", c.mode, len(names))
		}
		src.mu.Unlock()
		n.stop()
	}
}

// TestStartIsTold checks the account of a start: which files were predicted and which
// were wanted, when they were requested and when they arrived, and how good the
// prediction was.
func TestStartIsTold(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 12)...)
	mnt := overlay(t, tr)
	src := newSource(tr)
	src.profile, src.origins = []gear.Name{tr.files[1].Name, tr.files[2].Name, tr.files[3].Name}, "scv"
	n := newNode(t, gearfs.Options{RecordFor: time.Minute, Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	if s, err := n.Start("sha256:1"); s != nil || err != nil {
		t.Fatalf("before any start: %+v, %v", s, err)
	}
	_, err := n.Prefetch(t.Context(), "sha256:1", nil)
	must(t, err)
	n.run("c", "sha256:1", mnt)
	opens(t, mnt, "dir2/file2", "dir2/file9")
	eventually(t, "both are seen", func() bool { return n.Status().Containers[0].Recorded == 2 })
	n.check(tr, tr.files[9]) // the overlay is a stand-in: here is what an open asks of the pool
	n.ContainerStopped("c")
	var s *starts.Start
	eventually(t, "the start is over", func() bool {
		var err error
		s, err = n.Start("sha256:1")
		return err == nil && s != nil && s.Over
	})
	want := map[string]string{"dir1/file1": "series", "dir2/file2": "closure", "dir3/file3": "vote", "dir2/file9": ""}
	for _, f := range s.Files {
		from, ok := want[f.Path]
		delete(want, f.Path)
		wanted := f.Path == "dir2/file2" || f.Path == "dir2/file9"
		if !ok || f.From != from || f.Asked == nil || f.Here == nil || (f.Wanted != nil) != wanted {
			t.Errorf("%+v", f)
		}
		if f.Asked != nil && f.Here != nil && (*f.Asked < 0 || *f.Here < *f.Asked) {
			t.Errorf("%s was asked for at %v and here at %v", f.Path, *f.Asked, *f.Here)
		}
	}
	if len(want) > 0 {
		t.Errorf("nothing is told of %v", want)
	}
	size := func(k int) int64 { return tr.files[k].Size }
	q := starts.Quality{Predicted: 3, PredictedBytes: size(1) + size(2) + size(3), Hit: 1, HitBytes: size(2), Missed: 1, MissedBytes: size(9),
		WastedBytes: size(1) + size(3)}
	if diff := cmp.Diff(q, s.Quality); diff != "" || !s.Watched {
		t.Errorf("watched %v (-want +got)\n%s", s.Watched, diff)
	}
}

// TestSiblingsCome checks that a missing file brings others of its directory at a start.
func TestSiblingsCome(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 400)...)
	mnt := overlay(t, tr)
	for _, watched := range []bool{false, true} {
		n := newNode(t, gearfs.Options{RecordFor: time.Minute, Mode: gearfs.Lazy, Siblings: true}, map[string]gearfs.Source{"a": newSource(tr)})
		n.add("sha256:1", tr, "a")
		at := ""
		if watched {
			at = mnt
		}
		must(t, n.ContainerStarted("c", "sha256:1", at))
		opened := map[gear.Name]bool{}
		next := func() {
			for _, f := range tr.files {
				if !opened[f.Name] && !n.cache.Has(f.Name) {
					opened[f.Name] = true
					n.check(tr, f)
					return
				}
			}
		}
		here := func() (more int) {
			for _, f := range tr.files {
				if !opened[f.Name] && n.cache.Has(f.Name) {
					more++
				}
			}
			return more
		}
		eventually(t, "a file brings others", func() bool { next(); return here() > 0 })
		n.ContainerStopped("c")
		n.stop()
	}
}

// TestRecordPool records the requests to the pool where nothing can be watched.
func TestRecordPool(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 10)...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{RecordFor: time.Minute}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	must(t, n.SetProfile("sha256:1", []gear.Name{tr.files[9].Name, {8}}))
	must(t, n.ContainerStarted("c1", "sha256:1", ""))
	n.check(tr, tr.files[4])
	n.check(tr, tr.files[2])
	n.ContainerStopped("c1")
	// File 9 was fetched because the profile names it; nobody knows whether it was opened.
	want := []gear.Name{tr.files[9].Name, tr.files[4].Name, tr.files[2].Name}
	eventually(t, "what is new is kept", func() bool {
		p, err := n.Profile("sha256:1")
		return err == nil && slices.Equal(predict.Names(p.Files), want)
	})
	eventually(t, "only what was seen is reported", func() bool { return slices.Equal(src.report(), want[1:]) })
}

// TestManyEnds checks the reads of containers that end while the files of their image are
// examined for another container. The cache must learn of their reads, too, and one examination
// must serve many ends.
func TestManyEnds(t *testing.T) {
	tr := makeTree(t, manyFiles(1, 200)...)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(tr)})
	n.add("sha256:1", tr, "a")
	for _, f := range tr.files {
		n.check(tr, f)
	}
	hex := fmt.Sprintf("%x", tr.files[0].Name)
	used := func() time.Time {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(n.cache.Files(), hex[:2], hex[2:]), &st))
		return time.Unix(st.Atim.Unix())
	}
	const ends = 300
	looks, before := 0, used()
	var last time.Time
	for i := range ends {
		id := fmt.Sprint(i)
		must(t, n.Adopt(id, "sha256:1"))
		last = time.Now()
		n.ContainerStopped(id)
		if now := used(); now != before {
			looks, before = looks+1, now
		}
	}
	if looks == 0 || looks > ends/4 {
		t.Errorf("%d looks for %d containers", looks, ends)
	}
	eventually(t, "what the last container read counts as used", func() bool { return used().After(last) })
}

// TestLease checks that the files of a running container are kept.
func TestLease(t *testing.T) {
	a, b := makeTree(t, manyFiles(1, 10)...), makeTree(t, manyFiles(2, 10)...)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(a, b)})
	n.add("sha256:a", a, "a")
	n.add("sha256:b", b, "a")
	must(t, n.Adopt("c1", "sha256:a"))
	for _, f := range append(slices.Clone(a.files), b.files...) {
		n.check(a.or(b, f), f)
	}
	n.cache.Evict(1 << 40)
	for i := range a.files {
		if !n.cache.Has(a.files[i].Name) || n.cache.Has(b.files[i].Name) {
			t.Fatalf("file %d: leased there %v, other there %v", i, n.cache.Has(a.files[i].Name), n.cache.Has(b.files[i].Name))
		}
	}
	n.ContainerStopped("c1")
	n.cache.Evict(1 << 40)
	if s := n.cache.Stats(); s.Files != 0 {
		t.Errorf("%d files are left", s.Files)
	}
}

// or returns the tree that has a file.
func (tr *tree) or(o *tree, f gear.File) *tree {
	if _, ok := tr.body[f.Name]; ok {
		return tr
	}
	return o
}

// BenchmarkWatched measures what recording costs a process that opens files: cat of 400 of them.
func BenchmarkWatched(b *testing.B) {
	tr := makeTree(b, manyFiles(1, 400)...)
	mnt := overlay(b, tr)
	var paths []string
	var names []gear.Name
	for i := range tr.index.Files {
		names = append(names, tr.index.Files[i].Name)
	}
	for i := range tr.index.Entries {
		if tr.index.Entries[i].File >= 0 {
			paths = append(paths, tr.index.Entries[i].Path)
		}
	}
	for _, watched := range []bool{false, true} {
		b.Run(strings.Replace("watched=x", "x", map[bool]string{true: "yes", false: "no"}[watched], 1), func(b *testing.B) {
			n := newNode(b, gearfs.Options{RecordFor: time.Hour}, map[string]gearfs.Source{})
			n.add("sha256:1", tr)
			if watched {
				must(b, n.SetProfile("sha256:1", names))
				n.run("c", "sha256:1", mnt)
			}
			for b.Loop() {
				opens(b, mnt, paths...)
			}
		})
	}
}
