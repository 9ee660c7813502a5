// Package imageset makes the images of a load test. It determines which images there are,
// what is in them and how large their layers are, and which of them a pattern selects.
// Equal options make equal images.
package imageset

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/content"
)

// Options say which images are made. The zero value makes a hundred images in ten
// batches, each with five layers of 2048 bytes. Equal options make images that are equal
// to the byte, in every process.
type Options struct {
	// Images is the number of images. 0 means 100.
	Images int
	// Batches is the number of disjoint batches. The batch is a part of an image's name.
	// 0 means 10.
	Batches int
	// Blobs is the number of layers of each image. 0 means 5.
	Blobs int
	Sizes Sizes
	// Prefix is put before the names of repositories, such as "load/".
	Prefix string
	// Maker makes the contents. Its seed also determines the names.
	Maker content.Maker
}

// Part is a content that a client fetches when it pulls an image.
type Part struct {
	Digest oci.Digest
	// Size is in bytes.
	Size int64
}

// Image describes what a client fetches when it pulls an image.
type Image struct {
	Repo, Tag string
	// Manifests has the manifest that the tag names and, if that is an index, the
	// manifest of the platform.
	Manifests []Part
	// Blobs has the configuration and the layers.
	Blobs []Part
	// Layers has the keys of generated layers. It is nil for a listed image.
	Layers []uint64
}

// Name returns REPOSITORY:TAG.
func (m *Image) Name() string { return m.Repo + ":" + m.Tag }

// Bytes returns how many bytes a pull transfers.
func (m *Image) Bytes() int64 {
	var n int64
	for _, p := range m.Manifests {
		n += p.Size
	}
	for _, p := range m.Blobs {
		n += p.Size
	}
	return n
}

// Set is a set of images that are made.
type Set struct {
	// Options are the options of the set, with defaults in place of zero values.
	Options Options
	Images  []*Image
}

// Max bounds the images of a set. The description of each image takes about 1 kB of
// memory.
const Max = 1 << 20

// Platform returns the platform of generated images.
func Platform() ocispec.Platform { return ocispec.Platform{OS: "linux", Architecture: "amd64"} }

// Generate describes the images of a set. It makes their layers to compute the digests.
// The layers are made again when they are pushed.
func Generate(ctx context.Context, o *Options) (*Set, error) {
	s := &Set{}
	if o != nil {
		s.Options = *o
	}
	if err := s.Complete(); err != nil {
		return nil, err
	}
	s.Images = make([]*Image, s.Options.Images)
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(s.Images)); i = next.Add(1) - 1 {
				m, err := s.Describe(ctx, int(i))
				if err != nil {
					return err
				}
				s.Images[i] = m
			}
			return nil
		})
	}
	return s, g.Wait()
}

// Complete sets the defaults of the options. It returns an error if an option is wrong.
func (s *Set) Complete() error {
	o := &s.Options
	for _, v := range []struct {
		n   *int
		def int
	}{{&o.Images, 100}, {&o.Batches, 10}, {&o.Blobs, 5}} {
		if *v.n == 0 {
			*v.n = v.def
		}
	}
	o.Batches = min(o.Batches, o.Images)
	switch {
	case o.Images < 1 || o.Images > Max:
		return fmt.Errorf("a set has 1 to %d images", Max)
	case o.Batches < 1 || o.Blobs < 1 || o.Blobs > 1000:
		return errors.New("a set has at least one batch, and its images 1 to 1000 layers")
	case o.Prefix != "" && !oci.ValidName(o.Prefix+"x"):
		return fmt.Errorf("%q cannot stand before the name of a repository", o.Prefix)
	}
	return o.Maker.Check()
}

// Batches returns the number of disjoint batches of the set.
func (s *Set) Batches() int { return s.Options.Batches }

// BatchPattern returns a pattern that selects the images of one batch and no others. The
// first batch is 1. The pattern also matches names with a digest, because Ociregistry
// uses such names for the manifests of an index when it prunes.
func (s *Set) BatchPattern(batch int) string {
	return fmt.Sprintf("-%0*d[:@]", s.batchDigits(), batch)
}

// batchDigits returns the number of digits of every batch number. Because all numbers
// have as many digits, no number is the beginning of another.
func (s *Set) batchDigits() int { return max(4, len(strconv.Itoa(s.Options.Batches))) }

// batchOf returns the batch of image i. The sizes of two batches differ by at most one.
func (s *Set) batchOf(i int) int { return i*s.Options.Batches/s.Options.Images + 1 }

// rand returns the random source of image i, which depends only on the seed and i.
func (s *Set) rand(i int) *rand.Rand {
	return rand.New(rand.NewPCG(s.Options.Maker.Seed, uint64(i)))
}

// name returns a random name for an image, in the form of Ociregistry's load test:
// <random>-<random>-NNNN:v<n>.<n>. The random parts begin with a letter and contain no
// dash, so "-NNNN" occurs only once.
func (s *Set) name(rnd *rand.Rand, i int) (repo, tag string) {
	const letters, all = "abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz0123456789"
	b := []byte(s.Options.Prefix)
	for range 2 {
		b = append(b, letters[rnd.IntN(len(letters))])
		for range 9 {
			b = append(b, all[rnd.IntN(len(all))])
		}
		b = append(b, '-')
	}
	return fmt.Sprintf("%s%0*d", b, s.batchDigits(), s.batchOf(i)), fmt.Sprintf("v%d.%d", rnd.IntN(1000), rnd.IntN(1000))
}

// Describe makes an image and returns the description that a pull needs.
func (s *Set) Describe(ctx context.Context, i int) (*Image, error) {
	rnd := s.rand(i)
	m := &Image{}
	m.Repo, m.Tag = s.name(rnd, i)
	m.Blobs = make([]Part, 1, 1+s.Options.Blobs) // the first is for the configuration
	for j := range s.Options.Blobs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		size, key := s.Options.Sizes.draw(rnd, j), rnd.Uint64()
		d, err := layerDigest(s.Options.Maker, key, size)
		if err != nil {
			return nil, err
		}
		m.Layers = append(m.Layers, key)
		m.Blobs = append(m.Blobs, Part{d, size})
	}
	p, err := Documents(m)
	if err != nil {
		return nil, err
	}
	m.Blobs[0] = partOf(p.Config)
	m.Manifests = []Part{partOf(p.Index), partOf(p.Manifest)}
	return m, nil
}

func partOf(b []byte) Part { return Part{oci.SHA256(b), int64(len(b))} }

// Papers are the JSON documents of an image.
type Papers struct{ Index, Manifest, Config []byte }

// Documents makes the JSON documents of an image from its layers.
func Documents(m *Image) (p Papers, err error) {
	type rootfs struct {
		Type    string       `json:"type"`
		DiffIDs []oci.Digest `json:"diff_ids"`
	}
	config := struct {
		Created      time.Time `json:"created"`
		Architecture string    `json:"architecture"`
		OS           string    `json:"os"`
		Config       struct{}  `json:"config"`
		RootFS       rootfs    `json:"rootfs"`
	}{time.Unix(1_500_000_000, 0).UTC(), Platform().Architecture, Platform().OS, struct{}{}, rootfs{Type: "layers"}}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	manifest.SchemaVersion = 2
	for _, l := range m.Blobs[1:] {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.Digest) // they are not compressed
		manifest.Layers = append(manifest.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: l.Digest, Size: l.Size})
	}
	if p.Config, err = json.Marshal(config); err != nil {
		return p, err
	}
	of := func(mediaType string, b []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
	}
	manifest.Config = of(ocispec.MediaTypeImageConfig, p.Config)
	if p.Manifest, err = json.Marshal(manifest); err != nil {
		return p, err
	}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{of(ocispec.MediaTypeImageManifest, p.Manifest)}}
	index.SchemaVersion = 2
	pf := Platform()
	index.Manifests[0].Platform = &pf
	p.Index, err = json.Marshal(index)
	return p, err
}

// Layer returns a reader of a layer with the given size: a tar archive with one file.
func Layer(mk content.Maker, key uint64, size int64) (io.Reader, error) {
	var head bytes.Buffer
	tw := tar.NewWriter(&head)
	file := size - 3*tarBlock
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("data/%016x", key), Mode: 0o644, Size: file,
		ModTime: time.Unix(1_500_000_000, 0), Format: tar.FormatUSTAR})
	if err != nil {
		return nil, fmt.Errorf("make a layer of %d bytes: %w", size, err)
	}
	return io.MultiReader(&head, mk.Reader(key, 0, file), bytes.NewReader(make([]byte, 2*tarBlock))), nil
}

// layerDigest computes the digest of a layer.
func layerDigest(mk content.Maker, key uint64, size int64) (oci.Digest, error) {
	r, err := Layer(mk, key, size)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("make a layer of %d bytes: %w", size, err)
	}
	return oci.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

// Select distributes images among patterns. A pattern is a regular expression that is
// searched for in the images' names. It is an error if a pattern selects nothing. overlap
// is an image that several patterns select, or nil if there is none.
func Select(images []*Image, patterns []string) (sets [][]*Image, overlap *Image, err error) {
	sets = make([][]*Image, len(patterns))
	exprs := make([]*regexp.Regexp, len(patterns))
	for i, p := range patterns {
		if exprs[i], err = regexp.Compile(p); err != nil {
			return nil, nil, fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	for _, m := range images {
		name, hits := m.Name(), 0
		for i, e := range exprs {
			if e.MatchString(name) {
				sets[i] = append(sets[i], m)
				hits++
			}
		}
		if hits > 1 && overlap == nil {
			overlap = m
		}
	}
	for i, s := range sets {
		if len(s) == 0 {
			return nil, nil, fmt.Errorf("pattern %q selects none of the %d images", patterns[i], len(images))
		}
	}
	return sets, overlap, nil
}
