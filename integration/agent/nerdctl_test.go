package agent_test

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// nerdctl runs nerdctl's commands on a containerd.
type nerdctl struct {
	env     *tool.Env
	program string
	options []string
}

// newNerdctl returns nerdctl for a containerd that listens on a socket. No Go module has nerdctl, so somebody
// builds it from its sources, and names it in SLIPWAY_NERDCTL or puts it into the directory of tools. It keeps
// what it writes in a directory of the test.
func newNerdctl(t testing.TB, socket string) *nerdctl {
	t.Helper()
	program := cmp.Or(os.Getenv("SLIPWAY_NERDCTL"), filepath.Join(tool.Dir(), "nerdctl"))
	if _, err := os.Stat(program); err != nil {
		t.Skip("nerdctl not installed: set SLIPWAY_NERDCTL")
	}
	dir := tool.ShortTempDir(t)
	return &nerdctl{tool.NewEnv(dir, "PATH="+tool.Dir()+":/usr/sbin:/usr/bin:/sbin:/bin"), program, []string{
		"--address", socket, "--snapshotter", name, "--namespace", "nerdctl", "--data-root", filepath.Join(dir, "data"),
		"--cni-path", tool.Dir(), "--cni-netconfpath", filepath.Join(dir, "cni"), "--cgroup-manager", "cgroupfs",
	}}
}

func (n *nerdctl) run(t testing.TB, args ...string) string {
	t.Helper()
	return n.env.Run(t, n.program, append(n.options, args...)...)
}

// TestNerdctl takes an image through its life with nerdctl: pull, run, exec, commit, and removal.
func TestNerdctl(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	im := image(t, 1, files)
	ref := push(t, s, "team/app:v1", im)
	a, c := withContainerd(t, quiet)
	n := newNerdctl(t, c.Socket())
	n.run(t, "pull", "-q", ref)
	if got := layersIn(t, c, "nerdctl", im); got != 0 {
		t.Errorf("%d layers were pulled, want none", got)
	}
	if got := n.run(t, "images", "--format", "{{.Repository}}:{{.Tag}}"); got != ref {
		t.Errorf("nerdctl lists the images %q, want %s", got, ref)
	}
	run := func(args ...string) string {
		return n.run(t, append([]string{"run", "--rm", "--network", "none", "--pull", "never"}, args...)...)
	}
	if got, want := run(ref, "one"), good(files/2); got != want {
		t.Errorf("the container prints %q, want %q", got, want)
	}
	if img := a.Image(); img.LocalFiles != files/2+1 {
		t.Errorf("%d files were fetched for a container that opens %d", img.LocalFiles, files/2+1)
	}
	if got := layersIn(t, c, "nerdctl", im); got != 0 {
		t.Errorf("%d layers came with the container, want none", got)
	}

	n.run(t, "run", "-d", "--name", "kept", "--network", "none", "--pull", "never", ref, "write=kept", "sleep")
	proc.Poll(t, 30*time.Second, "the container to write", func() bool { return strings.Contains(n.run(t, "logs", "kept"), "sleeping") })
	if got := n.run(t, "exec", "kept", "/bin/check"); got != good(files) {
		t.Errorf("a command in the container prints %q, want %q", got, good(files))
	}
	if got := n.run(t, "exec", "kept", "/bin/check", "written"); got != "kept <nil>" {
		t.Errorf("a command in the container reads %q", got)
	}
	n.run(t, "commit", "kept", "committed")
	for arg, want := range map[string]string{"written": "kept <nil>", "": good(files)} {
		if got := run("--entrypoint", "/bin/check", "committed", arg); got != want {
			t.Errorf("the committed image prints %q, want %q", got, want)
		}
	}
	n.run(t, "rm", "-f", "kept")
	n.run(t, "rmi", "-f", "committed", ref)
	if got := n.run(t, "images", "-q"); got != "" {
		t.Errorf("images left: %q", got)
	}
	proc.Poll(t, time.Minute, "nothing to be mounted", func() bool { return len(a.Mounts()) == 1 })
	clean(t, a)
}
