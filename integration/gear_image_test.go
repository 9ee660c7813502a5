package integration

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
	"example.org/slipway/integration/internal/wire"
)

// runConfig returns the part of an image's configuration that says how to run it.
func runConfig() map[string]any {
	return map[string]any{
		"Env": []string{"PATH=/usr/bin", "GREETING=good day"}, "Entrypoint": []string{"/bin/app", "--serve"},
		"Cmd": []string{"now"}, "User": "1000:100", "WorkingDir": "/srv", "StopSignal": "SIGINT",
		"Labels":       map[string]string{"org.example.owner": "somebody", "empty": ""},
		"ExposedPorts": map[string]any{"80/tcp": map[string]any{}},
	}
}

// appImage is an image whose layers change each other's files.
func appImage(arch string) *imagetest.Bundle {
	lower := base().Dir("bin/").File("bin/app", "program for "+arch).Dir("srv/").File("srv/old", "old").File("srv/data", strings.Repeat("data ", 1_200_000))
	upper := base().Dir("srv/").File("srv/.wh.old", "").File("srv/new", "new on "+arch).Symlink("srv/link", "new")
	return imagetest.Compose(arch, runConfig(), []imagetest.Layer{lower.Layer(), upper.Layer()})
}

// convert makes a Gear image of an image on the server.
func convert(t *testing.T, s *slipway.Server, image string, args ...string) {
	t.Helper()
	if _, err := slipway.Program(t.Context(), t, append([]string{"convert", s.Addr + "/" + image}, args...)...); err != nil {
		t.Fatal(err)
	}
}

// equalTrees fails the test unless two trees are equal in everything.
func equalTrees(t *testing.T, what, want, got string) {
	t.Helper()
	lines, err := treecmp.Compare(want, got, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) > 0 {
		t.Errorf("%s is another tree:\n%s", what, strings.Join(lines, "\n"))
	}
}

// TestGearImage takes a Gear image through common tools, which must treat it as the ordinary image
// it is.
func TestGearImage(t *testing.T) {
	tool.NeedRoot(t)
	s := slipway.Start(t, t.TempDir(), nil)
	pushed(t, s.Client, "team/app", "v1", appImage(runtime.GOARCH))
	convert(t, s, "team/app:v1")
	original := s.Export("team/app:v1")
	equalTrees(t, "the Gear image's export", original, s.Export("team/app:v1-gear"))
	t.Run("configuration", func(t *testing.T) { checkGearConfig(t, s) })
	t.Run("copies", func(t *testing.T) { copyGear(t, s, original) })
	ref := s.Addr + "/team/app:v1-gear"
	t.Run("docker", func(t *testing.T) {
		d := daemon.StartDocker(t)
		d.Run(t, "pull", "-q", ref)
		checkRun(t, "docker", d.Run(t, "image", "inspect", "--format", "{{json .Config}}", ref))
	})
	t.Run("containerd", func(t *testing.T) {
		c := daemon.StartContainerd(t)
		c.Run(t, pullArgs(ref)...)
		dir := t.TempDir()
		t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
		c.Run(t, "image", "mount", ref, dir)
		checkGearFiles(t, dir)
	})
	t.Run("podman", func(t *testing.T) {
		env, args := containersEnv(t)
		podman := tool.System(t, "podman")
		env.Run(t, podman, append(args, "pull", "-q", "--tls-verify=false", ref)...)
		checkRun(t, "podman", env.Run(t, podman, append(args, "image", "inspect", "--format", "{{json .Config}}", ref)...))
	})
	t.Run("skopeo", func(t *testing.T) {
		k := newSkopeo(t)
		text := k.env.Run(t, k.path, "inspect", "--config", "--tls-verify=false", "docker://"+ref)
		var config struct{ Config json.RawMessage }
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		checkRun(t, "skopeo", string(config.Config))
	})
	s.Alive()
	s.Stop()
	s.Run("fsck")
}

// checkRun checks that a tool shows how to run the original image.
func checkRun(t *testing.T, who, text string) {
	t.Helper()
	var got struct {
		Env, Entrypoint, Cmd []string
		User, WorkingDir     string
		Labels               map[string]string
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%s shows %s: %v", who, text, err)
	}
	want := runConfig()
	if !slices.Equal(got.Env, want["Env"].([]string)) || !slices.Equal(got.Entrypoint, want["Entrypoint"].([]string)) ||
		!slices.Equal(got.Cmd, want["Cmd"].([]string)) || got.User != want["User"] || got.WorkingDir != want["WorkingDir"] {
		t.Errorf("%s shows %s, want what the original says: %v", who, text, want)
	}
	if got.Labels["org.example.owner"] != "somebody" || got.Labels["dev.slipway.gear.version"] != "1" {
		t.Errorf("%s shows the labels %v", who, got.Labels)
	}
}

// checkGearFiles checks that a directory has what a tool without Gear support sees.
func checkGearFiles(t *testing.T, dir string) {
	t.Helper()
	var names []string
	for _, d := range []string{"", ".slipway"} {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, filepath.Join(d, e.Name()))
		}
	}
	if want := []string{".slipway", ".slipway/README", ".slipway/index"}; !slices.Equal(names, want) {
		t.Errorf("the Gear image has the files %v, want %v", names, want)
	}
}

// image reads the manifest and the configuration of an image.
func image(t *testing.T, s *slipway.Server, repo, ref string) (m *wire.Manifest, doc wire.Document, config map[string]any) {
	t.Helper()
	m, err := s.Client.GetManifest(t.Context(), repo, ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(m.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	resp := do(t, s.Client, "GET", "/v2/"+repo+"/blobs/"+doc.Config.Digest, nil, nil)
	if err := json.Unmarshal(resp.Body, &config); err != nil {
		t.Fatal(err)
	}
	return m, doc, config
}

// checkGearConfig compares the configurations of the Gear image and the original
// field by field.
func checkGearConfig(t *testing.T, s *slipway.Server) {
	m, _, want := image(t, s, "team/app", "v1")
	_, doc, got := image(t, s, "team/app", "v1-gear")
	if len(doc.Layers) != 1 || doc.Layers[0].MediaType != imagetest.TypeLayerTar {
		t.Errorf("the Gear image has the layers %+v, want one uncompressed", doc.Layers)
	}
	labels := want["config"].(map[string]any)["Labels"].(map[string]any)
	labels["dev.slipway.gear.version"], labels["dev.slipway.gear.original"] = "1", m.Digest
	for _, c := range []map[string]any{want, got} {
		delete(c, "rootfs")
		delete(c, "history")
	}
	a, errA := json.Marshal(want)
	b, errB := json.Marshal(got)
	if errA != nil || errB != nil || string(a) != string(b) {
		t.Errorf("the Gear image's configuration is\n%s\nwant\n%s", b, a)
	}
}

// copyGear copies the Gear image to a registry without Gear support and back, both in ways that
// change its digest and in ways that do not.
func copyGear(t *testing.T, s *slipway.Server, original string) {
	other := daemon.StartDistribution(t)
	gear, _, _ := image(t, s, "team/app", "v1-gear")
	from := s.Addr + "/team/app:v1-gear"
	k, c := newSkopeo(t), newCrane(t)
	for name, copy := range map[string]func(from, to string){
		"skopeo": func(from, to string) { k.copy(t, "docker://"+from, "docker://"+to) },
		"crane":  func(from, to string) { c.run(t, "copy", from, to) },
	} {
		far := other + "/elsewhere/" + name + ":v1"
		copy(from, far)
		copy(far, s.Addr+"/team/app:back-by-"+name)
		back, _, _ := image(t, s, "team/app", "back-by-"+name)
		if back.Digest != gear.Digest {
			t.Errorf("%s brings back %s, want %s", name, back.Digest, gear.Digest)
		}
		equalTrees(t, "what "+name+" brought back", original, s.Export("team/app:back-by-"+name))
	}
	// With the image its files come to another repository only by a mount, which needs the right to
	// pull. This client does not know where to mount from.
	stranger := newCrane(t)
	stranger.run(t, "copy", other+"/elsewhere/crane:v1", s.Addr+"/other/app:v1")
	if _, err := s.TryExport(t.Context(), "other/app:v1", "--wait=5s"); err == nil {
		t.Errorf("a Gear image can be exported from a repository without its files")
	}
	c.run(t, "copy", from, s.Addr+"/mounted/app:v1")
	equalTrees(t, "what crane mounted into another repository", original, s.Export("mounted/app:v1"))
	for _, format := range []string{"gzip", "zstd"} {
		to := "team/app:as-" + format
		k.env.Run(t, k.path, "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", "--dest-tls-verify=false",
			"--dest-compress", "--dest-compress-format="+format, "docker://"+from, "oci:"+k.layout(to)+":t")
		k.copy(t, "oci:"+k.layout(to)+":t", "docker://"+s.Addr+"/"+to)
		if _, doc, _ := image(t, s, "team/app", "as-"+format); !strings.HasSuffix(doc.Layers[0].MediaType, "+"+format) {
			t.Errorf("skopeo made a layer of %s, want it to be %s", doc.Layers[0].MediaType, format)
		}
		equalTrees(t, "the Gear image in "+format, original, s.Export(to))
	}
}

// TestGearAllPlatforms converts an index, and one platform of it.
func TestGearAllPlatforms(t *testing.T) {
	tool.NeedRoot(t)
	s := slipway.Start(t, t.TempDir(), nil)
	archs := []string{"amd64", "arm64", "s390x"}
	images := map[string]*imagetest.Bundle{}
	for _, arch := range archs {
		images[arch] = appImage(arch)
	}
	pushed(t, s.Client, "team/multi", "v1", imagetest.Index(images, archs...))
	convert(t, s, "team/multi:v1", "--all-platforms")
	m, err := s.Client.CheckImage(t.Context(), "team/multi", "v1-gear")
	if err != nil {
		t.Fatal(err)
	}
	var index wire.Document
	if err := json.Unmarshal(m.Bytes, &index); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, d := range index.Manifests {
		if d.Platform != nil {
			got[d.Platform.OS+"/"+d.Platform.Architecture] = true
		}
	}
	if want := map[string]bool{"linux/amd64": true, "linux/arm64": true, "linux/s390x": true}; !maps.Equal(got, want) || len(index.Manifests) != 3 {
		t.Errorf("the index of Gear images is for %v, want %v", got, want)
	}
	for _, arch := range archs {
		platform := "--platform=linux/" + arch
		tree := s.Export("team/multi:v1", platform)
		equalTrees(t, "the Gear image for "+arch, tree, s.Export("team/multi:v1-gear", platform))
		if b, err := os.ReadFile(filepath.Join(tree, "srv/new")); err != nil || string(b) != "new on "+arch {
			t.Errorf("the image for %s has %q, %v", arch, b, err)
		}
	}
	convert(t, s, "team/multi:v1", "--platform=linux/arm64", "--tag=one")
	if one, _, config := image(t, s, "team/multi", "one"); one.MediaType != imagetest.TypeManifest || config["architecture"] != "arm64" {
		t.Errorf("converted for one platform: a %s for %v", one.MediaType, config["architecture"])
	}
	// Converting the same image again gives the same Gear image.
	convert(t, s, "team/multi:v1", "--all-platforms", "--tag=again")
	if again, err := s.Client.GetManifest(t.Context(), "team/multi", "again"); err != nil || again.Digest != m.Digest {
		t.Errorf("converted again: %+v, %v, want %s", again, err, m.Digest)
	}
	s.Stop()
	s.Run("fsck")
}
