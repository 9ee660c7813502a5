// Package model makes images of models, which container runtimes can mount as volumes.
//
// A model is a set of files: those of a directory ([Dir]), or those in an artifact of
// ModelPack or of Docker ([Artifact]). The layers of such artifacts are plain files, so
// no runtime can unpack them. [Push] makes an ordinary image of either, whose layers are
// uncompressed archives. Each large file has a layer of its own, so that a later version
// sends only what changed.
//
// The same files become the same image, with the same digest: archives hold no times,
// owners or other properties of the files' origin.
package model

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// ownLayer is the smallest size, in bytes, of a file that gets a separate layer. For
// smaller files, a request for a layer costs more than another version would save.
const ownLayer = 16 << 20

// Model is the files of a model, in the order of their paths.
type Model struct {
	files []file
	// archives are layers that are archives already. They are below the layers that are
	// made of files.
	archives []archive
	// from holds annotations that say what the model was made from.
	from map[string]string
}

// file is one file of a model.
type file struct {
	path string // relative, with slashes
	size int64
	exec bool
	open func(ctx context.Context) (io.ReadCloser, error)
}

// archive is a blob of a registry that can be a layer as it is.
type archive struct {
	desc   oci.Descriptor // with the media type of a layer
	repo   string
	diffID oci.Digest
}

// add adds a file. It is an error if the path leads out of the model or is taken.
func (m *Model) add(f file) error {
	if !fs.ValidPath(f.path) || f.path == "." {
		return fmt.Errorf("%q is not a valid path of a file in a model", f.path)
	}
	at, taken := slices.BinarySearchFunc(m.files, f, func(a, b file) int { return strings.Compare(a.path, b.path) })
	if taken {
		return fmt.Errorf("two files of the model are called %s", f.path)
	}
	m.files = slices.Insert(m.files, at, f)
	return nil
}

// check refuses a model in which a file is the directory of another.
func (m *Model) check() error {
	if len(m.files)+len(m.archives) == 0 {
		return errors.New("the model has no files")
	}
	names := map[string]bool{}
	for _, f := range m.files {
		names[f.path] = true
	}
	for _, f := range m.files {
		for dir := path.Dir(f.path); dir != "."; dir = path.Dir(dir) {
			if names[dir] {
				return fmt.Errorf("%s is a file of the model, and the directory of %s", dir, f.path)
			}
		}
	}
	return nil
}

// Files returns the number of files, without those in archives, and their size in bytes.
func (m *Model) Files() (n int, sizeBytes int64) {
	for _, f := range m.files {
		sizeBytes += f.size
	}
	return len(m.files), sizeBytes
}

// layers returns the files of each layer. Small files share layers, and each large file
// has its own.
func (m *Model) layers() [][]file {
	var small []file
	var out [][]file
	for _, f := range m.files {
		if f.size < ownLayer {
			small = append(small, f)
		} else {
			out = append(out, []file{f})
		}
	}
	if len(small) > 0 {
		out = append([][]file{small}, out...)
	}
	return out
}

// writeLayer writes an archive of files and the directories above them.
func writeLayer(ctx context.Context, files []file, w io.Writer) error {
	t := tar.NewWriter(w)
	made := map[string]bool{".": true}
	for _, f := range files {
		if err := writeDirs(t, path.Dir(f.path), made); err != nil {
			return err
		}
		if err := writeFile(ctx, t, f); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return t.Close()
}

func writeDirs(t *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := writeDirs(t, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
}

func writeFile(ctx context.Context, t *tar.Writer, f file) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Size: f.size, Mode: 0o644}
	if f.exec {
		h.Mode = 0o755
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	r, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(t, r)
	if err == nil && n != f.size {
		err = fmt.Errorf("it has %d bytes, and had %d before", n, f.size)
	}
	return err
}

// Options of [Push].
type Options struct {
	// Repo and Tag name the image that is pushed.
	Repo, Tag string
	// Platforms are the platforms that the image is for, because runtimes look for their
	// own. The files are the same for all. Required.
	Platforms []ocispec.Platform
	// Progress, if set, is called with how many bytes of the model were read and sent.
	Progress func(read, sent int64)
}

// Pushed is an image of a model.
type Pushed struct {
	Repo   string     `json:"repository"`
	Tag    string     `json:"tag"`
	Digest oci.Digest `json:"digest"`
	// Files counts the model's files in layers, and Bytes is their size.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Layers counts the layers of the image, and Sent counts the layers that the
	// repository did not have.
	Layers int `json:"layers"`
	Sent   int `json:"layers_sent"`
}

// Registry is the destination of a model.
type Registry interface {
	oci.Reader
	oci.Writer
}

// Push makes an image of a model and pushes it. It does not send what the repository has.
func Push(ctx context.Context, reg Registry, m *Model, o Options) (Pushed, error) {
	if err := errors.Join(oci.CheckName(o.Repo), oci.CheckTag(o.Tag), m.check()); err != nil {
		return Pushed{}, err
	}
	p := &pusher{reg: reg, o: o, out: Pushed{Repo: o.Repo, Tag: o.Tag}}
	p.out.Files, p.out.Bytes = m.Files()
	for _, a := range m.archives {
		if err := p.mount(ctx, a); err != nil {
			return Pushed{}, err
		}
	}
	for _, files := range m.layers() {
		if err := p.layer(ctx, files); err != nil {
			return Pushed{}, err
		}
	}
	p.out.Layers = len(p.layers)
	err := p.image(ctx, m.from)
	return p.out, err
}

// pusher is a push in progress.
type pusher struct {
	reg        Registry
	o          Options
	out        Pushed
	layers     []oci.Descriptor
	diffIDs    []oci.Digest
	read, sent int64
}

func (p *pusher) append(d oci.Descriptor, diffID oci.Digest) {
	p.layers, p.diffIDs = append(p.layers, d), append(p.diffIDs, diffID)
}

// has reports whether the repository has a blob.
func (p *pusher) has(ctx context.Context, d oci.Digest) (bool, error) {
	_, err := p.reg.ResolveBlob(ctx, p.o.Repo, d)
	if oci.HasCode(err, oci.CodeBlobUnknown) || oci.HasCode(err, oci.CodeNameUnknown) {
		return false, nil
	}
	return err == nil, err
}

// mount adds a layer that the registry has.
func (p *pusher) mount(ctx context.Context, a archive) error {
	if a.repo != p.o.Repo {
		if _, err := p.reg.MountBlob(ctx, p.o.Repo, a.repo, a.desc.Digest); err != nil {
			return fmt.Errorf("mount layer %s of %s: %w", a.desc.Digest, a.repo, err)
		}
	}
	p.append(a.desc, a.diffID)
	return nil
}

// layer adds a layer of files. It reads them twice, because the digest is needed first.
// If the model was pushed before, the layer is mostly there already.
func (p *pusher) layer(ctx context.Context, files []file) error {
	h := sha256.New()
	read := &counter{w: h, total: &p.read, tell: p.tell}
	if err := writeLayer(ctx, files, read); err != nil {
		return err
	}
	d := oci.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: oci.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), Size: read.n}
	p.append(d, d.Digest)
	there, err := p.has(ctx, d.Digest)
	if err != nil || there {
		return err
	}
	p.out.Sent++
	return p.send(ctx, files, d)
}

func (p *pusher) send(ctx context.Context, files []file, d oci.Descriptor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeLayer(ctx, files, &counter{w: pw, total: &p.sent, tell: p.tell})
		pw.CloseWithError(err)
		written <- err
	}()
	_, err := p.reg.PushBlob(ctx, p.o.Repo, d.Digest, d.Size, pr)
	pr.CloseWithError(io.ErrClosedPipe)
	if wrote := <-written; wrote != nil && !errors.Is(wrote, io.ErrClosedPipe) {
		return wrote
	}
	if err != nil {
		return fmt.Errorf("push a layer to %s: %w", p.o.Repo, err)
	}
	return nil
}

func (p *pusher) tell() {
	if p.o.Progress != nil {
		p.o.Progress(p.read, p.sent)
	}
}

// counter counts what is written.
type counter struct {
	w     io.Writer
	n     int64
	total *int64
	tell  func()
}

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	*c.total += int64(n)
	c.tell()
	return n, err
}

// image pushes a manifest for each platform and, under the tag, the index of them.
func (p *pusher) image(ctx context.Context, annotations map[string]string) error {
	x := ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Annotations: annotations}
	x.SchemaVersion = 2
	for i := range p.o.Platforms {
		platform := p.o.Platforms[i]
		config := ocispec.Image{Platform: platform, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: p.diffIDs}}
		cd, err := p.blob(ctx, ocispec.MediaTypeImageConfig, config)
		if err != nil {
			return err
		}
		m := ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: cd, Layers: p.layers, Annotations: annotations}
		m.SchemaVersion = 2
		d, err := p.manifest(ctx, m.MediaType, m)
		if err != nil {
			return err
		}
		d.Platform = &platform
		x.Manifests = append(x.Manifests, d)
	}
	d, err := p.manifest(ctx, x.MediaType, x, p.o.Tag)
	p.out.Digest = d.Digest
	return err
}

func (p *pusher) blob(ctx context.Context, mediaType string, v any) (oci.Descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return oci.Descriptor{}, err
	}
	d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
	if _, err := p.reg.PushBlob(ctx, p.o.Repo, d.Digest, d.Size, strings.NewReader(string(b))); err != nil {
		return d, fmt.Errorf("push the configuration to %s: %w", p.o.Repo, err)
	}
	return d, nil
}

func (p *pusher) manifest(ctx context.Context, mediaType string, v any, tags ...string) (oci.Descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return oci.Descriptor{}, err
	}
	if _, err := p.reg.PutManifest(ctx, p.o.Repo, oci.PutManifest{Bytes: b, MediaType: mediaType, Tags: tags}); err != nil {
		return oci.Descriptor{}, fmt.Errorf("push a manifest to %s: %w", p.o.Repo, err)
	}
	return oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}, nil
}
