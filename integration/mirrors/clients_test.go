package mirrors

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// puller is one of the programs that people pull with. It pulls an image of which it holds nothing,
// runs it or reads it back, returns what it prints, and forgets it.
type puller func(t *testing.T, name string) (output string)

// testPuller makes a client pull a public and a private image, under each name that the client can
// use. It pulls both again by tag and by digest when the upstreams are gone. publicName returns
// names of public images; it gets a name such as "library/hello:v1".
func testPuller(t *testing.T, with func(t *testing.T, b *bed) (pull puller, publicName, privateName func(name string) string)) {
	b := newBed(t)
	pull, publicName, privateName := with(t, b)
	im := imagetest.Hello(t)
	b.public.push("library/hello", "v1", &im.Bundle)
	b.private.push("team/app/hello", "v1", &im.Bundle)
	names := []string{publicName("library/hello:v1"), privateName("team/app/hello:v1"),
		publicName("library/hello@" + im.Top.Digest), privateName("team/app/hello@" + im.Top.Digest)}
	check := func(when, name string) {
		t.Helper()
		if got := pull(t, name); got != im.Output {
			t.Errorf("%s: %s prints %q, want %q", when, name, got, im.Output)
		}
	}
	for _, name := range names[:2] {
		check("first", name)
	}
	b.public.kill()
	b.private.kill()
	for _, name := range names {
		check("without upstreams", name)
	}
	b.mirror.Alive()
	b.mirror.Stop()
	b.mirror.Run("fsck")
}

// below returns a function that names images by path, with the upstream's name in front.
func (b *bed) below(upstream string) func(name string) string {
	return func(name string) string { return b.mirror.Addr + "/" + upstream + "/" + name }
}

func TestSkopeo(t *testing.T) {
	testPuller(t, func(t *testing.T, b *bed) (puller, func(string) string, func(string) string) {
		path, env := tool.System(t, "skopeo"), tool.NewEnv(t.TempDir())
		env.Run(t, path, "login", "--tls-verify=false", "-u", user, "-p", password, b.mirror.Addr)
		return func(t *testing.T, name string) string {
			dir := filepath.Join(t.TempDir(), "layout")
			env.Run(t, path, "--insecure-policy", "copy", "--quiet", "--preserve-digests", "--src-tls-verify=false", "docker://"+name, "oci:"+dir+":t")
			return readLayout(t, dir)
		}, b.below(public), b.below(private)
	})
}

func TestCrane(t *testing.T) {
	testPuller(t, func(t *testing.T, b *bed) (puller, func(string) string, func(string) string) {
		path, env := tool.Built(t, "crane"), tool.NewEnv(t.TempDir())
		env.Run(t, path, "auth", "login", "-u", user, "-p", password, b.mirror.Addr)
		return func(t *testing.T, name string) string {
			dir := filepath.Join(t.TempDir(), "layout")
			env.Run(t, path, "--insecure", "validate", "--remote", name)
			env.Run(t, path, "--insecure", "pull", "--format=oci", name, dir)
			return readLayout(t, dir)
		}, b.below(public), b.below(private)
	})
}

func readLayout(t *testing.T, dir string) string {
	t.Helper()
	_, output, err := imagetest.ReadLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// TestPodman makes podman use the mirror for docker.io, through registries.conf.
func TestPodman(t *testing.T) {
	testPuller(t, func(t *testing.T, b *bed) (puller, func(string) string, func(string) string) {
		tool.NeedRoot(t)
		path := tool.System(t, "podman")
		tool.System(t, "runc")
		dir := tool.ShortTempDir(t)
		config := filepath.Join(dir, ".config", "containers")
		if err := os.MkdirAll(config, 0o700); err != nil {
			t.Fatal(err)
		}
		registries := "unqualified-search-registries = []\nshort-name-mode = \"disabled\"\n" +
			"[[registry]]\nprefix = \"docker.io\"\nlocation = \"127.0.0.1:1\"\ninsecure = true\n" + // not there
			"[[registry.mirror]]\nlocation = \"" + b.mirror.Addr + "/docker.io\"\ninsecure = true\n"
		for name, text := range map[string]string{"policy.json": `{"default":[{"type":"insecureAcceptAnything"}]}`, "registries.conf": registries} {
			if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		env := tool.NewEnv(dir, "CONTAINERS_REGISTRIES_CONF="+filepath.Join(config, "registries.conf"))
		t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
		run := func(t *testing.T, args ...string) string {
			t.Helper()
			return env.Run(t, path, append([]string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"),
				"--storage-driver", "overlay", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file",
				"--tmpdir", filepath.Join(dir, "tmp")}, args...)...)
		}
		run(t, "login", "--tls-verify=false", "-u", user, "-p", password, b.mirror.Addr)
		return func(t *testing.T, name string) string {
			run(t, "pull", "-q", "--tls-verify=false", name)
			defer run(t, "rmi", "--force", name)
			return run(t, "run", "--rm", "--network", "host", "--pull=never", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", name)
		}, func(name string) string { return "docker.io/" + name }, b.below(private)
	})
}

// TestContainerd makes containerd use the mirror for both registries, through hosts.toml.
func TestContainerd(t *testing.T) {
	testPuller(t, func(t *testing.T, b *bed) (puller, func(string) string, func(string) string) {
		c := daemon.StartContainerd(t)
		hosts := t.TempDir()
		for _, name := range []string{public, private} {
			dir := filepath.Join(hosts, name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			text := "server = \"http://127.0.0.1:1\"\n" + // not there
				"[host.\"http://" + b.mirror.Addr + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
			if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		runs := 0
		return func(t *testing.T, name string) string {
			runs++
			args := []string{"image", "pull", "--hosts-dir", hosts}
			if strings.HasPrefix(name, private+"/") {
				args = append(args, "--user", user+":"+password)
			}
			c.Run(t, append(args, name)...)
			defer c.Run(t, "image", "rm", "--sync", name)
			return c.Run(t, "run", "--rm", name, "run"+string(rune('0'+runs)))
		}, func(name string) string { return public + "/" + name }, func(name string) string { return private + "/" + name }
	})
}

// TestContainerdRemoteURL makes containerd use a mirror that, like Distribution's, names only one
// registry in its configuration. containerd uses that registry's own name.
func TestContainerdRemoteURL(t *testing.T) {
	up := distribution(t)
	im := imagetest.Hello(t)
	up.push("library/hello", "v1", &im.Bundle)
	mirror := slipway.Start(t, t.TempDir(), &slipway.Options{Config: "version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\nproxy: {remoteurl: \"http://" + up.addr + "\"}\n"})
	c := daemon.StartContainerd(t)
	hosts := t.TempDir()
	dir := filepath.Join(hosts, up.addr)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "server = \"http://127.0.0.1:1\"\n[host.\"http://" + mirror.Addr + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, ref := range []string{":v1", "@" + im.Top.Digest, ":v1"} {
		if i == 2 {
			up.kill()
		}
		c.Run(t, "image", "pull", "--hosts-dir", hosts, up.addr+"/library/hello"+ref)
		if got := c.Run(t, "run", "--rm", up.addr+"/library/hello"+ref, "run"+string(rune('0'+i))); got != im.Output {
			t.Errorf("%s prints %q, want %q", ref, got, im.Output)
		}
		c.Run(t, "image", "rm", "--sync", up.addr+"/library/hello"+ref)
	}
}

// TestDocker makes docker use the mirror for Docker Hub, and pull private images by their path.
func TestDocker(t *testing.T) {
	for name, start := range map[string]func(t testing.TB, args ...string) *daemon.Docker{"graph driver": daemon.StartDocker, "containerd store": daemon.StartMoby} {
		t.Run(name, func(t *testing.T) { testDocker(t, start) })
	}
}

func testDocker(t *testing.T, start func(t testing.TB, args ...string) *daemon.Docker) {
	testPuller(t, func(t *testing.T, b *bed) (puller, func(string) string, func(string) string) {
		d := start(t, "--registry-mirror", "http://"+b.mirror.Addr)
		d.Run(t, "login", "-u", user, "-p", password, b.mirror.Addr)
		return func(t *testing.T, name string) string {
			d.Run(t, "pull", "-q", name)
			defer d.Run(t, "rmi", "--force", name)
			return d.Run(t, "run", "--rm", "--network", "none", "--pull", "never", name)
		}, func(name string) string { return strings.TrimPrefix(name, "library/") }, b.below(private)
	})
}

func TestHelm(t *testing.T) {
	helm := tool.Built(t, "helm")
	b := newBed(t)
	dir := t.TempDir()
	env := tool.NewEnv(dir)
	chart := imagetest.WriteChart(t, dir, "demo", "1.2.3")
	want, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	env.Run(t, helm, "push", chart, "oci://"+b.public.addr+"/charts", "--plain-http")
	env.Run(t, helm, "registry", "login", b.private.addr, "-u", user, "-p", password, "--plain-http")
	env.Run(t, helm, "push", chart, "oci://"+b.private.addr+"/charts", "--plain-http")
	env.Run(t, helm, "registry", "login", b.mirror.Addr, "-u", user, "-p", password, "--plain-http")
	pull := func(upstream string, args ...string) {
		t.Helper()
		to := t.TempDir()
		env.Run(t, helm, append([]string{"pull", "oci://" + b.mirror.Addr + "/" + upstream + "/charts/demo", "--plain-http", "-d", to}, args...)...)
		got, err := os.ReadFile(filepath.Join(to, "demo-1.2.3.tgz"))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("the chart from %s has digest %s, want %s", upstream, wire.Digest(got), wire.Digest(want))
		}
	}
	for _, upstream := range []string{public, private} {
		pull(upstream) // without a version helm lists the tags and takes the newest
	}
	b.public.kill()
	b.private.kill()
	for _, upstream := range []string{public, private} {
		pull(upstream, "--version", "1.2.3")
	}
}
