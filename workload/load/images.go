package load

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
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/content"
)

// SetOptions say which images are made. The zero value makes a hundred images in ten
// batches, each with five layers of 2048 bytes. Equal options make equal images, byte for
// byte, on every machine.
type SetOptions struct {
	// Images is how many, 0 means 100.
	Images int
	// Batches is the number of disjoint batches, which are part of the images' names. 0
	// means 10.
	Batches int
	// Blobs is how many layers each has, 0 means 5.
	Blobs int
	Sizes Sizes
	// Prefix is put before the names of repositories, such as "load/".
	Prefix string
	// Maker makes the content. Its seed also determines the names.
	Maker content.Maker
}

// Part is a content that a client of an image fetches.
type Part struct {
	Digest oci.Digest
	// Size in bytes.
	Size int64
}

// Image is what a client that pulls an image fetches.
type Image struct {
	Repo, Tag string
	// Manifests are the manifest that the tag names and, if that is an index, the
	// manifest of the platform.
	Manifests []Part
	// Blobs are the configuration and the layers.
	Blobs []Part
	// layers are the keys of generated layers. It is nil for an image that was listed.
	layers []uint64
}

// Name is REPOSITORY:TAG.
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

// Set is images that are made.
type Set struct {
	o      SetOptions
	Images []*Image
}

// maxImages bounds a set: its description takes about 1 kB of memory for each image.
const maxImages = 1 << 20

// platform is the one that generated images are for.
func platform() ocispec.Platform { return ocispec.Platform{OS: "linux", Architecture: "amd64"} }

// Generate describes the images of a set. It makes each layer to learn its digest. The
// push makes the layer again.
func Generate(ctx context.Context, o *SetOptions) (*Set, error) {
	s := &Set{}
	if o != nil {
		s.o = *o
	}
	if err := s.complete(); err != nil {
		return nil, err
	}
	s.Images = make([]*Image, s.o.Images)
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(s.Images)); i = next.Add(1) - 1 {
				m, err := s.describe(ctx, int(i))
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

func (s *Set) complete() error {
	o := &s.o
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
	case o.Images < 1 || o.Images > maxImages:
		return fmt.Errorf("a set has 1 to %d images", maxImages)
	case o.Batches < 1 || o.Blobs < 1 || o.Blobs > 1000:
		return errors.New("a set has at least one batch, and its images 1 to 1000 layers")
	case o.Prefix != "" && !oci.ValidName(o.Prefix+"x"):
		return fmt.Errorf("%q cannot stand before the name of a repository", o.Prefix)
	}
	return o.Maker.Check()
}

// Batches is how many disjoint parts the set is in.
func (s *Set) Batches() int { return s.o.Batches }

// BatchPattern returns a pattern that selects one batch and no image of another. The
// first batch is 1. The pattern also fits names with a digest: Ociregistry, when it
// prunes, knows the manifests of an index by such names.
func (s *Set) BatchPattern(batch int) string {
	return fmt.Sprintf("-%0*d[:@]", s.batchDigits(), batch)
}

// batchDigits returns the width of all batch numbers. With one width, no number is the
// beginning of another.
func (s *Set) batchDigits() int { return max(4, len(strconv.Itoa(s.o.Batches))) }

// batchOf returns the batch of image i. Sizes of batches differ by one at most.
func (s *Set) batchOf(i int) int { return i*s.o.Batches/s.o.Images + 1 }

// rand returns the random source of image i, which depends only on the seed and i.
func (s *Set) rand(i int) *rand.Rand {
	return rand.New(rand.NewPCG(s.o.Maker.Seed, uint64(i)))
}

// name draws the name of an image as Ociregistry's load test has it:
// <random>-<random>-NNNN:v<n>.<n>. Random parts begin with a letter and have no dash, so
// that "-NNNN" is in it once.
func (s *Set) name(rnd *rand.Rand, i int) (repo, tag string) {
	const letters, all = "abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz0123456789"
	b := []byte(s.o.Prefix)
	for range 2 {
		b = append(b, letters[rnd.IntN(len(letters))])
		for range 9 {
			b = append(b, all[rnd.IntN(len(all))])
		}
		b = append(b, '-')
	}
	return fmt.Sprintf("%s%0*d", b, s.batchDigits(), s.batchOf(i)), fmt.Sprintf("v%d.%d", rnd.IntN(1000), rnd.IntN(1000))
}

// describe makes an image and returns what a pull asks for.
func (s *Set) describe(ctx context.Context, i int) (*Image, error) {
	rnd := s.rand(i)
	m := &Image{}
	m.Repo, m.Tag = s.name(rnd, i)
	m.Blobs = make([]Part, 1, 1+s.o.Blobs) // the first is the configuration
	for j := range s.o.Blobs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		size, key := s.o.Sizes.draw(rnd, j), rnd.Uint64()
		d, err := layerDigest(s.o.Maker, key, size)
		if err != nil {
			return nil, err
		}
		m.layers = append(m.layers, key)
		m.Blobs = append(m.Blobs, Part{d, size})
	}
	p, err := documents(m)
	if err != nil {
		return nil, err
	}
	m.Blobs[0] = partOf(p.config)
	m.Manifests = []Part{partOf(p.index), partOf(p.manifest)}
	return m, nil
}

func partOf(b []byte) Part { return Part{oci.SHA256(b), int64(len(b))} }

// papers are the JSON documents of an image.
type papers struct{ index, manifest, config []byte }

// documents makes the documents of an image from its layers.
func documents(m *Image) (p papers, err error) {
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
	}{time.Unix(1_500_000_000, 0).UTC(), platform().Architecture, platform().OS, struct{}{}, rootfs{Type: "layers"}}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	manifest.SchemaVersion = 2
	for _, l := range m.Blobs[1:] {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.Digest) // they are not compressed
		manifest.Layers = append(manifest.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: l.Digest, Size: l.Size})
	}
	if p.config, err = json.Marshal(config); err != nil {
		return p, err
	}
	of := func(mediaType string, b []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: mediaType, Digest: oci.SHA256(b), Size: int64(len(b))}
	}
	manifest.Config = of(ocispec.MediaTypeImageConfig, p.config)
	if p.manifest, err = json.Marshal(manifest); err != nil {
		return p, err
	}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{of(ocispec.MediaTypeImageManifest, p.manifest)}}
	index.SchemaVersion = 2
	pf := platform()
	index.Manifests[0].Platform = &pf
	p.index, err = json.Marshal(index)
	return p, err
}

// layer returns a reader of a layer of the given size: a tar archive with one file.
func layer(mk content.Maker, key uint64, size int64) (io.Reader, error) {
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
	r, err := layer(mk, key, size)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("make a layer of %d bytes: %w", size, err)
	}
	return oci.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

// fixPatterns lets "*" stand for everything in a pattern that is no regular expression:
// people who write "*" or "*-0001" mean that.
func fixPatterns(patterns []string) ([]string, error) {
	patterns = slices.Clone(patterns)
	for i, p := range patterns {
		if _, err := regexp.Compile(p); err == nil {
			continue
		}
		glob := "^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*")
		if !strings.HasPrefix(p, "*") || strings.ContainsAny(p, `()[]{}+?|\^$`) {
			return nil, fmt.Errorf("pattern %q is no regular expression; .* selects everything", p)
		}
		patterns[i] = glob
	}
	return patterns, nil
}

// Select distributes images over patterns: regular expressions that are searched in the
// images' names. Every pattern must select something. overlap is an image that several
// patterns select, or nil if there is none.
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
