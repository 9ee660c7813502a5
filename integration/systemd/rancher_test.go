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

// rancherConfig is what k3s and RKE2 write for their containerd, reduced to what matters for other
// programs. NAME is the name of the distribution.
const rancherConfig = `version = 3
imports = ["/var/lib/rancher/NAME/agent/etc/containerd/config-v3.toml.d/*.toml"]
root = "/var/lib/rancher/NAME/agent/containerd"
state = "/run/k3s/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "/run/k3s/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  disable_snapshot_annotations = true
  use_local_image_pull = true

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/var/lib/rancher/NAME/agent/etc/containerd/certs.d"
`

// rancher is a distribution whose nodes have one service, which starts containerd and kubelet.
type rancher struct {
	name string
	// unit is the service that the page restarts.
	unit string
}

// containerd makes a node of the distribution of a machine that has not booted yet. Its service
// starts the containerd that the distribution starts, and nothing else.
func (r rancher) containerd(m *machine, t *testing.T) {
	t.Helper()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		tool.Built(t, name)
	}
	etc := "/var/lib/rancher/" + r.name + "/agent/etc/containerd"
	m.Write(t, etc+"/config.toml", strings.ReplaceAll(rancherConfig, "NAME", r.name))
	m.Write(t, "/etc/rancher/"+r.name+"/config.yaml", "node-label: [a=b]\n")
	m.Write(t, "/etc/systemd/system/"+r.unit+".service", `[Service]
Type=notify
Environment=PATH=/opt/tools:/usr/sbin:/usr/bin:/sbin:/bin
ExecStartPre=/bin/sh -c 'for d in /sys/fs/cgroup/*/; do mount -o remount,rw,bind $$d || true; done'
ExecStart=/opt/tools/containerd --config `+etc+`/config.toml
Delegate=yes
KillMode=process
`)
}

func TestK3s(t *testing.T) { rancher{"k3s", "k3s"}.follow(t) }

func TestRKE2(t *testing.T) { rancher{"rke2", "rke2-agent"}.follow(t) }

// follow follows docs/kubernetes.md on a node of the distribution, whose containerd then pulls
// lazily for kubelet, and undoes the set-up.
func (r rancher) follow(t *testing.T) {
	m := boot(t, r.containerd)
	m.packages(t, version)
	m.Run(t, "systemctl", "start", r.unit)
	own := fmt.Sprintf("host: %q, urls: [%q], insecure_allow_plaintext: true", registry, "http://"+registry)
	m.follow(t, strings.ReplaceAll(block(t, "kubernetes.md", "systemctl restart "+r.unit+" "), "host: registry.example.com", own))
	m.Run(t, "systemctl", "enable", "--now", server)
	m.active(t, agent, r.unit+".service", server)
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
		t.Errorf("the containerd of %s did not pull lazily: %s", r.name, said)
	}
	const socket = "/run/k3s/containerd/containerd.sock"
	name := filepath.Base(m.Env.Dir()) + "-" + r.name
	if got := m.Run(t, "ctr", "-a", socket, "-n", "k8s.io", "run", "--rm", "--snapshotter", "slipway", image, name, "/bin/busybox", "echo", "good"); got != "good" {
		t.Errorf("the container prints %q", got)
	}
	kubelet := "/etc/rancher/" + r.name + "/config.yaml.d/slipway.yaml"
	if b, err := os.ReadFile(m.Path(kubelet)); err != nil || !strings.Contains(string(b), "image-service-endpoint=unix:///run/slipway-agent/cri.sock") {
		t.Errorf("kubelet's arguments in %s are %s, error %v", kubelet, b, err)
	}
	m.Run(t, "slipway", "agent", "setup", "--kubernetes", "--undo")
	m.Run(t, "systemctl", "restart", r.unit)
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
