package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/nspawn"
	"example.org/slipway/integration/internal/tool"
)

// machine is a node whose containerd and kubelet are services of a systemd of its own, and which
// has no agent yet.
type machine struct {
	*nspawn.Machine
	t *testing.T
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
	m := &machine{nspawn.Unpack(t), t}
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
		m.Write(t, file, text)
	}
	wants := m.Root + "/etc/systemd/system/multi-user.target.wants"
	c.check(os.MkdirAll(wants, 0o755))
	for _, service := range []string{"containerd.service", "kubelet.service"} {
		c.check(os.Symlink("/etc/systemd/system/"+service, filepath.Join(wants, service)))
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "kubelet"} {
		tool.Built(t, program)
		c.check(os.Symlink("/opt/tools/"+program, m.Root+"/usr/local/bin/"+program))
	}
	m.Launch(t, "--network-namespace-path=/run/netns/"+link.Name, "--bind=/dev/kmsg")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machine's log ends with\n%s", m.journal())
		}
	})
	c.kubectl("wait", "--for=create", "node/"+name, "--timeout", limit.String())
	c.kubectl("wait", "--for=condition=Ready", "node/"+name, "--timeout", limit.String())
	return m
}

// run runs a command in the machine that must work.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	return m.Run(m.t, args...)
}

// journal returns the end of what the services that start pods have logged.
func (m *machine) journal() string {
	out, _ := m.Try(context.Background(), "journalctl", "--no-pager", "-n", "120", "-u", "slipway-agent", "-u", "containerd", "-u", "kubelet")
	return out // or the error
}
