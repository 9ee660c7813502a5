package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// pusher is a program that compresses layers and pushes them.
type pusher struct {
	name string
	push func(t *testing.T, im *imagetest.Image, ref string)
	// stays says that the program pushes layers uncompressed, so that there is nothing to drop.
	stays bool
}

// everyPusher returns the programs that people push images with, and compressors that builders run.
func everyPusher(t *testing.T, s *slipway.Server) []pusher {
	t.Helper()
	moby := daemon.StartMoby(t)
	list := []pusher{
		{name: "docker 20.10", push: dockerClient(daemon.StartDocker(t)).push},
		{name: "docker 29 build", push: func(t *testing.T, im *imagetest.Image, ref string) {
			t.Helper()
			moby.Run(t, "build", "-q", "-t", ref, contextOf(t, im))
			moby.Run(t, "push", "-q", ref)
		}},
		{name: "podman", push: podmanClient(t).push},
		{name: "buildah", push: pushBuildah},
		{name: "skopeo", push: func(t *testing.T, im *imagetest.Image, ref string) {
			t.Helper()
			k := newSkopeo(t)
			k.env.Run(t, k.path, "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "docker-archive:"+writeArchive(t, im, ref), "docker://"+ref)
		}},
		{name: "crane append", push: func(t *testing.T, im *imagetest.Image, ref string) {
			t.Helper()
			path := filepath.Join(t.TempDir(), "layer.tar")
			if err := os.WriteFile(path, im.Layers()[0].Tar, 0o600); err != nil {
				t.Fatal(err)
			}
			newCrane(t).run(t, "append", "--new_layer", path, "--new_tag", ref)
		}},
		{name: "jib", push: pushJib},
	}
	for _, command := range []string{"gzip -1", "gzip -6", "gzip -9", "gzip -6 --rsyncable", "pigz -6", "pigz -9", "busybox gzip"} {
		list = append(list, pusher{name: command, push: func(t *testing.T, im *imagetest.Image, ref string) {
			t.Helper()
			repo, tag := splitTag(strings.TrimPrefix(ref, s.Addr+"/"))
			packed := imagetest.NewImage(runtime.GOARCH, imagetest.Layer{Tar: im.Layers()[0].Tar, Gzip: filtered(t, im.Layers()[0].Tar, strings.Fields(command)...)})
			if err := packed.Push(t.Context(), s.Client, repo, tag); err != nil {
				t.Fatal(err)
			}
		}})
	}
	return append(list, pusher{name: "docker 29 load", push: dockerClient(moby).push, stays: true})
}

// pushBuildah builds an image and pushes it.
func pushBuildah(t *testing.T, im *imagetest.Image, ref string) {
	t.Helper()
	path := tool.System(t, "buildah")
	env, global := containersEnv(t)
	env.Run(t, path, append(global[:len(global):len(global)], "bud", "--isolation", "chroot", "-q", "-t", ref, contextOf(t, im))...)
	env.Run(t, path, append(global[:len(global):len(global)], "push", "-q", "--tls-verify=false", ref)...)
}

// jib is the version of jib's plugin of Maven that scripts/setup.sh fetches.
const jib = "3.5.2"

// pushJib builds an image of the layer's files with jib, which builds images of Java programs
// without a daemon, and pushes it. Jib refuses to push while Maven is offline, but Maven has all
// it needs in the local repository.
func pushJib(t *testing.T, im *imagetest.Image, ref string) {
	t.Helper()
	dir, repository := t.TempDir(), tool.Kept(t, "jib-"+jib)
	env := tool.NewEnv(dir)
	layer, files := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "files")
	pom := "<project><modelVersion>4.0.0</modelVersion><groupId>test</groupId><artifactId>image</artifactId><version>1</version></project>"
	for path, data := range map[string][]byte{layer: im.Layers()[0].Tar, filepath.Join(dir, "pom.xml"): []byte(pom)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{files, filepath.Join(dir, "target", "classes")} { // jib expects compiled classes
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	env.Run(t, tool.System(t, "tar"), "-xf", layer, "-C", files)
	env.Run(t, tool.System(t, "mvn"), "-q", "-B", "-Dmaven.repo.local="+repository, "com.google.cloud.tools:jib-maven-plugin:"+jib+":build",
		"-Djib.from.image=scratch", "-Djib.to.image="+ref, "-Djib.allowInsecureRegistries=true", "-Djib.extraDirectories.paths="+files,
		"-Djib.container.entrypoint=/hello", "-Djib.serialize=true", "-Djib.disableUpdateChecks=true")
}

// contextOf returns a directory from which a builder makes an image with the layer of im.
func contextOf(t *testing.T, im *imagetest.Image) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string][]byte{"Dockerfile": []byte("FROM scratch\nADD layer.tar /\nCMD [\"/hello\"]\n"), "layer.tar": im.Layers()[0].Tar} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// filtered returns what a program of the operating system makes of data.
func filtered(t *testing.T, data []byte, command ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool.System(t, command[0]), append(command[1:], "-c")...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(data), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return out
}

// ownImage returns an image of one layer that no other name gives: a program, text and noise.
func ownImage(t *testing.T, name string) *imagetest.Image {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(len(name)), uint64(name[0])+uint64(name[len(name)-1])<<8))
	var text, random []byte
	for len(text) < 1_000_000 {
		text = fmt.Appendf(text, "%s writes line %d of its own text, with the number %x in it\n", name, len(text), r.Uint32N(1<<(1+r.IntN(31))))
	}
	for range 100_000 {
		random = append(random, byte(r.Uint32()))
	}
	im := imagetest.NewImage(runtime.GOARCH, imagetest.NewLayer(
		imagetest.File{Name: "data/"}, imagetest.File{Name: "data/random", Data: random}, imagetest.File{Name: "data/text", Data: text},
		imagetest.File{Name: "hello", Mode: 0o755, Data: imagetest.HelloProgram(t)}))
	return im
}

// recipeCounts is what a server says of its recipes.
type recipeCounts struct {
	Layers, Bytes, Waiting, Refused int64
	RecipeBytes                     int64 `json:"recipe_bytes"`
}

func countRecipes(t *testing.T, s *slipway.Server) recipeCounts {
	t.Helper()
	var st struct{ Recipes recipeCounts }
	if err := json.Unmarshal([]byte(s.Run("status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	return st.Recipes
}

// TestDroppedPushers pushes an image with each program that people push with. Each layer must be
// dropped, which takes a small recipe only if the program's encoder was predicted, and must be
// pulled with its digest by another program.
func TestDroppedPushers(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: dropping})
	c := newCrane(t)
	const most = 0.5 // percent of a layer that its recipe may take
	var before recipeCounts
	for i, p := range everyPusher(t, s) {
		repo := fmt.Sprintf("pushed/p%d", i)
		ref := s.Addr + "/" + repo + ":v1"
		t.Run(p.name, func(t *testing.T) {
			p.push(t, ownImage(t, p.name), ref)
			m, err := s.Client.CheckImage(t.Context(), repo, "v1")
			if err != nil {
				t.Fatal(err)
			}
			layers, size := gzipLayers(t, s, repo, m)
			if p.stays != (layers == 0) {
				t.Fatalf("it pushes %d compressed layers", layers)
			}
			s.Converted()
			waitDropped(t, s, before.Layers+layers)
			now := countRecipes(t, s)
			recipe := now.RecipeBytes - before.RecipeBytes
			if now.Layers-before.Layers != layers || now.Bytes-before.Bytes != size || !p.stays && now.Refused != 0 {
				t.Errorf("dropped %+v, before %+v; it pushed %d layers of %d bytes", now, before, layers, size)
			}
			if layers > 0 && (recipe == 0 || float64(recipe) > most/100*float64(size)) {
				t.Errorf("the recipe takes %d bytes of %d: its encoder is not predicted", recipe, size)
			}
			if !p.stays { // crane expects that layers are compressed
				c.run(t, "validate", "--remote", ref)
			}
			if _, err := s.Client.CheckImage(t.Context(), repo, "v1"); err != nil {
				t.Error(err)
			}
			t.Logf("%d layers of %d bytes are dropped, recipes of %d bytes, %.3f %%", layers, size, recipe, 100*float64(recipe)/float64(max(1, size)))
			before = now
		})
	}
	s.Run("fsck")
}

// gzipLayers returns the number and the size of the compressed layers that are large enough to be
// dropped.
func gzipLayers(t *testing.T, s *slipway.Server, repo string, m *wire.Manifest) (layers, size int64) {
	t.Helper()
	var doc wire.Document
	if err := json.Unmarshal(m.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	for _, d := range doc.Manifests { // an index of one image, and of what attests it
		child, err := s.Client.GetManifest(t.Context(), repo, d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		n, bytes := gzipLayers(t, s, repo, child)
		layers, size = layers+n, size+bytes
	}
	for _, l := range doc.Layers {
		if l.Size >= 64<<10 && strings.HasSuffix(l.MediaType, "gzip") {
			layers, size = layers+1, size+l.Size
		}
	}
	return layers, size
}
