package packages

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

const image = "127.0.0.1:5000/team/app:1"

// lazily makes the agent fetch only what somebody opens.
const lazily = "root: /var/lib/slipway-agent\nfetch: {background: false, mode: lazy}\n"

// TestDebian takes a package through its life: installed, in use, upgraded while a container lacks
// files, removed, installed again, purged.
func TestDebian(t *testing.T) {
	t.Parallel()
	busybox, err := os.ReadFile(tool.System(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	d := startDebian(t)
	d.install(t, version)
	d.checkInstalled(t)

	server := d.serve(t)
	sums := d.push(t, busybox)
	digest := d.outside(t, "skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+image)

	if err := os.WriteFile(d.path("/etc/slipway/agent.yml"), []byte(lazily), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := d.start(t, "agent", "slipway agent --config /etc/slipway/agent.yml")
	worker := d.worker(t, agent)
	d.run(t, "mkdir", "-p", "/srv/app")
	d.run(t, "slipway", "mount", "--config", "/etc/slipway/agent.yml", image, "/srv/app")
	c := d.container(t, "/srv/app")
	if got := c.sum(t, "a"); got != sums["a"] {
		t.Errorf("before the upgrade the container reads %s, want %s", got, sums["a"])
	}

	d.install(t, newer)
	if got := d.run(t, "dpkg-query", "-W", "-f", "${Version}", "slipway"); got != newer {
		t.Errorf("version %s is installed, want %s", got, newer)
	}
	if b, err := os.ReadFile(d.path("/etc/slipway/agent.yml")); err != nil || string(b) != lazily {
		t.Errorf("the upgrade has changed the configuration: %q, %v", b, err)
	}
	if got := c.sum(t, "b"); got != sums["b"] {
		t.Errorf("after the upgrade the container reads %s, want %s", got, sums["b"])
	}
	if d.program(t, worker) {
		t.Error("the agent's worker runs the new program although nobody restarted it")
	}
	d.run(t, "sh", "-c", "kill -KILL "+worker)
	proc.Poll(t, time.Minute, "a worker that is the new program", func() bool {
		next, err := d.tryWorker(t)
		return err == nil && next != worker && d.program(t, next)
	})
	if got := c.sum(t, "c"); got != sums["c"] {
		t.Errorf("with the new program the container reads %s, want %s", got, sums["c"])
	}
	d.stop(t, "server", server)
	server = d.serve(t)
	if got := d.outside(t, "skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+image); got != digest {
		t.Errorf("the upgraded server has %s, had %s", got, digest)
	}
	if got := c.sum(t, "d"); got != sums["d"] {
		t.Errorf("of the upgraded server the container reads %s, want %s", got, sums["d"])
	}

	d.stop(t, "server", server)
	d.purgeWithMounts(t)
	c.end(t)
	d.run(t, "/srv/slipway", "umount", "--root", "/var/lib/slipway-agent", "/srv/app")
	d.stop(t, "agent", agent)
	d.install(t, newer)
	d.removeAndPurge(t, digest)
	d.checkSystemd(t)
}

// checkInstalled checks what the installation made, and that it started nothing.
func (d *debian) checkInstalled(t *testing.T) {
	t.Helper()
	for path, want := range map[string]string{
		"/etc/slipway":            "750 root:slipway",
		"/etc/slipway/config.yml": "640 root:slipway",
		"/etc/slipway/agent.yml":  "600 root:root",
		"/var/lib/slipway":        "700 slipway:slipway",
		"/var/log/slipway":        "750 slipway:slipway",
		"/usr/bin/slipway":        "755 root:root",
	} {
		if got := d.run(t, "stat", "-c", "%a %U:%G", path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	for _, unit := range []string{"slipway", "slipway-agent"} {
		if b, err := os.ReadFile(d.path("/usr/lib/systemd/system/" + unit + ".service")); err != nil || !strings.Contains(string(b), "ExecStart=/usr/bin/slipway ") {
			t.Errorf("unit %s: %v\n%s", unit, err, b)
		}
	}
	if got := d.run(t, "find", "/etc/systemd", "-name", "slipway*"); got != "" {
		t.Errorf("units were enabled: %s", got)
	}
	if got := d.run(t, "slipway", "config", "check", "/etc/slipway/config.yml"); strings.Contains(got, "warning") {
		t.Errorf("the configuration: %s", got)
	}
	if got := d.run(t, "dpkg", "--verify", "slipway"); got != "" {
		t.Errorf("dpkg --verify: %s", got)
	}
	for _, name := range []string{"bash-completion/completions/slipway", "zsh/vendor-completions/_slipway", "fish/vendor_completions.d/slipway.fish", "man/man1/slipway.1.gz"} {
		d.run(t, "test", "-s", "/usr/share/"+name)
	}
}

// serve starts the server as its user, with the configuration of the package.
func (d *debian) serve(t *testing.T) *proc.Process {
	t.Helper()
	p := d.start(t, "server", "setpriv --reuid slipway --regid slipway --init-groups slipway serve --config /etc/slipway/config.yml")
	d.await(t, p)
	return p
}

func (d *debian) await(t *testing.T, p *proc.Process) {
	t.Helper()
	proc.Poll(t, time.Minute, "an answer of the server", func() bool {
		select {
		case <-p.Exited():
			t.Fatalf("the server ended (%s):\n%s", p.State(), p.Log(4<<10))
		default:
		}
		_, err := d.env.Try(t.Context(), "nsenter", "-t", fmt.Sprint(d.pid), "-n", "--", "curl", "-fsS", "http://127.0.0.1:5001/readyz")
		return err == nil
	})
}

// push pushes an image of busybox and some files from outside, waits until it is converted,
// and returns the SHA-256 of the files.
func (d *debian) push(t *testing.T, busybox []byte) map[string]string {
	t.Helper()
	a := new(imagetest.Archive).Dir("./").Dir("bin/").Dir("files/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	sums := map[string]string{}
	rng := rand.NewChaCha8([32]byte{1})
	for _, name := range []string{"a", "b", "c", "d"} {
		data := make([]byte, 1<<20)
		_, _ = rng.Read(data)
		sums[name] = fmt.Sprintf("%x", sha256.Sum256(data))
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "files/" + name, Mode: 0o644}, data)
	}
	b := imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/bin/busybox", "sh"}}, []imagetest.Layer{a.Layer()})
	dir := filepath.Join(d.env.Dir(), "layout")
	b.WriteLayout(t, dir, "1")
	d.outside(t, "skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false", "oci:"+dir+":1", "docker://"+image)
	proc.Poll(t, time.Minute, "the end of the conversion", func() bool {
		var st struct {
			Layers, Waiting int64
			Active          []any
		}
		out := d.run(t, "slipway", "status", "--json", "--config", "/etc/slipway/config.yml")
		if err := json.Unmarshal([]byte(out), &st); err != nil {
			t.Fatalf("slipway status: %v\n%s", err, out)
		}
		return st.Layers > 0 && st.Waiting == 0 && len(st.Active) == 0
	})
	return sums
}

// tryWorker returns the process of the agent that answers.
func (d *debian) tryWorker(t *testing.T) (string, error) {
	out, err := d.env.Try(t.Context(), "nsenter", d.inside("slipway", "agent", "status", "--json", "--config", "/etc/slipway/agent.yml")...)
	if err != nil {
		return "", err
	}
	var st struct{ PID int }
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return "", err
	}
	return fmt.Sprint(st.PID), nil
}

func (d *debian) worker(t *testing.T, keeper *proc.Process) (pid string) {
	t.Helper()
	proc.Poll(t, time.Minute, "an answer of the agent", func() bool {
		select {
		case <-keeper.Exited():
			t.Fatalf("the agent ended (%s):\n%s", keeper.State(), keeper.Log(4<<10))
		default:
		}
		var err error
		pid, err = d.tryWorker(t)
		return err == nil
	})
	return pid
}

// container is a shell whose root is a mounted image.
type container struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (d *debian) container(t *testing.T, dir string) *container {
	t.Helper()
	cmd := exec.Command("nsenter", d.inside("chroot", dir, "/bin/busybox", "sh")...)
	cmd.Env, cmd.Stderr = d.env.Vars(), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &container{cmd, in, bufio.NewReader(out)}
}

// sum makes the container compute the SHA-256 of a file that it has not opened before.
func (c *container) sum(t *testing.T, name string) string {
	t.Helper()
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = c.cmd.Process.Kill() })
	defer watchdog.Stop()
	if _, err := fmt.Fprintf(c.in, "/bin/busybox sha256sum /files/%s\n", name); err != nil {
		t.Fatal(err)
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the container is gone: %v", err)
	}
	sum, _, _ := strings.Cut(line, " ")
	return sum
}

func (c *container) end(t *testing.T) {
	t.Helper()
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the container ended with %v", err)
	}
}

// purgeWithMounts purges the package while a container's root is mounted. The mount must stay, and
// so must the images.
func (d *debian) purgeWithMounts(t *testing.T) {
	t.Helper()
	d.run(t, "cp", "-a", "/usr/bin/slipway", "/srv/slipway")
	said := d.run(t, "sh", "-c", "dpkg --purge slipway 2>&1") + "\n"
	for _, dir := range []string{"/var/lib/slipway", "/var/lib/slipway-agent"} {
		if _, err := os.Stat(d.path(dir)); err != nil {
			t.Errorf("purge has not kept the data: %v", err)
		}
		if !strings.Contains(said, "rm -rf --one-file-system "+dir+"\n") {
			t.Errorf("purge does not say how %s is deleted:\n%s", dir, said)
		}
	}
	d.gone(t, "/var/log/slipway", "/etc/slipway")
}

func (d *debian) gone(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Lstat(d.path(p)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
}

// removeAndPurge removes the package, which keeps configuration and data. It installs the package
// again, which finds them. It then purges it, which keeps the account.
func (d *debian) removeAndPurge(t *testing.T, digest string) {
	t.Helper()
	d.run(t, "sh", "-c", "echo '# ours' >> /etc/slipway/config.yml")
	d.run(t, "dpkg", "--remove", "slipway")
	d.gone(t, "/usr/bin/slipway", "/usr/lib/systemd/system/slipway.service")
	d.install(t, newer)
	if !strings.HasSuffix(d.run(t, "cat", "/etc/slipway/config.yml"), "# ours") {
		t.Error("removal has not kept the configuration")
	}
	server := d.serve(t)
	if got := d.outside(t, "skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+image); got != digest {
		t.Errorf("after removal and installation the server has %s, want %s", got, digest)
	}
	d.stop(t, "server", server)
	d.run(t, "dpkg", "--purge", "slipway")
	d.gone(t, "/usr/bin/slipway", "/etc/slipway", "/var/log/slipway")
	d.run(t, "id", "slipway")
	d.install(t, newer)
	server = d.serve(t)
	if got := d.outside(t, "skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+image); got != digest {
		t.Errorf("after purge and installation the server has %s, want %s", got, digest)
	}
	d.stop(t, "server", server)
	d.run(t, "dpkg", "--purge", "slipway")
}

// checkSystemd checks what the package's scripts ask of systemd. There is no systemd here: a
// program that records the calls stands in for it.
func (d *debian) checkSystemd(t *testing.T) {
	t.Helper()
	d.run(t, "mkdir", "-p", "/run/systemd/system")
	if err := os.WriteFile(d.path("/usr/bin/systemctl"), []byte("#!/bin/sh\necho \"$*\" >> /run/asked\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := func(what string, want ...string) {
		t.Helper()
		got := d.run(t, "cat", "/run/asked")
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s asks systemd for nothing like %q:\n%s", what, w, got)
			}
		}
		for _, verb := range []string{"start", "restart", "stop", "enable"} {
			if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, verb+" ") }) && strings.Contains("\n"+got, "\n"+verb+" ") {
				t.Errorf("%s asks systemd to %s:\n%s", what, verb, got)
			}
		}
		d.run(t, "rm", "/run/asked")
	}
	d.install(t, version)
	asked("installation", "daemon-reload")
	d.install(t, newer)
	asked("upgrade", "daemon-reload", "try-restart slipway.service", "slipway-agent.service")
	d.run(t, "dpkg", "--remove", "slipway")
	asked("removal", "stop slipway.service", "slipway-agent.service", "daemon-reload")
}
