// Package ocitest is the conformance suite of registries. [Run] checks any [oci.Registry]
// against the contract that package oci states, whether it stores, proxies or speaks HTTP
// to another registry. Only tests import it.
package ocitest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
)

// Options configure Run. The zero value is good.
type Options struct {
	// LargeSize is the size of the largest blobs, in bytes. Default 1 MiB + 1.
	LargeSize int
	// Racers is the number of goroutines that do the same thing at once. Default 8.
	Racers int
	// Remote says that requests go over a network. Then a body that breaks off may be
	// reported as any error, because nothing answers it.
	Remote bool
	// FixedDigest says that an upload whose commit broke off may only be committed with
	// the same digest, because it is already being written to its place.
	FixedDigest bool
}

// Run runs every case of the contract as a subtest. open returns an empty registry in
// which every tag may be moved. Each case gets its own registry. o may be nil.
func Run(t *testing.T, open func(t *testing.T) oci.Registry, o *Options) {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.LargeSize = cmp.Or(opts.LargeSize, 1<<20+1)
	opts.Racers = cmp.Or(opts.Racers, 8)
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"Blobs round trip", (*suite).blobsRoundTrip},
		{"Blob ranges", (*suite).blobRanges},
		{"Blobs refused", (*suite).blobsRefused},
		{"Blobs of other repositories", (*suite).blobsOfOthers},
		{"Blob mounts", (*suite).mounts},
		{"Blob deletion", (*suite).blobDeletion},
		{"Names", (*suite).names},
		{"Names refused", (*suite).namesRefused},
		{"Upload in chunks", (*suite).uploadChunks},
		{"Upload out of order", (*suite).uploadOutOfOrder},
		{"Upload broken off", (*suite).uploadBrokenOff},
		{"Upload announced wrongly", (*suite).uploadAnnouncedWrongly},
		{"Upload with the wrong digest", (*suite).uploadWrongDigest},
		{"Upload that ended", (*suite).uploadEnded},
		{"Upload of nothing", (*suite).uploadEmpty},
		{"Upload with sha512", (*suite).uploadSHA512},
		{"Manifests round trip", (*suite).manifestsRoundTrip},
		{"Manifests refused", (*suite).manifestsRefused},
		{"Manifest contents missing", (*suite).manifestMissing},
		{"Manifest tags", (*suite).manifestTags},
		{"Manifest deletion", (*suite).manifestDeletion},
		{"Referrers", (*suite).referrers},
		{"Tag pages", (*suite).tagPages},
		{"Repository pages", (*suite).repositoryPages},
		{"Race for one blob", (*suite).raceBlob},
		{"Race for one upload", (*suite).raceUpload},
		{"Race for one tag", (*suite).raceTag},
		{"Race of push and delete", (*suite).racePushDelete},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.run(&suite{T: t, r: open(t), o: opts})
		})
	}
}

// suite is one test case.
type suite struct {
	*testing.T
	r oci.Registry
	o Options
}

// repo is the repository that most cases use.
const repo = "library/hello"

// random returns n bytes that depend on seed.
func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 'o', 'c', 'i'}).Read(b)
	return b
}

func (s *suite) must(err error, doing string, args ...any) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// wantCode checks that err is, or wraps, an error with one of the codes.
func (s *suite) wantCode(err error, doing string, codes ...oci.Code) {
	s.Helper()
	var e *oci.Error
	if !errors.As(err, &e) || !slices.Contains(codes, e.Code) {
		s.Errorf("%s: got error %v, want %v", doing, err, codes)
	}
}

func (s *suite) equal(got, want any, what string, args ...any) {
	s.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		s.Errorf("%s (-want +got):\n%s", fmt.Sprintf(what, args...), diff)
	}
}

// push pushes a blob and returns its descriptor.
func (s *suite) push(repo string, data []byte) oci.Descriptor {
	s.Helper()
	d := oci.SHA256(data)
	desc, err := s.r.PushBlob(s.Context(), repo, d, int64(len(data)), bytes.NewReader(data))
	s.must(err, "push a blob of %d bytes to %s", len(data), repo)
	if desc.Digest != d || desc.Size != int64(len(data)) {
		s.Fatalf("push a blob of %d bytes: got descriptor %+v, want digest %s", len(data), desc, d)
	}
	return desc
}

// wantBlob checks in every way that a blob exists and is complete.
func (s *suite) wantBlob(repo string, d oci.Digest, want []byte) {
	s.Helper()
	desc, err := s.r.ResolveBlob(s.Context(), repo, d)
	if err != nil || desc.Digest != d || desc.Size != int64(len(want)) {
		s.Errorf("resolve blob %s of %s: got %+v, %v, want %d bytes", d, repo, desc, err, len(want))
	}
	for _, way := range []func(oci.Content) ([]byte, error){readContent, copyContent} {
		c, err := s.r.GetBlob(s.Context(), repo, d)
		if err != nil {
			s.Errorf("get blob %s of %s: %v", d, repo, err)
			return
		}
		if got := c.Descriptor(); got.Digest != d || got.Size != int64(len(want)) {
			s.Errorf("get blob %s of %s: descriptor %+v, want %d bytes", d, repo, got, len(want))
		}
		got, err := way(c)
		if err != nil || !bytes.Equal(got, want) {
			s.Errorf("blob %s of %s: got %d bytes, %v, want %d others", d, repo, len(got), err, len(want))
		}
		if err := c.Close(); err != nil {
			s.Errorf("close blob %s of %s: %v", d, repo, err)
		}
	}
}

func readContent(c oci.Content) ([]byte, error) { return io.ReadAll(struct{ io.Reader }{c}) }

func copyContent(c oci.Content) ([]byte, error) {
	var b bytes.Buffer
	n, err := c.WriteTo(&b)
	if err == nil && n != int64(b.Len()) {
		err = fmt.Errorf("WriteTo says %d and wrote %d bytes", n, b.Len())
	}
	return b.Bytes(), err
}

// wantNoBlob checks that a repository does not have a blob.
func (s *suite) wantNoBlob(repo string, d oci.Digest) {
	s.Helper()
	_, err := s.r.ResolveBlob(s.Context(), repo, d)
	s.wantCode(err, "resolve an absent blob", oci.CodeBlobUnknown)
	_, err = s.r.GetBlob(s.Context(), repo, d)
	s.wantCode(err, "get an absent blob", oci.CodeBlobUnknown)
	_, err = s.r.GetBlobRange(s.Context(), repo, d, 0, 1)
	s.wantCode(err, "get a range of an absent blob", oci.CodeBlobUnknown)
}

// document is the JSON of a manifest or index.
type document struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType,omitempty"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        *oci.Descriptor   `json:"config,omitempty"`
	Layers        []oci.Descriptor  `json:"layers,omitempty"`
	Manifests     []oci.Descriptor  `json:"manifests,omitempty"`
	Subject       *oci.Descriptor   `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

func (s *suite) marshal(d document) []byte {
	s.Helper()
	b, err := json.Marshal(d)
	s.must(err, "marshal a manifest")
	return b
}

// image pushes the blobs of a small image and returns its manifest, without pushing it.
// Images with different seeds share their layer.
func (s *suite) image(repo string, seed int) document {
	s.Helper()
	config := s.push(repo, fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","seed":%d}`, seed))
	config.MediaType = "application/vnd.oci.image.config.v1+json"
	layer := s.push(repo, random(1000, 3000))
	layer.MediaType = "application/vnd.oci.image.layer.v1.tar"
	return document{SchemaVersion: 2, MediaType: oci.MediaTypeOCIManifest, Config: &config, Layers: []oci.Descriptor{layer}}
}

// put pushes a manifest.
func (s *suite) put(repo string, doc document, tags ...string) oci.Descriptor {
	s.Helper()
	b := s.marshal(doc)
	res, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: doc.MediaType, Tags: tags})
	s.must(err, "put a manifest with tags %q", tags)
	if res.Digest != oci.SHA256(b) || res.Size != int64(len(b)) {
		s.Fatalf("put a manifest of %d bytes: got %+v, want digest %s", len(b), res.Descriptor, oci.SHA256(b))
	}
	return oci.Descriptor{MediaType: doc.MediaType, Digest: res.Digest, Size: res.Size}
}

// wantManifest checks that a tag or digest resolves to a manifest.
func (s *suite) wantManifest(repo, ref string, want oci.Descriptor, bytesWanted []byte) {
	s.Helper()
	desc, err := s.r.ResolveManifest(s.Context(), repo, ref)
	if err != nil || desc.Digest != want.Digest || desc.Size != want.Size || desc.MediaType != want.MediaType {
		s.Errorf("resolve %s:%s: got %+v, %v, want %+v", repo, ref, desc, err, want)
	}
	m, err := s.r.GetManifest(s.Context(), repo, ref)
	if err != nil {
		s.Errorf("get %s:%s: %v", repo, ref, err)
		return
	}
	if m.Digest != want.Digest || m.Size != want.Size || m.MediaType != want.MediaType {
		s.Errorf("get %s:%s: got %+v, want %+v", repo, ref, m.Descriptor, want)
	}
	if bytesWanted != nil && !bytes.Equal(m.Bytes, bytesWanted) {
		s.Errorf("get %s:%s: got %q, want %q", repo, ref, m.Bytes, bytesWanted)
	}
}

func (s *suite) wantNoManifest(repo, ref string) {
	s.Helper()
	_, err := s.r.ResolveManifest(s.Context(), repo, ref)
	s.wantCode(err, "resolve the absent manifest "+ref, oci.CodeManifestUnknown)
	_, err = s.r.GetManifest(s.Context(), repo, ref)
	s.wantCode(err, "get the absent manifest "+ref, oci.CodeManifestUnknown)
}
