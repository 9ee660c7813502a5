package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// killing says how a worker is killed again and again while containers open files. The containers
// run one after the other, each with its own image.
type killing struct {
	during, every time.Duration
	images, files int           // files of each image
	latency       time.Duration // of each file, so that some files remain to be fetched for a while
}

// killPlan returns a short run with many kills. With SLIPWAY_AGENTKILL_FOR it returns a run of that
// length, with a kill each second and 50,000 files.
func killPlan(t testing.TB) killing {
	t.Helper()
	text := os.Getenv("SLIPWAY_AGENTKILL_FOR")
	if text == "" {
		return killing{20 * time.Second, 200 * time.Millisecond, 1, 4000, 2 * time.Millisecond}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SLIPWAY_AGENTKILL_FOR: %v", err)
	}
	return killing{d, time.Second, 5, 10_000, d / 50_000}
}

// TestKillWorker kills the worker again and again while containers open thousands of files that the
// node does not hold yet.
func TestKillWorker(t *testing.T) {
	plan := killPlan(t)
	s := slipway.Start(t, t.TempDir(), nil)
	g := behind(t, s)
	a, c := withContainerd(t, "fetch: {background: false, mode: lazy}\n")
	var refs []string
	for i := range plan.images {
		ref := push(t, s, fmt.Sprintf("team/app:v%d", i+1), image(t, byte(i+1), plan.files))
		pull(t, c, g.ref(ref))
		refs = append(refs, g.ref(ref))
	}
	g.set(filesOnly(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		time.Sleep(plan.latency)
		pass.ServeHTTP(w, r)
	}))
	a.Allow(plan.during)
	var again atomic.Int32
	said := make(chan []string, 1)
	go func() {
		var all []string
		for _, ref := range refs {
			for tries := 0; ; tries++ {
				out, err := c.Try(t.Context(), "run", "--rm", "--snapshotter", name, ref, unique("reader"), "/bin/check")
				// A start during a kill fails, and whoever wants the container tries again. On a busy
				// machine the next worker may be killed before it serves.
				if err == nil || strings.Contains(out, "files=") || tries == 100 {
					all = append(all, fmt.Sprint(out, err))
					break
				}
				again.Add(1)
				time.Sleep(100 * time.Millisecond)
			}
		}
		said <- all
	}()
	kills, began := 0, time.Now()
	var out []string
	tick := time.NewTicker(plan.every)
	defer tick.Stop()
	for out == nil && time.Since(began) < plan.during {
		select {
		case <-tick.C:
			if a.KillWorker() {
				kills++
			}
		case out = <-said:
		}
	}
	killed := time.Since(began).Round(time.Second)
	if out == nil {
		select {
		case out = <-said:
		case <-time.After(time.Duration(plan.images) * 2 * time.Minute):
			t.Fatal("the containers do not end")
		}
	}
	for i, got := range out {
		if want := good(plan.files) + "<nil>"; got != want {
			t.Errorf("while the worker was killed %d times container %d prints %.2000q, want %q", kills, i+1, got, want)
		}
	}
	if kills < 10 {
		t.Errorf("the worker was killed %d times only", kills)
	}
	proc.Poll(t, 20*time.Second, "the next worker", func() bool { _, err := a.TryStatus(); return err == nil })
	for i, ref := range refs {
		if got := run(t, c, ref, unique("second")); got != good(plan.files) {
			t.Errorf("the next container of image %d prints %q, want %q", i+1, got, good(plan.files))
		}
	}
	t.Logf("%d kills in %s while %d files were opened; %d starts were tried again", kills, killed, plan.images*plan.files, again.Load())
}

// TestWithoutRegistry starts containers of a complete image when the registry is gone, including
// after a reboot.
func TestWithoutRegistry(t *testing.T) {
	const files = 30
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a, c := withContainerd(t, "fetch: {background_delay: 0s}\n")
	pull(t, c, ref)
	kept := unique("kept")
	c.Run(t, "container", "create", "--snapshotter", name, ref, kept, "/bin/check", "write=by the first")
	if got := run(t, c, ref, "first", "one"); got != good(files/2) {
		t.Errorf("the container prints %q, want %q", got, good(files/2))
	}
	a.Complete()
	s.Stop()
	if got := run(t, c, ref, "second"); got != good(files) {
		t.Errorf("without a registry a container prints %q, want %q", got, good(files))
	}
	a.Reboot()
	a.Start()
	reconnected(t, c)
	if got := c.Run(t, "task", "start", kept); got != good(files) {
		t.Errorf("after a reboot the container prints %q, want %q", got, good(files))
	}
	if got := run(t, c, ref, "third"); got != good(files) {
		t.Errorf("after a reboot a new container prints %q, want %q", got, good(files))
	}
	c.Run(t, "container", "rm", kept)
	c.Run(t, "image", "rm", "--sync", ref)
	clean(t, a)
}

// TestKillAll ends keeper and worker while an image is mounted. The mount returns errors for
// files that were not in the cache when it first opened them, and does not hang. With the next
// agent, everything in the cache can be opened. After a new mount the image is whole.
func TestKillAll(t *testing.T) {
	const files = 20
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a := node.Start(t, quiet)
	dir := a.Mount(ref)
	had, err := filepath.Glob(filepath.Join(dir, "files/0/*"))
	if err != nil || len(had) != files/2 {
		t.Fatalf("files %q, error %v", had, err)
	}
	for _, name := range had {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	a.Kill()
	read := func(when string, want int) {
		t.Helper()
		n, failed, wrong := check(t, dir)
		if n != files || wrong != 0 || failed != want {
			t.Errorf("%s: of %d files %d fail and %d are wrong, want %d failing", when, n, failed, wrong, want)
		}
	}
	read("without an agent", files)
	a.Start()
	read("with a new agent", files-len(had))
	a.Run("umount", dir)
	a.Run("mount", ref, dir)
	read("mounted anew", 0)
	a.Run("umount", dir)
	clean(t, a)
	if took := a.Stop(); took > 5*time.Second {
		t.Errorf("the agent took %s to end", took)
	}
}

// TestKillKeeper ends only the keeper. The worker continues, and no second agent disturbs it.
func TestKillKeeper(t *testing.T) {
	const files = 20
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a := node.Start(t, quiet)
	dir := a.Mount(ref)
	a.Process.Kill()
	if n, failed, wrong := check(t, dir); n != files || failed+wrong != 0 {
		t.Errorf("without a keeper: of %d files %d fail and %d are wrong", n, failed, wrong)
	}
	if out, err := a.Try("agent"); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("an agent beside a worker: %s, error %v", out, err)
	}
	a.Run("umount", dir)
	clean(t, a)
}

// TestDamagedFile changes a cached file on disk.
func TestDamagedFile(t *testing.T) {
	const files = 10
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a := node.Start(t, quiet)
	dir := a.Mount(ref)
	if _, failed, wrong := check(t, dir); failed+wrong != 0 {
		t.Fatalf("%d files fail, %d are wrong", failed, wrong)
	}
	if got := a.Run("agent", "verify"); !strings.Contains(got, " files read, 0 were damaged") {
		t.Errorf("verify says %q", got)
	}
	list, err := filepath.Glob(filepath.Join(dir, "files/1/*"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	sum := filepath.Base(list[0])
	cached := filepath.Join(a.Cache(), sum[:2], sum[2:])
	if err := os.Chmod(cached, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(cached, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := a.Run("agent", "verify"); !strings.Contains(got, "1 were damaged") {
		t.Errorf("verify says %q", got)
	}
	a.Run("umount", dir)
	a.Run("mount", ref, dir)
	if _, failed, wrong := check(t, dir); failed+wrong != 0 {
		t.Errorf("after verify %d files fail, %d are wrong", failed, wrong)
	}
	a.Run("umount", dir)
}

// TestFullDisk fills the disk of the cache.
func TestFullDisk(t *testing.T) {
	const files = 8 // two of the files have 3 MiB
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a := node.New(t, quiet)
	if err := os.Mkdir(a.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", a.Root, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	a.Start()
	dir := a.Mount(ref)
	ballast := filepath.Join(a.Root, "ballast")
	fill(t, ballast)
	n, failed, wrong := check(t, dir)
	if n != files || wrong != 0 || failed == 0 {
		t.Errorf("with a full disk %d of %d files fail, %d are wrong; want some to fail", failed, n, wrong)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	proc.Poll(t, 30*time.Second, "files now that there is space", func() bool {
		_, failed, wrong := check(t, dir)
		return failed+wrong == 0
	})
	a.Run("umount", dir)
}

// TestFullDiskRestart fills the disk before each step that writes: another image is mounted, and an
// agent that was killed starts as it was. The cache gives up files for that.
func TestFullDiskRestart(t *testing.T) {
	const files = 40
	s := slipway.Start(t, t.TempDir(), nil)
	one, two := push(t, s, "team/app:v1", image(t, 1, files)), push(t, s, "team/other:v1", image(t, 2, files))
	a := node.New(t, quiet)
	smallDisk(t, a.Root)
	a.Start()
	tier := a.Status().Tier
	dir := a.Mount(one)
	if n, failed, wrong := check(t, dir); n != files || failed+wrong != 0 {
		t.Fatalf("%d files, %d failed, %d wrong", n, failed, wrong)
	}
	a.Run("umount", dir)
	fill(t, filepath.Join(a.Root, "ballast1"))
	dir = a.Mount(two)
	if _, err := os.ReadFile(filepath.Join(dir, "bin", "check")); err != nil {
		t.Errorf("a file of another image on a full disk: %v", err)
	}
	fill(t, filepath.Join(a.Root, "ballast2"))
	a.Kill()
	a.Start()
	if got := a.Status().Tier; got != tier {
		t.Errorf("after a start on a full disk images are mounted in the way %s, not %s: %s", got, tier, a.Log())
	}
	fill(t, filepath.Join(a.Root, "ballast3"))
	worker := a.Worker()
	a.KillWorker()
	proc.Poll(t, 30*time.Second, "the next worker on a full disk", func() bool { st, err := a.TryStatus(); return err == nil && st.PID != worker })
	for _, name := range []string{"ballast1", "ballast2", "ballast3"} {
		if err := os.Remove(filepath.Join(a.Root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if n, failed, wrong := check(t, a.Mount(one)); n != files || failed+wrong != 0 {
		t.Errorf("now that there is space: %d files, %d failed, %d wrong", n, failed, wrong)
	}
}

// smallDisk mounts an ext4 of 32 MiB at a directory that is not there yet.
func smallDisk(t testing.TB, dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = errors.Join(os.Truncate(image, 32<<20), os.Mkdir(dir, 0o700))
	}
	for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if err == nil {
			var out []byte
			if out, err = exec.Command(tool.System(t, c[0]), c[1:]...).CombinedOutput(); err != nil {
				err = fmt.Errorf("%s: %w: %s", c[0], err, out)
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fill writes a file until the disk is full.
func fill(t testing.TB, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4 << 10} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
}

// TestManyStarts starts containers of one image at the same time. Each file must be fetched only
// once.
func TestManyStarts(t *testing.T) {
	const files, containers = 40, 100
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	runc := tool.Built(t, "runc")
	g := behind(t, s)
	var asked, ranges atomic.Int64
	var mu sync.Mutex
	times := map[string]int{}
	g.set(filesOnly(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		switch {
		case ofProfile(r):
			for _, name := range sendPack(w, r, pass, nil) {
				asked.Add(1)
				mu.Lock()
				times[name]++
				mu.Unlock()
			}
			return
		case r.Method == http.MethodPost: // the body has 32 bytes for each file
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			asked.Add(int64(len(b) / 32))
			mu.Lock()
			for i := 0; i+32 <= len(b); i += 32 {
				times[string(b[i:i+32])]++
			}
			mu.Unlock()
			r.Body = io.NopCloser(strings.NewReader(string(b)))
		default:
			ranges.Add(1)
		}
		pass.ServeHTTP(w, r)
	}))
	a := node.Start(t, quiet)
	dir := a.Mount(g.ref(ref)) // the image stays known between containers
	var wait sync.WaitGroup
	for i := range containers {
		wait.Go(func() {
			if out, err := a.Try("run", "--runtime", runc, g.ref(ref)); err != nil || out != good(files)+"\n" {
				t.Errorf("container %d prints %q, error %v", i, out, err)
			}
		})
	}
	wait.Wait()
	if n := asked.Load() + ranges.Load(); n != files+1 {
		t.Errorf("%d files and %d parts of files were fetched for %d containers, want each of %d once", asked.Load(), ranges.Load(), containers, files+1)
		for name, n := range times {
			if n > 1 {
				t.Errorf("%x was asked for %d times", name, n)
			}
		}
	}
	a.Run("umount", dir)
	clean(t, a)
}

// TestDifferentImages pulls and starts different images at the same time, through containerd.
func TestDifferentImages(t *testing.T) {
	const files, images = 40, 20
	s := slipway.Start(t, t.TempDir(), nil)
	var refs []string
	for i := range images {
		refs = append(refs, push(t, s, fmt.Sprintf("team/app%d:v1", i), image(t, byte(i), files)))
	}
	_, c := withContainerd(t, quiet)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wait sync.WaitGroup
	var slowest atomic.Int64
	began := time.Now()
	for i, ref := range refs {
		id := unique(fmt.Sprintf("app%d", i))
		wait.Go(func() {
			began := time.Now()
			out, err := c.Try(ctx, "image", "pull", "--plain-http", "--snapshotter", name, ref)
			// containerd can lose the output of a container that ends at once. Such a start is
			// repeated, and only the right output passes.
			for try := 1; err == nil; try++ {
				out, err = c.Try(ctx, "run", "--rm", "--snapshotter", name, ref, fmt.Sprint(id, "-", try), "/bin/check")
				if out != "" || try == 4 {
					break
				}
				t.Logf("image %d printed nothing in start %d, error %v", i, try, err)
			}
			if err != nil || out != good(files) {
				t.Errorf("image %d prints %q, error %v", i, out, err)
			}
			took := time.Since(began).Milliseconds()
			for was := slowest.Load(); took > was && !slowest.CompareAndSwap(was, took); was = slowest.Load() {
			}
		})
	}
	wait.Wait()
	t.Logf("%d images at once took %.1f s, the slowest %.1f s", images, time.Since(began).Seconds(), float64(slowest.Load())/1e3)
}
