package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

const (
	// maxFile is the size in bytes of the largest file that a client may upload.
	maxFile = 64 << 30
	// maxStream is the maximum number of files in one stream.
	maxStream = 1 << 20
	// inMemory is the size in bytes up to which an uploaded file is kept in RAM. There
	// may be many uploads at the same time.
	inMemory = 1 << 20
)

// PutFile stores a file that a client of a repository uploads. It has size bytes, or any
// number if size is negative. The file is kept for Options.StagedFor, and longer if an
// image of the repository holds it by then. Errors: DIGEST_INVALID, SIZE_INVALID,
// UNSUPPORTED, TOOMANYREQUESTS.
func (s *Service) PutFile(ctx context.Context, repo string, name gear.Name, size int64, body io.Reader) error {
	limit := size
	if size < 0 {
		limit = maxFile
	}
	if limit > maxFile {
		return tooLarge(size)
	}
	if err := s.writable(); err != nil {
		return err
	}
	sp := &spool{dir: s.opts.TempDir}
	defer sp.abort()
	// It reads one byte more than allowed, to see whether there are more.
	n, err := io.Copy(sp, io.LimitReader(body, limit+1))
	switch {
	case sp.err != nil:
		return putError(sp.err)
	case err != nil:
		return clientError(err)
	case n > limit && size < 0:
		return tooLarge(n)
	case n > limit || size >= 0 && n < size:
		return oci.Errorf(oci.CodeSizeInvalid, "the file should have %d bytes and has another number", size)
	}
	file, c := sp.done()
	if file.Name != name {
		c.Release()
		return oci.Errorf(oci.CodeDigestInvalid, "the %d bytes received are sha256:%x, not sha256:%x", file.Size, file.Name, name)
	}
	return s.stage(ctx, repo, func(put func(gear.File, convert.Content) error) error { return put(file, c) })
}

func tooLarge(size int64) error {
	return oci.Errorf(oci.CodeSizeInvalid, "the file has %d bytes, at most %d are taken", size, int64(maxFile))
}

// writable returns UNSUPPORTED while the registry is read-only.
func (s *Service) writable() error {
	if s.opts.ReadOnly {
		return &oci.Error{Code: oci.CodeUnsupported, Message: "the registry is read-only (storage.maintenance.readonly)"}
	}
	return nil
}

// PutFiles stores the files of a stream and returns how many there were. Errors: those of
// PutFile, and BLOB_UPLOAD_INVALID. If it returns an error, nothing is stored.
func (s *Service) PutFiles(ctx context.Context, repo string, stream io.Reader) (n int, err error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	in := gear.NewStreamReader(stream)
	err = s.stage(ctx, repo, func(put func(gear.File, convert.Content) error) error {
		for {
			it, err := in.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return badStream(err)
			}
			if it.Missing || it.Failure != "" {
				continue
			}
			if n == maxStream {
				return oci.Errorf(oci.CodeSizeInvalid, "the stream has more than %d files", maxStream)
			}
			file, c, err := s.spoolItem(it)
			if err != nil {
				return err
			}
			if err := put(file, c); err != nil {
				return err
			}
			n++
		}
	})
	if err != nil {
		n = 0
	}
	return n, err
}

// badStream turns an error in a client's stream into the error for the client.
func badStream(err error) error {
	switch {
	case errors.Is(err, gear.ErrContent):
		return &oci.Error{Code: oci.CodeDigestInvalid, Message: err.Error(), Err: err}
	case errors.Is(err, gear.ErrFormat), errors.Is(err, io.ErrUnexpectedEOF):
		return &oci.Error{Code: oci.CodeBlobUploadInvalid, Message: "the stream of files: " + err.Error(), Err: err}
	}
	return err
}

// stage stores for a repository the files that do passes to its argument. It writes all
// of them, even files that are stored already through another repository. So the time it
// takes does not reveal to a client that somebody has a file which the client guessed.
func (s *Service) stage(ctx context.Context, repo string, do func(put func(gear.File, convert.Content) error) error) error {
	if !s.begin() {
		return oci.Errorf(oci.CodeUnknown, "the registry is stopping")
	}
	defer s.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	w, err := s.files.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer w.Abort(ctx)
	had := map[gear.Name]bool{}
	err = do(func(f gear.File, c convert.Content) error {
		if f.Size == 0 || had[f.Name] { // the empty file is never stored
			c.Release()
			return nil
		}
		had[f.Name] = true
		return w.Keep(ctx, f, c)
	})
	if err == nil && len(had) > 0 {
		var now time.Time
		if now, err = s.now(ctx); err == nil {
			err = w.Stage(ctx, repo, now.Add(s.opts.StagedFor))
		}
	}
	return putError(err)
}

// putError turns a failure to store files into an error that tells the client what it can
// do.
func putError(err error) error {
	switch {
	case errors.Is(err, filestore.ErrRetry):
		return &oci.Error{Code: oci.CodeTooManyRequests, Message: "the registry removed some of these files meanwhile; send them again", Err: err}
	case errors.Is(err, objstore.ErrNoSpace), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &oci.Error{Code: oci.CodeUnknown, Status: http.StatusInsufficientStorage,
			Message: "the registry's storage is full; nothing was stored by this request", Err: err}
	}
	return storage.Unavailable(err)
}

// spooled is a content in RAM or, if it is large, in a file without a name.
type spooled struct {
	*bytes.Reader
	file *os.File
}

// ReadAt implements io.ReaderAt.
func (c *spooled) ReadAt(p []byte, off int64) (int, error) {
	if c.file != nil {
		return c.file.ReadAt(p, off)
	}
	return c.Reader.ReadAt(p, off)
}

// Release implements convert.Content.
func (c *spooled) Release() {
	if c.file != nil {
		c.file.Close() // the file has no name any more, and was only read
	}
}

// spoolItem copies a verified content of a stream, which is valid only until the next one
// is read.
func (s *Service) spoolItem(it *gear.StreamItem) (gear.File, convert.Content, error) {
	if it.Size > maxFile {
		return gear.File{}, nil, tooLarge(it.Size)
	}
	sp := &spool{dir: s.opts.TempDir}
	defer sp.abort()
	if _, err := it.WriteTo(sp); sp.err != nil {
		return gear.File{}, nil, sp.err
	} else if err != nil {
		return gear.File{}, nil, badStream(err)
	}
	f, c := sp.done()
	return f, c, nil
}

// spool receives a content and computes its name. The content is in RAM up to inMemory
// bytes, and beyond that in a file without a name.
type spool struct {
	dir string
	// err is an error of the spool itself, and not of the bytes written to it.
	err  error
	f    gear.File
	head []byte
	tmp  *os.File
	// whole hashes the content once it is in a file. chunk hashes the current chunk.
	whole, chunk hash.Hash
}

// Write implements io.Writer.
func (sp *spool) Write(p []byte) (int, error) {
	if sp.err != nil {
		return 0, sp.err
	}
	if sp.tmp == nil && len(sp.head)+len(p) <= inMemory {
		sp.head = append(sp.head, p...)
		return len(p), nil
	}
	if sp.tmp == nil {
		if sp.err = sp.open(); sp.err != nil {
			return 0, sp.err
		}
		if sp.err = sp.write(sp.head); sp.err != nil {
			return 0, sp.err
		}
		sp.head = nil
	}
	if sp.err = sp.write(p); sp.err != nil {
		return 0, sp.err
	}
	return len(p), nil
}

func (sp *spool) open() (err error) {
	if sp.tmp, err = os.CreateTemp(sp.dir, ".slipway-file-"); err != nil {
		return fmt.Errorf("make room for a large file: %w", err)
	}
	sp.whole, sp.chunk = sha256.New(), sha256.New()
	if err := os.Remove(sp.tmp.Name()); err != nil {
		return fmt.Errorf("make room for a large file: %w", err)
	}
	return nil
}

// write adds bytes to the file.
func (sp *spool) write(p []byte) error {
	if _, err := sp.tmp.Write(p); err != nil {
		return fmt.Errorf("keep a large file: %w", err)
	}
	sp.whole.Write(p)
	for len(p) > 0 {
		part := p[:min(int64(len(p)), gear.ChunkSize-sp.f.Size%gear.ChunkSize)]
		sp.chunk.Write(part)
		sp.f.Size += int64(len(part))
		p = p[len(part):]
		if sp.f.Size%gear.ChunkSize == 0 {
			sp.endChunk()
		}
	}
	return nil
}

func (sp *spool) endChunk() {
	sp.f.Chunks = append(sp.f.Chunks, gear.Name(sp.chunk.Sum(nil)))
	sp.chunk.Reset()
}

// done returns the content. The caller releases it.
func (sp *spool) done() (gear.File, convert.Content) {
	if sp.tmp == nil {
		return gear.File{Name: sha256.Sum256(sp.head), Size: int64(len(sp.head))}, &spooled{Reader: bytes.NewReader(sp.head)}
	}
	sp.whole.Sum(sp.f.Name[:0])
	if sp.f.Size%gear.ChunkSize != 0 {
		sp.endChunk()
	}
	if sp.f.Size < gear.LargeFile {
		sp.f.Chunks = nil
	}
	c := &spooled{file: sp.tmp}
	sp.tmp = nil
	return sp.f, c
}

// abort frees what done did not return.
func (sp *spool) abort() {
	if sp.tmp != nil {
		sp.tmp.Close()
	}
}

// clientError returns the error for a body that broke off.
func clientError(err error) error {
	var known *oci.Error
	if errors.As(err, &known) {
		return err
	}
	return &oci.Error{Code: oci.CodeBlobUploadInvalid, Message: "the body broke off", Err: err}
}
