package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/integration/internal/wire"
)

// ReadLayout reads the image of an OCI image layout, verifies every digest, and applies the layers.
// It returns the manifest's digest and what /hello would print. This is how the tests "run" an
// image for clients that only copy.
func ReadLayout(dir string) (digest, output string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return "", "", err
	}
	var index, manifest wire.Document
	if err := json.Unmarshal(b, &index); err != nil {
		return "", "", fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return "", "", fmt.Errorf("index.json lists %d manifests, want 1", len(index.Manifests))
	}
	top := index.Manifests[0]
	if b, err = readBlob(dir, top); err != nil {
		return "", "", err
	}
	if err := json.Unmarshal(b, &manifest); err != nil {
		return "", "", fmt.Errorf("manifest: %w", err)
	}
	if manifest.Config == nil {
		return "", "", errors.New("manifest: no config")
	}
	if _, err := readBlob(dir, *manifest.Config); err != nil {
		return "", "", err
	}
	data := map[string]string{}
	for _, d := range manifest.Layers {
		if b, err = readBlob(dir, d); err != nil {
			return "", "", err
		}
		if err := applyLayer(data, b); err != nil {
			return "", "", fmt.Errorf("layer %s: %w", d.Digest, err)
		}
	}
	output = "slipway-ok"
	for _, name := range slices.Sorted(maps.Keys(data)) {
		output += " " + name + "=" + data[name]
	}
	return top.Digest, output, nil
}

func readBlob(dir string, d wire.Descriptor) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(d.Digest, "sha256:")))
	if err != nil {
		return nil, err
	}
	if got := wire.Digest(b); got != d.Digest || int64(len(b)) != d.Size {
		return nil, fmt.Errorf("blob %s of %d bytes: got %s with %d bytes", d.Digest, d.Size, got, len(b))
	}
	return b, nil
}

// applyLayer applies a layer's changes to the directory /data.
func applyLayer(data map[string]string, layer []byte) error {
	var r io.Reader = bytes.NewReader(layer)
	if bytes.HasPrefix(layer, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		r = z
	}
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		dir, name := path.Split(path.Clean("/" + h.Name))
		if h.Typeflag != tar.TypeReg || dir != "/data/" {
			continue
		}
		if gone, ok := strings.CutPrefix(name, ".wh."); ok {
			delete(data, gone)
			continue
		}
		b, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		data[name] = string(b)
	}
}
