package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

// TestCorpus runs both tasks of corpus images lazily with containerd's client and with docker, and
// on plain overlayfs. The tasks must print the same on both, and both must have the same tree.
// SLIPWAY_CORPUS is the corpus's directory. SLIPWAY_TASKS names the images SERIES/VERSION to run,
// separated by commas, or all; default: the last version of each series. All images take about an
// hour: go test -timeout 2h.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("SLIPWAY_CORPUS")
	if dir == "" {
		t.Skip("SLIPWAY_CORPUS names no directory of images")
	}
	tool.NeedRoot(t)
	s := slipway.Start(t, t.TempDir(), nil)
	a, c := withContainerd(t, "fetch: {background: false}\n")
	a.Allow(3 * time.Hour)
	d := daemon.StartMobyOn(t, c.Socket(), name)
	pushed := map[string]bool{}
	for i, im := range chosen(t, dir) {
		t.Run(im.String(), func(t *testing.T) {
			ref := pushCorpus(t, s, im, pushed)
			pull(t, c, ref)
			for _, b := range im.Layers {
				if strings.Contains(c.Run(t, "content", "ls", "-q"), b.Digest) {
					t.Errorf("layer %s was pulled", b.Digest)
				}
			}
			d.Run(t, "pull", "-q", ref)
			got := runTasks(t, c, d, im, ref, name, i)
			c.Run(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
			want := runTasks(t, c, nil, im, ref, "overlayfs", i)
			for n := range want {
				if got[n] != want[n] {
					t.Errorf("task %d prints\n%s\nand on overlayfs\n%s", n+1, got[n], want[n])
				}
			}
			chain, err := im.ChainID()
			if err != nil {
				t.Fatal(err)
			}
			trees(t, c, chain)
			d.Run(t, "rmi", "--force", ref)
			c.Run(t, "image", "rm", "--sync", ref)
		})
	}
	st := a.Status()
	t.Logf("the agent keeps %d files of %d MB", st.Cache.Files, st.Cache.Bytes/1e6)
	if st.Cache.Damaged > 0 {
		t.Errorf("%d files of the cache are damaged", st.Cache.Damaged)
	}
}

// chosen returns the images that SLIPWAY_TASKS selects.
func chosen(t *testing.T, dir string) (out []*corpus.Image) {
	t.Helper()
	all, err := corpus.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := os.Getenv("SLIPWAY_TASKS")
	for i, im := range all {
		last := i+1 == len(all) || all[i+1].Series != im.Series
		if list == "all" || list == "" && last || slices.Contains(strings.Split(list, ","), im.String()) {
			out = append(out, im)
		}
	}
	if len(out) == 0 {
		t.Fatalf("SLIPWAY_TASKS=%q names no image of %s", list, dir)
	}
	return out
}

// pushCorpus pushes an image and waits until it is converted. It skips blobs that a repository
// already has.
func pushCorpus(t *testing.T, s *slipway.Server, im *corpus.Image, pushed map[string]bool) (ref string) {
	t.Helper()
	for _, b := range append(slices.Clone(im.Layers), im.Config) {
		if pushed[im.Series+b.Digest] {
			continue
		}
		data, err := os.ReadFile(im.Blob(b.Digest))
		if err == nil {
			_, err = s.Client.PushBlob(t.Context(), im.Repo(), data)
		}
		if err != nil {
			t.Fatal(err)
		}
		pushed[im.Series+b.Digest] = true
	}
	if _, err := s.Client.PutManifest(t.Context(), im.Repo(), im.Version, im.ManifestType, im.Manifest); err != nil {
		t.Fatal(err)
	}
	s.Converted()
	return s.Addr + "/" + im.Repo() + ":" + im.Version
}

// varies matches the parts of a task's output that differ each time: warnings of containerd's
// client, durations, times, and the token of a form.
var varies = regexp.MustCompile(`(?m)^time="[^"\n]*" level=warning .*\n|\b\d+(\.\d+)? ?m?s\b|\d\d:\d\d:\d\d(\.\d+)?|value="\w{64}"`)

// runTasks runs both tasks of an image with containerd's client, and with docker if it is
// installed. It returns what they printed, and what services answered.
func runTasks(t *testing.T, c *daemon.Containerd, d *daemon.Docker, im *corpus.Image, ref, snapshotter string, i int) (told []string) {
	t.Helper()
	ctr := c.Tasks(t, snapshotter)
	for n, of := range []func(string) (tasks.Task, bool){tasks.First, tasks.Second} {
		task, ok := of(im.Series)
		if !ok {
			t.Fatalf("series %s has no task", im.Series)
		}
		r, err := ctr.Run(t.Context(), ref, unique(fmt.Sprintf("%s%d-%d", snapshotter, i, n)), task)
		if err != nil {
			t.Errorf("%s: %v", snapshotter, err)
		}
		t.Logf("%s: %s: %.2f s", snapshotter, task, r.Took.Seconds())
		told = append(told, varies.ReplaceAllString(r.Output, ""))
		if d == nil {
			continue
		}
		began := time.Now()
		if err := dockerTask(t, d, ref, task); err != nil {
			t.Errorf("docker: %v", err)
		}
		t.Logf("docker: %s: %.2f s", task, time.Since(began).Seconds())
	}
	return told
}

// dockerTask runs a task in a container without a network.
func dockerTask(t *testing.T, d *daemon.Docker, ref string, task tasks.Task) error {
	t.Helper()
	quiet := []string{"--network", "none", "--pull", "never"}
	if task.Probe == nil { // without the image's entrypoint, as with containerd's client
		args := append([]string{"run", "--rm", "--entrypoint", task.Args[0]}, append(quiet, ref)...)
		return task.Check(d.Run(t, append(args, task.Args[1:]...)...) + "\n")
	}
	id := d.Run(t, append(append([]string{"run", "-d"}, quiet...), ref)...)
	defer d.Run(t, "rm", "-f", "-v", id)
	pid, err := strconv.Atoi(d.Run(t, "inspect", "-f", "{{.State.Pid}}", id))
	if err != nil || pid == 0 {
		return errors.Join(fmt.Errorf("task %s: the container does not run: %s", task, d.Run(t, "logs", id)), err)
	}
	dial, done, err := tasks.DialIn(pid)
	if err != nil {
		return fmt.Errorf("task %s: %w", task, err)
	}
	defer done()
	ctx, cancel := context.WithTimeout(t.Context(), 2*task.Timeout)
	defer cancel()
	answer, err := task.Probe(ctx, dial)
	if err != nil {
		return fmt.Errorf("task %s: %w", task, err)
	}
	return task.Check(answer)
}
