package client

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear/upper"
	"example.org/slipway/oci"
)

const dockerLayer = "application/vnd.docker.image.rootfs.diff.tar.gzip"

// pushUpper pushes an upper directory as a layer for an image like base, and returns the
// digest of the uncompressed tar. It writes the layer to a temporary file first, because
// the registry needs the digest before the bytes.
func (c *Client) pushUpper(ctx context.Context, dir string, base *Image, o *CommitOptions) (_ oci.Descriptor, diffID oci.Digest, err error) {
	f, err := os.CreateTemp("", "slipway-layer-")
	if err != nil {
		return oci.Descriptor{}, "", err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return oci.Descriptor{}, "", err
	}
	whole, plain := sha256.New(), sha256.New()
	out := &tellingWriter{w: io.MultiWriter(f, whole), tell: o.Progress}
	z := gzip.NewWriter(out)
	if err := upper.Tar(ctx, dir, io.MultiWriter(z, plain), &o.Upper); err != nil {
		return oci.Descriptor{}, "", err
	}
	if err := z.Close(); err != nil {
		return oci.Descriptor{}, "", fmt.Errorf("write the layer: %w", err)
	}
	d := oci.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: sum(whole), Size: out.n}
	if base.Manifest.MediaType == oci.MediaTypeDockerManifest {
		d.MediaType = dockerLayer
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return d, "", err
	}
	if _, err := c.reg.PushBlob(ctx, o.Repo, d.Digest, d.Size, f); err != nil {
		return d, "", fmt.Errorf("push the layer to %s: %w", o.Repo, err)
	}
	return d, sum(plain), nil
}

func sum(h hash.Hash) oci.Digest { return oci.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))) }

// tellingWriter counts bytes and reports the count.
type tellingWriter struct {
	w    io.Writer
	n    int64
	tell func(files int, bytes int64)
}

// Write implements io.Writer.
func (t *tellingWriter) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.n += int64(n)
	if t.tell != nil {
		t.tell(0, t.n)
	}
	return n, err
}
