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

// Reader returns the entries of a layer in order, and the content of its files. It must
// be closed. It may be used by one goroutine at a time.
//
// Entries are as the archive has them, in the form that [Entry] describes. The consumer
// must let the later of two entries with the same path win, create missing parents,
// follow symbolic links among parents, and find the target of a hard link, which may be
// in a lower layer or nowhere. A hard link to itself is the only cycle that is an error
// here.
//
// A member .wh.NAME is a [Whiteout] of NAME, and .wh..wh..opq is an [Opaque], whatever
// its type. Other names with .wh..wh. belong to AUFS and are omitted, as in Docker. A
// character device 0:0, which is overlayfs's whiteout, is a device, because runtimes give
// it no meaning in an archive. Global PAX headers and the records SCHILY.acl.* and
// RHT.security.*, which runtimes ignore, are omitted as well. Access control lists are
// returned as system.posix_acl_access and the like.
//
// A stream that ends between two members, or in the padding after the last member, is a
// complete archive even without end-of-archive blocks, as in Docker and containerd. What
// follows those blocks does not belong to the archive, but the sums include it. Bytes
// after the last member or frame that are neither gzip nor zstd are an error.
type Reader struct {
	opts    Options
	kind    Compression
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	pipe    *pipe
	s       stream
	tar     *tar.Reader
	err     error  // the first error; io.EOF after the last entry
	path    string // of the last member, for errors
	content bool   // whether the last entry is a file
	copyBuf []byte

	// These fields count what was returned so far, for the limits.
	entries int64
	sizes   int64 // of files
	given   int64 // number of bytes of files, including holes
	meta    int64 // bytes of metadata
}

// Sums are the size and SHA-256 of a layer, both as it came and uncompressed. The
// uncompressed SHA-256 is the DiffID of an image configuration.
type Sums struct {
	Compression  Compression
	Digest       [sha256.Size]byte
	Compressed   int64 // bytes
	DiffID       [sha256.Size]byte
	Uncompressed int64 // bytes
}

// Open begins to read a layer. A goroutine reads src to its end. It reads ahead of the
// requested entries by at most 5.5 MiB and the window of the compression. A second
// goroutine hashes.
//
// When ctx ends, calls fail with its cause, at the latest after another MiB, and
// everything is freed. Neither ctx nor Close can interrupt a Read of src. If a Read may
// block for long, close src first. Open itself waits for the first bytes. It does not
// close src.
//
// The errors of Open and of the methods of Reader are [*FormatError], [*LimitError], the
// context's error, or an error of src, wrapped.
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

// Next returns the next entry. Read and WriteTo then return its content. After the last
// entry, Next reads the layer to its end and returns [io.EOF], which means that the layer
// is sound and that Sums are known. The caller owns the entry.
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

// next is like Next, but returns nil for a member that is omitted.
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

// Read reads the content of the last entry that Next returned, up to [io.EOF]. Holes of a
// sparse file read as zeros. Only files have content.
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
		// The pipe has not seen the bytes of holes.
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

// WriteTo writes to w the unread rest of the content of the last entry that Next
// returned. An error of w is returned unchanged and does not end the Reader.
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

// Sums returns the sums of the layer. They are known, and the second result is true, once
// Next has returned [io.EOF].
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

// Close ends the goroutines and waits for them. It may be called at any time and any
// number of times.
func (r *Reader) Close() error {
	if r.err == nil {
		r.err = fs.ErrClosed
	}
	r.cancel()
	r.wg.Wait()
	<-r.pipe.hashed
	return nil
}

// fail records the first error, and adds the position if the error has none.
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
		err = r.s.err // an error of the source or the context
	default:
		err = &FormatError{Entry: r.path, Offset: r.s.pos, Err: err}
	}
	r.err = err
	r.cancel()
}

// clip shortens a name of up to 1 MiB for the text of an error.
func clip(name string) string {
	const most = 512
	if len(name) > most {
		return strings.Clone(name[:most]) + "..."
	}
	return strings.Clone(name) // it may be part of a PAX header
}
