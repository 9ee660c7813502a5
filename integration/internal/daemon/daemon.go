// Package daemon runs private container daemons: Docker with the graph driver, Docker
// with the containerd image store, and containerd by itself.
//
// Each daemon has its own data, state and socket in a short temporary directory, and
// touches neither bridges nor iptables. It ends with the test, together with everything
// that it started. The package finds shims by the directory in their command line, and
// mounts by their path.
package daemon

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

const (
	startTimeout = time.Minute
	stopTimeout  = 20 * time.Second
)

// Docker is a running Docker Engine.
type Docker struct {
	env *tool.Env
	cli string
}

// StartDocker starts the distribution's dockerd with the overlay2 graph driver, the store that
// pushes Docker v2 schema 2 manifests. args are added to its command line.
func StartDocker(t testing.TB, args ...string) *Docker {
	t.Helper()
	tool.NeedRoot(t)
	dockerd := tool.System(t, "dockerd")
	dir := newDir(t)
	return startDocker(t, dockerd, tool.NewEnv(dir), append([]string{"--storage-driver", "overlay2"}, args...)...)
}

// StartMoby starts the Go-built dockerd of the 29 line, which keeps images in containerd. It uses
// the containerd and runc built beside it. args are added to its command line.
func StartMoby(t testing.TB, args ...string) *Docker {
	t.Helper()
	tool.NeedRoot(t)
	dockerd := tool.Built(t, "dockerd")
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		tool.Built(t, name)
	}
	dir := newDir(t)
	env := tool.NewEnv(dir,
		"PATH="+tool.Dir()+":/usr/sbin:/usr/bin:/sbin:/bin",
		// Debian 12's command line speaks API 1.41, but the daemon's default minimum is newer.
		"DOCKER_MIN_API_VERSION=1.24")
	return startDocker(t, dockerd, env, args...)
}

func startDocker(t testing.TB, dockerd string, env *tool.Env, args ...string) *Docker {
	t.Helper()
	dir := env.Dir()
	d := &Docker{env: env, cli: tool.System(t, "docker")}
	cmd := exec.Command(dockerd, append([]string{
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "-H", d.host(),
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
	}, args...)...)
	start(t, cmd, env, func() error {
		_, err := env.Try(t.Context(), d.cli, "-H", d.host(), "info")
		return err
	})
	return d
}

func (d *Docker) host() string { return "unix://" + filepath.Join(d.env.Dir(), "d.sock") }

// Run runs a docker command and returns its output; a failure fails the test.
func (d *Docker) Run(t testing.TB, args ...string) string {
	t.Helper()
	return d.env.Run(t, d.cli, append([]string{"-H", d.host()}, args...)...)
}

// RunFailing runs a docker command that must fail and returns its output.
func (d *Docker) RunFailing(t testing.TB, args ...string) string {
	t.Helper()
	return d.env.RunFailing(t, d.cli, append([]string{"-H", d.host()}, args...)...)
}

// Try runs a docker command and returns its output and its error.
func (d *Docker) Try(ctx context.Context, args ...string) (string, error) {
	return d.env.Try(ctx, d.cli, append([]string{"-H", d.host()}, args...)...)
}

// Containerd is a running containerd.
type Containerd struct {
	env *tool.Env
	ctr string
}

const containerdConfig = `version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`

// StartContainerd starts the Go-built containerd, and adds the given snapshotters to its own.
func StartContainerd(t testing.TB, proxies ...Proxy) *Containerd {
	t.Helper()
	tool.NeedRoot(t)
	containerd := tool.Built(t, "containerd")
	c := &Containerd{ctr: tool.Built(t, "ctr")}
	for _, name := range []string{"containerd-shim-runc-v2", "runc"} {
		tool.Built(t, name)
	}
	dir := newDir(t)
	c.env = tool.NewEnv(dir, "PATH="+tool.Dir()+":/usr/sbin:/usr/bin:/sbin:/bin")
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(containerdConfig, filepath.Join(dir, "root"), filepath.Join(dir, "state"),
		c.socket(), c.socket()+".ttrpc")
	if len(proxies) > 0 {
		text += unpackOverlayfs
	}
	for _, p := range proxies {
		text += p.config()
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, exec.Command(containerd, "--config", config), c.env, func() error {
		_, err := c.env.Try(t.Context(), c.ctr, "-a", c.socket(), "version")
		return err
	})
	return c
}

// Socket returns the path of containerd's socket.
func (c *Containerd) Socket() string { return c.socket() }

func (c *Containerd) socket() string { return filepath.Join(c.env.Dir(), "c.sock") }

// Run runs a ctr command and returns its output; a failure fails the test.
func (c *Containerd) Run(t testing.TB, args ...string) string {
	t.Helper()
	return c.env.Run(t, c.ctr, append([]string{"-a", c.socket()}, args...)...)
}

// Try runs a ctr command and returns its output.
func (c *Containerd) Try(ctx context.Context, args ...string) (string, error) {
	return c.env.Try(ctx, c.ctr, append([]string{"-a", c.socket()}, args...)...)
}

// Tasks returns a runner of tasks on images that the given snapshotter of containerd holds.
func (c *Containerd) Tasks(t testing.TB, snapshotter string) *tasks.Ctr {
	t.Helper()
	return &tasks.Ctr{Program: c.ctr, Socket: c.socket(), Snapshotter: snapshotter, Env: c.env.Vars(), Dir: t.TempDir()}
}

// RunFailing runs a ctr command that must fail and returns its output.
func (c *Containerd) RunFailing(t testing.TB, args ...string) string {
	t.Helper()
	return c.env.RunFailing(t, c.ctr, append([]string{"-a", c.socket()}, args...)...)
}

// newDir returns a directory for a daemon. When the test ends, it ends everything that
// still runs from the directory and unmounts everything that is mounted in it.
func newDir(t testing.TB) string {
	t.Helper()
	dir := tool.ShortTempDir(t)
	t.Cleanup(func() { cleanUp(t, dir) })
	return dir
}

// start starts the daemon and waits until ready returns nil.
func start(t testing.TB, cmd *exec.Cmd, env *tool.Env, ready func() error) {
	t.Helper()
	cmd.Env, cmd.Dir = env.Vars(), env.Dir()
	p := proc.Start(t, cmd, filepath.Join(env.Dir(), "log"))
	t.Cleanup(func() {
		if err := p.Stop(stopTimeout); err != nil {
			t.Errorf("stop %s: %v", p.Name, err)
		}
	})
	var err error
	end := time.Now().Add(startTimeout)
	for err = ready(); err != nil; err = ready() {
		select {
		case <-p.Exited():
			t.Fatalf("%s ended before it was ready: %s\n%s", p.Name, p.State(), p.Log(8192))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("%s not ready within %s: %v", p.Name, startTimeout, err)
		}
	}
}

// cleanUp ends the processes that name dir in their command line and unmounts
// what is mounted below it, innermost first.
func cleanUp(t testing.TB, dir string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Error(err)
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.Contains(string(cmdline), dir+"/") {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has just ended by itself
		proc.Poll(t, stopTimeout, "end of "+strings.ReplaceAll(string(cmdline), "\x00", " "), func() bool { return proc.Gone(pid) })
	}
	blockfs.UnmountBelow(t, dir)
}
