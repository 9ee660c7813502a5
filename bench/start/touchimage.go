package start

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/wire"
)

// touchTree is the tree of the images in the scenario touch. It has files of the sizes that
// real images have, in some layers. The same size gives the same files and contents.
type touchTree struct {
	layers []imagetest.Layer
	files  []touchFile // without the programs, in the order of the layers
	bytes  int64       // size of these files
}

type touchFile struct {
	path string
	size int
}

const (
	// touchLayers is the number of layers with files. A layer with the programs is below
	// them, and one with the list of the files to read above.
	touchLayers = 3
	// These are the shares of the bytes in files from 4 MiB, and in files between that and
	// 64 KiB. The others are smaller.
	touchLargeShare, touchMiddleShare = 0.40, 0.35
	// touchSeries begins the names of the series that the images get.
	touchSeries = "touch-"
	touchDone   = "all files are read"
)

// newTouchTree makes a tree with about the given number of megabytes.
func newTouchTree(megabytes int) (*touchTree, error) {
	random := rand.New(rand.NewPCG(30, 4))
	t := &touchTree{}
	base := new(imagetest.Archive).Dir("./").Dir("bin/").Dir("tmp/")
	if err := base.Programs(map[string]string{"bin/sh": "/bin/dash", "bin/cat": "/bin/cat", "bin/xargs": "/usr/bin/xargs"}); err != nil {
		return nil, err
	}
	t.layers = append(t.layers, base.Layer())
	archives := make([]imagetest.Archive, touchLayers)
	for i := range archives {
		archives[i].Dir("./").Dir("srv/")
	}
	total := float64(megabytes) * 1e6
	source := newTouchContent(random)
	for _, kind := range []struct {
		share       float64
		least, most int // sizes in bytes
		dir         int // files in a directory
	}{
		{touchLargeShare, 4 << 20, 16 << 20, 2},
		{touchMiddleShare, 64 << 10, 4 << 20, 12},
		{1 - touchLargeShare - touchMiddleShare, 256, 64 << 10, 40},
	} {
		left := int(kind.share * total)
		for dir := 0; left > 0; dir++ {
			at := &archives[dir%touchLayers]
			name := fmt.Sprintf("srv/%d-%d/", kind.most>>10, dir)
			at.Dir(name)
			for i := 0; i < kind.dir && left > 0; i++ {
				size := min(int(float64(kind.least)*math.Pow(float64(kind.most)/float64(kind.least), random.Float64())), max(left, kind.least))
				path := fmt.Sprintf("%sf%d.%s", name, i, []string{"py", "so", "txt"}[random.IntN(3)])
				at.Add(tar.Header{Typeflag: tar.TypeReg, Name: path}, source.bytes(size))
				t.files = append(t.files, touchFile{"/" + path, size})
				t.bytes += int64(size)
				left -= size
			}
		}
	}
	for i := range archives {
		t.layers = append(t.layers, archives[i].Layer())
	}
	return t, nil
}

// touchContent makes contents that gzip compresses to less than a half, as it does the files of
// images.
type touchContent struct {
	random *rand.Rand
	words  []string
}

func newTouchContent(random *rand.Rand) *touchContent {
	c := &touchContent{random: random, words: make([]string, 4096)}
	for i := range c.words {
		word := make([]byte, 3+random.IntN(8))
		for k := range word {
			word[k] = byte(random.Uint32())
		}
		c.words[i] = string(word)
	}
	return c
}

// bytes returns size bytes.
func (c *touchContent) bytes(size int) []byte {
	out := make([]byte, 0, size+16)
	for len(out) < size {
		// A product of two random numbers makes some words frequent.
		out = append(out, c.words[c.random.IntN(64)*c.random.IntN(64)]...)
	}
	return out[:size]
}

// portion returns files with a percentage of the bytes, in a random order.
func (t *touchTree) portion(percent int) (files []touchFile, bytes int64) {
	most := t.bytes * int64(percent) / 100
	for _, i := range rand.New(rand.NewPCG(uint64(percent), 4)).Perm(len(t.files)) {
		if f := t.files[i]; bytes+int64(f.size) <= most {
			files, bytes = append(files, f), bytes+int64(f.size)
		}
	}
	return files, bytes
}

// image returns an image whose container reads a portion of the tree. The label makes it another
// image, because profiles belong to manifests.
func (t *touchTree) image(percent int, label string) *imagetest.Bundle {
	var order strings.Builder
	files, _ := t.portion(percent)
	for _, f := range files {
		order.WriteString(f.path + "\n")
	}
	list := new(imagetest.Archive).Dir("./").File("order", order.String()).Layer()
	return imagetest.Compose(runtime.GOARCH, map[string]any{
		"Labels": map[string]string{"bench": label},
		"Env":    []string{"PATH=/bin"}, "Cmd": []string{"/bin/sh", "-c", "xargs cat </order >/dev/null && echo " + touchDone},
	}, append(t.layers[:len(t.layers):len(t.layers)], list))
}

// touchTask returns the task of an image, which has no other one.
func touchTask(im *corpus.Image) tasks.Task {
	return tasks.Task{Series: im.Series, Name: "reads files", Want: []string{touchDone}, Timeout: 2 * time.Minute}
}

// touchOf describes an image of a series.
func touchOf(bundle *imagetest.Bundle, series string) (*corpus.Image, error) {
	var doc wire.Document
	if err := json.Unmarshal(bundle.Top.Data, &doc); err != nil {
		return nil, err
	}
	return &corpus.Image{Series: series, Version: "1", Digest: bundle.Top.Digest, ManifestType: bundle.Top.MediaType, Manifest: bundle.Top.Data,
		Config: *doc.Config, Layers: doc.Layers}, nil
}

// pushTouch pushes an image to a repository of its own, unless it is there.
func (b *bench) pushTouch(ctx context.Context, bundle *imagetest.Bundle, series string) (*corpus.Image, error) {
	im, err := touchOf(bundle, series)
	if err != nil || b.registry.has(ctx, im, "") == im.Digest {
		return im, err
	}
	c := wire.New(b.registry.host(0))
	defer c.Close()
	return im, bundle.Push(ctx, c, im.Repo(), im.Version)
}
