package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// These are the images of the tests: files of fileBytes that are read, and one file that nobody
// needs.
const (
	files      = 60
	fileBytes  = 64 << 10
	largeBytes = 24 << 20
)

// access lets everybody pull public images, and lets each of two users, and the accounts of a
// namespace, pull those of a team.
const access = `
version: 0.1
http: {insecure_open_to_network: true}
auth:
  htpasswd: {path: %q}
  oidc:
    - {name: prod, issuer: %q, ca: %q, audience: registry.example.com, groups_claim: /kubernetes.io/namespace}
  access:
    - {repositories: ["**"], subjects: [root], actions: ["*"]}
    - {repositories: ["public/**"], subjects: [anonymous, alice, bob], actions: [pull]}
    - {repositories: ["one/**"], subjects: [alice], actions: [pull]}
    - {repositories: ["two/**"], subjects: [bob], actions: [pull]}
    - {repositories: ["three/**"], subjects: ["group:prod:three"], actions: [pull]}
`

// users are root, alice and bob, whose password is secret.
func users() string {
	var b strings.Builder
	for _, name := range []string{"root", "alice", "bob"} {
		fmt.Fprintf(&b, "%s:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n", name)
	}
	return b.String()
}

// bed is a registry and a node.
type bed struct {
	*ctrnode.Node
	t        *testing.T
	issuer   *issuer // of tokens
	registry *slipway.Server
	runtime  cri.RuntimeServiceClient
	images   cri.ImageServiceClient
	logs     string
	pods     int
}

// newBed starts a registry and a node with the containerd of a directory.
func newBed(t *testing.T, containerd string) *bed {
	t.Helper()
	tool.NeedRoot(t)
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "loopback", "bridge", "host-local"} {
		tool.Built(t, name)
	}
	dir := tool.ShortTempDir(t)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	passwords := filepath.Join(dir, "users")
	if err := os.WriteFile(passwords, []byte(users()), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, issuer: newIssuer(t), logs: filepath.Join(dir, "logs")}
	net, err := lan.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	link, err := net.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.registry = slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(access, passwords, b.issuer.URL, b.issuer.authority(t)), Host: net.Addr})
	b.push("public/pause:1", imagetest.Summed(t, 0, 1, 1, 1))
	b.Node, err = ctrnode.Start(t.Context(), ctrnode.Options{
		Dir: filepath.Join(dir, "n"), Binary: slipway.Binary(t), Containerd: containerd, Way: ctrnode.Gear, Net: link, Registries: []string{b.registry.Addr},
		CRI:   &ctrnode.CRI{Sandbox: b.ref("public/pause:1"), Pods: "10.88.0.0/24"},
		Agent: "fetch: {mode: lazy, background: false}\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.Logs())
		}
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	b.runtime = cri.NewRuntimeServiceClient(dial(t, b.RuntimeSocket()))
	b.images = cri.NewImageServiceClient(dial(t, b.ImageSocket()))
	return b
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ref returns the name of an image in the registry.
func (b *bed) ref(name string) string { return b.registry.Addr + "/" + name }

// push pushes an image and waits until it is converted.
func (b *bed) push(name string, im *imagetest.Bundle) (ref string) {
	b.t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	if err := im.Push(b.t.Context(), b.registry.Client.As("root", "secret"), repo, tag); err != nil {
		b.t.Fatal(err)
	}
	b.registry.Converted()
	return b.ref(name)
}

// pull pulls an image as kubelet does, with the password of a user unless user is "".
func (b *bed) pull(ref, user string) error { return b.pullWith(ref, user, "secret") }

func (b *bed) pullWith(ref, user, password string) error {
	req := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}
	if user != "" {
		req.Auth = &cri.AuthConfig{Username: user, Password: password}
	}
	_, err := b.images.PullImage(b.t.Context(), req)
	return err
}

// pod is a pod of one container.
type pod struct {
	b           *bed
	id, main    string
	log         string
	sandboxConf *cri.PodSandboxConfig
}

// run starts a pod that runs a script. change adds to the settings that kubelet would send.
func (b *bed) run(ref, script string, change func(*cri.PodSandboxConfig, *cri.ContainerConfig)) (*pod, error) {
	b.pods++
	name := fmt.Sprintf("pod%d", b.pods)
	logs := filepath.Join(b.logs, name)
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	network := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER}
	p := &pod{b: b, log: filepath.Join(logs, "main.log"), sandboxConf: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, LogDirectory: logs,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: b.Cgroup(), SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: network}},
	}}
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: ref}, Args: []string{script}, LogPath: "main.log",
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: network}},
	}
	if change != nil {
		change(p.sandboxConf, c)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	sandbox, err := b.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.sandboxConf})
	if err != nil {
		return nil, err
	}
	p.id = sandbox.PodSandboxId
	main, err := b.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, Config: c, SandboxConfig: p.sandboxConf})
	if err != nil {
		return p, err
	}
	p.main = main.ContainerId
	_, err = b.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.main})
	return p, err
}

// start is like run, for a pod that must start. The pod ends with the test.
func (b *bed) start(t *testing.T, ref, script string, change func(*cri.PodSandboxConfig, *cri.ContainerConfig)) *pod {
	t.Helper()
	p, err := b.run(ref, script, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.remove(t) })
	return p
}

// output returns what the container has printed, without the runtime's marks.
func (p *pod) output() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			b.WriteString(f[3])
		}
	}
	return b.String()
}

// ended waits for the container's end, which must be successful, and returns what the container
// printed.
func (p *pod) ended(t *testing.T) string {
	t.Helper()
	var s *cri.ContainerStatus
	proc.Poll(t, 2*time.Minute, "end of the container", func() bool {
		r, err := p.b.runtime.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: p.main})
		if err != nil {
			t.Fatal(err)
		}
		s = r.Status
		return s.State == cri.ContainerState_CONTAINER_EXITED
	})
	if s.ExitCode != 0 {
		t.Errorf("the container ended with %d (%s %s): %s", s.ExitCode, s.Reason, s.Message, p.output())
	}
	return strings.TrimSpace(p.output())
}

// passes waits until the container has printed n more lines "good".
func (p *pod) passes(t *testing.T, n int) {
	t.Helper()
	before := strings.Count(p.output(), "good")
	proc.Poll(t, time.Minute, "the container to go on reading", func() bool {
		if out := p.output(); strings.Contains(out, "bad") {
			t.Fatalf("a file is wrong: %s", out)
		}
		return strings.Count(p.output(), "good") >= before+n
	})
}

// loop reads all files again and again.
const loop = "while true; do if " + imagetest.Verify + "; then echo good; else echo bad; fi; done"

func (p *pod) remove(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := p.b.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Errorf("stop pod: %v", err)
	}
	if _, err := p.b.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Errorf("remove pod: %v", err)
	}
}
