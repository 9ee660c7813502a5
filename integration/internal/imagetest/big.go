package imagetest

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/wire"
)

// tarOverhead is what a tar archive of one file adds to the file, in bytes:
// its header and the end marker (two blocks).
const tarOverhead = 512 + 2*512

// WriteBigLayout writes an OCI layout of an image with one uncompressed layer and returns the
// layer's descriptor. The layer has exactly sizeBytes, a multiple of 512. The content is
// pseudo-random, so that nothing on the way can shrink it, and is never in memory as a whole.
func WriteBigLayout(t testing.TB, dir, tag string, sizeBytes int64) (layer, manifest wire.Descriptor) {
	t.Helper()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	layer = wire.Descriptor{MediaType: TypeLayerTar, Size: sizeBytes}
	tmp := filepath.Join(dir, "layer")
	digest, err := writeBigTar(tmp, sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	layer.Digest = digest
	if err := os.Rename(tmp, filepath.Join(blobs, strings.TrimPrefix(digest, "sha256:"))); err != nil {
		t.Fatal(err)
	}

	var c imageConfig
	c.Architecture, c.OS, c.RootFS.Type, c.RootFS.DiffIDs = "amd64", "linux", "layers", []string{digest}
	config := NewBlob(TypeConfig, marshal(c))
	top := NewBlob(TypeManifest, marshal(wire.Document{
		SchemaVersion: 2, MediaType: TypeManifest, Config: &config.Descriptor, Layers: []wire.Descriptor{layer},
	}))
	for _, b := range []Blob{config, top} {
		writeFile(t, filepath.Join(blobs, strings.TrimPrefix(b.Digest, "sha256:")), b.Data)
	}
	writeIndex(t, dir, top.Descriptor, tag)
	return layer, top.Descriptor
}

// writeBigTar writes a tar archive of one file "big" and returns its digest.
func writeBigTar(path string, sizeBytes int64) (string, error) {
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, h), 1<<20)
	if _, err := w.Write(tarHeader("big", sizeBytes-tarOverhead)); err != nil {
		return "", err
	}
	source := rand.NewChaCha8([32]byte{1})
	if _, err := io.CopyN(w, source, sizeBytes-tarOverhead); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	if _, err := w.Write(make([]byte, 2*512)); err != nil {
		return "", err
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), f.Close()
}

// tarHeader returns the 512 byte header of a regular file. The size field has
// 11 octal digits, enough for 8 GiB.
func tarHeader(name string, sizeBytes int64) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x00")
	copy(b[116:], "0000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", sizeBytes))
	copy(b[136:], "00000000000\x00")
	copy(b[148:], "        ") // the checksum counts as spaces
	b[156] = '0'
	copy(b[257:], "ustar\x0000")
	var sum int
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}
