package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

// machine is a node whose containerd and kubelet are services of a systemd of its own, and which
// has no agent yet.
type machine struct {
	t      *testing.T
	root   string
	pid    int // of systemd
	env    *tool.Env
	nspawn *proc.Process
}

// containerdConfig is like that of a node of kubeadm, with the addresses of this cluster.
const containerdConfig = `version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
disabled_plugins = ["io.containerd.nri.v1.nri"]
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "REGISTRY/public/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/tools"]
  conf_dir = "/etc/cni/net.d"
`

const containerdService = `[Service]
Type=notify
ExecStartPre=/bin/sh -c 'for d in /sys/fs/cgroup/*/ /proc/sys; do mount -o remount,rw,bind $$d || true; done'
ExecStart=/usr/local/bin/containerd
Delegate=yes
KillMode=process
Restart=always
[Install]
WantedBy=multi-user.target
`

const kubeletService = `[Unit]
After=containerd.service
[Service]
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/local/bin/kubelet --config /etc/kubernetes/kubelet.yaml --kubeconfig /etc/kubernetes/kubelet.conf --hostname-override NODE --node-ip ADDRESS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1
KillMode=process
[Install]
WantedBy=multi-user.target
`

// kubeletConfig gives pods no cgroups of their own, because those of version 1 are shared with the
// machine outside.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
containerRuntimeEndpoint: "unix:///run/containerd/containerd.sock"
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {nodefs.available: "50Mi", imagefs.available: "50Mi", memory.available: "50Mi"}
makeIPTablesUtilChains: false
resolvConf: ""
readOnlyPort: 0
healthzPort: 0
nodeStatusUpdateFrequency: 5s
`

const podNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.9.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`

// boot boots a Debian in the network of a link, and waits until it is the node with a name.
func (c *cluster) boot(name string, link *lan.Node) *machine {
	t := c.t
	t.Helper()
	for _, program := range []string{"systemd-nspawn", "nsenter"} {
		tool.System(t, program)
	}
	archives, _ := filepath.Glob(filepath.Join(filepath.Dir(tool.Dir()), "systemd-*.tar")) // the pattern is good
	if len(archives) == 0 {
		t.Skip("tool not installed: systemd-*.tar (scripts/setup.sh systemd makes it)")
	}
	dir := tool.ShortTempDir(t)
	m := &machine{t: t, root: filepath.Join(dir, "root"), env: tool.NewEnv(dir)}
	c.check(os.Mkdir(m.root, 0o755))
	m.env.Run(t, "tar", "-x", "--numeric-owner", "--exclude=./dev/*", "-C", m.root, "-f", archives[0])
	services := strings.NewReplacer("NODE", name, "ADDRESS", link.Addr)
	kubeconfig, err := os.ReadFile(c.plane.Kubeconfig(name))
	c.check(err)
	authority, err := os.ReadFile(filepath.Join(filepath.Dir(c.plane.Kubeconfig(name)), "ca.crt"))
	c.check(err)
	for file, text := range map[string]string{
		"/etc/containerd/config.toml":                                strings.ReplaceAll(containerdConfig, "REGISTRY", c.registry.Addr),
		"/etc/containerd/certs.d/" + c.registry.Addr + "/hosts.toml": fmt.Sprintf("server = %q\n", "http://"+c.registry.Addr),
		"/etc/hosts":                             "127.0.0.1 localhost\n",
		"/etc/cni/net.d/10-pods.conflist":        podNetwork,
		"/etc/systemd/system/containerd.service": containerdService,
		"/etc/systemd/system/kubelet.service":    services.Replace(kubeletService),
		"/etc/kubernetes/kubelet.yaml":           kubeletConfig,
		"/etc/kubernetes/ca.crt":                 string(authority),
		"/etc/kubernetes/kubelet.conf":           strings.ReplaceAll(string(kubeconfig), filepath.Dir(c.plane.Kubeconfig(name))+"/ca.crt", "/etc/kubernetes/ca.crt"),
	} {
		c.check(errors.Join(os.MkdirAll(filepath.Dir(m.root+file), 0o755), os.WriteFile(m.root+file, []byte(text), 0o644)))
	}
	wants := m.root + "/etc/systemd/system/multi-user.target.wants"
	c.check(os.MkdirAll(wants, 0o755))
	for _, service := range []string{"containerd.service", "kubelet.service"} {
		c.check(os.Symlink("/etc/systemd/system/"+service, filepath.Join(wants, service)))
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "kubelet"} {
		tool.Built(t, program)
		c.check(os.Symlink("/opt/tools/"+program, m.root+"/usr/local/bin/"+program))
	}
	m.launch(link)
	c.kubectl("wait", "--for=create", "node/"+name, "--timeout", limit.String())
	c.kubectl("wait", "--for=condition=Ready", "node/"+name, "--timeout", limit.String())
	return m
}

// launch starts systemd-nspawn and finds the machine's first process. systemd-nspawn first joins
// groups of its own, because two machines would otherwise share them.
func (m *machine) launch(link *lan.Node) {
	t := m.t
	t.Helper()
	const script = `for g in $1; do echo $$ >$g/cgroup.procs; done
shift
exec systemd-nspawn "$@"`
	cmd := exec.Command("sh", "-ec", script, "sh", strings.Join(m.groups(), " "), "-D", m.root, "--register=no", "--keep-unit", "--boot",
		"--console=pipe", "--network-namespace-path=/run/netns/"+link.Name, "--capability=all", "--system-call-filter=@keyring",
		"--bind=/dev/fuse", "--bind=/dev/kmsg", "--bind-ro="+tool.Dir()+":/opt/tools")
	cmd.Env = m.env.Vars()
	m.nspawn = proc.Start(t, cmd, filepath.Join(m.env.Dir(), "nspawn.log"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machine's log ends with\n%s", m.journal())
		}
		m.nspawn.Signal(syscall.SIGTERM)
		select {
		case <-m.nspawn.Exited():
		case <-time.After(limit):
			t.Errorf("the machine does not shut down:\n%s", m.nspawn.Log(4<<10))
			m.nspawn.Kill()
		}
	})
	proc.Poll(t, limit, "the first process of the machine", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.nspawn.Pid(), m.nspawn.Pid()))
		if fields := strings.Fields(string(b)); len(fields) == 1 {
			m.pid, _ = strconv.Atoi(fields[0])
		}
		if m.pid == 0 {
			return false
		}
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/run/systemd/private", m.pid))
		return err == nil
	})
}

// groups makes the machine's cgroups in systemd's hierarchies of version 1.
func (m *machine) groups() (dirs []string) {
	t := m.t
	t.Helper()
	for _, hierarchy := range []string{"systemd", "unified"} {
		base := filepath.Join("/sys/fs/cgroup", hierarchy)
		if _, err := os.Stat(filepath.Join(base, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(base, filepath.Base(m.env.Dir()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
		t.Cleanup(func() {
			var err error
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if err = removeGroups(dir); err == nil {
					return
				}
			}
			t.Errorf("control groups are left: %v", err)
		})
	}
	return dirs
}

// removeGroups removes a cgroup and those below it.
func removeGroups(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, name)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(d))
	}
	return err
}

func (m *machine) try(ctx context.Context, args ...string) (string, error) {
	return m.env.Try(ctx, "nsenter", append([]string{"-t", strconv.Itoa(m.pid), "-m", "-u", "-i", "-p", "-n", "--wdns=/root", "--", "env", "-i",
		"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, args...)...)
}

// run runs a command in the machine that must work.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(m.t.Context(), args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *machine) journal() string {
	out, err := m.try(context.Background(), "journalctl", "--no-pager", "-n", "120", "-u", "slipway-agent", "-u", "containerd", "-u", "kubelet")
	if err != nil {
		return err.Error()
	}
	return out
}
