package recipes

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/rebuild"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

// indexLimits bounds an index of a layer that this registry has converted. The limits are
// wider than the limits of any conversion, because the current configuration must not
// prevent a layer from being rebuilt.
var indexLimits = gear.Limits{Entries: 64 << 20, Bytes: 16 << 30}

// rebuildLayer writes a layer from its recipe and its files. It writes the last segment
// when the digest is known to be right.
func rebuildLayer(ctx context.Context, files *filestore.Store, l *gearfacts.LayerRecipe, w io.Writer, workers int) error {
	r, a, err := openLayer(ctx, files, l)
	if err != nil {
		return err
	}
	return r.Rebuild(ctx, w, a, &rebuild.Options{Workers: workers})
}

// readBack reads the recipe of a layer and its files, and compares the archive that they give
// with the digest of the layer's archive. It predicts nothing, and so takes a tenth of the
// time of a rebuild.
func readBack(ctx context.Context, files *filestore.Store, l *gearfacts.LayerRecipe) error {
	r, a, err := openLayer(ctx, files, l)
	if err != nil {
		return err
	}
	sum := sha256.New()
	buf := make([]byte, min(readBackBytes, r.Plain))
	for off := int64(0); off < r.Plain; off += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		buf = buf[:min(int64(len(buf)), r.Plain-off)]
		if _, err := a.ReadAt(buf, off); err != nil {
			return err
		}
		sum.Write(buf)
	}
	if [sha256.Size]byte(sum.Sum(nil)) != r.DiffID {
		return fmt.Errorf("%w: its archive has another digest", rebuild.ErrDamaged)
	}
	return nil
}

// readBackBytes is how many bytes of an archive are read at a time. A small file is read whole
// for each part of it.
const readBackBytes = 4 << 20

// openLayer reads a recipe, and makes the archive that it needs readable.
func openLayer(ctx context.Context, files *filestore.Store, l *gearfacts.LayerRecipe) (*rebuild.Recipe, *rebuild.Archive, error) {
	stored, err := content(ctx, files, l.Recipe)
	if err != nil {
		return nil, nil, fmt.Errorf("read its recipe: %w", err)
	}
	r, err := rebuild.Parse(stored)
	if err != nil {
		return nil, nil, err
	}
	if digestOf(r.Digest) != l.Digest || r.Size != l.Size {
		return nil, nil, fmt.Errorf("%w: it is the one of %s, which has %d bytes", rebuild.ErrDamaged, digestOf(r.Digest), r.Size)
	}
	x, err := readIndex(ctx, files, l.Index)
	if err != nil {
		return nil, nil, err
	}
	k, err := rebuild.ParseSkeleton(r.Skeleton)
	if err != nil {
		return nil, nil, err
	}
	a, err := k.Open(x.Files, contents{ctx, files})
	if err != nil {
		return nil, nil, err
	}
	if a.Size() != r.Plain {
		return nil, nil, fmt.Errorf("%w: its archive has %d bytes, and the layer %d", rebuild.ErrDamaged, a.Size(), r.Plain)
	}
	return r, a, nil
}

func digestOf(sum [32]byte) oci.Digest { return oci.Digest("sha256:" + hex.EncodeToString(sum[:])) }

// readIndex reads the Gear index of a layer.
func readIndex(ctx context.Context, files *filestore.Store, name gear.Name) (*gear.Index, error) {
	b, err := content(ctx, files, name)
	if err != nil {
		return nil, fmt.Errorf("read its index: %w", err)
	}
	return gear.Decode(bytes.NewReader(b), &indexLimits)
}

// content reads a whole content.
func content(ctx context.Context, files *filestore.Store, name gear.Name) ([]byte, error) {
	f, err := files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = f.WriteRange(ctx, &b, 0, -1)
	return b.Bytes(), err
}

// contents provides the files of a layer from the file store.
type contents struct {
	ctx   context.Context // of the rebuild
	files *filestore.Store
}

// ReadContent implements rebuild.Contents.
func (c contents) ReadContent(f gear.File, p []byte, off int64) error {
	file, err := c.files.Open(c.ctx, f.Name)
	if err != nil {
		return fmt.Errorf("file %x: %w", f.Name, err)
	}
	if file.Size() != f.Size {
		return fmt.Errorf("file %x has %d bytes in the file store, %d in the index: %w", f.Name, file.Size(), f.Size, gear.ErrContent)
	}
	w := &filler{p}
	if _, err := file.WriteRange(c.ctx, w, off, int64(len(p))); err != nil {
		return fmt.Errorf("file %x: %w", f.Name, err)
	}
	if len(w.left) > 0 {
		return fmt.Errorf("file %x: %w", f.Name, io.ErrUnexpectedEOF)
	}
	return nil
}

// filler fills a slice with the bytes written to it.
type filler struct{ left []byte }

// Write implements io.Writer.
func (w *filler) Write(p []byte) (int, error) {
	n := copy(w.left, p)
	w.left = w.left[n:]
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}
