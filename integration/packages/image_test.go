package packages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// podman is an engine with its own storage.
type podman struct {
	env    *tool.Env
	path   string
	global []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	tool.NeedRoot(t)
	path := tool.System(t, "podman")
	tool.System(t, "runc")
	dir := tool.ShortTempDir(t)
	config := filepath.Join(dir, ".config", "containers")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries = []\nshort-name-mode = \"disabled\"\n",
	} {
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
	return &podman{
		env:  tool.NewEnv(dir, "CONTAINERS_REGISTRIES_CONF="+filepath.Join(config, "registries.conf")),
		path: path,
		global: []string{
			"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "overlay",
			"--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--tmpdir", filepath.Join(dir, "tmp"),
			"--volumepath", filepath.Join(dir, "volumes"),
		},
	}
}

func (p *podman) args(a ...string) []string { return append(slices.Clone(p.global), a...) }

func (p *podman) run(t *testing.T, a ...string) string {
	t.Helper()
	return p.env.Run(t, p.path, p.args(a...)...)
}

// container returns the arguments of podman run that this machine's cgroups need, with this
// machine's network.
func (p *podman) container(a ...string) []string {
	return p.args(append([]string{
		"run", "--pull=never", "--network", "host",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
	}, a...)...)
}

// TestImage pushes the image to a registry, pulls and runs it with podman, and pulls it
// again from the registry that is in it.
func TestImage(t *testing.T) {
	t.Parallel()
	p := newPodman(t)
	skopeo := tool.System(t, "skopeo")
	archive := filepath.Join(release(t, version, everything...), "slipway-"+version+"-image.tar")
	s := slipway.Start(t, t.TempDir(), nil)
	ref := s.Addr + "/tools/slipway:" + version
	push := func(ref string) {
		t.Helper()
		p.env.Run(t, skopeo, "--insecure-policy", "copy", "-q", "--all", "--dest-tls-verify=false", "oci-archive:"+archive, "docker://"+ref)
	}
	push(ref)
	p.run(t, "load", "-q", "-i", archive)
	p.run(t, "image", "exists", "localhost/slipway:"+version)
	p.run(t, "pull", "-q", "--tls-verify=false", ref)
	if got := p.run(t, "image", "inspect", "--format", `{{.User}} {{.Architecture}} {{index .Labels "org.opencontainers.image.version"}}`, ref); got != "65532:65532 "+runtime.GOARCH+" "+version {
		t.Errorf("the image is of %q", got)
	}

	// Without a password file the server refuses to start, because nobody would be asked for a
	// password.
	out := p.env.RunFailing(t, p.path, p.container("--rm", ref)...)
	if !strings.Contains(out, "nobody is asked for a password") || !strings.Contains(out, "insecure_open_to_network") {
		t.Errorf("without any setting it says:\n%s", out)
	}

	p.checkCommand(t, ref)

	addr, debug := slipway.FreeAddr(t), slipway.FreeAddr(t)
	p.run(t, "volume", "create", "data")
	serve := func(name string) *proc.Process {
		t.Helper()
		cmd := exec.Command(p.path, p.container("--name", name, "--read-only", "-v", "data:/var/lib/slipway", ref,
			"serve", "--root", "/var/lib/slipway", "--addr", addr, "--debug-addr", debug)...)
		cmd.Env, cmd.Dir = p.env.Vars(), p.env.Dir()
		c := proc.Start(t, cmd, filepath.Join(p.env.Dir(), name+".log"))
		t.Cleanup(func() { _, _ = p.env.Try(context.Background(), p.path, p.args("rm", "-f", "-t", "0", name)...) })
		if err := c.AwaitURL(t.Context(), "http://"+debug+"/readyz", time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, c.Log(4<<10))
		}
		return c
	}
	first := serve("first")
	inner := addr + "/tools/slipway:" + version
	push(inner)
	p.run(t, "stop", "-t", "30", "first")
	<-first.Exited()
	serve("second") // another container, the same volume
	p.run(t, "pull", "-q", "--tls-verify=false", inner)
	if a, b := p.run(t, "image", "inspect", "--format", "{{.Id}}", ref), p.run(t, "image", "inspect", "--format", "{{.Id}}", inner); a != b {
		t.Errorf("the image in the image is %s, and not %s", b, a)
	}
	p.run(t, "stop", "-t", "30", "second")
}

// checkCommand runs the image as docs/packages.md says, with the image's own command, in a separate
// network. A client with a password gets an answer at port 5000.
func (p *podman) checkCommand(t *testing.T, ref string) {
	t.Helper()
	line := p.env.Run(t, tool.System(t, "htpasswd"), "-nbB", "alice", "secret")
	passwords := filepath.Join(p.env.Dir(), "htpasswd")
	if err := os.WriteFile(passwords, []byte(line+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := p.container("--name", "command", "-v", passwords+":/etc/slipway/htpasswd:ro",
		"-e", "SLIPWAY_AUTH_HTPASSWD_PATH=/etc/slipway/htpasswd", ref)
	cmd := exec.Command("unshare", append([]string{"--net", "sh", "-c", `ip link set lo up && exec "$@"`, "sh", p.path}, args...)...)
	cmd.Env, cmd.Dir = p.env.Vars(), p.env.Dir()
	c := proc.Start(t, cmd, filepath.Join(p.env.Dir(), "command.log"))
	t.Cleanup(func() { _, _ = p.env.Try(context.Background(), p.path, p.args("rm", "-f", "-t", "0", "command")...) })
	answer := func(user string) string {
		out, _ := p.env.Try(t.Context(), "nsenter", "-t", strconv.Itoa(c.Pid()), "-n", "--",
			"curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-u", user, "http://127.0.0.1:5000/v2/")
		return out
	}
	proc.Poll(t, time.Minute, "an answer of the image's own command", func() bool {
		select {
		case <-c.Exited():
			t.Fatalf("it ended (%s):\n%s", c.State(), c.Log(4<<10))
		default:
		}
		return answer("alice:secret") == "200"
	})
	if got := answer("alice:wrong"); got != "401" {
		t.Errorf("a wrong password gets %s, want 401", got)
	}
	p.run(t, "stop", "-t", "30", "command")
}

// TestTarball verifies the checksums as a user does, and checks that the unpacked program runs.
func TestTarball(t *testing.T) {
	t.Parallel()
	dir := release(t, version, everything...)
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Count(out, []byte(": OK\n")) < 4 {
		t.Fatalf("sha256sum --check: %v\n%s", err, out)
	}
	top := fmt.Sprintf("slipway-%s-linux-%s", version, runtime.GOARCH)
	if !bytes.Contains(sums, []byte("  "+top+".tar.gz\n")) {
		t.Fatalf("the tarball is not listed:\n%s", sums)
	}
	to := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, top+".tar.gz"), "-C", to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program := filepath.Join(to, top, "slipway")
	if out, err := exec.CommandContext(t.Context(), program, "version").CombinedOutput(); err != nil || len(out) == 0 {
		t.Errorf("slipway version: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), program, "config", "check", filepath.Join(to, top, "examples", "loopback.yml")).CombinedOutput(); err != nil {
		t.Errorf("an example of the tarball: %v\n%s", err, out)
	}
	signature(t, dir)
	a, b := digest(t, program), digest(t, slipway.Binary(t))
	if a != b {
		t.Errorf("the tarball has the program %s, and %s was built", a, b)
	}
}

func digest(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// signature makes a release with a key, and verifies its sums with the line of docs/packages.md.
// The line refuses sums that were changed.
func signature(t *testing.T, dir string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/packages.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^openssl .*-verify slipway\.pub.*$`).FindString(string(page))
	if line == "" {
		t.Fatal("docs/packages.md does not say how a signature is verified")
	}
	work := t.TempDir()
	run := func(command string) error {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Dir = work
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", command, err, out)
		}
		return err
	}
	for _, file := range []string{"SHA256SUMS", "SHA256SUMS.sig"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("openssl pkey -in " + os.Getenv("RELEASE_KEY") + " -pubout -out slipway.pub"); err != nil {
		t.Fatal(err)
	}
	if err := run(line); err != nil {
		t.Error(err)
	}
	if err := run("sed -i 's/^./0/' SHA256SUMS && echo >> SHA256SUMS && " + line); err == nil {
		t.Error("changed sums are taken for signed")
	}
}
