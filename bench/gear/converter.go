package gear

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore/fsstore"
)

// freshLevel is the level of fresh packs (gear/filestore/DESIGN.md).
const freshLevel = zstd.SpeedFastest

// look is what a first read of a layer found in it.
type look struct {
	uncompressed, newBytes int64
	// isNew says for each regular file, in order, whether its content is the first of its kind.
	isNew []bool
	// distinct is the number of different non-empty contents. A conversion must find the
	// same number.
	distinct int
}

// firstLook reads a layer and returns what it holds.
func firstLook(path string) (*look, error) {
	k := &look{}
	seen := map[[sha256.Size]byte]bool{}
	sum := sha256.New()
	n, err := eachFile(path, io.Discard, func(h *tar.Header, r io.Reader) error {
		sum.Reset()
		if _, err := io.Copy(sum, r); err != nil {
			return err
		}
		name := [sha256.Size]byte(sum.Sum(nil))
		k.isNew = append(k.isNew, !seen[name])
		if !seen[name] && h.Size > 0 {
			k.newBytes += h.Size
			k.distinct++
		}
		seen[name] = true
		return nil
	})
	k.uncompressed = n
	return k, err
}

// eachFile passes the regular files of a layer to do. It writes all bytes of the layer to
// also, and returns their number.
func eachFile(path string, also io.Writer, do func(h *tar.Header, r io.Reader) error) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 64<<10))
	if err != nil {
		return 0, err
	}
	count := &counter{w: also}
	all := bufio.NewReaderSize(io.TeeReader(z, count), 256<<10)
	r := tar.NewReader(all)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := do(h, r); err != nil {
			return 0, err
		}
	}
	_, err = io.Copy(io.Discard, all) // the rest after the archive
	return count.n, err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.w.Write(b)
}

// limit does the work that every conversion must do. It inflates the layer, hashes the
// tar and the contents, and compresses new contents in the pieces in which they are
// stored.
func limit(path string, k *look) error {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(freshLevel), zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	whole, part := sha256.New(), sha256.New()
	buf, out := make([]byte, gear.LargeFile), make([]byte, 0, gear.LargeFile)
	i := 0
	n, err := eachFile(path, whole, func(h *tar.Header, r io.Reader) error {
		isNew := k.isNew[i]
		i++
		return compressFile(r, h.Size, isNew, part, z, buf, out)
	})
	if err == nil && (n != k.uncompressed || i != len(k.isNew)) {
		err = fmt.Errorf("read %d bytes and %d files, want %d and %d", n, i, k.uncompressed, len(k.isNew))
	}
	return err
}

// compressFile hashes a content and, if it is new, compresses it.
func compressFile(r io.Reader, size int64, isNew bool, sum hash.Hash, z *zstd.Encoder, buf, out []byte) error {
	sum.Reset()
	piece := int64(gear.ChunkSize)
	if size < gear.LargeFile {
		piece = size
	}
	for size > 0 {
		b := buf[:min(piece, size)]
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		size -= int64(len(b))
		sum.Write(b)
		if isNew {
			z.EncodeAll(b, out)
		}
	}
	sum.Sum(nil)
	return nil
}

// converter is the product's conversion with its own store.
type converter struct {
	src   source
	dir   string
	cores int
	temp  string
	cat   *catalog.Catalog
	files *filestore.Store
}

// benchRepo is the repository that has the layer.
const benchRepo = "bench/layer"

func newConverter(ctx context.Context, dir string, cores int, src source) (_ *converter, err error) {
	c := &converter{src: src, dir: dir, cores: cores}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.temp, err = tempDir(dir, "temp"); err != nil {
		return nil, err
	}
	objects, err := tempDir(dir, "objects")
	if err != nil {
		return nil, err
	}
	objs, err := fsstore.New(objects, nil)
	if err != nil {
		return nil, err
	}
	if c.cat, err = catalog.Open(ctx, filepath.Join(dir, "catalog"), nil); err != nil {
		return nil, err
	}
	if _, err := c.cat.PutBlob(ctx, benchRepo, catalog.Blob{Digest: oci.Digest(src.Digest), Size: src.Size}, ""); err != nil {
		return nil, err
	}
	c.files, err = filestore.New(c.cat, objs, &filestore.Options{Workers: cores})
	return c, err
}

// close removes everything.
func (c *converter) close() error {
	var err error
	if c.cat != nil {
		err = c.cat.Close()
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// convert converts the layer as the server does.
func (c *converter) convert(ctx context.Context, k *look) error {
	f, err := os.Open(c.src.path())
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := c.files.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer w.Abort(ctx)
	o := &convert.Options{Workers: c.cores, TempDir: c.temp, MemoryBytes: conversionMemory}
	got, err := convert.Layer(ctx, f, convert.Want{Digest: oci.Digest(c.src.Digest)}, w, o)
	if err != nil {
		return err
	}
	if got.New != k.distinct || got.Sums.Uncompressed != k.uncompressed {
		return fmt.Errorf("converted %d bytes with %d distinct files, want %d with %d", got.Sums.Uncompressed, got.New, k.uncompressed, k.distinct)
	}
	var index bytes.Buffer
	if err := got.Index.Encode(&index); err != nil {
		return err
	}
	if _, err := w.PutIndex(ctx, index.Bytes()); err != nil {
		return err
	}
	return w.Commit(ctx, gearfacts.Layer{Digest: oci.Digest(c.src.Digest), DiffID: got.Sums.DiffID})
}

// conversionMemory is what a server that runs two conversions at once gives each of them, in bytes.
const conversionMemory = 48 << 20
