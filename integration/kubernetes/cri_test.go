package kubernetes

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// newest begins the version of the containerd in the directory of tools.
const newest = "2.4."

// older are earlier versions with which images start lazily, the oldest of them first.
// scripts/setup.sh builds them.
var older = []string{"2.1.9", "2.2.9", "2.3.7"}

// TestCRI sends a node the requests that kubelet sends during the life of pods, with each version of
// containerd that docs/kubernetes.md promises to work. Each takes most of a minute, so make test runs only the
// newest and the oldest; SLIPWAY_CONTAINERDS=all, which scripts/test-kubernetes.sh sets, runs the others, too.
func TestCRI(t *testing.T) {
	t.Run("containerd-2.4", func(t *testing.T) { life(t, tool.Dir(), newest) })
	versions := older
	if os.Getenv("SLIPWAY_CONTAINERDS") != "all" {
		versions = older[:1]
	}
	for _, version := range versions {
		t.Run("containerd-"+version, func(t *testing.T) {
			dir := filepath.Join(filepath.Dir(tool.Dir()), "containerd-"+version)
			if _, err := os.Stat(filepath.Join(dir, "containerd")); err != nil {
				t.Skipf("tool not installed: containerd-%s (scripts/setup.sh kubernetes builds it)", version)
			}
			life(t, dir, version)
		})
	}
}

// life takes pods through their life on a node with the containerd of a directory, whose version
// begins with version.
func life(t *testing.T, containerd, version string) {
	b := newBed(t, containerd)
	said, err := b.Ctr(t.Context(), "version")
	_, serving, _ := strings.Cut(said, "Server:")
	if err != nil || !strings.Contains(serving, " "+version) {
		t.Fatalf("the node's containerd is not %s but %s, error %v", version, serving, err)
	}
	ref := b.push("public/app:1", imagetest.Summed(t, 1, files, fileBytes, largeBytes))
	private := b.push("one/app:1", imagetest.Summed(t, 2, files, fileBytes, largeBytes))
	account := b.push("three/app:1", imagetest.Summed(t, 3, files, fileBytes, largeBytes))
	pause := b.ref("public/pause:1")
	if err := b.pull(pause, ""); err != nil {
		t.Fatal(err)
	}
	p, err := b.run(pause, "true", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.ended(t)
	p.remove(t)
	var before ctrnode.Leftovers // taken later, because the image of sandboxes stays
	proc.Poll(t, time.Minute, "the end of the pod's mounts", func() bool {
		before = b.leftovers(t)
		return !strings.Contains(before.String(), "overlay ")
	})
	t.Run("Lazy", func(t *testing.T) { b.lazy(t, ref) })
	t.Run("PullSecret", func(t *testing.T) { b.pullSecret(t, private) })
	t.Run("Account", func(t *testing.T) { b.account(t, account) })
	t.Run("Volume", func(t *testing.T) { b.imageVolume(t, ref, private) })
	model := b.ref("public/model:1")
	t.Run("Model", func(t *testing.T) { b.model(t, ref, model) })
	t.Run("Users", func(t *testing.T) { b.userNamespace(t, ref) })
	t.Run("Docker", func(t *testing.T) { b.docker(t, ref) })
	t.Run("Stats", func(t *testing.T) { b.stats(t, ref) })
	t.Run("Sizes", func(t *testing.T) { b.sizes(t) })
	t.Run("Restarts", func(t *testing.T) { b.restarts(t, ref) })
	t.Run("Removal", func(t *testing.T) { b.removal(t, []string{ref, private, account, model}, before) })
}

func (b *bed) leftovers(t *testing.T) ctrnode.Leftovers {
	t.Helper()
	l, err := b.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lazy starts a pod whose image has a large file that does not arrive.
func (b *bed) lazy(t *testing.T, ref string) {
	if err := b.pull(ref, ""); err != nil {
		t.Fatal(err)
	}
	s, err := b.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil || s.Image == nil {
		t.Fatalf("status of the image: %v, error %v", s, err)
	}
	if s.Image.Size < largeBytes {
		t.Errorf("kubelet is told that the image has %d bytes, want at least %d", s.Image.Size, largeBytes)
	}
	if way, said, err := b.Used(t.Context(), ref); err != nil || way != ctrnode.Gear {
		t.Errorf("the image came as %q, error %v: %s", way, err, said)
	}
	p := b.start(t, ref, imagetest.Verify+" && echo good", nil)
	if got := p.ended(t); got != "good" {
		t.Errorf("the container prints %q", got)
	}
	if disk := b.cacheBytes(t); disk > largeBytes {
		t.Errorf("%d bytes are in the cache, though nobody has read /large", disk)
	}
}

// pullSecret starts a private image with the credential that kubelet pulls it with.
func (b *bed) pullSecret(t *testing.T, ref string) {
	for _, user := range []string{"", "bob"} {
		if err := b.pull(ref, user); err == nil {
			t.Fatalf("%q could pull an image of alice's", user)
		}
	}
	if err := b.pull(ref, "alice"); err != nil {
		t.Fatal(err)
	}
	if got := b.start(t, ref, imagetest.Verify+" && echo good", nil).ended(t); got != "good" {
		t.Errorf("the container prints %q", got)
	}
}

// account starts an image with the token of a service account, as the credential provider gives it
// to kubelet. With a later token, it reads the files that had not arrived by then.
func (b *bed) account(t *testing.T, ref string) {
	token := func(namespace string) string {
		p, err := provide(t, ref, b.issuer.token(t, namespace, "default", "registry.example.com", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return p.Auth[b.registry.Addr].Password
	}
	if err := b.pullWith(ref, "kubernetes", token("four")); err == nil {
		t.Fatal("an account of another namespace could pull the image")
	}
	if err := b.pullWith(ref, "kubernetes", token("three")); err != nil {
		t.Fatal(err)
	}
	if got := b.start(t, ref, imagetest.Verify+" && echo good", nil).ended(t); got != "good" {
		t.Errorf("the container prints %q", got)
	}
	if way, said, err := b.Used(t.Context(), ref); err != nil || way != ctrnode.Gear {
		t.Errorf("the image came as %q, error %v: %s", way, err, said)
	}
	if err := b.pullWith(ref, "kubernetes", token("three")); err != nil {
		t.Fatal(err)
	}
	// A client without the right to the image changes nothing for those that run it, even
	// if the agent must log in again.
	if err := b.pullWith(ref, "kubernetes", token("four")); err == nil {
		t.Fatal("an account of another namespace could pull an image that is on the node")
	}
	if !b.Kill(ctrnode.Worker) {
		t.Error("there is no worker to kill")
	}
	if got := b.start(t, ref, imagetest.VerifyLarge+" && echo good", nil).ended(t); got != "good" {
		t.Errorf("with a later token the container prints %q", got)
	}
}

// imageVolume mounts one image in a container of another.
func (b *bed) imageVolume(t *testing.T, ref, volume string) {
	p := b.start(t, ref, "cd /volume && sha256sum -c -s sums && ls bin/busybox && ! touch /volume/new 2>/dev/null && echo good", func(_ *cri.PodSandboxConfig, c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{ContainerPath: "/volume", Image: &cri.ImageSpec{Image: volume}, Readonly: true}}
	})
	if got := p.ended(t); got != "bin/busybox\ngood" {
		t.Errorf("the container prints %q", got)
	}
}

// model pushes a directory with slipway push-model, mounts the image in a container, and reads a
// part of its large file.
func (b *bed) model(t *testing.T, ref, model string) {
	const part = 1 << 20
	dir := t.TempDir()
	weights := make([]byte, largeBytes)
	_, _ = rand.Read(weights) // never fails
	login := filepath.Join(dir, "login")
	for name, content := range map[string][]byte{"login": []byte("root:secret"), "m/config.json": []byte("{}\n"), "m/model.safetensors": weights} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "m"), 0o755), os.WriteFile(filepath.Join(dir, name), content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), slipway.Binary(t), "push-model", "--plain-http", "--credentials", login, filepath.Join(dir, "m"), model).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.registry.Converted()
	if err := b.pull(model, ""); err != nil {
		t.Fatal(err)
	}
	before := b.cacheBytes(t)
	p := b.start(t, ref, fmt.Sprintf("cat /volume/config.json && tail -c %d /volume/model.safetensors | sha256sum", part), func(_ *cri.PodSandboxConfig, c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{ContainerPath: "/volume", Image: &cri.ImageSpec{Image: model}, Readonly: true}}
	})
	if got, want := p.ended(t), fmt.Sprintf("{}\n%x  -", sha256.Sum256(weights[largeBytes-part:])); got != want {
		t.Errorf("the container prints %q, want %q", got, want)
	}
	if way, said, err := b.Used(t.Context(), model); err != nil || way != ctrnode.Gear {
		t.Errorf("the image came as %q, error %v: %s", way, err, said)
	}
	if came := b.cacheBytes(t) - before; came > largeBytes/2 {
		t.Errorf("%d bytes came of a file of %d of which %d were read", came, largeBytes, part)
	}
}

// userNamespace starts a pod whose root is nobody on the node.
func (b *bed) userNamespace(t *testing.T, ref string) {
	p := b.start(t, ref, imagetest.Verify+" && touch /new && id -u && cat /proc/self/uid_map", func(s *cri.PodSandboxConfig, c *cri.ContainerConfig) {
		ids := []*cri.IDMapping{{HostId: 1 << 20, ContainerId: 0, Length: 65536}}
		for _, o := range []*cri.NamespaceOption{s.Linux.SecurityContext.NamespaceOptions, c.Linux.SecurityContext.NamespaceOptions} {
			o.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
		}
	})
	if got := p.ended(t); !strings.HasPrefix(got, "0\n") || !strings.Contains(got, "1048576") {
		t.Errorf("the container prints %q", got)
	}
	if way, said, err := b.Used(t.Context(), ref); err != nil || way != ctrnode.Gear {
		t.Errorf("the image came as %q, error %v: %s", way, err, said)
	}
}

// docker has Docker use the containerd and the agent of kubelet for the same image. Neither may disturb the
// other: a pod reads on while Docker pulls, runs, commits and removes, and Docker's image stays when kubelet
// removes its own.
func (b *bed) docker(t *testing.T, ref string) {
	p := b.start(t, ref, loop, nil)
	p.passes(t, 1)
	fetched := b.cacheBytes(t)
	d := daemon.StartMobyOn(t, b.RuntimeSocket(), b.Snapshotter(), "--insecure-registry", b.registry.Addr)
	d.Run(t, "pull", "-q", ref)
	if have, err := b.Ctr(t.Context(), "-n", "moby", "content", "ls", "-q"); err != nil || len(strings.Fields(have)) != 2 {
		t.Errorf("Docker's pull brought %q, error %v, want the manifest and the configuration alone", have, err)
	}
	run := func(ref, script string) string {
		return d.Run(t, "run", "--rm", "--network", "none", "--pull", "never", ref, script)
	}
	if got := run(ref, imagetest.Verify+" && echo good"); got != "good" {
		t.Errorf("Docker's container prints %q", got)
	}
	// Pods have read these files, and nobody has read /large.
	if came := b.cacheBytes(t) - fetched; came > largeBytes/2 {
		t.Errorf("%d bytes came with Docker's pull of an image that the node has", came)
	}
	d.Run(t, "run", "--name", "writer", "--network", "none", "--pull", "never", ref, "echo kept > /written")
	if got := d.Run(t, "diff", "writer"); got != "A /written" {
		t.Errorf("docker diff says %q", got)
	}
	d.Run(t, "commit", "writer", "committed")
	if got := run("committed", "cat /written && "+imagetest.Verify+" && echo good"); got != "kept\ngood" {
		t.Errorf("the committed image prints %q", got)
	}
	p.passes(t, 1)
	if _, err := b.images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	if got := run(ref, imagetest.Verify+" && echo good"); got != "good" {
		t.Errorf("after kubelet has removed its image, Docker's container prints %q", got)
	}
	if err := b.pull(ref, ""); err != nil {
		t.Fatal(err)
	}
	d.Run(t, "rm", "writer")
	d.Run(t, "rmi", "--force", "committed", ref)
	p.passes(t, 1)
	if got := b.start(t, ref, imagetest.Verify+" && echo good", nil).ended(t); got != "good" {
		t.Errorf("after Docker has removed its image, a pod prints %q", got)
	}
}

// stats writes into a container and asks how much was written.
func (b *bed) stats(t *testing.T, ref string) {
	const written = 3 << 20
	p := b.start(t, ref, "head -c 3145728 /dev/zero > /tmp/new && echo good && sleep 3600", nil)
	// The container prints a single line, which may be there before this test first looks.
	proc.Poll(t, time.Minute, "the container to write", func() bool { return strings.Contains(p.output(), "good") })
	proc.Poll(t, time.Minute, "statistics of the container", func() bool {
		r, err := b.runtime.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: p.main})
		if err != nil {
			t.Fatal(err)
		}
		layer, memory := r.Stats.GetWritableLayer(), r.Stats.GetMemory().GetWorkingSetBytes().GetValue()
		used := layer.GetUsedBytes().GetValue()
		return used >= written && used < 2*written && memory > 0 && strings.HasPrefix(layer.GetFsId().GetMountpoint(), b.Root()+"/")
	})
	list, err := b.runtime.ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{})
	if err != nil || len(list.Stats) == 0 {
		t.Errorf("statistics of all containers: %v, error %v", list, err)
	}
}

// cacheBytes returns the disk space that the files of images take.
func (b *bed) cacheBytes(t *testing.T) int64 {
	t.Helper()
	n, err := b.CacheBytes()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sizes asks how much space images take. Kubelet uses the answer to decide when to remove images.
func (b *bed) sizes(t *testing.T) {
	cache := b.cacheBytes(t)
	r, err := b.images.ImageFsInfo(t.Context(), &cri.ImageFsInfoRequest{})
	if err != nil || len(r.ImageFilesystems) == 0 {
		t.Fatalf("file systems of images: %v, error %v", r, err)
	}
	f := r.ImageFilesystems[0]
	if !strings.HasPrefix(f.FsId.Mountpoint, b.Root()+"/") {
		t.Errorf("images lie in %s, want the agent's directory %s", f.FsId.Mountpoint, b.Root())
	}
	// The cache has its own tables. Beside it there are indexes and what containers have written.
	if used := int64(f.UsedBytes.GetValue()); used < cache-cache/4 || used > cache+cache/4+8<<20 {
		t.Errorf("images take %d bytes, want what the cache holds, %d, and little more", used, cache)
	}
	if f.InodesUsed.GetValue() < 2*files {
		t.Errorf("images take %d inodes, want one for each of more than %d files", f.InodesUsed.GetValue(), 2*files)
	}
}

// restarts stops what serves a container while the container reads.
func (b *bed) restarts(t *testing.T, ref string) {
	p := b.start(t, ref, loop, nil)
	p.passes(t, 1)
	if !b.Kill(ctrnode.Worker) {
		t.Error("there is no worker to kill")
	}
	p.passes(t, 2)
	for _, kill := range []bool{true, false} {
		if err := b.RestartContainerd(t.Context(), kill); err != nil {
			t.Fatal(err)
		}
		p.passes(t, 2)
		r, err := b.runtime.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: p.main, Cmd: []string{"sh", "-c", "head -c 1048576 /large | wc -c"}, Timeout: 30})
		if err != nil || r.ExitCode != 0 || strings.TrimSpace(string(r.Stdout)) != "1048576" {
			t.Errorf("exec after a restart of containerd: %v, error %v", r, err)
		}
	}
	if got := b.start(t, ref, imagetest.Verify+" && echo good", nil).ended(t); got != "good" {
		t.Errorf("a pod started after the restarts prints %q", got)
	}
}

// removal removes images, and checks that nothing of them is mounted afterwards, and that the
// disk has the space that kubelet removes images for.
func (b *bed) removal(t *testing.T, refs []string, before ctrnode.Leftovers) {
	full := b.cacheBytes(t)
	for _, ref := range refs {
		if _, err := b.images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		s, err := b.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		if err != nil || s.Image != nil {
			t.Errorf("the removed image %s is %v, error %v", ref, s.Image, err)
		}
	}
	if left := b.cacheBytes(t); left > full/4 {
		t.Errorf("the cache has %d bytes of %d, though the images that used them are removed", left, full)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		after := b.leftovers(t)
		if after.Equal(before) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left over: %s; before: %s", after, before)
		}
	}
}
