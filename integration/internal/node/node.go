// Package node starts the node agent under test: real processes with their own state
// directory. Their mounts are always gone when the test ends.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 15 * time.Second
	// hang is the time after which a test counts as hung, unless Allow extends it.
	// Everything that waits for the pool then gets an error.
	hang = 5 * time.Minute
)

// Agent is a keeper and its workers.
type Agent struct {
	// Root is the state directory.
	Root string
	// Process is the keeper's process.
	Process *proc.Process
	// Inside turns the agent's command into one that runs elsewhere, such as in a namespace. If it
	// is nil, the agent runs in the test's.
	Inside func(*exec.Cmd) (*exec.Cmd, error)

	t        testing.TB
	dir      string // of the configuration and the log
	config   string // path of the configuration
	watchdog *time.Timer
	allowed  time.Duration // what Allow adds
}

// Status holds the part of slipway agent status that tests need.
type Status struct {
	PID        int     `json:"pid"`
	Tier       string  `json:"tier"`
	Images     []Image `json:"images"`
	Containers []struct {
		ID string `json:"id"`
	} `json:"containers"`
	Mounts []struct {
		Image, Dir, Upper, Chain string
	} `json:"mounts"`
	Sources []struct {
		Lies  int    `json:"lies"`
		Error string `json:"error"`
	} `json:"sources"`
	Cache struct {
		Files, Damaged int64
		Bytes          int64
	} `json:"cache"`
}

// Image is an image that the agent knows.
type Image struct {
	Chain           string `json:"chain"`
	Ref             string `json:"ref"`
	Files           int    `json:"files"`
	LocalFiles      int    `json:"local_files"`
	Opens           int64  `json:"opens"`
	Errors          int64  `json:"errors"`
	DemandFiles     int64  `json:"demand_files"`
	ProfileFiles    int64  `json:"profile_files"`
	BackgroundFiles int64  `json:"background_files"`
	Background      bool   `json:"background"`
}

// New prepares an agent without starting it. config is the text of its configuration file, which
// may be empty.
func New(t testing.TB, config string) *Agent {
	t.Helper()
	tool.NeedRoot(t)
	dir := tool.ShortTempDir(t)
	a := &Agent{Root: filepath.Join(dir, "node"), t: t, dir: dir, config: filepath.Join(dir, "agent.yml")}
	if err := os.WriteFile(a.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	a.watchdog = time.AfterFunc(hang, func() { abort(t, dir) })
	t.Cleanup(func() {
		a.watchdog.Stop()
		a.killAll()
		abort(t, dir)
		unmount(t, dir)
	})
	return a
}

// Allow extends the time until the test counts as hung. From now on, it is hang plus d. A
// command may take d longer, too.
func (a *Agent) Allow(d time.Duration) {
	a.watchdog.Reset(hang + d)
	a.allowed = d
}

// Start starts an agent and waits until it answers.
func Start(t testing.TB, config string) *Agent {
	t.Helper()
	a := New(t, config)
	a.Start()
	return a
}

// Start starts the agent, or restarts it if it has ended.
func (a *Agent) Start() {
	a.t.Helper()
	cmd := exec.Command(slipway.Binary(a.t), "agent", "--root", a.Root, "--config", a.config)
	cmd.Env, cmd.Dir = environment(), "/"
	if a.Inside != nil {
		var err error
		if cmd, err = a.Inside(cmd); err != nil {
			a.t.Fatal(err)
		}
	}
	a.Process = proc.Start(a.t, cmd, a.logFile())
	proc.Poll(a.t, startTimeout, "answer of the agent", func() bool {
		select {
		case <-a.Process.Exited():
			a.t.Fatalf("the agent ended (%s):\n%s", a.Process.State(), a.Log())
		default:
		}
		_, err := a.TryStatus()
		return err == nil
	})
}

func environment() []string {
	return []string{"PATH=" + tool.Dir() + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent"}
}

func (a *Agent) logFile() string { return filepath.Join(a.dir, "log") }

// Log returns what the agent has logged.
func (a *Agent) Log() string {
	b, err := os.ReadFile(a.logFile())
	if err != nil {
		a.t.Error(err)
	}
	return string(b)
}

// Socket returns the path of the socket that containerd calls.
func (a *Agent) Socket() string { return filepath.Join(a.Root, "run", "snapshotter.sock") }

// Cache returns the directory of complete files.
func (a *Agent) Cache() string { return filepath.Join(a.Root, "cache", "files") }

// Run runs a subcommand on the agent and returns what it printed.
func (a *Agent) Run(args ...string) string {
	a.t.Helper()
	out, err := a.Try(args...)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// Try is like Run, but returns an error. Arguments after -- are not the subcommand's own.
func (a *Agent) Try(args ...string) (string, error) {
	var at int
	for at = 0; at < len(args) && args[at] != "--"; at++ {
	}
	args = append(append(append([]string{}, args[:at]...), "--root", a.Root, "--config", a.config), args[at:]...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+a.allowed)
	defer cancel()
	cmd := exec.CommandContext(ctx, slipway.Binary(a.t), args...)
	cmd.Env, cmd.WaitDelay = environment(), 5*time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("slipway %s: %w\n%s%s", strings.Join(args, " "), err, stderr.String(), stdout.String())
	}
	return stdout.String(), nil
}

// TryStatus returns the agent's state, or an error.
func (a *Agent) TryStatus() (s Status, err error) {
	out, err := a.Try("agent", "status", "--json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// Ask returns the state of the agent with a state directory. It asks over the agent's socket, as
// slipway agent status does, but takes no process for that. With one process for each question, the
// questions of a test of many nodes would take more of the processors than the nodes do.
func Ask(ctx context.Context, root string) (s Status, err error) {
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(root, "run", "agent.sock"))
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/status", nil)
	if err != nil {
		return s, err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("the agent answers %s", resp.Status)
	}
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// Complete reports whether the node holds all files of all its images, of which there is at least one.
func (s *Status) Complete() bool {
	for i := range s.Images {
		if s.Images[i].LocalFiles < s.Images[i].Files {
			return false
		}
	}
	return len(s.Images) > 0
}

// Status returns the agent's state.
func (a *Agent) Status() Status {
	a.t.Helper()
	s, err := a.TryStatus()
	if err != nil {
		a.t.Fatal(err)
	}
	return s
}

// Image returns the state of the agent's only image.
func (a *Agent) Image() Image {
	a.t.Helper()
	s := a.Status()
	if len(s.Images) != 1 {
		a.t.Fatalf("the agent knows %d images, want one: %+v", len(s.Images), s.Images)
	}
	return s.Images[0]
}

// Complete waits until the node holds the files of all images.
func (a *Agent) Complete() {
	a.t.Helper()
	proc.Poll(a.t, time.Minute, "completion of all images", func() bool {
		s := a.Status()
		return s.Complete()
	})
}

// Mount mounts an image at a new directory and returns the directory.
func (a *Agent) Mount(ref string, args ...string) string {
	a.t.Helper()
	dir, err := os.MkdirTemp(a.dir, "mnt")
	if err != nil {
		a.t.Fatal(err)
	}
	a.Run(append([]string{"mount", ref, dir}, args...)...)
	return dir
}

// Worker returns the process id of the worker, or 0 if there is none now.
func (a *Agent) Worker() int {
	for pid, args := range a.processes() {
		if strings.Contains(args, "--worker") {
			return pid
		}
	}
	return 0
}

// KillWorker ends the worker with SIGKILL and reports whether there was one.
func (a *Agent) KillWorker() bool {
	pid := a.Worker()
	return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

// Kill ends keeper and worker with SIGKILL.
func (a *Agent) Kill() {
	a.Process.Kill()
	a.killAll()
}

// Stop ends the agent with SIGTERM and returns how long that took.
func (a *Agent) Stop() time.Duration {
	a.t.Helper()
	began := time.Now()
	if err := a.Process.Stop(stopTimeout); err != nil {
		a.t.Errorf("stop the agent: %v\n%s", err, a.Log())
	}
	return time.Since(began)
}

// processes returns the agent's processes: the keeper, the workers, and a keeper that a command has
// started.
func (a *Agent) processes() map[int]string {
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		a.t.Error(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(b), "\x00")
		if err == nil && len(args) > 2 && args[0] != "" && args[1] == "agent" && strings.Contains(string(b), "\x00"+a.Root+"\x00") && !proc.Gone(pid) {
			found[pid] = strings.Join(args, " ")
		}
	}
	return found
}

// CPU returns the processor time that the agent has taken.
func (a *Agent) CPU() (sum time.Duration) {
	a.t.Helper()
	for pid := range a.processes() {
		d, err := proc.CPU(pid)
		if err != nil {
			a.t.Error(err)
		}
		sum += d
	}
	return sum
}

func (a *Agent) killAll() {
	for try := 0; try < 100; try++ {
		found := a.processes()
		if len(found) == 0 {
			return
		}
		for pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: just ended
		}
		<-time.After(10 * time.Millisecond)
	}
	a.t.Errorf("processes do not end: %v", a.processes())
}

// mountInfo is a line of /proc/self/mountinfo.
type mountInfo struct{ minor, point, kind string }

func below(t testing.TB, dir string) []mountInfo {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	var found []mountInfo
	for line := range strings.Lines(string(b)) {
		front, back, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(front), strings.Fields(back)
		if len(f) > 4 && len(kind) > 0 && strings.HasPrefix(f[4], dir+"/") {
			_, minor, _ := strings.Cut(f[2], ":")
			found = append(found, mountInfo{minor, f[4], kind[0]})
		}
	}
	return found
}

// Mounts returns the mounts below the agent's directory, each as "type path".
func (a *Agent) Mounts() (list []string) {
	for _, m := range below(a.t, a.dir) {
		list = append(list, m.kind+" "+strings.TrimPrefix(m.point, a.dir+"/"))
	}
	return list
}

// abort makes everyone who waits for a pool below dir get an error.
func abort(t testing.TB, dir string) {
	for _, m := range below(t, dir) {
		if !strings.HasPrefix(m.kind, "fuse") {
			continue
		}
		err := os.WriteFile("/sys/fs/fuse/connections/"+m.minor+"/abort", []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			t.Errorf("abort the pool: %v", err)
		}
	}
}

func unmount(t testing.TB, dir string) {
	list := below(t, dir)
	for i := len(list) - 1; i >= 0; i-- {
		if err := syscall.Unmount(list[i].point, syscall.MNT_DETACH); err != nil && err != syscall.EINVAL && err != syscall.ENOENT {
			t.Errorf("unmount %s: %v", list[i].point, err)
		}
	}
}

// Reboot has the effect of a reboot on a node whose agent does not run: everything is unmounted,
// and everything on a tmpfs is gone.
func (a *Agent) Reboot() {
	a.t.Helper()
	a.Kill()
	abort(a.t, a.dir)
	unmount(a.t, a.dir)
	if err := os.RemoveAll(filepath.Join(a.Root, "run")); err != nil {
		a.t.Error(err)
	}
}
