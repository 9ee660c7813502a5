package integration

import (
	"fmt"
	"path/filepath"
	"testing"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// TestMirrorImportSaved imports into mirrors the files that the tools save images as, and pulls and
// runs the images.
func TestMirrorImportSaved(t *testing.T) {
	const one, two = "docker.io/library/hello:v1", "docker.io/team/hello:v2"
	for name, save := range map[string]func(t *testing.T, im *imagetest.Image, file string){
		"docker save, graph driver": func(t *testing.T, im *imagetest.Image, file string) {
			dockerSave(t, daemon.StartDocker(t), im, file, one, two)
		},
		"docker save, containerd": func(t *testing.T, im *imagetest.Image, file string) {
			dockerSave(t, daemon.StartMoby(t), im, file, one, two)
		},
		"ctr export": func(t *testing.T, im *imagetest.Image, file string) {
			c := daemon.StartContainerd(t)
			c.Run(t, "image", "import", "--local", writeArchive(t, im, one))
			c.Run(t, "image", "tag", one, two)
			c.Run(t, "image", "export", "--local", file, one, two)
		},
		"podman save": func(t *testing.T, im *imagetest.Image, file string) {
			podmanSave(t, im, one, two, "save", "-q", "-m", "-o", file, one, two)
		},
		"podman save, oci-archive": func(t *testing.T, im *imagetest.Image, file string) {
			podmanSave(t, im, one, two, "save", "-q", "--format", "oci-archive", "-o", file, one)
		},
		"skopeo, docker-archive": func(t *testing.T, im *imagetest.Image, file string) {
			s := newSkopeo(t)
			s.env.Run(t, s.path, "--insecure-policy", "copy", "-q", "--additional-tag", two, "oci:"+writeImage(t, &im.Bundle)+":t", "docker-archive:"+file+":"+one)
		},
		"skopeo, oci-archive": func(t *testing.T, im *imagetest.Image, file string) {
			newSkopeo(t).copy(t, "oci:"+writeImage(t, &im.Bundle)+":t", "oci-archive:"+file+":"+one)
		},
		"docker load": func(t *testing.T, im *imagetest.Image, file string) { im.WriteDockerArchive(t, file, one) },
	} {
		t.Run(name, func(t *testing.T) {
			im := imagetest.Hello(t)
			file := filepath.Join(t.TempDir(), "saved.tar")
			save(t, im, file)
			s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: "version: 0.1\nproxy: {offline: true, upstreams: [{name: docker.io}]}\n"})
			t.Log(s.Run("mirror", "import", file))
			refs := []string{one}
			if name != "skopeo, oci-archive" && name != "podman save, oci-archive" && name != "docker load" {
				refs = append(refs, two)
			}
			for _, ref := range refs {
				sk := newSkopeo(t)
				at := fmt.Sprintf("%s/%s", s.Addr, ref)
				sk.pull(t, at)
				if _, output := sk.read(t, at); output != im.Output {
					t.Errorf("%s prints %q, want %q", ref, output, im.Output)
				}
			}
		})
	}
}

func dockerSave(t *testing.T, d *daemon.Docker, im *imagetest.Image, file, one, two string) {
	t.Helper()
	d.Run(t, "load", "-q", "-i", writeArchive(t, im, one))
	d.Run(t, "tag", one, two)
	d.Run(t, "save", "-o", file, one, two)
}

func podmanSave(t *testing.T, im *imagetest.Image, one, two string, args ...string) {
	t.Helper()
	path := tool.System(t, "podman")
	env, global := containersEnv(t)
	run := func(args ...string) { env.Run(t, path, append(append([]string{}, global...), args...)...) }
	run("load", "-q", "-i", writeArchive(t, im, one))
	run("tag", one, two)
	run(args...)
}
