package charts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"example.org/slipway/integration/internal/tool"
)

const agentValues = `
image: {repository: localhost/slipway}
server: {enabled: false}
agent:
  enabled: true
  config: {registries: [{host: docker.io, urls: ["https://mirror.example.com"], prefix: docker.io/}]}
`

// node is a directory that stands for a machine. It has its own /etc, /opt and /run, this machine's
// /usr, a containerd, and a systemctl that records how it is called.
type node struct {
	t    *testing.T
	root string
	p    *podman
	h    *helm
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir(), p: newPodman(t), h: newHelm(t)}
	n.p.build("localhost/slipway:0.2.0")
	for name, text := range map[string]string{
		// A service is active once it has been started. Calls are kept in order.
		"systemctl": `echo "$*" >>/calls
case "$1 $2" in
"is-active --quiet") [ -e /active ] ;;
"restart slipway-agent") ! grep -q 'max_bytes: 1TiB' /etc/slipway/agent.yml && touch /active ;;
"disable --now") rm -f /active ;;
esac`,
		"journalctl": `echo "journal: $*"`,
	} {
		n.write("tools/"+name, "#!/bin/sh\n"+text+"\n", 0o755)
	}
	// This is the real containerd, which says what it reads.
	n.h.env.Run(t, "cp", tool.Built(t, "containerd"), n.path("tools/containerd"))
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(n.root, l)); err != nil {
			t.Fatal(err)
		}
	}
	n.write("etc/containerd/config.toml", "version = 3\n", 0o644)
	n.write("proc/1/mounts", "proc /proc proc rw 0 0\n", 0o644)
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.root, name) }

func (n *node) write(name, text string, mode os.FileMode) {
	n.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(n.path(name)), 0o755), os.WriteFile(n.path(name), []byte(text), mode)); err != nil {
		n.t.Fatal(err)
	}
}

// read returns the content of a file of the node, or "" if there is none.
func (n *node) read(name string) string {
	n.t.Helper()
	b, err := os.ReadFile(n.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return string(b)
}

// calls returns the calls of systemctl since the last time.
func (n *node) calls() string {
	n.t.Helper()
	s := n.read("calls")
	n.write("calls", "", 0o644)
	return s
}

// container runs a container of the DaemonSet's pod on the node. It returns what the container
// printed, and an error unless it succeeded.
func (n *node) container(values string, pick func(corev1.PodSpec) corev1.Container) (string, error) {
	n.t.Helper()
	o := n.h.template(values)
	pod := get[appsv1.DaemonSet](o, "r-slipway-agent").Spec.Template.Spec
	c := pick(pod)
	sources := map[string]string{}
	for _, v := range pod.Volumes {
		switch {
		case v.HostPath != nil && v.HostPath.Path == "/":
			sources[v.Name] = n.root
		case v.HostPath != nil:
			sources[v.Name] = v.HostPath.Path
		case v.ConfigMap != nil:
			sources[v.Name] = n.files(get[corev1.ConfigMap](o, v.ConfigMap.Name).Data)
		case v.Secret != nil:
			sources[v.Name] = n.files(get[corev1.Secret](o, v.Secret.SecretName).StringData)
		}
	}
	args := append(append([]string{}, n.p.global...), "run", "--rm", "--network", "host", "--user", "0:0", "--read-only",
		"--volume", "/usr:/host/usr:ro", "--volume", n.path("tools")+":/host/usr/local/bin:ro", "--entrypoint", c.Command[0])
	for _, m := range c.VolumeMounts {
		mount := sources[m.Name] + ":" + m.MountPath
		if m.ReadOnly {
			mount += ":ro"
		}
		args = append(args, "--volume", mount)
	}
	for _, e := range c.Env {
		args = append(args, "--env", e.Name+"="+e.Value)
	}
	return n.p.env.Try(n.t.Context(), n.p.path, append(append(args, c.Image), c.Command[1:]...)...)
}

// files writes what a ConfigMap or Secret mounts.
func (n *node) files(data map[string]string) string {
	n.t.Helper()
	dir := n.t.TempDir()
	for name, text := range data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	return dir
}

func first(pod corev1.PodSpec) corev1.Container { return pod.InitContainers[0] }

// install runs the DaemonSet's first container, which must succeed.
func (n *node) install(values string) string {
	n.t.Helper()
	out, err := n.container(values, first)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// TestNode makes the DaemonSet install the agent on a node, update it, and remove it again.
func TestNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	// containerd must read the files that are written; as long as it does not, it is not
	// restarted.
	if _, err := n.container(agentValues, first); err == nil || !strings.Contains(err.Error(), `write imports = ["/etc/containerd/conf.d/*.toml"]`) {
		t.Fatalf("containerd imports nothing: %v, want words that say what to write", err)
	}
	if c := n.calls(); strings.Contains(c, "restart containerd") || !strings.Contains(c, "restart slipway-agent") {
		t.Errorf("calls: %s", c)
	}
	n.write("etc/containerd/config.toml", "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n", 0o644)
	out := n.install(agentValues)
	if c := n.calls(); strings.Count(c, "restart containerd\n") != 1 || !strings.Contains(c, "try-restart --no-block kubelet") || strings.Contains(c, "restart slipway-agent") {
		t.Errorf("the second run repeats what the first did, or leaves something undone:\n%s%s", c, out)
	}
	for file, want := range map[string]string{
		"etc/slipway/agent.yml":                                "address: /run/slipway-agent/cri.sock",
		"etc/systemd/system/slipway-agent.service":             "ExecStart=/opt/slipway/bin/slipway agent --config /etc/slipway/agent.yml",
		"etc/containerd/conf.d/slipway.toml":                   "[proxy_plugins.slipway]",
		"etc/containerd/certs.d/docker.io/hosts.toml":          "https://mirror.example.com/v2/docker.io",
		"etc/systemd/system/kubelet.service.d/10-slipway.conf": "EnvironmentFile=/etc/slipway/kubelet.env",
		"etc/slipway/kubelet.env":                              "--image-service-endpoint=unix:///run/slipway-agent/cri.sock",
	} {
		if got := n.read(file); !strings.Contains(got, want) {
			t.Errorf("%s has not %q:\n%s", file, want, got)
		}
	}
	if st, err := os.Stat(n.path("etc/slipway/agent.yml")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("agent.yml may hold passwords: %v %v", st, err)
	}
	// Nothing has changed, so nothing is restarted.
	n.install(agentValues)
	if c := n.calls(); strings.Contains(c, "restart") {
		t.Errorf("a run that changes nothing restarts something:\n%s", c)
	}
	// A new configuration only affects the agent.
	changed := strings.Replace(agentValues, "config: {", "config: {cache: {max_bytes: 50GiB}, ", 1)
	n.install(changed)
	if c := n.calls(); !strings.Contains(c, "restart slipway-agent") || strings.Contains(c, "restart containerd") {
		t.Errorf("a changed cache size restarts:\n%s", c)
	}
	// A configuration with which the agent does not start is rolled back.
	if _, err := n.container(strings.Replace(changed, "50GiB", "1TiB", 1), first); err == nil || !strings.Contains(err.Error(), "the one before it runs again") {
		t.Errorf("an agent that does not start: %v", err)
	}
	if got := n.read("etc/slipway/agent.yml"); !strings.Contains(got, "50GiB") || strings.Count(n.calls(), "restart slipway-agent") != 2 {
		t.Errorf("the configuration before is not put back:\n%s", got)
	}
	out, err := n.container(agentValues, func(p corev1.PodSpec) corev1.Container { return p.Containers[0] })
	if err != nil || !strings.Contains(out, "journal: --follow") {
		t.Errorf("log: %q, %v", out, err)
	}
	n.remove(changed)
}

// remove removes the agent, but not while containers use it.
func (n *node) remove(values string) {
	n.t.Helper()
	values += "  state: removed\n"
	// The first process sees the mounts of a container, whose process is the other one.
	const lower = "overlay rw,lowerdir=/run/slipway-agent/a:/var/lib/slipway-agent/cache/b 0 0\n"
	n.write("proc/1/mounts", "overlay /run/containerd/x/rootfs "+lower+"overlay /var/lib/slipway-agent/snapshots/1 "+lower, 0o644)
	n.write("proc/27/mounts", "overlay / "+lower, 0o644)
	if _, err := n.container(values, first); err == nil || !strings.Contains(err.Error(), "kubectl drain") {
		n.t.Errorf("removed under a running container: %v", err)
	}
	if c := n.calls(); strings.Contains(c, "disable") || strings.Count(c, "restart containerd\n") != 1 {
		n.t.Errorf("calls: %s", c)
	}
	n.write("proc/27/mounts", "proc /proc proc rw 0 0\n", 0o644)
	n.install(values)
	if c := n.calls(); !strings.Contains(c, "disable --now --quiet slipway-agent") || strings.Contains(c, "restart containerd") {
		n.t.Errorf("calls: %s", c)
	}
	for _, file := range []string{"etc/slipway/agent.yml", "etc/systemd/system/slipway-agent.service", "etc/containerd/conf.d/slipway.toml",
		"etc/containerd/certs.d/docker.io/hosts.toml", "etc/systemd/system/kubelet.service.d/10-slipway.conf", "etc/slipway/kubelet.env", "opt/slipway/bin/slipway"} {
		if got := n.read(file); got != "" {
			n.t.Errorf("%s is left behind", file)
		}
	}
	if out := n.install(values); !strings.Contains(out, "the agent is not here") {
		n.t.Errorf("removing twice: %q", out)
	}
}
