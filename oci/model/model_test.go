package model_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/model"
	"example.org/slipway/serve/servetest"
)

func newRegistry(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(servetest.Start(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func both() []ocispec.Platform {
	return []ocispec.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}
}

// random returns n bytes that do not compress.
func random(seed byte, n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return string(b)
}

// write makes a directory of files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func get[T any](t *testing.T, reg *client.Client, repo string, d oci.Digest, content []byte) (v T) {
	t.Helper()
	if content == nil {
		content = blob(t, reg, repo, d)
	}
	if err := json.Unmarshal(content, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func blob(t *testing.T, reg *client.Client, repo string, d oci.Digest) []byte {
	t.Helper()
	r, err := reg.GetBlob(t.Context(), repo, d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpack returns the files of an image for a platform as a runtime has them, and how many layers
// it has. Archives must have the digests that the configuration names.
func unpack(t *testing.T, reg *client.Client, repo, ref, arch string) (files map[string]string, layers int) {
	t.Helper()
	top, err := reg.GetManifest(t.Context(), repo, ref)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, d := range get[ocispec.Index](t, reg, repo, "", top.Bytes).Manifests {
		if d.Platform.OS != "linux" || d.Platform.Architecture != arch {
			continue
		}
		got, err := reg.GetManifest(t.Context(), repo, string(d.Digest))
		if err != nil {
			t.Fatal(err)
		}
		m := get[ocispec.Manifest](t, reg, repo, "", got.Bytes)
		config := get[ocispec.Image](t, reg, repo, m.Config.Digest, nil)
		if config.Architecture != arch || len(config.RootFS.DiffIDs) != len(m.Layers) {
			t.Fatalf("the configuration is for %s with %d of %d layers", config.Architecture, len(config.RootFS.DiffIDs), len(m.Layers))
		}
		for i, l := range m.Layers {
			b := plain(t, l.MediaType, blob(t, reg, repo, l.Digest))
			if got := oci.SHA256(b); got != config.RootFS.DiffIDs[i] {
				t.Errorf("the archive in layer %d is %s, and the configuration says %s", i, got, config.RootFS.DiffIDs[i])
			}
			untar(t, b, files)
		}
		return files, len(m.Layers)
	}
	t.Fatalf("no image for %s", arch)
	return nil, 0
}

func plain(t *testing.T, mediaType string, b []byte) []byte {
	t.Helper()
	var r io.Reader = bytes.NewReader(b)
	var err error
	switch mediaType {
	case ocispec.MediaTypeImageLayer:
	case ocispec.MediaTypeImageLayerGzip:
		r, err = gzip.NewReader(r)
	case ocispec.MediaTypeImageLayerZstd:
		r, err = zstd.NewReader(r)
	default:
		t.Fatalf("no runtime unpacks a %s", mediaType)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func untar(t *testing.T, b []byte, into map[string]string) {
	t.Helper()
	dirs := map[string]bool{".": true}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Clean(h.Name)
		if !dirs[filepath.Dir(name)] {
			t.Errorf("%s comes before its directory", name)
		}
		if h.Typeflag == tar.TypeDir {
			dirs[name] = true
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		into[name] = string(content)
	}
}

// TestDir pushes a directory, the same again after it was copied, and another version.
func TestDir(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	reg := newRegistry(t)
	files := map[string]string{
		"config.json": "{}", "tokenizer/vocab.txt": "a\nb\n", "empty": "",
		"model-00001-of-00002.safetensors": random(1, 17<<20), "deep/er/model-00002-of-00002.safetensors": random(2, 16<<20),
	}
	push := func(files map[string]string, tag string) model.Pushed {
		t.Helper()
		with := maps.Clone(files)
		with[".git/HEAD"], with[".cache/huggingface/x"] = "x", "x"
		m, err := model.Dir(write(t, with))
		if err != nil {
			t.Fatal(err)
		}
		var read, sent int64
		p, err := model.Push(t.Context(), reg, m, model.Options{Repo: "models/a", Tag: tag, Platforms: both(), Progress: func(r, s int64) { read, sent = r, s }})
		if err != nil {
			t.Fatal(err)
		}
		if read < p.Bytes || sent > read {
			t.Errorf("%s: %d bytes read and %d sent of %d were told", tag, read, sent, p.Bytes)
		}
		return p
	}
	first := push(files, "1")
	if first.Layers != 3 || first.Sent != 3 || first.Files != 5 {
		t.Errorf("pushed %+v, want five files in three layers", first)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if got, _ := unpack(t, reg, "models/a", "1", arch); !maps.Equal(got, files) {
			t.Errorf("the files of %s are not those that were pushed", arch)
		}
	}
	if again := push(files, "1-again"); again.Digest != first.Digest || again.Sent != 0 {
		t.Errorf("the same files are %s, of which %d layers were sent; before %s", again.Digest, again.Sent, first.Digest)
	}
	files["model-00001-of-00002.safetensors"] = random(3, 17<<20)
	if next := push(files, "2"); next.Digest == first.Digest || next.Sent != 1 {
		t.Errorf("another version is %+v, want one layer to be sent", next)
	}
	if got, _ := unpack(t, reg, "models/a", "2", "amd64"); !maps.Equal(got, files) {
		t.Error("the files of the other version are not those that were pushed")
	}
}

// TestDirLinks checks that links to files are packed as files, as in the cache of Hugging Face,
// and that nothing else is packed.
func TestDirLinks(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	dir := write(t, map[string]string{"blobs/1": "one", "snapshots/rev/own": "own"})
	rev := filepath.Join(dir, "snapshots/rev")
	if err := os.Symlink("../../blobs/1", filepath.Join(rev, "model.gguf")); err != nil {
		t.Fatal(err)
	}
	m, err := model.Dir(rev)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.Push(t.Context(), reg, m, model.Options{Repo: "a", Tag: "1", Platforms: both()}); err != nil {
		t.Fatal(err)
	}
	got, _ := unpack(t, reg, "a", "1", "arm64")
	if d := cmp.Diff(map[string]string{"own": "own", "model.gguf": "one"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for name, target := range map[string]string{"to a directory": dir, "to nothing": "nowhere", "to a device": os.DevNull} {
		if err := os.Symlink(target, filepath.Join(rev, "link")); err != nil {
			t.Fatal(err)
		}
		if _, err := model.Dir(rev); err == nil {
			t.Errorf("a link %s is taken in", name)
		}
		if err := os.Remove(filepath.Join(rev, "link")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := model.Dir(t.TempDir()); err == nil {
		t.Error("an empty directory is a model")
	}
}

// TestChangedMeanwhile checks that a file that changes during the push is not pushed.
func TestChangedMeanwhile(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	dir := write(t, map[string]string{"a": "before"})
	m, err := model.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"longer": "before and after", "shorter": "b"} {
		if err := os.WriteFile(filepath.Join(dir, "a"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := model.Push(t.Context(), reg, m, model.Options{Repo: "a", Tag: "1", Platforms: both()}); err == nil {
			t.Errorf("a file that became %s is pushed: %+v", name, p)
		}
	}
	if _, err := reg.GetManifest(t.Context(), "a", "1"); err == nil {
		t.Error("there is an image of it")
	}
}

// layer is a layer of an artifact to push.
type layer struct{ mediaType, path, content string }

// artifact pushes a model as other tools package it.
func artifact(t *testing.T, reg *client.Client, repo, tag, config string, layers ...layer) oci.Digest {
	t.Helper()
	put := func(mediaType, content string) oci.Descriptor {
		d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256([]byte(content)), Size: int64(len(content))}
		if _, err := reg.PushBlob(t.Context(), repo, d.Digest, d.Size, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: put(config, `{"config":{}}`), Layers: []oci.Descriptor{}}
	for _, l := range layers {
		d := put(l.mediaType, l.content)
		if l.path != "" {
			d.Annotations = map[string]string{"org.cncf.model.filepath": l.path}
		}
		m.Layers = append(m.Layers, d)
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	res, err := reg.PutManifest(t.Context(), repo, oci.PutManifest{Bytes: b, Tags: []string{tag}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Digest
}

// packed returns an archive of one file, compressed as the last part of the media type says.
func packed(t *testing.T, mediaType, name, content string) layer {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch {
	case strings.HasSuffix(mediaType, "+gzip"):
		w = gzip.NewWriter(&b)
	case strings.HasSuffix(mediaType, "+zstd"):
		w, err = zstd.NewWriter(&b)
	default:
		w = nopCloser{&b}
	}
	if err != nil {
		t.Fatal(err)
	}
	z := tar.NewWriter(w)
	err = z.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, ModTime: time.Unix(1, 0)})
	if err == nil {
		_, err = io.WriteString(z, content)
	}
	if err = errors.Join(err, z.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return layer{mediaType, "", b.String()}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

const (
	modelPack = "application/vnd.cncf.model.config.v1+json"
	docker    = "application/vnd.docker.ai.model.config.v0.2+json"
)

// TestArtifact makes images of models that others have packaged, in the repository of the model
// and in another one. The model stays as it is.
func TestArtifact(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	reg := newRegistry(t)
	for name, c := range map[string]struct {
		config string
		layers []layer
		want   map[string]string
	}{
		"modelpack": {modelPack, []layer{
			{"application/vnd.cncf.model.weight.v1.raw", "weights/model.safetensors", random(1, 17<<20)},
			{"application/vnd.cncf.model.weight.config.v1.raw", "./config.json", "{}"},
			packed(t, "application/vnd.cncf.model.doc.v1.tar", "README.md", "read me"),
			packed(t, "application/vnd.cncf.model.code.v1.tar+gzip", "run.py", "run"),
			packed(t, "application/vnd.cncf.model.dataset.v1.tar+zstd", "data", "data"),
		}, map[string]string{"weights/model.safetensors": random(1, 17<<20), "config.json": "{}", "README.md": "read me", "run.py": "run", "data": "data"}},
		"docker": {docker, []layer{
			{"application/vnd.docker.ai.gguf.v3", "", "one"}, {"application/vnd.docker.ai.gguf.v3", "", "two"},
			{"application/vnd.docker.ai.mmproj", "", "eye"}, {"application/vnd.docker.ai.license", "", "free"},
			{"application/vnd.docker.ai.chat.template.jinja", "", "hello"}, {"application/vnd.docker.ai.model.file", "conf/x.json", "[]"},
		}, map[string]string{
			"model-00001-of-00002.gguf": "one", "model-00002-of-00002.gguf": "two", "model.mmproj": "eye", "LICENSE": "free",
			"template.jinja": "hello", "conf/x.json": "[]",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := artifact(t, reg, name, "1", c.config, c.layers...)
			for _, to := range []string{name, name + "/image"} {
				m, err := model.Artifact(t.Context(), reg, name, "1")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := model.Push(t.Context(), reg, m, model.Options{Repo: to, Tag: "1-image", Platforms: both()}); err != nil {
					t.Fatal(err)
				}
				if got, _ := unpack(t, reg, to, "1-image", "amd64"); !maps.Equal(got, c.want) {
					t.Errorf("%s has other files than the model", to)
				}
			}
			if d, err := reg.ResolveManifest(t.Context(), name, "1"); err != nil || d.Digest != before {
				t.Errorf("the model is now %s, and was %s; error %v", d.Digest, before, err)
			}
			made, err := reg.GetManifest(t.Context(), name, "1-image")
			if err != nil || !strings.Contains(string(made.Bytes), string(before)) {
				t.Errorf("the image does not say what it was made of: %v", err)
			}
		})
	}
}

// TestArtifactRefuses checks that a model is refused, and nothing is pushed, if a file would be
// outside of its directory or if two files would be one.
func TestArtifactRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	reg := newRegistry(t)
	const raw = "application/vnd.cncf.model.weight.v1.raw"
	i := 0
	for name, c := range map[string]struct {
		config string
		layers []layer
	}{
		"a path above":      {modelPack, []layer{{raw, "../x", "1"}}},
		"a path through":    {modelPack, []layer{{raw, "a/../../x", "1"}}},
		"a path from above": {modelPack, []layer{{raw, "/etc/passwd", "1"}}},
		"no path":           {modelPack, []layer{{raw, "", "1"}}},
		"one path twice":    {modelPack, []layer{{raw, "a", "1"}, {raw, "a", "2"}}},
		"file as directory": {modelPack, []layer{{raw, "a", "1"}, {raw, "a/b", "2"}}},
		"no files":          {modelPack, nil},
		"an image":          {ocispec.MediaTypeImageConfig, []layer{{ocispec.MediaTypeImageLayer, "a", "1"}}},
		"unknown layer":     {modelPack, []layer{{"application/x-something", "a", "1"}}},
		"no gzip":           {modelPack, []layer{{"application/vnd.cncf.model.weight.v1.tar+gzip", "", "1"}}},
	} {
		i++
		repo := fmt.Sprintf("refused/%d", i)
		artifact(t, reg, repo, "1", c.config, c.layers...)
		if err := imageOf(t.Context(), reg, repo); err == nil {
			t.Errorf("%s: an image is made of it", name)
		}
		if _, err := reg.ResolveManifest(t.Context(), repo, "2"); err == nil {
			t.Errorf("%s: there is an image", name)
		}
	}
}

func imageOf(ctx context.Context, reg *client.Client, repo string) error {
	m, err := model.Artifact(ctx, reg, repo, "1")
	if err != nil {
		return err
	}
	_, err = model.Push(ctx, reg, m, model.Options{Repo: repo, Tag: "2", Platforms: both()})
	return err
}
