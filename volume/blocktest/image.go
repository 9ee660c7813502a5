package blocktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/volume/block"
)

// Image is an image generated from a seed. It is the same wherever it is made.
type Image struct {
	Layers []block.Layer
	Source *Source
}

// Source delivers the contents of an image and counts the requests.
type Source struct {
	// Before, if not nil, is called before each content is delivered. Its error ends the fetch.
	Before func(ctx context.Context, f gear.File) error

	contents map[gear.Name][]byte

	mu      sync.Mutex // guards the following fields
	fetches int
	asked   map[gear.Name]int
}

var _ gear.FileSource = (*Source)(nil)

// Fetch implements [gear.FileSource].
func (s *Source) Fetch(ctx context.Context, files []gear.File, deliver func(i int, content io.Reader) error) error {
	s.count(files)
	for i, f := range files {
		if s.Before != nil {
			if err := s.Before(ctx, f); err != nil {
				return err
			}
		}
		b, ok := s.contents[f.Name]
		if !ok {
			return fmt.Errorf("content %x is not there", f.Name)
		}
		// Readers of contents may return less than requested.
		if err := deliver(i, io.MultiReader(bytes.NewReader(b[:len(b)/3]), bytes.NewReader(b[len(b)/3:]))); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *Source) count(files []gear.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetches++
	for _, f := range files {
		s.asked[f.Name]++
	}
}

// Counts returns the number of fetches, the number of contents fetched, and how often the most
// requested content was requested.
func (s *Source) Counts() (fetches, contents, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.asked {
		most = max(most, n)
	}
	return s.fetches, len(s.asked), most
}

// Damage changes one byte of each content of n bytes or more.
func (s *Source) Damage(n int) {
	for name, b := range s.contents {
		if len(b) >= n {
			b = bytes.Clone(b)
			b[n/2] ^= 1
			s.contents[name] = b
		}
	}
}

// NewImage makes the image of a seed with the given number of layers. Two images of one seed share
// the layers that both have.
func NewImage(tb testing.TB, seed uint64, layers int) *Image {
	tb.Helper()
	im := &Image{Source: &Source{contents: map[gear.Name][]byte{}, asked: map[gear.Name]int{}}}
	for i := range layers {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		x, err := im.layer(rnd, i)
		if err != nil {
			tb.Fatalf("layer %d: %v", i, err)
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%d %d", seed, i))
		im.Layers = append(im.Layers, block.Layer{Digest: oci.Digest(fmt.Sprintf("sha256:%x", sum)), Index: x})
	}
	return im
}

// layer makes a layer with new files, files that all layers have, a file that replaces a
// file of the layer below, a removed file, and a file that comes back.
func (im *Image) layer(rnd *rand.Rand, i int) (*gear.Index, error) {
	b := gear.NewBuilder(nil)
	var err error
	add := func(path string, content []byte) {
		if err == nil {
			err = b.Add(rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Sec: 1_700_000_000, Size: int64(len(content))}, im.file(content))
		}
	}
	own := fmt.Sprintf("own%d", i)
	for k, n := range []int{0, 1, 4095, 4096, 4097, 70_000, 600_000} {
		add(fmt.Sprintf("%s/d/file%d", own, k), Content(rnd.Uint64(), n))
	}
	sparse := make([]byte, 2_000_000)
	copy(sparse[1_000_000:], Content(rnd.Uint64(), 100))
	add(own+"/sparse", sparse)
	shared := Content(7, 50_000)
	add(own+"/shared1", shared)
	add(own+"/shared2", shared)
	add("same", Content(uint64(i), 10_000))
	if i%2 == 0 {
		add("comes-and-goes", Content(8, 30_000))
	} else if err == nil {
		err = b.Add(rootfs.Entry{Path: "comes-and-goes", Type: rootfs.Whiteout}, gear.File{})
	}
	if err == nil {
		err = b.Add(rootfs.Entry{Path: own + "/link", Type: rootfs.Symlink, Mode: 0o777, Link: "shared1"}, gear.File{})
	}
	if err != nil {
		return nil, err
	}
	return b.Index()
}

// file registers a content.
func (im *Image) file(b []byte) gear.File {
	f := gear.File{Name: sha256.Sum256(b), Size: int64(len(b))}
	if f.Size >= gear.LargeFile {
		for off := 0; off < len(b); off += gear.ChunkSize {
			f.Chunks = append(f.Chunks, sha256.Sum256(b[off:min(off+gear.ChunkSize, len(b))]))
		}
	}
	im.Source.contents[f.Name] = b
	return f
}
