package ctrnode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

// CRI makes a node serve kubelet: containerd's runtime service, and the agent in front of
// containerd's image service. Both get the settings that slipway agent setup --kubernetes writes.
type CRI struct {
	// Sandbox is the image of the first container of each pod.
	Sandbox string
	// Pods is the network of pods, such as 10.88.1.0/24, on a bridge of the node. If it is "", all
	// pods use the node's network.
	Pods string
	// KeepCredentials makes the agent keep the credentials of pulls over a reboot.
	KeepCredentials bool
	// Masquerade lets pods reach what the node reaches, with the node's address.
	Masquerade bool
}

// RuntimeSocket returns the path of containerd's socket.
func (n *Node) RuntimeSocket() string { return n.path("c.sock") }

// ImageSocket returns the path of the socket through which kubelet pulls images.
func (n *Node) ImageSocket() string {
	if n.o.Way == Plain {
		return n.RuntimeSocket()
	}
	return n.path("i.sock")
}

// Cgroup returns the parent cgroup of everything that runs in the node's pods.
func (n *Node) Cgroup() string {
	return "/slipway-" + strings.ReplaceAll(strings.Trim(n.Dir, "/"), "/", "-")
}

// setUpCRI writes containerd's settings: this package's own settings, and the settings
// that the product generates for it.
func (n *Node) setUpCRI(ctx context.Context) error {
	text := fmt.Sprintf(`version = 3
root = %q
state = %q
imports = [%q]
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = %q
[ttrpc]
  address = %q
[debug]
  level = "warn"
[plugins."io.containerd.internal.v1.opt"]
  path = %q
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  stats_collect_period = 1
[plugins."io.containerd.cri.v1.images".registry]
  config_path = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %q
`, n.path("root"), n.path("state"), n.path("conf.d/*.toml"), n.RuntimeSocket(), n.RuntimeSocket()+".ttrpc", n.path("opt"),
		n.path("hosts"), n.o.CRI.Sandbox, tool.Dir(), n.path("cni"), filepath.Join(tool.Dir(), "runc"))
	// Pods with a user namespace open their files as the user nobody.
	err := errors.Join(os.Chmod(n.Dir, 0o711), os.MkdirAll(n.path("conf.d"), 0o700), os.MkdirAll(n.path("cni"), 0o700),
		os.WriteFile(n.path("containerd.toml"), []byte(text), 0o600), n.writeNetwork())
	if err != nil || n.o.Way == Plain {
		return err
	}
	_, err = n.Slipway(ctx, "agent", "setup", "--kubernetes", "--apply", "--containerd-conf-dir", n.path("conf.d"),
		"--containerd-hosts", n.path("hosts"), "--kubelet-drop-in", n.path("kubelet.conf"))
	return err
}

// writeNetwork writes the configuration of the pods' network.
func (n *Node) writeNetwork() error {
	if n.o.CRI.Pods == "" {
		return nil
	}
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": %t,
   "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`, n.o.CRI.Masquerade, n.path("addresses"), n.o.CRI.Pods)
	return os.WriteFile(n.path("cni/10-pods.conflist"), []byte(text), 0o600)
}

// RestartContainerd ends containerd, with SIGKILL or in an orderly way, and starts it again.
// Containers keep running.
func (n *Node) RestartContainerd(ctx context.Context, kill bool) error {
	if kill {
		n.containerd.Kill()
	} else if err := n.containerd.Stop(stopTimeout); err != nil {
		return err
	}
	return n.startContainerd(ctx)
}

// hierarchies returns the directories of the node's cgroup: one for each controller, or a single
// one.
func (n *Node) hierarchies() []string {
	if unified() {
		return []string{cgroups + n.Cgroup()}
	}
	found, _ := filepath.Glob(cgroups + "/*" + n.Cgroup()) // the pattern is good
	return found
}

// MakeCgroup makes the node's cgroup, which kubelet requires.
func (n *Node) MakeCgroup() error {
	var errs []error
	parents := []string{cgroups}
	if !unified() {
		parents, _ = filepath.Glob(cgroups + "/*") // the pattern is good
	}
	for _, dir := range parents {
		if st, err := os.Lstat(dir); err == nil && st.IsDir() {
			errs = append(errs, os.MkdirAll(dir+n.Cgroup(), 0o755))
		}
	}
	return errors.Join(errs...)
}

// InCgroup returns the processes of the node's pods.
func (n *Node) InCgroup() (pids []int) {
	for _, dir := range n.hierarchies() {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // a cgroup that has gone meanwhile is not an error
			if err != nil || d.Name() != "cgroup.procs" {
				return nil
			}
			b, _ := os.ReadFile(path)
			for _, f := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(f); err == nil {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	return pids
}

// endPods kills what runs in the node's cgroup, such as pods, and removes the cgroup.
func (n *Node) endPods() error {
	if n.o.CRI == nil && n.o.Limits == nil {
		return nil
	}
	for end := time.Now().Add(stopTimeout); ; time.Sleep(10 * time.Millisecond) {
		pids := n.InCgroup()
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has just ended
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes of pods do not end: %v", pids)
		}
	}
	var errs []error
	for _, dir := range n.hierarchies() {
		var dirs []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			errs = append(errs, removeCgroup(dirs[i]))
		}
	}
	return errors.Join(errs...)
}

// removeCgroup removes a cgroup. It waits until the kernel has released its processes.
func removeCgroup(dir string) error {
	for end := time.Now().Add(stopTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
}

// Launch starts a program of the node, such as kubelet, in its network. The program ends with the
// node.
func (n *Node) Launch(name string, cmd *exec.Cmd) (*proc.Process, error) { return n.launch(name, cmd) }
