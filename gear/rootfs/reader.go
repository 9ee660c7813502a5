package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
)

// Reader gives the entries of a layer in their order and the content of its
// files. It must be closed and is for one goroutine at a time.
//
// Entries are as the archive has them, in the form [Entry] describes. It is for
// the consumer to let the later of two entries with one path win, to make
// parents that are missing, to follow symbolic links among parents, and to find
// the target of a hard link, which may lie in a lower layer or nowhere; a hard
// link to itself is the only cycle that is an error here.
//
// A member .wh.NAME is a [Whiteout] of NAME and .wh..wh..opq an [Opaque],
// whatever its type. Other names with .wh..wh. are AUFS's own and left out, as
// in Docker. A character device 0:0, overlayfs's whiteout, is a device: runtimes
// give it no meaning in an archive. Left out as well are global PAX headers and
// the records SCHILY.acl.* and RHT.security.*, which runtimes ignore;
// access control lists come as system.posix_acl_access and the like.
//
// A stream that ends between two members, or in the padding after the last, is
// a whole archive even without end-of-archive blocks, as in Docker and
// containerd. What follows those blocks is no part of the archive but of the
// sums. Bytes that are not gzip or zstd after the last member or frame are an
// error.
type Reader struct {
	opts    Options
	kind    Compression
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	pipe    *pipe
	s       stream
	tar     *tar.Reader
	err     error  // the first one; io.EOF after the last entry
	path    string // of the last member, for errors
	content bool   // whether the last entry is a file
	copyBuf []byte

	// So far, for the limits.
	entries int64
	sizes   int64 // of files
	given   int64 // bytes of files, holes included
	meta    int64 // bytes of metadata
}

// Sums are the size and SHA-256 of a layer as it came and uncompressed; the
// latter is the DiffID of an image configuration.
type Sums struct {
	Compression  Compression
	Digest       [sha256.Size]byte
	Compressed   int64 // bytes
	DiffID       [sha256.Size]byte
	Uncompressed int64 // bytes
}

// Open begins to read a layer. It reads src up to its end, and ahead of the
// entries asked for by at most 5.5 MiB and the window of the compression, in a
// goroutine; a second one hashes.
//
// The end of ctx makes calls fail with its cause, at the latest after another
// MiB, and frees everything. Neither it nor Close can interrupt a Read of src:
// where one may block for long, close src first. Open itself waits for the first
// bytes; src is not closed.
//
// Errors of Open and of the methods of Reader are [*FormatError], [*LimitError],
// the context's, or those of src, wrapped.
func Open(ctx context.Context, src io.Reader, opts *Options) (*Reader, error) {
	head := make([]byte, headSize)
	from := &source{r: src}
	n, err := readFull(from, head)
	if err != nil && err != io.EOF {
		return nil, err
	}
	head = head[:n]
	kind, err := detect(head)
	if err != nil {
		return nil, &FormatError{Err: err}
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Reader{opts: opts.withDefaults(), kind: kind, cancel: cancel}
	r.pipe = newPipe(kind, &r.opts)
	r.s = stream{pipe: r.pipe, done: ctx.Done(), cause: func() error { return context.Cause(ctx) }}
	r.tar = tar.NewReader(&r.s)
	r.wg.Go(func() { r.pipe.inflate(ctx, io.MultiReader(bytes.NewReader(head), src)) })
	return r, nil
}

// Next is the next entry, whose content Read and WriteTo then give. After the
// last one it reads the layer to its end and returns [io.EOF], which says that
// the layer is sound and that Sums are known. The entry is the caller's.
func (r *Reader) Next() (*Entry, error) {
	for r.err == nil {
		e, err := r.next()
		if err != nil {
			r.fail(err)
			break
		}
		if e != nil {
			r.content = e.Type == File
			return e, nil
		}
	}
	return nil, r.err
}

// next is Next with nil for a member that is left out.
func (r *Reader) next() (*Entry, error) {
	r.content = false
	h, err := r.tar.Next()
	if err == io.EOF {
		return nil, r.finish()
	}
	if err != nil {
		return nil, fmt.Errorf("header of the following member: %w", err)
	}
	r.path = clip(h.Name)
	if r.entries++; r.entries > r.opts.MaxEntries {
		return nil, &LimitError{Limit: "max_entries", Max: r.opts.MaxEntries}
	}
	e, err := entryOf(h, &r.opts)
	if e == nil || err != nil {
		return nil, err
	}
	if e.Size > r.opts.MaxBytes-r.sizes {
		return nil, &LimitError{Limit: "max_layer_bytes", Max: r.opts.MaxBytes}
	}
	r.sizes += e.Size
	r.meta += int64(len(e.Path)+len(e.Link)) + xattrBytes(e.Xattrs)
	if r.meta > r.opts.MaxMetadataBytes {
		return nil, &LimitError{Limit: "max_metadata_bytes", Max: r.opts.MaxMetadataBytes}
	}
	return e, nil
}

// finish reads what follows the archive and waits for the sums.
func (r *Reader) finish() error {
	if err := r.s.drain(); err != nil {
		return err
	}
	<-r.pipe.hashed
	return io.EOF
}

// Read reads the content of the last entry Next gave, up to [io.EOF]. Holes of a
// sparse file read as zeros. Entries other than files have no content.
func (r *Reader) Read(b []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if !r.content {
		return 0, io.EOF
	}
	n, err := r.tar.Read(b)
	r.given += int64(n)
	if err == nil || err == io.EOF {
		// Holes are bytes that the pipe has not seen.
		if limit := r.opts.checkBytes(r.given, r.s.in); limit != nil {
			err = limit
		}
	}
	if err != nil && err != io.EOF {
		r.fail(err)
		err = r.err
	}
	return n, err
}

// WriteTo writes to w what is still to be read of the content of the last entry
// Next gave. An error of w is returned as it is and does not end the Reader.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	if r.copyBuf == nil {
		r.copyBuf = make([]byte, 64<<10)
	}
	for {
		m, err := r.Read(r.copyBuf)
		if m > 0 {
			k, werr := w.Write(r.copyBuf[:m])
			n += int64(k)
			if werr == nil && k < m {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return n, werr
			}
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// Sums are known, and the second result true, once Next has returned [io.EOF].
func (r *Reader) Sums() (Sums, bool) {
	if r.err != io.EOF {
		return Sums{}, false
	}
	p := r.pipe
	return Sums{
		Compression: r.kind,
		Digest:      p.blob, Compressed: p.compressed,
		DiffID: p.diffID, Uncompressed: p.size,
	}, true
}

// Close ends the goroutines and waits for them, at any time and any number of
// times.
func (r *Reader) Close() error {
	if r.err == nil {
		r.err = fs.ErrClosed
	}
	r.cancel()
	r.wg.Wait()
	<-r.pipe.hashed
	return nil
}

// fail keeps the first error, with the place if it has none.
func (r *Reader) fail(err error) {
	var format *FormatError
	var limit *LimitError
	switch {
	case err == io.EOF:
	case errors.As(err, &limit):
		limit.Entry = r.path
		err = limit
	case errors.As(err, &format):
		format.Entry, format.Offset = r.path, r.s.pos
		err = format
	case r.s.err != nil && r.s.err != io.EOF:
		err = r.s.err // of the source or the context
	default:
		err = &FormatError{Entry: r.path, Offset: r.s.pos, Err: err}
	}
	r.err = err
	r.cancel()
}

// clip bounds a name of up to 1 MiB for the text of an error.
func clip(name string) string {
	const most = 512
	if len(name) > most {
		return strings.Clone(name[:most]) + "..."
	}
	return strings.Clone(name) // it may be part of a PAX header
}
