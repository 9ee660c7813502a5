// Package corpus reads a set of real images: OCI layouts SERIES/VERSION below a directory, each
// with one image.
package corpus

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

// Image is one image of the set.
type Image struct {
	Series, Version string
	// Dir is the directory of the image's layout.
	Dir string
	// Digest, ManifestType and Manifest describe the image's manifest.
	Digest, ManifestType string
	Manifest             []byte
	Config               wire.Descriptor
	Layers               []wire.Descriptor
}

// String returns SERIES/VERSION.
func (im *Image) String() string { return im.Series + "/" + im.Version }

// Repo returns the repository that the image is pushed to, with its version as the tag.
func (im *Image) Repo() string { return "bench/" + im.Series }

// Blob returns the path of a blob.
func (im *Image) Blob(digest string) string {
	return filepath.Join(im.Dir, "blobs", strings.ReplaceAll(digest, ":", string(filepath.Separator)))
}

// Bytes returns the size of all layers. A layer that occurs twice counts twice.
func (im *Image) Bytes() (n int64) {
	for _, l := range im.Layers {
		n += l.Size
	}
	return n
}

// Read reads the layouts SERIES/VERSION below a directory. It sorts them by series and
// then by version, and compares runs of digits in versions as numbers. It skips names
// that begin with a dot.
func Read(dir string) (Set, error) {
	series, err := names(dir)
	if err != nil {
		return nil, fmt.Errorf("read the images: %w", err)
	}
	var out Set
	for _, s := range series {
		versions, err := names(filepath.Join(dir, s))
		if err != nil {
			return nil, fmt.Errorf("read the images: %w", err)
		}
		slices.SortFunc(versions, CompareVersions)
		for _, v := range versions {
			im, err := ReadLayout(filepath.Join(dir, s, v))
			if err != nil {
				return nil, fmt.Errorf("image %s/%s: %w", s, v, err)
			}
			im.Series, im.Version = s, v
			out = append(out, im)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no image")
	}
	return out, nil
}

// Set is a set of images, in the order of Read.
type Set []*Image

// Series returns the names of the series.
func (s Set) Series() []string {
	var out []string
	for _, im := range s {
		if !slices.Contains(out, im.Series) {
			out = append(out, im.Series)
		}
	}
	return out
}

// Choose returns the images with the given names: SERIES/VERSION, or SERIES for its last version.
func (s Set) Choose(names []string) ([]*Image, error) {
	var out []*Image
	for _, name := range names {
		var found *Image
		for _, im := range s {
			if im.String() == name || im.Series == name {
				found = im
			}
		}
		if found == nil {
			return nil, fmt.Errorf("no image or series %q in the set", name)
		}
		out = append(out, found)
	}
	return out, nil
}

// names returns the directories in a directory, including directories to which symbolic
// links lead.
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

// CompareVersions compares names piece by piece. Runs of digits compare as numbers.
func CompareVersions(a, b string) int {
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

// piece returns the first piece of a name: its leading digits, or everything up to the first digit.
func piece(s string) string {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	n := 1
	for n < len(s) && digit(s[n]) == digit(s[0]) {
		n++
	}
	return s[:n]
}

// ReadLayout reads a layout that holds one image.
func ReadLayout(dir string) (*Image, error) {
	im := &Image{Dir: dir}
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
	im.Digest, im.ManifestType = top.Digest, top.MediaType
	if im.Manifest, err = os.ReadFile(im.Blob(top.Digest)); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(im.Manifest, &doc); err != nil {
		return nil, err
	}
	if doc.Config == nil || len(doc.Layers) == 0 {
		return nil, errors.New("the manifest is not that of an image")
	}
	im.Config, im.Layers = *doc.Config, doc.Layers
	return im, nil
}

// Configuration says how to start an image's containers.
type Configuration struct {
	Env, Entrypoint, Cmd []string
	WorkingDir, User     string
}

// Configuration reads the image's configuration.
func (im *Image) Configuration() (Configuration, error) {
	b, err := os.ReadFile(im.Blob(im.Config.Digest))
	if err != nil {
		return Configuration{}, err
	}
	var doc struct{ Config Configuration }
	if err := json.Unmarshal(b, &doc); err != nil {
		return Configuration{}, fmt.Errorf("configuration of %s: %w", im, err)
	}
	return doc.Config, nil
}

// ChainID returns the chain ID of all layers, by the rule of the OCI image format.
func (im *Image) ChainID() (string, error) {
	b, err := os.ReadFile(im.Blob(im.Config.Digest))
	if err != nil {
		return "", err
	}
	var doc struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return "", fmt.Errorf("configuration of %s: %w", im, err)
	}
	if len(doc.RootFS.DiffIDs) != len(im.Layers) {
		return "", fmt.Errorf("configuration of %s: %d layers, the manifest has %d", im, len(doc.RootFS.DiffIDs), len(im.Layers))
	}
	chain := doc.RootFS.DiffIDs[0]
	for _, id := range doc.RootFS.DiffIDs[1:] {
		chain = wire.Digest([]byte(chain + " " + id))
	}
	return chain, nil
}
