package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
)

// quiet makes an agent fetch nothing by itself, and report soon that a file cannot be fetched.
const quiet = "fetch: {background: false, open_timeout: 4s, mode: lazy}\n"

// equal fails the test unless two trees are equal in everything.
func equal(t testing.TB, what, want, got string) {
	t.Helper()
	lines, err := treecmp.Compare(want, got, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) > 0 {
		t.Errorf("%s is another tree:\n%s", what, strings.Join(lines, "\n"))
	}
}

// clean fails the test if anything but files is left of any image.
func clean(t testing.TB, a *node.Agent) {
	t.Helper()
	for _, dir := range []string{"chains", "trees", "images", "mounts", "run/trees"} {
		entries, err := os.ReadDir(filepath.Join(a.Root, dir))
		if err != nil || len(entries) != 0 {
			t.Errorf("left in %s: %v, error %v", dir, entries, err)
		}
	}
	if m := a.Mounts(); len(m) != 1 || !strings.HasPrefix(m[0], "fuse.slipway ") {
		t.Errorf("mounts left: %q, want the pool alone", m)
	}
}

// TestMount uses an image without containerd: read-only, writable, twice.
func TestMount(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a := node.Start(t, quiet)

	dir := a.Mount(ref)
	if img := a.Image(); img.LocalFiles > 1 || img.Files != files+1 {
		t.Errorf("after the mount %d of %d files are here, want at most the program of %d", img.LocalFiles, img.Files, files+1)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err == nil {
		t.Error("a read-only mount can be written to")
	}
	equal(t, "the mounted image", s.Export("team/app:v1"), dir)
	if img := a.Image(); img.LocalFiles != img.Files || img.Errors != 0 {
		t.Errorf("all files were read, and %d of %d are here, %d errors", img.LocalFiles, img.Files, img.Errors)
	}

	upper := filepath.Join(t.TempDir(), "upper")
	rw := a.Mount(ref, "--rw", upper)
	if err := os.WriteFile(filepath.Join(rw, "bin", "check"), []byte("changed"), 0o600); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(upper, "bin", "check")); err != nil || string(b) != "changed" {
		t.Errorf("the upper directory holds %q, error %v", b, err)
	}
	if n, failed, wrong := check(t, rw); n != files || failed+wrong != 0 {
		t.Errorf("%d files, %d failed, %d wrong", n, failed, wrong)
	}
	if _, err := a.Try("mount", ref, rw); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second mount at one place: %v", err)
	}
	if got := a.Run("agent", "explain", ref); !strings.Contains(got, "3 layers") || !strings.Contains(got, "needs the registry no more") {
		t.Errorf("explain says:\n%s", got)
	}
	for _, bad := range []string{"app:v1", s.Addr + "/team/none:v1", s.Addr + "/team/app:none", s.Addr + "/Team/app"} {
		if out, err := a.Try("mount", bad, t.TempDir()); err == nil {
			t.Errorf("mount of %s: %s", bad, out)
		}
	}
	a.Run("umount", dir)
	a.Run("umount", rw)
	clean(t, a)
	if out, err := a.Try("umount", dir); err == nil {
		t.Errorf("a second umount: %s", out)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	a.Run("mount", ref, link)
	if n, failed, wrong := check(t, link); n != files || failed+wrong != 0 {
		t.Errorf("through a link: %d files, %d failed, %d wrong", n, failed, wrong)
	}
	a.Run("umount", link)
	clean(t, a)
	// The next mount uses what was fetched, without the registry's files.
	dir = a.Mount(ref)
	if img := a.Image(); img.LocalFiles != img.Files {
		t.Errorf("%d of %d files are left after all mounts were taken away", img.LocalFiles, img.Files)
	}
	a.Run("umount", dir)
}

// TestNoLayers mounts images without layers, which have an empty root directory.
func TestNoLayers(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/nothing:v1", imagetest.Compose(runtime.GOARCH, nil, nil))
	push(t, s, "team/other:v1", imagetest.Compose(runtime.GOARCH, map[string]any{"Cmd": []string{"x"}}, nil))
	a := node.Start(t, quiet)
	dir, rw := a.Mount(ref), a.Mount(ref, "--rw", filepath.Join(t.TempDir(), "upper"))
	other := a.Mount(s.Addr + "/team/other:v1")
	for _, d := range []string{dir, rw, other} {
		if entries, err := os.ReadDir(d); err != nil || len(entries) != 0 {
			t.Errorf("the mount holds %v, error %v", entries, err)
		}
	}
	if err := os.WriteFile(filepath.Join(rw, "new"), []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	a.Kill()
	a.Start()
	for _, d := range []string{dir, rw, other} {
		a.Run("umount", d)
	}
	clean(t, a)
}

// TestReported checks that the registry's web page soon shows what runs on a node.
func TestReported(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, 10))
	a := node.Start(t, quiet)
	dir := a.Mount(ref)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	proc.Poll(t, 40*time.Second, "the node on the page", func() bool {
		resp, err := s.Client.Do(t.Context(), "GET", "/ui/nodes?node="+url.QueryEscape(name), nil, nil)
		return err == nil && resp.Status == 200 && strings.Contains(strings.ReplaceAll(string(resp.Body), "<wbr>", ""), ref)
	})
	a.Run("umount", dir)
}

// TestStop stops agents. An unused agent ends at once; any other says why it does not.
func TestStop(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, 10))
	a := node.Start(t, "fetch: {background_delay: 0s}\n")
	dir := a.Mount(ref)
	a.Complete()
	a.Process.Signal(15)
	proc.Poll(t, 30*time.Second, "a word on who uses the agent", func() bool { return strings.Contains(a.Log(), "containers still use") })
	if n, failed, wrong := check(t, dir); n != 10 || failed+wrong != 0 {
		t.Errorf("%d files, %d failed, %d wrong", n, failed, wrong)
	}
	a.Run("umount", dir)
	select {
	case <-a.Process.Exited():
	case <-time.After(30 * time.Second):
		syscall.Kill(a.Worker(), syscall.SIGQUIT)
		time.Sleep(time.Second)
		t.Fatal("the agent goes on after its last user is gone")
	}
	if m := a.Mounts(); len(m) != 0 {
		t.Errorf("mounts left: %q", m)
	}
	a.Start()
	if took := a.Stop(); took > 5*time.Second {
		t.Errorf("an idle agent took %s to end", took)
	}
}

// TestRun runs images, and leaves nothing behind but files.
func TestRun(t *testing.T) {
	const files = 40
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	runc := tool.Built(t, "runc")
	a := node.Start(t, quiet)
	if got := a.Run("run", "--runtime", runc, ref); got != good(files)+"\n" {
		t.Errorf("the container prints %q", got)
	}
	if got := a.Run("run", "--runtime", runc, ref, "--", "written"); !strings.Contains(got, "no such file") {
		t.Errorf("the container prints %q", got)
	}
	clean(t, a)
}

// TestProfile records what an image opens on one node, and checks that another node fetches it.
func TestProfile(t *testing.T) {
	const files = 40
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	runc := tool.Built(t, "runc")
	b := node.Start(t, quiet)
	b.Run("profile", "record", "--runtime", runc, ref, "--", "one")
	c := node.Start(t, quiet)
	proc.Poll(t, 20*time.Second, "the profile at another node", func() bool {
		dir := c.Mount(ref)
		defer c.Run("umount", dir)
		return strings.Contains(c.Run("profile", "show", ref), "files/0/")
	})
	got := c.Mount(ref)
	shown := c.Run("profile", "show", ref)
	if strings.Contains(shown, "files/1/") || strings.Count(shown, "files/0/") != files/2 || !strings.Contains(shown, "/bin/check") {
		t.Errorf("the profile is\n%s", shown)
	}
	if img := c.Image(); img.LocalFiles < files/2 || img.LocalFiles == img.Files {
		t.Errorf("%d of %d files came with the profile of %d", img.LocalFiles, img.Files, files/2+1)
	}
	c.Run("umount", got)
	if out, err := c.Try("profile", "show", ref); err == nil || !strings.Contains(err.Error(), "is on this node") || !strings.Contains(err.Error(), "none is here now") {
		t.Errorf("the profile of an image that is not mounted any more: %s, error %v", out, err)
	}
}

// TestProfileOfNewVersion starts versions of an image in all ways, each on a new node with the
// profile of the version before. The registry must learn exactly what the first start of a
// version opens: a file that was only predicted must not count as opened.
func TestProfileOfNewVersion(t *testing.T) {
	const files = 40
	s := slipway.Start(t, t.TempDir(), nil)
	runc := tool.Built(t, "runc")
	for i, start := range []struct {
		containerd bool
		task       []string
		opened     int
	}{
		{false, nil, files + 1},
		{true, []string{"one"}, files/2 + 1},
		{true, nil, files + 1},
		{false, []string{"one"}, files/2 + 1},
		{true, []string{"one"}, files/2 + 1},
	} {
		im := image(t, 1, files, fmt.Sprintf("VERSION=%d", i))
		ref := push(t, s, fmt.Sprintf("team/app:v%d", i), im)
		if start.containerd {
			_, c := withContainerd(t, quiet)
			pull(t, c, ref)
			run(t, c, ref, "first", start.task...)
		} else {
			node.Start(t, quiet).Run(append([]string{"run", "--runtime", runc, ref, "--"}, start.task...)...)
		}
		var profile struct {
			Names   []string
			Origins string
		}
		proc.Poll(t, 30*time.Second, "a profile of the version's own", func() bool {
			got, err := s.Client.Do(t.Context(), http.MethodGet, "/v2/team/app/_slipway/gear/profiles/"+im.Top.Digest, nil, nil)
			profile.Names, profile.Origins = nil, ""
			return err == nil && got.Status == http.StatusOK && json.Unmarshal(got.Body, &profile) == nil && profile.Origins == ""
		})
		if len(profile.Names) != start.opened {
			t.Errorf("version %d, by containerd %t: the profile has %d files, want the %d that %q opens", i, start.containerd, len(profile.Names), start.opened, start.task)
		}
	}
}

// TestErrors makes commands fail.
func TestErrors(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, 4))
	a := node.Start(t, quiet)
	if out, err := a.Try("agent"); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent of the same directory: %s, error %v", out, err)
	}
	dir := a.Mount(ref)
	if n, failed, wrong := check(t, dir); n != 4 || failed+wrong != 0 {
		t.Errorf("after an attempt to start a second agent: %d files, %d failed, %d wrong", n, failed, wrong)
	}
	for _, args := range [][]string{{"agent", "explain", "nothing"}, {"profile", "show", "nothing"}, {"profile", "drop", "nothing"}, {"umount", "/nothing"}, {"mount", ref, "/nothing"}} {
		if out, err := a.Try(args...); err == nil {
			t.Errorf("%q succeeds: %s", args, out)
		}
	}
	a.Run("umount", dir)
	a.Stop()
	if out, err := a.Try("agent", "status"); err == nil || !strings.Contains(err.Error(), "no agent is running") {
		t.Errorf("status without an agent: %s, error %v", out, err)
	}
}
