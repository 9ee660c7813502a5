package images

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/signatures"
)

// Shelf holds images with indexes. It implements Browse and Files.
type Shelf struct {
	Manifests map[string]catalog.Manifest
	Indexes   map[oci.Digest]*gear.Index
	Blobs     map[oci.Digest][]byte
	// Opened is the profile of every image.
	Opened []gear.Name
	Looks  int
	// State is the state of every layer.
	State LayerState
	// Fail is the error of MayLook, Unread that of Look, and Broken that of optional
	// parts of a page.
	Fail, Unread, Broken error
	// CountShare implements Share, and HeldBy is the result of Holders.
	CountShare func(context.Context) (gearfacts.Share, error)
	HeldBy     gearfacts.Holders
}

// NewShelf returns an empty shelf.
func NewShelf() *Shelf {
	return &Shelf{Manifests: map[string]catalog.Manifest{}, Indexes: map[oci.Digest]*gear.Index{}, Blobs: map[oci.Digest][]byte{},
		CountShare: func(context.Context) (gearfacts.Share, error) {
			return gearfacts.Share{Files: 5, Bytes: 500, Stored: 200, OwnFiles: 2, OwnBytes: 200, OwnStored: 100}, nil
		}, HeldBy: gearfacts.Holders{Repositories: []string{"lib/app", "lib/other", "secret/one"}}}
}

func (s *Shelf) Manifest(_ context.Context, repo string, d oci.Digest) (catalog.Manifest, error) {
	return s.Tag(context.Background(), repo, string(d))
}

func (s *Shelf) Tag(_ context.Context, repo, ref string) (catalog.Manifest, error) {
	m, ok := s.Manifests[repo+" "+ref]
	if !ok {
		return m, catalog.ErrNotFound
	}
	return m, nil
}

func (s *Shelf) Content(_ context.Context, _ string, d oci.Digest, most int64) ([]byte, error) {
	b, ok := s.Blobs[d]
	switch {
	case !ok:
		return nil, catalog.ErrNotFound
	case int64(len(b)) > most:
		return nil, errors.New("too large")
	}
	return b, nil
}

func (s *Shelf) MayLook(_ context.Context, _ string, d oci.Digest) error {
	if s.Fail != nil {
		return s.Fail
	}
	if s.Indexes[d] == nil {
		return gear.ErrNotConverted
	}
	return nil
}

func (s *Shelf) Look(_ context.Context, _ string, d oci.Digest) (*gear.Index, error) {
	s.Looks++
	return s.Indexes[d], s.Unread
}

func (s *Shelf) Profile(context.Context, string, oci.Digest) ([]gear.Name, error) {
	return s.Opened, s.Broken
}

func (s *Shelf) Share(ctx context.Context, _ oci.Digest, _ []oci.Digest, _ string) (gearfacts.Share, error) {
	if s.Broken != nil {
		return gearfacts.Share{}, s.Broken
	}
	return s.CountShare(ctx)
}

func (s *Shelf) Holders(_ context.Context, names []gear.Name, _ int) ([]gearfacts.Holders, error) {
	out := make([]gearfacts.Holders, len(names))
	for i := range out {
		out[i] = s.HeldBy
	}
	return out, s.Broken
}

func (s *Shelf) Converts(repo string) bool { return repo != "off/app" }

func (s *Shelf) ManifestUse(context.Context, string, oci.Digest, int) (browse.ManifestUse, error) {
	return browse.ManifestUse{}, nil
}

func (s *Shelf) Attached(context.Context, string, oci.Digest, int) ([]oci.Descriptor, bool, error) {
	return nil, false, nil
}

func (s *Shelf) Layer(context.Context, string, oci.Digest) (LayerState, error) { return s.State, nil }

// Signatures implements Browse. No keys are configured.
func (s *Shelf) Signatures(context.Context, string, oci.Digest) ([]signatures.Signature, error) {
	return nil, nil
}

// Content returns a file with the text.
func Content(text string) gear.File {
	return gear.File{Name: sha256.Sum256([]byte(text)), Size: int64(len(text))}
}

// Layer builds an index. The Link of a file entry is its content.
func Layer(t testing.TB, entries ...rootfs.Entry) *gear.Index {
	t.Helper()
	b := gear.NewBuilder(nil)
	for _, e := range entries {
		f := gear.Empty()
		if e.Type == rootfs.File {
			f = Content(e.Link)
			e.Link, e.Size = "", f.Size
		}
		if err := b.Add(e, f); err != nil {
			t.Fatal(err)
		}
	}
	x, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// File returns an entry of a file. Its content is the text.
func File(path, text string) rootfs.Entry {
	return rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Link: text}
}

// Push puts an image on the shelf.
func (s *Shelf) Push(repo, tag, config string, layers ...*gear.Index) oci.Digest {
	m := map[string]any{"config": oci.Descriptor{Digest: oci.SHA256([]byte(config))}}
	s.Blobs[oci.SHA256([]byte(config))] = []byte(config)
	var list []oci.Descriptor
	for _, x := range layers {
		d := oci.SHA256(fmt.Appendf(nil, "%p", x))
		s.Indexes[d] = x
		list = append(list, oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: d, Size: 1000})
	}
	m["layers"] = list
	return s.Put(repo, tag, m)
}

// Put puts a manifest on the shelf.
func (s *Shelf) Put(repo, tag string, v any) oci.Digest {
	b, _ := json.Marshal(v)
	m := catalog.Manifest{Digest: oci.SHA256(b), Content: b}
	s.Manifests[repo+" "+tag], s.Manifests[repo+" "+string(m.Digest)] = m, m
	return m.Digest
}

// Part returns an entry of an index.
func (s *Shelf) Part(tag, os, arch, version string) oci.Descriptor {
	p := PlatformOf(os, arch)
	p.OSVersion = version
	return oci.Descriptor{Digest: s.Manifests["lib/app "+tag].Digest, Platform: p}
}

// PlatformOf returns a platform of an index.
func PlatformOf(os, arch string) *ocispec.Platform {
	return &ocispec.Platform{OS: os, Architecture: arch}
}

// Hostile is a name that would harm a page.
const Hostile = "a<script>alert(1)\n\u202egpj.exe\xff"

// AppShelf returns a shelf with two versions of an image.
func AppShelf(t testing.TB) *Shelf {
	s := NewShelf()
	base := Layer(t, rootfs.Entry{Path: "bin", Type: rootfs.Dir, Mode: 0o755}, File("bin/sh", strings.Repeat("s", 3000)), rootfs.Entry{Path: "bin/ash", Type: rootfs.HardLink, Link: "bin/sh"},
		rootfs.Entry{Path: "bin/su", Type: rootfs.File, Mode: 0o4755, Link: "su", Xattrs: []rootfs.Xattr{{Name: "security.capability", Value: "x"}}},
		File("etc/old", "gone"), File("etc/conf", "one"), rootfs.Entry{Path: "lib", Type: rootfs.Symlink, Mode: 0o777, Link: "usr/lib"})
	top := Layer(t, rootfs.Entry{Path: "etc/old", Type: rootfs.Whiteout}, File("etc/conf", "two!"), File("srv/data", strings.Repeat("d", 9000)), File("srv/"+Hostile, "h"))
	s.Push("lib/app", "v1", `{"architecture":"amd64","os":"linux","config":{"Env":["A=1","B=2"],"Cmd":["sh"]}}`, base)
	s.Push("lib/app", "v2", `{"architecture":"amd64","os":"linux","config":{"Env":["A=3"],"Cmd":["sh","-c"],"Labels":{"x":"<b>"}}}`, base, top)
	s.Opened = []gear.Name{Content(strings.Repeat("s", 3000)).Name}
	return s
}
