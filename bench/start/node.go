package start

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

const (
	readyTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
	// pullTimeout bounds a pull: 500 MB at 5 Mbit/s take 13 minutes.
	pullTimeout = 30 * time.Minute
)

// node is the container side of a machine that starts from nothing: a containerd with its
// own directory, and the processes that a system's snapshotter needs.
type node struct {
	dir        string
	system     *system
	registries []string // host:port that may be used without TLS
	env        []string
	processes  []*proc.Process
	containerd *proc.Process
}

// startNode starts a system on its own empty disk, mounted at dir. The path of dir must be short,
// because it holds sockets.
func startNode(ctx context.Context, dir string, s *system, registries []string) (n *node, err error) {
	n = &node{dir: dir, system: s, registries: registries, env: []string{
		"PATH=" + tool.Dir() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "LANG=C.UTF-8", "TMPDIR=" + dir}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop())
			n = nil
		}
	}()
	if err := ctrnode.NewDisk(ctx, dir, 0); err != nil {
		return n, err
	}
	if err := os.MkdirAll(n.path("runs"), 0o700); err != nil {
		return n, err
	}
	if s.daemon != nil {
		cmd, err := s.daemon(n)
		if err != nil {
			return n, err
		}
		p, err := n.launch(cmd, "snapshotter")
		if err != nil {
			return n, err
		}
		if err := waitFor(ctx, p, func() error { return answers(ctx, n.socket(), s.snapshotter) }); err != nil {
			return n, err
		}
	}
	return n, n.startContainerd(ctx)
}

func (n *node) startContainerd(ctx context.Context) error {
	config := n.path("containerd.toml")
	if err := os.WriteFile(config, []byte(n.containerdConfig()), 0o600); err != nil {
		return err
	}
	p, err := n.launch(exec.Command(filepath.Join(tool.Dir(), "containerd"), "--config", config), "containerd")
	if err != nil {
		return err
	}
	n.containerd = p
	return waitFor(ctx, p, func() error { return n.ctr(ctx, "version").Run() })
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// socket returns the path of the snapshotter's socket.
func (n *node) socket() string { return n.path("s.sock") }

func (n *node) launch(cmd *exec.Cmd, name string) (*proc.Process, error) {
	cmd.Env, cmd.Dir = n.env, n.dir
	p, err := proc.Launch(cmd, n.path(name+".log"))
	if err == nil {
		n.processes = append(n.processes, p)
	}
	return p, err
}

// ctr returns a command of containerd's client.
func (n *node) ctr(ctx context.Context, args ...string) *exec.Cmd {
	return n.command(ctx, filepath.Join(tool.Dir(), "ctr"), args...)
}

// command returns a command of ctr, or of a program with the same flags.
func (n *node) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, append([]string{"-a", n.path("c.sock")}, args...)...)
	cmd.Env, cmd.Dir = n.env, n.dir
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (n *node) containerdConfig() string {
	s := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
[ttrpc]
  address = %q
[plugins."io.containerd.transfer.v1.local"]
%s
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "overlayfs"
`, n.path("root"), n.path("state"), n.path("c.sock"), n.path("c.sock.ttrpc"), n.system.transfer)
	if n.system.daemon == nil {
		return s
	}
	return s + fmt.Sprintf(`[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = %q
  differ = "walking"
[proxy_plugins.%s]
  type = "snapshot"
  address = %q
  [proxy_plugins.%s.exports]
    root = %q
    enable_remote_snapshot_annotations = "true"
`, n.system.snapshotter, n.system.snapshotter, n.socket(), n.system.snapshotter, n.path("snapshotter"))
}

// pull pulls an image in the system's way.
func (n *node) pull(ctx context.Context, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	return quietly(n.system.pull(ctx, n, ref))
}

// quietly runs a command. The error contains what it printed.
func quietly(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w; it printed:\n%s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), err, tail(out.Bytes(), 4096))
	}
	return nil
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// tasks runs tasks on the node.
func (n *node) tasks() *tasks.Ctr {
	return &tasks.Ctr{Program: filepath.Join(tool.Dir(), "ctr"), Socket: n.path("c.sock"), Snapshotter: n.system.snapshotter, Env: n.env, Dir: n.path("runs")}
}

// logs returns the end of the output of each of the node's processes, for an error.
func (n *node) logs() string {
	var b strings.Builder
	for _, p := range n.processes {
		fmt.Fprintf(&b, "%s (%s) printed last:\n%s\n", p.Name, p.State(), p.Log(3000))
	}
	return b.String()
}

// stop ends everything that belongs to the node, unmounts what it mounted and
// removes its directory.
func (n *node) stop() error {
	var errs []error
	if n.containerd != nil {
		_ = n.containerd.Stop(stopTimeout) // how it ends is not measured
	}
	errs = append(errs, endProcesses(n.dir, "containerd-shim"))
	// Snapshotters are stopped when their mounts are no longer in use.
	errs = append(errs, unmountBelow(n.path("state")))
	for _, p := range slices.Backward(n.processes) {
		p.Signal(syscall.SIGTERM)
		select {
		case <-p.Exited():
		case <-time.After(2 * time.Second): // the agent waits for users of its files; a second signal makes it stop waiting
			_ = p.Stop(stopTimeout)
		}
	}
	errs = append(errs, endProcesses(n.dir, ""), unmountBelow(n.dir))
	if err := errors.Join(errs...); err != nil {
		return err // the directory may hold somebody's mount, so it stays
	}
	return ctrnode.DropDisk(n.dir)
}

// endProcesses kills the processes that have a directory and a program in their command line, and
// waits until they have ended.
func endProcesses(dir, program string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !bytes.Contains(cmdline, []byte(dir+"/")) || !bytes.Contains(cmdline, []byte(program)) {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has just ended by itself
		for end := time.Now().Add(stopTimeout); !proc.Gone(pid); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Errorf("process %d does not end: %s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))
			}
		}
	}
	return nil
}

// unmountBelow unmounts everything below a directory, innermost first. A FUSE file system without a
// server answers with errors, but can be unmounted.
func unmountBelow(dir string) error {
	for range 20 { // mounts can lie upon each other, and propagate
		points, err := mountsBelow(dir)
		if err != nil || len(points) == 0 {
			return err
		}
		for _, p := range points {
			if err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				_ = unix.Unmount(p, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH) // the next round shows whether it worked
			}
		}
	}
	points, err := mountsBelow(dir)
	return errors.Join(err, fmt.Errorf("still mounted: %s", strings.Join(points, ", ")))
}

// mountsBelow returns the mount points at and below a directory, last first.
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 5 {
			continue
		}
		if p := unescape.Replace(f[4]); p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	slices.Reverse(out)
	return out, nil
}
