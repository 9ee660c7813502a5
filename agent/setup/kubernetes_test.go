package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kubeletService and kubeadmConf are what the packages of Kubernetes install; the second
// names the file of variables of the distribution.
const (
	kubeletService = `[Unit]
Description=kubelet: The Kubernetes Node Agent

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
`
	kubeadmConf = `# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-FILE
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`
	eksService = `[Service]
EnvironmentFile=/etc/eks/kubelet/environment
ExecStart=/usr/bin/kubelet \
    --config /etc/kubernetes/kubelet/config.json \
    $NODEADM_KUBELET_ARGS \
    $KUBELET_EXTRA_ARGS
`
	endpoint = "--image-service-endpoint=unix:///run/x/cri.sock"
)

func conf(file string) string { return strings.Replace(kubeadmConf, "FILE", file, 1) }

// plant makes files below a directory that stands for a node.
func plant(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSetupNodes sets up nodes with the files of each distribution, checks what it writes where
// and what it leaves to the administrator, and undoes the set-up.
func TestSetupNodes(t *testing.T) {
	t.Parallel()
	const k3s = "var/lib/rancher/k3s/agent/etc/containerd/"
	const rke2 = "var/lib/rancher/rke2/agent/etc/containerd/"
	const dropIn = "etc/systemd/system/kubelet.service.d/10-slipway.conf"
	plain := []string{"etc/containerd/conf.d/slipway.toml", "etc/containerd/certs.d/docker.io/hosts.toml", "etc/containerd/certs.d/q.example/hosts.toml", "etc/slipway/kubelet.env", dropIn}
	rancher := func(name, etc string) []string {
		return []string{etc + "config-v3.toml.d/slipway.toml", etc + "certs.d/docker.io/hosts.toml", etc + "certs.d/q.example/hosts.toml", "etc/rancher/" + name + "/config.yaml.d/slipway.yaml"}
	}
	for name, c := range map[string]struct {
		has    map[string]string
		files  []string          // what is written
		holds  map[string]string // what is in it
		todo   []string          // what the steps say
		silent []string          // what they do not say
	}{
		"kubeadm on Debian": {
			has: map[string]string{
				"usr/lib/systemd/system/kubelet.service": kubeletService, "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": conf("/etc/default/kubelet"),
				"etc/containerd/config.toml": "version = 3\nimports = ['ROOT/etc/containerd/conf.d/*.toml']\n",
			},
			files: plain, holds: map[string]string{"etc/slipway/kubelet.env": `KUBELET_EXTRA_ARGS="` + endpoint + `"`, dropIn: "EnvironmentFile="},
			todo: []string{"restart containerd kubelet"}, silent: []string{"must import", "$KUBELET_EXTRA_ARGS", "cri.containerd"},
		},
		"kubeadm on Fedora, whose package sets the variable to nothing": {
			has: map[string]string{
				"usr/lib/systemd/system/kubelet.service": kubeletService, "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": conf("/etc/sysconfig/kubelet"),
				"etc/sysconfig/kubelet": "KUBELET_EXTRA_ARGS=\n", "etc/containerd/config.toml": "version = 3\n",
			},
			files: plain, holds: map[string]string{"etc/slipway/kubelet.env": `KUBELET_EXTRA_ARGS="` + endpoint + `"`},
			todo: []string{`imports = ["`, "restart containerd kubelet"},
		},
		"kubeadm with arguments of the administrator": {
			has: map[string]string{
				"usr/lib/systemd/system/kubelet.service": kubeletService, "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": conf("/etc/default/kubelet"),
				"etc/default/kubelet": "# of ours\nKUBELET_EXTRA_ARGS=\"--node-ip=10.0.0.1 --v=2\"\n",
			},
			files: plain, holds: map[string]string{"etc/slipway/kubelet.env": `KUBELET_EXTRA_ARGS="--node-ip=10.0.0.1 --v=2 ` + endpoint + `"`},
		},
		"another drop-in sets the variable": {
			has: map[string]string{
				"lib/systemd/system/kubelet.service": kubeletService, "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": conf("/etc/default/kubelet"),
				"etc/systemd/system/kubelet.service.d/20-ours.conf": "[Service]\nEnvironment=\"KUBELET_EXTRA_ARGS=--v=4\" OTHER=1\n",
			},
			files: plain, holds: map[string]string{"etc/slipway/kubelet.env": `"--v=4 ` + endpoint + `"`},
		},
		"kubelet with arguments elsewhere": {
			has:   map[string]string{"etc/systemd/system/kubelet.service": "[Service]\nExecStart=/home/kubernetes/bin/kubelet $KUBELET_OPTS\n"},
			files: plain, todo: []string{"kubelet.service has no $KUBELET_EXTRA_ARGS: add " + endpoint},
		},
		"EKS": {
			has: map[string]string{
				"etc/systemd/system/kubelet.service": eksService, "etc/eks/kubelet/environment": "NODEADM_KUBELET_ARGS='--hostname-override=a'\n",
				"etc/containerd/config.toml": "version = 3\nroot = \"/var/lib/containerd\"\n[plugins.'io.containerd.cri.v1.images']\ndiscard_unpacked_layers = true\n",
			},
			files: plain, holds: map[string]string{"etc/slipway/kubelet.env": `"` + endpoint + `"`},
			todo: []string{"must import", "spec.containerd.config of the NodeConfig"}, silent: []string{"$KUBELET_EXTRA_ARGS"},
		},
		"k3s": {
			has:   map[string]string{k3s + "config.toml": "# File generated by k3s. DO NOT EDIT.\nversion = 3\nimports = [\"ROOT/" + k3s + "config-v3.toml.d/*.toml\"]\n"},
			files: rancher("k3s", k3s), holds: map[string]string{"etc/rancher/k3s/config.yaml.d/slipway.yaml": "kubelet-arg+:\n  - image-service-endpoint=unix:///run/x/cri.sock\n"},
			todo: []string{"set cri.containerd: /run/k3s/containerd/containerd.sock", "systemctl restart k3s, or k3s-agent"}, silent: []string{"must import"},
		},
		"k3s of before": {
			has:   map[string]string{k3s + "config.toml": "version = 3\n"},
			files: rancher("k3s", k3s), todo: []string{"too old"},
		},
		"RKE2": {
			has:   map[string]string{rke2 + "config.toml": "version = 3\nimports = [\"ROOT/" + rke2 + "config-v3.toml.d/*.toml\"]\n"},
			files: rancher("rke2", rke2), todo: []string{"systemctl restart rke2-server, or rke2-agent"}, silent: []string{"must import"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, content := range c.has {
				c.has[file] = strings.ReplaceAll(content, "ROOT", root)
			}
			plant(t, root, c.has)
			before := tree(t, root)
			changes, err := Kubernetes(testConfig(), Paths{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			if err := Apply(changes); err != nil {
				t.Fatal(err)
			}
			after := tree(t, root)
			for _, file := range c.files {
				if _, ok := after[file]; !ok {
					t.Errorf("%s is not written", file)
				}
			}
			if len(after) != len(before)+len(c.files) {
				t.Errorf("there are %d files, and before there were %d; want %d more", len(after), len(before), len(c.files))
			}
			for file, want := range c.holds {
				if !strings.Contains(after[file], want) {
					t.Errorf("%s holds\n%s, want %s in it", file, after[file], want)
				}
			}
			var steps strings.Builder
			for _, s := range changes {
				if s.File == "" {
					steps.WriteString(s.Say + "\n")
				}
			}
			for _, want := range c.todo {
				if !strings.Contains(steps.String(), want) {
					t.Errorf("left to do is\n%s, want %q in it", &steps, want)
				}
			}
			for _, no := range c.silent {
				if strings.Contains(steps.String(), no) {
					t.Errorf("left to do is\n%s, want nothing of %q", &steps, no)
				}
			}
			again, err := Kubernetes(testConfig(), Paths{Root: root})
			if d := cmp.Diff(changes, again); err != nil || d != "" {
				t.Errorf("the second time other things are written, error %v (-first +second):\n%s", err, d)
			}
			if err := Undo(again); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, tree(t, root)); d != "" {
				t.Errorf("left after undoing (-want +got):\n%s", d)
			}
		})
	}
}

// TestSetupClosedNodes checks that a node that cannot have an agent is left as it is, and that the
// error says why.
func TestSetupClosedNodes(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{"talos": "Talos", "cos": "Container-Optimized", `"bottlerocket"`: "Bottlerocket"} {
		root := t.TempDir()
		plant(t, root, map[string]string{"etc/os-release": "NAME=x\nID=" + id + "\nVERSION_ID=1\n", "etc/containerd/config.toml": "version = 3\n"})
		if _, err := Kubernetes(testConfig(), Paths{Root: root}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", id, err, want)
		}
	}
	root := t.TempDir()
	plant(t, root, map[string]string{"etc/os-release": "ID=ubuntu\n"})
	if _, err := Kubernetes(testConfig(), Paths{Root: root}); err != nil {
		t.Error(err)
	}
}
