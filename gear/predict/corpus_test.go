package predict_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/export"
	"example.org/slipway/gear/predict"
	"example.org/slipway/oci"
)

// tasks are what is run in the images of each series, in the working directory of the image.
var tasks = map[string]string{
	"debian":   "echo hello",
	"django":   "python3 manage.py check",
	"golang":   "mkdir /tmp/h; cd /tmp/h; printf 'package main\\nfunc main() { println(1) }\\n' >main.go; go mod init h 2>/dev/null; go run .",
	"maven":    "mvn -v",
	"nginx":    "nginx; curl -s 127.0.0.1:6402/ >/dev/null; nginx -s quit",
	"postgres": "gosu postgres initdb -D /tmp/pg >/dev/null; echo 'select 1' | gosu postgres postgres --single -D /tmp/pg postgres >/dev/null",
	"python":   "python3 -c 'import json, random, collections, itertools; print(json.dumps([1]))'",
	"redis": "cd /tmp; redis-server --port 6401 --daemonize yes >/dev/null; until redis-cli -p 6401 ping 2>/dev/null | grep -q PONG; do sleep 0.1; done;" +
		"redis-cli -p 6401 set a 1; redis-cli -p 6401 shutdown nosave",
	"tomcat": "catalina.sh version",
}

// sample is an image of the corpus, with what its task opened.
type sample struct {
	series, version string
	x               *gear.Index
	tree            *predict.Tree
	command         predict.Command
	opened          []gear.Name
	size            map[gear.Name]int64
	from            *contents
}

func (s *sample) String() string { return s.series + "/" + s.version }

// contents keeps files in a directory, by name.
type contents struct{ dir string }

func (c *contents) path(n gear.Name) string { return filepath.Join(c.dir, fmt.Sprintf("%x", n)) }

// Missing implements convert.Sink.
func (c *contents) Missing(_ context.Context, names []gear.Name) ([]bool, error) {
	out := make([]bool, len(names))
	for i, n := range names {
		_, err := os.Stat(c.path(n))
		out[i] = errors.Is(err, fs.ErrNotExist)
	}
	return out, nil
}

// Put implements convert.Sink.
func (c *contents) Put(_ context.Context, f gear.File, content convert.Content) error {
	defer content.Release()
	out, err := os.Create(c.path(f.Name))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.NewSectionReader(content, 0, f.Size))
	return errors.Join(err, out.Close())
}

// Fetch implements gear.FileSource.
func (c *contents) Fetch(_ context.Context, files []gear.File, deliver func(int, io.Reader) error) error {
	for i := range files {
		f, err := os.Open(c.path(files[i].Name))
		if err == nil {
			err = errors.Join(deliver(i, f), f.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *contents) open(f gear.File) (io.ReaderAt, error) {
	b, err := os.ReadFile(c.path(f.Name))
	return strings.NewReader(string(b)), err
}

// readSample reads an OCI layout and runs the task of its series.
func readSample(t *testing.T, c *contents, dir, series, version string) *sample {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s/%s: %v", series, version, err)
		}
	}
	blob := func(d oci.Digest) string { return filepath.Join(dir, "blobs", strings.Replace(string(d), ":", "/", 1)) }
	read := func(path string, into any) {
		t.Helper()
		b, err := os.ReadFile(path)
		must(err)
		must(json.Unmarshal(b, into))
	}
	var index struct {
		Manifests []oci.Descriptor `json:"manifests"`
	}
	read(filepath.Join(dir, "index.json"), &index)
	var m struct {
		Config oci.Descriptor   `json:"config"`
		Layers []oci.Descriptor `json:"layers"`
	}
	read(blob(index.Manifests[0].Digest), &m)
	var config struct {
		Config struct {
			Entrypoint, Cmd, Env []string
			WorkingDir           string
		} `json:"config"`
	}
	read(blob(m.Config.Digest), &config)
	var layers []*gear.Index
	for _, l := range m.Layers {
		f, err := os.Open(blob(l.Digest))
		must(err)
		res, err := convert.Layer(t.Context(), f, convert.Want{Digest: l.Digest}, c, nil)
		must(errors.Join(err, f.Close()))
		layers = append(layers, res.Index)
	}
	x, err := gear.Flatten(layers...)
	must(err)
	s := &sample{series: series, version: version, x: x, tree: predict.NewTree(x), from: c, size: map[gear.Name]int64{},
		command: predict.Command{Args: slices.Concat(config.Config.Entrypoint, config.Config.Cmd), Env: config.Config.Env, Dir: config.Config.WorkingDir}}
	for i := range x.Files {
		s.size[x.Files[i].Name] = x.Files[i].Size
	}
	s.run(t)
	return s
}

// run runs the task in a copy of the image, and notes which files were read: those whose
// access time was changed.
func (s *sample) run(t *testing.T) {
	t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "predict")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	err = export.Tree(t.Context(), s.x, s.from, root, nil)
	// Some tasks run as a user of the image, who must get into the root directory.
	if err = errors.Join(err, os.Chmod(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	each := func(do func(path string, name gear.Name) error) {
		t.Helper()
		for i := range s.x.Entries {
			if e := &s.x.Entries[i]; e.File >= 0 && s.x.Files[e.File].Size > 0 {
				if err := do(filepath.Join(root, e.Path), s.x.Files[e.File].Name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	before := time.Unix(1000, 0)
	each(func(path string, _ gear.Name) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: before.Unix()}, {Nsec: unix.UTIME_OMIT}}, unix.AT_SYMLINK_NOFOLLOW)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for _, d := range []string{"proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o1777); err != nil {
			t.Fatal(err)
		}
	}
	script := `ip link set lo up; mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"; exec chroot "$0" /bin/sh -ec "cd ${2:-/}; $1"`
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script, root, tasks[s.series], s.command.Dir)
	cmd.Env = append(slices.Clone(s.command.Env), "HOME=/root")
	if !slices.ContainsFunc(cmd.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		cmd.Env = append(cmd.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the task of %s: %v\n%s", s, err, out)
	}
	had := map[gear.Name]bool{}
	each(func(path string, name gear.Name) error {
		var st unix.Stat_t
		err := unix.Lstat(path, &st)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the task removed it
		}
		if err == nil && st.Atim.Sec != before.Unix() && !had[name] {
			had[name] = true
			s.opened = append(s.opened, name)
		}
		return err
	})
	if len(s.opened) == 0 {
		t.Fatalf("the task of %s opened nothing: are times of access noted in %s?", s, root)
	}
}

// quality is how good a prediction was.
type quality struct {
	files, hit, opened          int
	bytes, hitBytes, openedSize int64
	// missed is how many round trips were left, wasted how many bytes came in vain.
	missed int
	wasted int64
}

func (s *sample) judge(got []predict.File, siblings bool) (q quality) {
	opened := map[gear.Name]bool{}
	for _, n := range s.opened {
		opened[n] = true
		q.opened++
		q.openedSize += s.size[n]
	}
	here := map[gear.Name]bool{}
	for _, f := range got {
		here[f.Name] = true
		q.files++
		q.bytes += s.size[f.Name]
		if opened[f.Name] {
			q.hit++
			q.hitBytes += s.size[f.Name]
		}
	}
	q.wasted = q.bytes - q.hitBytes
	guess := predict.NewSiblings(s.tree, 0.02, 12.5e6)
	for _, n := range s.opened {
		guess.Opened(n)
		if here[n] {
			continue
		}
		q.missed++
		here[n] = true
		if !siblings {
			continue
		}
		for _, f := range guess.Missed(n, func(f gear.File) bool { return !here[f.Name] }) {
			here[f.Name] = true
			if !opened[f.Name] {
				q.wasted += f.Size
			}
		}
	}
	return q
}

// times is the expected time of the start, divided by that of a start whose prediction is
// perfect. It counts bytes at a rate, and a round trip of 20 ms for the prediction and
// for each miss. Contents count with 40 % of their size, because they are sent
// compressed.
func (q *quality) times(mbit float64) float64 {
	const rtt = 0.02
	rate := mbit * 1e6 / 8 / 0.4
	best := rtt + float64(q.openedSize)/rate
	return (rtt*float64(1+q.missed) + float64(q.openedSize+q.wasted)/rate) / best
}

// voters makes the votes of the samples of other series for one sample.
func voters(all []*sample, to *sample) []gear.Name {
	has, opened := map[gear.Name]map[string]bool{}, map[gear.Name]map[string]bool{}
	put := func(m map[gear.Name]map[string]bool, n gear.Name, series string) {
		if m[n] == nil {
			m[n] = map[string]bool{}
		}
		m[n][series] = true
	}
	for _, s := range all {
		if s.series == to.series {
			continue
		}
		for n := range s.size {
			put(has, n, s.series)
		}
		for _, n := range s.opened {
			put(opened, n, s.series)
		}
	}
	var out []gear.Name
	for i := range to.x.Files {
		n := to.x.Files[i].Name
		if o := len(opened[n]); o >= 2 && float64(o) >= 0.8*float64(len(has[n])) {
			out = append(out, n)
		}
	}
	return out
}

// TestCorpus judges predictions over real images. SLIPWAY_CORPUS is a directory of OCI
// layouts SERIES/VERSION, and SLIPWAY_SERIES chooses some series, separated by commas. It
// needs only the loopback network, and measures no time, so its results are the same on
// any machine.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("SLIPWAY_CORPUS")
	if dir == "" {
		t.Skip("SLIPWAY_CORPUS names no directory of images")
	}
	if os.Geteuid() != 0 {
		t.Skip("tasks run in namespaces of their own, which needs root")
	}
	c := &contents{t.TempDir()}
	var all []*sample
	chosen := slices.Sorted(maps.Keys(tasks))
	if list := os.Getenv("SLIPWAY_SERIES"); list != "" {
		chosen = strings.Split(list, ",")
	}
	for _, series := range chosen {
		versions, err := os.ReadDir(filepath.Join(dir, series))
		if err != nil {
			t.Logf("no images of %s", series)
			continue
		}
		for _, v := range versions {
			all = append(all, readSample(t, c, filepath.Join(dir, series, v.Name()), series, v.Name()))
		}
	}
	t.Logf("%-28s %-18s %6s %5s %5s %7s %7s %7s %6s %6s", "image", "way", "opened", "prec%", "rec%", "bprec%", "brec%", "wasted", "missed", "x100")
	sums := map[string]map[string][]quality{} // by way and series
	note := func(s *sample, way string, q quality) {
		if sums[way] == nil {
			sums[way] = map[string][]quality{}
		}
		sums[way][s.series] = append(sums[way][s.series], q)
		pc := func(a, b float64) float64 { return 100 * a / max(b, 1) }
		t.Logf("%-28s %-18s %6d %5.0f %5.0f %7.0f %7.0f %6.2fM %6d %6.2f", s, way, q.opened, pc(float64(q.hit), float64(q.files)), pc(float64(q.hit), float64(q.opened)),
			pc(float64(q.hitBytes), float64(q.bytes)), pc(float64(q.hitBytes), float64(q.openedSize)), float64(q.wasted)/1e6, q.missed, q.times(100))
	}
	for i, s := range all {
		var donors []*predict.Donor
		for _, o := range all[:i] {
			if o.series == s.series {
				donors = append(donors, predict.NewDonor(o.tree, o.version, "p", o.command.Args, o.opened, learnt))
			}
		}
		note(s, "nothing", s.judge(nil, false))
		note(s, "siblings", s.judge(nil, true))
		static := predict.Static(s.tree, s.command, s.from.open)
		note(s, "static", s.judge(static, false))
		guess := predict.Votes(s.tree, static, voters(all, s))
		note(s, "static+votes", s.judge(guess, false))
		note(s, "never seen", s.judge(guess, true))
		if d := predict.Likest(s.tree, "p", s.command.Args, donors); d != nil {
			got := predict.Inherit(s.tree, d)
			note(s, "inherit", s.judge(got, false))
			got = predict.Complete(s.tree, d, got, s.command, s.from.open)
			note(s, "inherit+closure", s.judge(got, false))
			note(s, "new version", s.judge(got, true))
		}
	}
	for _, way := range slices.Sorted(maps.Keys(sums)) {
		for _, series := range slices.Sorted(maps.Keys(sums[way])) {
			t.Logf("%-18s %-9s %s", way, series, mean(sums[way][series]))
		}
		m := mean(slices.Concat(slices.Collect(maps.Values(sums[way]))...))
		t.Logf("%-18s %-9s %s", way, "all", m)
		if way == "new version" && (m.x100 > 1.25 || m.precise < 0.9 || m.wasted > 0.5) || way == "never seen" && m.wasted > 4 {
			t.Errorf("%s: %s", way, m)
		}
	}
}

// means are means over images. Times are multiples of those of a perfect prediction, and wasted is
// in MB.
type means struct {
	n                          int
	x100, x20, wasted, precise float64
}

func mean(list []quality) means {
	m := means{n: len(list)}
	n := float64(m.n)
	for i := range list {
		q := &list[i]
		m.x100, m.x20, m.wasted = m.x100+q.times(100)/n, m.x20+q.times(20)/n, m.wasted+float64(q.wasted)/1e6/n
		m.precise += float64(q.hitBytes) / float64(max(q.bytes, 1)) / n
	}
	return m
}

func (m means) String() string {
	return fmt.Sprintf("of %d: x%.2f at 100 Mbit/s, x%.2f at 20; %.2f MB wasted, %.0f %% of the bytes precise", m.n, m.x100, m.x20, m.wasted, 100*m.precise)
}
