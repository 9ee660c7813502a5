package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

const typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"

func TestDockerGraphDriver(t *testing.T) {
	d := daemon.StartDocker(t)
	t.Log("docker", d.Run(t, "version", "--format", "{{.Server.Version}}"))
	c := dockerClient(d)
	c.mediaType = typeDockerManifest
	testClient(t, c)
	t.Run("repeated layers", func(t *testing.T) { testRepeatedLayers(t, c) })
}

func TestDockerContainerdStore(t *testing.T) {
	d := daemon.StartMoby(t)
	t.Log("docker", d.Run(t, "version", "--format", "{{.Server.Version}}"))
	c := dockerClient(d)
	testClient(t, c)
	t.Run("repeated layers", func(t *testing.T) { testRepeatedLayers(t, c) })
}

func dockerClient(d *daemon.Docker) client {
	return client{
		push: func(t *testing.T, im *imagetest.Image, ref string) {
			d.Run(t, "load", "-q", "-i", writeArchive(t, im, ref))
			d.Run(t, "push", "-q", ref)
		},
		pull: func(t *testing.T, ref string) { d.Run(t, "pull", "-q", ref) },
		output: func(t *testing.T, ref string) string {
			return d.Run(t, "run", "--rm", "--network", "none", "--pull", "never", ref)
		},
		forget:      func(t *testing.T, ref string) { d.Run(t, "rmi", "--force", ref) },
		pullFailing: func(t *testing.T, ref string) string { return d.RunFailing(t, "pull", "-q", ref) },
	}
}

func TestContainerd(t *testing.T) {
	c := daemon.StartContainerd(t)
	t.Log(c.Run(t, "version"))
	pull := func(ref string) []string { return []string{"image", "pull", "--plain-http", ref} }
	runs := 0
	cl := client{
		push: func(t *testing.T, im *imagetest.Image, ref string) {
			c.Run(t, "image", "import", "--local", writeArchive(t, im, ref))
			c.Run(t, "image", "push", "--plain-http", ref)
		},
		pull: func(t *testing.T, ref string) { c.Run(t, pull(ref)...) },
		output: func(t *testing.T, ref string) string {
			runs++
			return c.Run(t, "run", "--rm", ref, fmt.Sprintf("run%d-%d", os.Getpid(), runs))
		},
		forget: func(t *testing.T, ref string) {
			if slices.Contains(strings.Fields(c.Run(t, "image", "ls", "-q")), ref) {
				c.Run(t, "image", "rm", "--sync", ref)
			}
		},
		pullFailing: func(t *testing.T, ref string) string { return c.RunFailing(t, pull(ref)...) },
	}
	testClient(t, cl)
	t.Run("repeated layers", func(t *testing.T) { testRepeatedLayers(t, cl) })
}

// testRepeatedLayers pushes and pulls an image in which one layer occurs twice and the empty layer
// occurs twice.
func testRepeatedLayers(t *testing.T, c client) {
	s := slipway.Start(t, t.TempDir(), nil)
	im := imagetest.Repetitive(t)
	ref := s.Addr + "/repeated:v1"
	c.push(t, im, ref)
	if _, err := s.Client.CheckImage(t.Context(), "repeated", "v1"); err != nil {
		t.Fatal(err)
	}
	c.forget(t, ref)
	c.pull(t, ref)
	if got := c.output(t, ref); got != im.Output {
		t.Errorf("the pulled image prints %q, want %q", got, im.Output)
	}
	c.forget(t, ref)
}

func removeAll(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}
