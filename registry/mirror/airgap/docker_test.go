package airgap_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/airgap"
)

// saved is an image in the form that docker save writes.
type saved struct {
	tags   []string
	layers []string
}

func (s saved) config() []byte {
	var ids []oci.Digest
	for _, l := range s.layers {
		ids = append(ids, oci.SHA256([]byte(l)))
	}
	b, err := json.Marshal(map[string]any{"os": "linux", "architecture": "amd64", "rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	if err != nil {
		panic(err) // the input is effectively a constant
	}
	return b
}

// archive is a tar file under construction.
type archive struct {
	t    testing.TB
	buf  bytes.Buffer
	w    *tar.Writer
	have map[string]bool
}

func newArchive(t testing.TB) *archive {
	a := &archive{t: t, have: map[string]bool{}}
	a.w = tar.NewWriter(&a.buf)
	return a
}

func (a *archive) add(h *tar.Header, body []byte) {
	a.t.Helper()
	if a.have[h.Name] {
		return
	}
	a.have[h.Name] = true
	h.Mode, h.Size = 0o644, int64(len(body))
	if err := a.w.WriteHeader(h); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.w.Write(body); err != nil {
		a.t.Fatal(err)
	}
}

func (a *archive) file(name string, body []byte) {
	a.t.Helper()
	a.add(&tar.Header{Typeflag: tar.TypeReg, Name: name}, body)
}

func (a *archive) json(name string, v any) {
	a.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		a.t.Fatal(err)
	}
	a.file(name, b)
}

func (a *archive) bytes() []byte {
	a.t.Helper()
	if err := a.w.Close(); err != nil {
		a.t.Fatal(err)
	}
	return a.buf.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type listed struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func hex(b []byte) string { return oci.SHA256(b).Encoded() }

// flavours lists the ways in which tools write images for docker load.
var flavours = map[string]func(a *archive, images []saved){
	// Docker before 25 writes a directory for each layer, and links to earlier layers.
	"docker 20": func(a *archive, images []saved) {
		var list []listed
		seen := map[string]string{}
		for i, im := range images {
			l := listed{Config: hex(im.config()) + ".json", RepoTags: im.tags}
			a.file(l.Config, im.config())
			for j, layer := range im.layers {
				dir := hex(fmt.Append(nil, i, j))
				name := dir + "/layer.tar"
				a.file(dir+"/VERSION", []byte("1.0"))
				if first, dup := seen[layer]; dup {
					a.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "../" + first}, nil)
				} else {
					a.file(name, []byte(layer))
					seen[layer] = name
				}
				l.Layers = append(l.Layers, name)
			}
			list = append(list, l)
		}
		a.json("repositories", map[string]any{})
		a.json("manifest.json", list)
	},
	// skopeo and podman write layers by digest, and the directories as links.
	"skopeo": func(a *archive, images []saved) {
		var list []listed
		for i, im := range images {
			l := listed{Config: hex(im.config()) + ".json", RepoTags: im.tags}
			for j, layer := range im.layers {
				name := hex([]byte(layer)) + ".tar"
				a.file(name, []byte(layer))
				link := hex(fmt.Append(nil, i, j)) + "/layer.tar"
				a.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: "../" + name}, nil)
				l.Layers = append(l.Layers, link)
			}
			a.file(l.Config, im.config())
			list = append(list, l)
		}
		a.json("manifest.json", list)
	},
	// crane and kaniko write compressed layers.
	"crane": func(a *archive, images []saved) {
		var list []listed
		for _, im := range images {
			l := listed{Config: "sha256:" + hex(im.config()), RepoTags: im.tags}
			a.file(l.Config, im.config())
			for _, layer := range im.layers {
				z := gzipped(a.t, []byte(layer))
				a.file(hex(z)+".tar.gz", z)
				l.Layers = append(l.Layers, hex(z)+".tar.gz")
			}
			list = append(list, l)
		}
		a.json("manifest.json", list)
	},
	// Bazel writes a layout without an index. Here it has hard links and names relative to the
	// current directory.
	"blobs": func(a *archive, images []saved) {
		var list []listed
		for _, im := range images {
			l := listed{Config: "blobs/sha256/" + hex(im.config()), RepoTags: im.tags}
			a.file("./"+l.Config, im.config())
			for _, layer := range im.layers {
				z := gzipped(a.t, []byte(layer))
				a.file("./blobs/sha256/"+hex(z), z)
				a.add(&tar.Header{Typeflag: tar.TypeLink, Name: "./" + hex(z) + ".tgz", Linkname: "./blobs/sha256/" + hex(z)}, nil)
				l.Layers = append(l.Layers, hex(z)+".tgz")
			}
			list = append(list, l)
		}
		a.json("./manifest.json", list)
	},
	"docker 25":          func(a *archive, images []saved) { docker25(a, images, true, false) },
	"docker 25, by list": func(a *archive, images []saved) { docker25(a, images, false, false) },
	"docker 29":          func(a *archive, images []saved) { docker25(a, images, true, true) },
}

// docker25 also writes a layout. Its index may name the images or leave that to manifest.json. It
// may have an index for each image, with platforms that are absent and with attestations of the
// build.
func docker25(a *archive, images []saved, named, multi bool) {
	var list []listed
	index := map[string]any{"schemaVersion": 2}
	var entries []map[string]any
	for _, im := range images {
		l := listed{Config: "blobs/sha256/" + hex(im.config()), RepoTags: im.tags}
		a.file(l.Config, im.config())
		m := map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIManifest,
			"config": oci.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: oci.SHA256(im.config()), Size: int64(len(im.config()))}}
		layers := []oci.Descriptor{}
		for _, layer := range im.layers {
			name := "blobs/sha256/" + hex([]byte(layer))
			a.file(name, []byte(layer))
			l.Layers = append(l.Layers, name)
			layers = append(layers, oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256([]byte(layer)), Size: int64(len(layer))})
		}
		m["layers"] = layers
		d := a.blob(oci.MediaTypeOCIManifest, m)
		if multi {
			m["annotations"] = map[string]string{"another": "platform"}
			m["layers"] = []oci.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.SHA256([]byte("not here")), Size: 8}}
			other := a.blob(oci.MediaTypeOCIManifest, m) // its layer is absent
			gone := oci.Descriptor{MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte("gone")), Size: 4}
			d = a.blob(oci.MediaTypeOCIIndex, map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeOCIIndex, "manifests": []oci.Descriptor{other, d, gone}})
		}
		for _, tag := range append([]string(nil), im.tags...) {
			e := map[string]any{"mediaType": d.MediaType, "digest": d.Digest, "size": d.Size}
			_, short, _ := strings.Cut(tag, ":")
			notes := map[string]string{"org.opencontainers.image.ref.name": short}
			if named {
				notes["io.containerd.image.name"] = tag
			}
			e["annotations"] = notes
			entries = append(entries, e)
		}
		list = append(list, l)
	}
	index["manifests"] = entries
	a.json("index.json", index)
	a.json("manifest.json", list)
	a.file("oci-layout", []byte(layout))
}

func (a *archive) blob(mediaType string, v any) oci.Descriptor {
	a.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		a.t.Fatal(err)
	}
	a.file("blobs/sha256/"+hex(b), b)
	return oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
}

// wantSaved wants a tag to be the image im: its config, and layers that unpack to the original
// content.
func wantSaved(t *testing.T, dst store, repo, ref string, im saved) {
	t.Helper()
	m, err := dst.GetManifest(t.Context(), repo, ref)
	if err != nil {
		t.Errorf("%s:%s: %v", repo, ref, err)
		return
	}
	var doc struct {
		Config            oci.Descriptor
		Layers, Manifests []oci.Descriptor
	}
	decode(t, m.Bytes, &doc)
	if len(doc.Manifests) > 0 {
		wantSaved(t, dst, repo, string(doc.Manifests[1].Digest), im)
		return
	}
	read := func(d oci.Descriptor) []byte {
		t.Helper()
		c, err := dst.GetBlob(t.Context(), repo, d.Digest)
		if err != nil {
			t.Fatalf("%s:%s: %v", repo, ref, err)
		}
		defer c.Close()
		plain, how, err := airgap.Unpack(c)
		if err != nil {
			t.Fatal(err)
		}
		if packed := how != ""; packed != strings.HasSuffix(d.MediaType, "gzip") {
			t.Errorf("%s:%s: a layer of the type %s is packed with %q", repo, ref, d.MediaType, how)
		}
		b, err := io.ReadAll(plain)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if got := read(doc.Config); !bytes.Equal(got, im.config()) {
		t.Errorf("%s:%s: the config is %s", repo, ref, got)
	}
	if len(doc.Layers) != len(im.layers) {
		t.Fatalf("%s:%s: got %d layers, want %d", repo, ref, len(doc.Layers), len(im.layers))
	}
	for i, l := range doc.Layers {
		if got := read(l); string(got) != im.layers[i] {
			t.Errorf("%s:%s: layer %d is %q, want %q", repo, ref, i, got, im.layers[i])
		}
	}
}

// TestImportSaved imports the archives of each tool, uncompressed and compressed. Each holds
// several images with several tags that share layers.
func TestImportSaved(t *testing.T) {
	layer := func(s string) string { return strings.Repeat(s, 1000) }
	images := []saved{
		{[]string{"docker.io/library/a:1", "docker.io/library/a:latest", "docker.io/team/a:1"}, []string{layer("base"), layer("a"), layer("base")}},
		{[]string{"docker.io/library/b:2"}, []string{layer("base"), layer("b")}},
		{[]string{"docker.io/library/empty:1"}, nil},
	}
	packings := map[string]func([]byte) []byte{
		"":     func(b []byte) []byte { return b },
		"gzip": func(b []byte) []byte { return gzipped(t, b) },
		"zstd": func(b []byte) []byte {
			z, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer z.Close()
			return z.EncodeAll(b, nil)
		},
	}
	for name, write := range flavours {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t)
			write(a, images)
			file := a.bytes()
			for packing, pack := range packings {
				plain, how, err := airgap.Unpack(bytes.NewReader(pack(file)))
				if err != nil || string(how) != packing {
					t.Fatalf("%s: unpacked as %q, %v", packing, how, err)
				}
				if b, err := io.ReadAll(plain); err != nil || !bytes.Equal(b, file) {
					t.Fatalf("%s: another file, %v", packing, err)
				}
			}
			dst := newStore(t)
			for range 2 { // an import can be repeated
				p, err := open(t, file).Import(t.Context(), dst, nil)
				if err != nil || p.Images != 5 || p.ImagesTotal != 5 {
					t.Fatalf("Import: %+v, %v", p, err)
				}
			}
			for _, im := range images {
				for _, tag := range im.tags {
					repo, ref, _ := strings.Cut(tag, ":")
					wantSaved(t, dst, repo, ref, im)
				}
			}
		})
	}
}

func TestUnpackBzip2(t *testing.T) {
	b, err := base64.StdEncoding.DecodeString("QlpoOTFBWSZTWSlPnJoAAAdRgAAQQAAuaEyAIAAxANABRphNP0jgXVi+cUrBdyRThQkClPnJoA==")
	if err != nil {
		t.Fatal(err)
	}
	plain, how, err := airgap.Unpack(bytes.NewReader(b))
	if err != nil || how != "bzip2" {
		t.Fatalf("got %q, %v", how, err)
	}
	if got, err := io.ReadAll(plain); err != nil || string(got) != "what is packed\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, how, err = airgap.Unpack(strings.NewReader("\xfd7zXZ\x00and so on")); err == nil || how != "xz" {
		t.Errorf("xz: got %q, %v", how, err)
	}
}

// TestImportSavedProblems checks that a faulty image does not keep the others out and is reported.
func TestImportSavedProblems(t *testing.T) {
	good, other := saved{[]string{"docker.io/library/good:1"}, []string{"one layer"}}, saved{[]string{"docker.io/library/other:1"}, []string{"another layer"}}
	for want, write := range map[string]func(a *archive) listed{
		"save it by a name": func(a *archive) listed {
			a.file("l.tar", []byte(other.layers[0]))
			return listed{Config: "c.json", Layers: []string{"l.tar"}}
		},
		"the file lacks \"l.tar\"": func(*archive) listed {
			return listed{"c.json", other.tags, []string{"l.tar"}}
		},
		"the file lacks \"none.json\"": func(*archive) listed {
			return listed{"none.json", other.tags, nil}
		},
		"names 1 layers and manifest.json 0": func(*archive) listed {
			return listed{"c.json", other.tags, nil}
		},
		"DIGEST_INVALID": func(a *archive) listed {
			a.file("l.tar", []byte("other bytes"))
			return listed{"c.json", other.tags, []string{"l.tar"}}
		},
		"it is not sha256:": func(a *archive) listed {
			a.file("l.tar", gzipped(a.t, []byte("other bytes")))
			return listed{"c.json", other.tags, []string{"l.tar"}}
		},
		"NAME_INVALID": func(a *archive) listed {
			a.file("l.tar", []byte(other.layers[0]))
			return listed{"c.json", []string{"host:5000/app:1"}, []string{"l.tar"}}
		},
		"does not begin with a repository name": func(a *archive) listed {
			a.file("l.tar", []byte(other.layers[0]))
			return listed{"c.json", []string{"Not/A-Name:1"}, []string{"l.tar"}}
		},
		"two images are called docker.io/library/good:1": func(a *archive) listed {
			a.file("l.tar", []byte(other.layers[0]))
			return listed{"c.json", good.tags, []string{"l.tar"}}
		},
		"a": func(a *archive) listed { // links in a circle
			a.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l.tar", Linkname: "l.tar"}, nil)
			return listed{"c.json", other.tags, []string{"l.tar"}}
		},
	} {
		t.Run(want, func(t *testing.T) {
			a := newArchive(t)
			a.file("good.json", good.config())
			a.file("good.tar", []byte(good.layers[0]))
			a.file("c.json", other.config())
			a.json("manifest.json", []listed{{"good.json", good.tags, []string{"good.tar"}}, write(a)})
			dst := newStore(t)
			p, err := open(t, a.bytes()).Import(t.Context(), dst, nil)
			if err == nil || !strings.Contains(err.Error(), want) || p.Images != 1 || p.ImagesTotal != 2 {
				t.Errorf("Import: %+v, %v, want %q", p, err, want)
			}
			wantSaved(t, dst, "docker.io/library/good", "1", good)
		})
	}
}
