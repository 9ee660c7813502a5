package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tool"
)

func TestSkopeo(t *testing.T) {
	s := newSkopeo(t)
	testClient(t, client{
		push:   s.push,
		pull:   s.pull,
		output: s.output,
		forget: s.forget,
		remove: func(t *testing.T, ref string) {
			s.env.Run(t, s.path, "delete", "--tls-verify=false", "docker://"+ref)
		},
		pullFailing: func(t *testing.T, ref string) string {
			return s.env.RunFailing(t, s.path, s.copyArgs("docker://"+ref, "oci:"+s.layout(ref)+":t")...)
		},
		mediaType: imagetest.TypeManifest,
	})
}

type crane struct {
	copies
	env  *tool.Env
	path string
}

func newCrane(t *testing.T) *crane {
	t.Helper()
	dir := t.TempDir()
	return &crane{copies{dir}, tool.NewEnv(dir), tool.Built(t, "crane")}
}

func (c *crane) run(t *testing.T, args ...string) string {
	t.Helper()
	return c.env.Run(t, c.path, append([]string{"--insecure"}, args...)...)
}

func TestCrane(t *testing.T) {
	c := newCrane(t)
	testClient(t, client{
		push: func(t *testing.T, im *imagetest.Image, ref string) {
			c.run(t, "push", writeImage(t, &im.Bundle), ref)
		},
		pull: func(t *testing.T, ref string) {
			c.run(t, "validate", "--remote", ref)
			c.run(t, "pull", "--format=oci", ref, c.layout(ref))
		},
		output: c.output,
		forget: c.forget,
		remove: func(t *testing.T, ref string) {
			repo, _ := splitTag(ref)
			c.run(t, "delete", repo+"@"+c.run(t, "digest", ref))
		},
		pullFailing: func(t *testing.T, ref string) string {
			return c.env.RunFailing(t, c.path, "--insecure", "pull", "--format=oci", ref, c.layout(ref))
		},
		mediaType: imagetest.TypeManifest,
	})
}

// splitTag splits "host:port/repository:tag" into the part before the tag and the tag.
func splitTag(ref string) (repo, tag string) {
	i := strings.LastIndexByte(ref, ':')
	return ref[:i], ref[i+1:]
}

type regctl struct {
	copies
	env  *tool.Env
	path string
}

func newRegctl(t *testing.T) *regctl {
	t.Helper()
	dir := t.TempDir()
	return &regctl{copies{dir}, tool.NewEnv(dir), tool.Built(t, "regctl")}
}

// args prepends the option that tells regctl that the registry of ref does not use TLS.
func (r *regctl) args(ref string, args ...string) []string {
	host, _, _ := strings.Cut(ref, "/")
	return append([]string{"--host", "reg=" + host + ",tls=disabled"}, args...)
}

func (r *regctl) run(t *testing.T, ref string, args ...string) string {
	t.Helper()
	return r.env.Run(t, r.path, r.args(ref, args...)...)
}

func TestRegctl(t *testing.T) {
	r := newRegctl(t)
	pull := func(ref string) []string {
		return r.args(ref, "image", "copy", ref, "ocidir://"+r.layout(ref)+":t")
	}
	testClient(t, client{
		push: func(t *testing.T, im *imagetest.Image, ref string) {
			r.run(t, ref, "image", "copy", "ocidir://"+writeImage(t, &im.Bundle)+":t", ref)
		},
		pull:   func(t *testing.T, ref string) { r.env.Run(t, r.path, pull(ref)...) },
		output: r.output,
		forget: r.forget,
		remove: func(t *testing.T, ref string) { r.run(t, ref, "tag", "delete", ref) },
		pullFailing: func(t *testing.T, ref string) string {
			return r.env.RunFailing(t, r.path, pull(ref)...)
		},
		mediaType: imagetest.TypeManifest,
	})
}

// containersEnv is the environment of podman and buildah: storage of their own on the kernel's
// overlayfs, and no registries except those named in full.
func containersEnv(t *testing.T) (env *tool.Env, storage []string) {
	t.Helper()
	tool.NeedRoot(t)
	dir := tool.ShortTempDir(t)
	config := filepath.Join(dir, ".config", "containers")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"policy.json":     policy,
		"registries.conf": "unqualified-search-registries = []\nshort-name-mode = \"disabled\"\n",
	} {
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env = tool.NewEnv(dir, "CONTAINERS_REGISTRIES_CONF="+filepath.Join(config, "registries.conf"))
	storage = []string{
		"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"),
		"--storage-driver", "overlay",
	}
	t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
	return env, storage
}

func TestPodman(t *testing.T) { testClient(t, podmanClient(t)) }

func podmanClient(t *testing.T) client {
	t.Helper()
	path := tool.System(t, "podman")
	tool.System(t, "runc")
	env, global := containersEnv(t)
	// crun refuses this kind of cgroup set-up, and podman's default limits need a capability that
	// root lacks in a container.
	global = append(global, "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file",
		"--tmpdir", filepath.Join(env.Dir(), "tmp"))
	args := func(a ...string) []string { return append(append([]string{}, global...), a...) }
	pull := func(ref string) []string { return args("pull", "-q", "--tls-verify=false", ref) }
	return client{
		push: func(t *testing.T, im *imagetest.Image, ref string) {
			env.Run(t, path, args("load", "-q", "-i", writeArchive(t, im, ref))...)
			env.Run(t, path, args("push", "-q", "--tls-verify=false", ref)...)
		},
		pull: func(t *testing.T, ref string) { env.Run(t, path, pull(ref)...) },
		output: func(t *testing.T, ref string) string {
			return env.Run(t, path, args("run", "--rm", "--network", "host", "--pull=never",
				"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", ref)...)
		},
		forget:      func(t *testing.T, ref string) { env.Run(t, path, args("rmi", "--force", ref)...) },
		pullFailing: func(t *testing.T, ref string) string { return env.RunFailing(t, path, pull(ref)...) },
	}
}

func TestBuildah(t *testing.T) {
	path := tool.System(t, "buildah")
	env, global := containersEnv(t)
	args := func(a ...string) []string { return append(append([]string{}, global...), a...) }
	pull := func(ref string) []string { return args("pull", "-q", "--tls-verify=false", ref) }
	testClient(t, client{
		push: func(t *testing.T, _ *imagetest.Image, ref string) {
			env.Run(t, path, args("bud", "--isolation", "chroot", "--layers", "-q", "-t", ref, buildContext(t))...)
			env.Run(t, path, args("push", "-q", "--tls-verify=false", ref)...)
		},
		pull: func(t *testing.T, ref string) { env.Run(t, path, pull(ref)...) },
		// The build has already run the program. `buildah run` would run it again, but on a busy
		// machine it sometimes ends before it has passed on the program's output.
		output: func(t *testing.T, ref string) string {
			c := copies{t.TempDir()}
			env.Run(t, path, args("push", "-q", ref, "oci:"+c.layout(ref)+":t")...)
			return c.output(t, ref)
		},
		forget:      func(t *testing.T, ref string) { env.Run(t, path, args("rmi", "--force", ref)...) },
		pullFailing: func(t *testing.T, ref string) string { return env.RunFailing(t, path, pull(ref)...) },
		mediaType:   imagetest.TypeManifest,
	})
}

// buildContext returns a directory with the Dockerfile of an image that prints the same as the
// hello image, and whose build runs its program.
func buildContext(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, f := range map[string]struct {
		data string
		mode os.FileMode
	}{
		"Dockerfile": {"FROM scratch\nCOPY hello /hello\nCOPY a b /data/\nRUN [\"/hello\"]\nCMD [\"/hello\"]\n", 0o644},
		"hello":      {string(imagetest.HelloProgram(t)), 0o755},
		"a":          {"1", 0o644},
		"b":          {"2", 0o644},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(f.data), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
