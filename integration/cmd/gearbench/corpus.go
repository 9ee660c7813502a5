package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"example.org/slipway/integration/internal/wire"
)

// image is one image of the set, an OCI layout.
type image struct {
	series, version string
	dir             string
	manifestType    string
	manifest        []byte
	config          wire.Descriptor
	layers          []wire.Descriptor
}

func (im *image) String() string { return im.series + "/" + im.version }

// repo is the repository an image is pushed to, with its version as the tag.
func (im *image) repo() string { return "bench/" + im.series }

// blob is the path of a blob.
func (im *image) blob(digest string) string {
	return filepath.Join(im.dir, "blobs", strings.ReplaceAll(digest, ":", string(filepath.Separator)))
}

// bytes is the size of all layers, those that occur twice counted twice.
func (im *image) bytes() (n int64) {
	for _, l := range im.layers {
		n += l.Size
	}
	return n
}

// readCorpus reads the layouts SERIES/VERSION below a directory, in order of
// series and then of version, in which runs of digits count as numbers. Names
// that begin with a point are passed over.
func readCorpus(dir string) ([]*image, error) {
	series, err := names(dir)
	if err != nil {
		return nil, fmt.Errorf("read the images: %w", err)
	}
	var out []*image
	for _, s := range series {
		versions, err := names(filepath.Join(dir, s))
		if err != nil {
			return nil, fmt.Errorf("read the images: %w", err)
		}
		slices.SortFunc(versions, compareVersions)
		for _, v := range versions {
			im, err := readLayout(filepath.Join(dir, s, v))
			if err != nil {
				return nil, fmt.Errorf("image %s/%s: %w", s, v, err)
			}
			im.series, im.version = s, v
			out = append(out, im)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no image")
	}
	return out, nil
}

// names returns the directories in a directory, also those that links lead to.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.Name()[0] == '.' {
			continue
		}
		fi, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if fi.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// compareVersions compares names piece by piece, numbers as numbers.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := piece(a), piece(b)
		a, b = a[len(x):], b[len(y):]
		m, errM := strconv.Atoi(x)
		n, errN := strconv.Atoi(y)
		c := strings.Compare(x, y)
		if errM == nil && errN == nil && m != n {
			c = m - n
		}
		if c != 0 {
			return c
		}
	}
	return strings.Compare(a, b)
}

// piece is what a name begins with: digits, or anything else up to a digit.
func piece(s string) string {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	n := 1
	for n < len(s) && digit(s[n]) == digit(s[0]) {
		n++
	}
	return s[:n]
}

// readLayout reads a layout that holds one image.
func readLayout(dir string) (*image, error) {
	im := &image{dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return nil, err
	}
	var index, doc wire.Document
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, err
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("the layout holds %d images, want one", len(index.Manifests))
	}
	top := index.Manifests[0]
	im.manifestType = top.MediaType
	if im.manifest, err = os.ReadFile(im.blob(top.Digest)); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(im.manifest, &doc); err != nil {
		return nil, err
	}
	if doc.Config == nil || len(doc.Layers) == 0 {
		return nil, errors.New("the manifest is not that of an image")
	}
	im.config, im.layers = *doc.Config, doc.Layers
	return im, nil
}

// fewer returns at most limit images, two of each series first, so that there
// is something to share; 0: all.
func fewer(all []*image, limit int) []*image {
	if limit == 0 || len(all) <= limit {
		return all
	}
	chosen := map[*image]bool{}
	for most := 2; len(chosen) < limit; most++ {
		of := map[string]int{}
		for _, im := range all {
			if of[im.series]++; of[im.series] <= most && len(chosen) < limit {
				chosen[im] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(im *image) bool { return !chosen[im] })
}

// source is a layer and a layout that has it.
type source struct {
	wire.Descriptor
	im *image
}

func (s source) path() string { return s.im.blob(s.Digest) }

// distinct returns the distinct layers of images, in order of first appearance.
func distinct(images []*image) []source {
	seen := map[string]bool{}
	var out []source
	for _, im := range images {
		for _, l := range im.layers {
			if !seen[l.Digest] {
				seen[l.Digest] = true
				out = append(out, source{l, im})
			}
		}
	}
	return out
}
