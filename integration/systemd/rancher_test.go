package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"example.org/slipway/integration/internal/tool"
)

// k3sConfig is what k3s writes for its containerd, reduced to what matters for other programs.
const k3sConfig = `version = 3
imports = ["/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml"]
root = "/var/lib/rancher/k3s/agent/containerd"
state = "/run/k3s/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "/run/k3s/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  disable_snapshot_annotations = true
  use_local_image_pull = true

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/var/lib/rancher/k3s/agent/etc/containerd/certs.d"
`

// k3s makes a node of k3s of a machine that has not booted yet. In place of k3s, its service starts
// the containerd that k3s starts.
func (m *machine) k3s(t *testing.T) {
	t.Helper()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		tool.Built(t, name)
	}
	m.Write(t, "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", k3sConfig)
	m.Write(t, "/etc/rancher/k3s/config.yaml", "node-label: [a=b]\n")
	m.Write(t, "/etc/systemd/system/k3s.service", `[Service]
Type=notify
Environment=PATH=/opt/tools:/usr/sbin:/usr/bin:/sbin:/bin
ExecStartPre=/bin/sh -c 'for d in /sys/fs/cgroup/*/; do mount -o remount,rw,bind $$d || true; done'
ExecStart=/opt/tools/containerd --config /var/lib/rancher/k3s/agent/etc/containerd/config.toml
Delegate=yes
KillMode=process
`)
}

// TestK3s follows docs/kubernetes.md on a node of k3s, whose containerd then pulls lazily for
// kubelet.
func TestK3s(t *testing.T) {
	m := boot(t, (*machine).k3s)
	m.packages(t, version)
	m.Run(t, "systemctl", "start", "k3s")
	own := fmt.Sprintf("host: %q, urls: [%q], insecure_allow_plaintext: true", registry, "http://"+registry)
	m.follow(t, strings.ReplaceAll(block(t, "kubernetes.md", "systemctl restart k3s"), "host: registry.example.com", own))
	m.Run(t, "systemctl", "enable", "--now", server)
	m.active(t, agent, "k3s.service", server)
	m.push(t)

	conn, err := grpc.NewClient("unix://"+m.Path("/run/slipway-agent/cri.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := cri.NewImageServiceClient(conn).PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		t.Fatal(err)
	}
	if said := m.Run(t, "slipway", "agent", "explain", image); !strings.Contains(said, "gear: used") {
		t.Errorf("k3s's containerd did not pull lazily: %s", said)
	}
	const socket = "/run/k3s/containerd/containerd.sock"
	name := filepath.Base(m.Env.Dir()) + "-k3s"
	if got := m.Run(t, "ctr", "-a", socket, "-n", "k8s.io", "run", "--rm", "--snapshotter", "slipway", image, name, "/bin/busybox", "echo", "good"); got != "good" {
		t.Errorf("the container prints %q", got)
	}
	kubelet := "/etc/rancher/k3s/config.yaml.d/slipway.yaml"
	if b, err := os.ReadFile(m.Path(kubelet)); err != nil || !strings.Contains(string(b), "image-service-endpoint=unix:///run/slipway-agent/cri.sock") {
		t.Errorf("kubelet's arguments in %s are %s, error %v", kubelet, b, err)
	}
	m.Run(t, "slipway", "agent", "setup", "--kubernetes", "--undo")
	m.Run(t, "systemctl", "restart", "k3s")
	if _, err := os.Stat(m.Path(kubelet)); err == nil {
		t.Errorf("after undoing %s is there", kubelet)
	}
	if got := m.Run(t, "ctr", "-a", socket, "plugin", "ls"); strings.Contains(got, "slipway") {
		t.Errorf("after undoing containerd has the plugin:\n%s", got)
	}
}

// block returns the commands of a page that contain a text.
func block(t *testing.T, name, text string) string {
	t.Helper()
	for i, part := range strings.Split(page(t, name), "```") {
		if commands, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 && strings.Contains(commands, text) {
			return commands
		}
	}
	t.Fatalf("docs/%s has no commands with %q", name, text)
	return ""
}
