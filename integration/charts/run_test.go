package charts

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// podman has its own storage, and trusts registries on loopback.
type podman struct {
	t      *testing.T
	path   string
	env    *tool.Env
	global []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	path := tool.System(t, "podman")
	tool.NeedRoot(t)
	tool.System(t, "runc")
	tool.System(t, "catatonit") // of a pod's first container
	dir := tool.ShortTempDir(t)
	config := filepath.Join(dir, ".config", "containers")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"policy.json":     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries = []\n[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n",
		// podman's own limits need a capability that root lacks in a container.
		"containers.conf": "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &podman{t: t, path: path, global: []string{
		"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "overlay", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file",
	}}
	p.env = tool.NewEnv(dir, "CONTAINERS_REGISTRIES_CONF="+filepath.Join(config, "registries.conf"), "CONTAINERS_CONF="+filepath.Join(config, "containers.conf"))
	t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
	return p
}

func (p *podman) run(args ...string) string {
	p.t.Helper()
	return p.env.Run(p.t, p.path, append(append([]string{}, p.global...), args...)...)
}

// build makes an image of the binary under test, like that of a release: it holds nothing else.
func (p *podman) build(ref string) {
	p.t.Helper()
	dir := p.t.TempDir()
	if err := os.Link(slipway.Binary(p.t), filepath.Join(dir, "slipway")); err != nil {
		p.env.Run(p.t, "cp", slipway.Binary(p.t), filepath.Join(dir, "slipway"))
	}
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte("FROM scratch\nCOPY --chmod=755 slipway /slipway\nUSER 65532:65532\nENTRYPOINT [\"/slipway\"]\n"), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.run("build", "-q", "-t", ref, dir)
}

// TestInstall makes a Slipway hold the chart and the image of Slipway, and installs another one
// from there. Helm renders the chart from there, and podman runs the output.
func TestInstall(t *testing.T) {
	t.Parallel()
	h, p := newHelm(t), newPodman(t)
	// What is pushed here is only passed on.
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: "version: 0.1\ngear: {convert: off}\n"})
	image := s.Addr + "/slipway"
	p.build(image + ":0.2.0")
	p.run("push", "-q", image+":0.2.0")
	p.run("rmi", image+":0.2.0")
	dir := t.TempDir()
	h.env.Run(t, h.path, "package", chart(t), "--destination", dir)
	h.env.Run(t, h.path, "push", filepath.Join(dir, "slipway-0.2.0.tgz"), "oci://"+s.Addr+"/charts", "--plain-http")
	h.env.Run(t, h.path, "pull", "oci://"+s.Addr+"/charts/slipway", "--plain-http", "--untar", "--untardir", dir)
	h.env.Run(t, "diff", "-r", chart(t)+"/templates", filepath.Join(dir, "slipway", "templates"))

	addr, debug := slipway.FreeAddr(t), slipway.FreeAddr(t)
	etc := t.TempDir()
	if err := os.WriteFile(filepath.Join(etc, "users"), []byte(users), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	// podman's image has no curl for probes, so the test makes those requests below. podman also
	// leaves mounted secrets in base64.
	values := fmt.Sprintf(`
image: {repository: %q}
hostNetwork: true
config: {http: {addr: %q, debug: {addr: %q}}, auth: {htpasswd: {path: /users/users}}}
extraVolumes: [{name: users, hostPath: {path: %q}}]
extraVolumeMounts: [{name: users, mountPath: /users}]
startupProbe: null
livenessProbe: null
readinessProbe: null
`, image, addr, debug, etc)
	file := filepath.Join(p.env.Dir(), "r.yaml")
	play := func(more string) {
		t.Helper()
		manifests := h.env.Run(t, h.path, append([]string{"template", "r", "oci://" + s.Addr + "/charts/slipway", "--plain-http", "--skip-tests"}, h.values(values+more)...)...)
		if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
			t.Fatal(err)
		}
		p.run("kube", "play", file)
		proc.Poll(t, time.Minute, "the pod to be ready", func() bool { return answers(t, "http://"+debug+"/readyz") })
	}
	t.Cleanup(func() {
		if _, err := p.env.Try(context.Background(), p.path, append(p.global, "pod", "rm", "--all", "--force")...); err != nil {
			t.Error(err)
		}
	})
	play("")
	probes(t, h, debug)
	helmTest(t, h, addr, debug)

	client := wire.New(addr).As("bob", "secret")
	defer client.Close()
	im := imagetest.Hello(t)
	if err := im.Push(t.Context(), client, "team/app", "1"); err != nil {
		t.Fatal(err)
	}
	// Uninstalling keeps the volume, and a new installation finds the images.
	p.run("kube", "down", file)
	if answers(t, "http://"+debug+"/livez") {
		t.Error("the server still answers when the release is gone")
	}
	if out := p.run("volume", "ls", "--format", "{{.Name}}"); !strings.Contains(out, "r-slipway-data") {
		t.Errorf("volumes after the end: %q, want r-slipway-data", out)
	}
	// podman does not make a claim twice.
	play("persistence: {existingClaim: r-slipway-data}\n")
	if _, err := client.CheckImage(t.Context(), "team/app", "1"); err != nil {
		t.Errorf("the image is not there after installing again: %v", err)
	}
	p.run("kube", "down", file)
}

// probes makes the requests that kubelet would make.
func probes(t *testing.T, h *helm, debug string) {
	t.Helper()
	d := get[appsv1.Deployment](h.template(one), "r-slipway")
	c := d.Spec.Template.Spec.Containers[0]
	for _, path := range []string{c.StartupProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path} {
		if !answers(t, "http://"+debug+path) {
			t.Errorf("the probe %s fails", path)
		}
	}
}

// helmTest runs what helm test makes a pod do, with the names of the services replaced.
func helmTest(t *testing.T, h *helm, addr, debug string) {
	t.Helper()
	pod := get[corev1.Pod](h.template(one), "r-slipway-test").Spec.Containers[0]
	bin := t.TempDir()
	if err := os.Symlink(tool.System(t, "busybox"), filepath.Join(bin, "wget")); err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("r-slipway-metrics:5001", debug, "r-slipway:5000", addr).Replace(pod.Args[0])
	env := tool.NewEnv(bin, "PATH="+bin+":/usr/bin:/bin")
	if out := env.Run(t, pod.Command[0], pod.Command[1], script); out != "the registry answers" {
		t.Errorf("helm test says %q", out)
	}
	if out := env.RunFailing(t, pod.Command[0], pod.Command[1], strings.ReplaceAll(script, addr, slipway.FreeAddr(t))); !strings.Contains(out, "refused") {
		t.Errorf("helm test of a server that is not there: %q", out)
	}
}

// answers reports whether a URL answers 200.
func answers(t *testing.T, url string) bool {
	t.Helper()
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
