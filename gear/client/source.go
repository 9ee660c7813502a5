package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// MissingError says that a registry lacks a content of an image, or that the image's
// repository may not see the content.
type MissingError struct {
	Image, Path string
	Name        gear.Name
}

// Error names the file and the image.
func (e *MissingError) Error() string {
	return fmt.Sprintf("the registry lacks the content of /%s of %s (sha256:%x); slipway fsck tells what is damaged there, a new push of the original image brings it back",
		e.Path, e.Image, e.Name)
}

// Source provides the contents of an image. It may be used concurrently.
type Source struct {
	c   *Client
	img *Image
	x   *gear.Index
}

var _ gear.FileSource = (*Source)(nil)

// Files returns the contents of an image whose index is x.
func (c *Client) Files(img *Image, x *gear.Index) *Source { return &Source{c, img, x} }

// Fetch implements [gear.FileSource]. A broken stream is continued with the first file
// that it did not deliver. A large file is continued where it stopped. Errors:
// *MissingError.
func (s *Source) Fetch(ctx context.Context, files []gear.File, deliver func(i int, content io.Reader) error) error {
	info, err := s.c.offered(ctx)
	if err != nil {
		return err
	}
	var ask []int
	for i := range files {
		if files[i].Size > 0 {
			ask = append(ask, i)
		} else if err := deliver(i, bytes.NewReader(nil)); err != nil {
			return err
		}
	}
	failures, wrongs := 0, 0
	for len(ask) > 0 {
		var n int
		var err error
		// Without this limit, a network path that damages the beginning of every stream
		// would have all remaining files requested again after each file.
		if wrongs <= streamTries {
			n, err = s.stream(ctx, files, ask[:min(len(ask), info.Limits.Names)], deliver)
		}
		if ask = ask[n:]; n > 0 {
			failures, wrongs = 0, 0
		}
		var wrong *wrongError
		if errors.As(err, &wrong) || wrongs > streamTries {
			wrongs++
			if err = s.checked(ctx, &files[ask[0]], func(r io.Reader) error { return deliver(ask[0], r) }); err == nil {
				failures, ask = 0, ask[1:]
			} else if wrong != nil && errors.Is(wrong, gear.ErrContent) {
				err = fmt.Errorf("%w: %w", err, wrong)
			}
		}
		if err == nil {
			continue
		}
		var broken *brokenError
		if failures++; !errors.As(err, &broken) || ctx.Err() != nil || failures > streamTries {
			return err
		}
		if err := pause(ctx, s.c.opts.RetryWait<<(failures-1)); err != nil {
			return err
		}
	}
	return nil
}

// Range opens n bytes of a file from off. If the registry can, it sends whole chunks of a
// large file compressed and unverified. An interrupted transfer of such chunks is not
// continued. checked asks for bytes that the registry verifies, so that the registry sees
// that it has to repair them. Errors: BLOB_UNKNOWN.
func (s *Source) Range(ctx context.Context, f gear.File, off, n int64, checked bool) (io.ReadCloser, error) {
	info, err := s.c.offered(ctx)
	if err != nil {
		return nil, err
	}
	end := off + n
	if checked || f.Size < gear.LargeFile || off%gear.ChunkSize != 0 || (end%gear.ChunkSize != 0 && end != f.Size) || n <= 0 || end > f.Size ||
		!slices.Contains(info.Chunks, client.MediaTypeGearChunks) {
		return s.c.reg.GearFile(ctx, s.img.Repo, f.Name, off, n)
	}
	first, count := int(off/gear.ChunkSize), gear.ChunkCount(n)
	body, err := s.c.reg.GearChunks(ctx, s.img.Repo, f.Name, first, count)
	for _, code := range []oci.Code{oci.CodeDigestInvalid, oci.CodeNameUnknown, oci.CodeUnsupported} {
		if oci.HasCode(err, code) { // another replica answered, whose version is older
			return s.c.reg.GearFile(ctx, s.img.Repo, f.Name, off, n)
		}
	}
	if err != nil {
		return nil, err
	}
	r, err := gear.NewChunkReader(gear.Arriving(ctx, body), f.Size, first, count)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("file %x: %w", f.Name, err), body.Close())
	}
	return chunkBody{r, body}, nil
}

// chunkBody reads chunks and closes the body that they come from.
type chunkBody struct {
	*gear.ChunkReader
	io.Closer
}

// brokenError is an error that may not occur again on a retry.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return fmt.Sprintf("stream of files: %v", e.err) }
func (e *brokenError) Unwrap() error { return e.err }

// wrongError says that the received bytes are not the expected ones. Registries do not
// verify what they send in streams.
type wrongError struct{ err error }

func (e *wrongError) Error() string { return e.err.Error() }
func (e *wrongError) Unwrap() error { return e.err }

// checked delivers a content that the registry verifies first. The registry then sees
// that it has to repair the content, and may have another copy elsewhere.
func (s *Source) checked(ctx context.Context, f *gear.File, deliver func(io.Reader) error) error {
	r, err := s.c.reg.GearFile(ctx, s.img.Repo, f.Name, 0, -1)
	if oci.HasCode(err, oci.CodeBlobUnknown) {
		return &MissingError{s.img.Name(), pathOf(s.x, f.Name), f.Name}
	}
	if err != nil {
		return fmt.Errorf("/%s of %s was sent wrong; fetch it again: %w", pathOf(s.x, f.Name), s.img.Name(), err)
	}
	defer r.Close()
	return deliver(gear.Arriving(ctx, r))
}

// stream delivers the files whose positions are in ask, and returns how many it
// delivered.
func (s *Source) stream(ctx context.Context, files []gear.File, ask []int, deliver func(i int, content io.Reader) error) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	names := make([]gear.Name, len(ask))
	for k, i := range ask {
		names[k] = files[i].Name
	}
	body, err := s.c.reg.GearFetch(ctx, s.img.Repo, names)
	if err != nil {
		return 0, fmt.Errorf("fetch %d files of %s: %w", len(ask), s.img.Name(), err)
	}
	defer body.Close()
	in := gear.NewStreamReader(gear.Arriving(ctx, body))
	for k, i := range ask {
		it, err := in.Next()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("it ends after %d of %d: %w", k, len(ask), io.ErrUnexpectedEOF)
		}
		switch {
		case errors.Is(err, gear.ErrContent), errors.Is(err, gear.ErrFormat):
			return k, &wrongError{err}
		case err != nil:
			return k, &brokenError{err}
		}
		f := &files[i]
		switch {
		case it.Name != f.Name:
			return k, fmt.Errorf("the registry sent file %x where %x was asked for", it.Name, f.Name)
		case it.Missing:
			return k, &MissingError{s.img.Name(), pathOf(s.x, f.Name), f.Name}
		case it.Failure != "":
			return k, &brokenError{fmt.Errorf("the registry cannot send /%s of %s: %s", pathOf(s.x, f.Name), s.img.Name(), it.Failure)}
		case it.Size != f.Size:
			return k, fmt.Errorf("file %x has %d bytes in the registry, %d in the index: %w", f.Name, it.Size, f.Size, gear.ErrContent)
		case it.Size < gear.LargeFile:
			err = deliver(i, bytes.NewReader(it.Bytes()))
		default:
			err = s.large(ctx, it, func(r io.Reader) error { return deliver(i, r) })
		}
		if err != nil {
			return k, err
		}
	}
	return len(ask), nil
}

// large delivers a large file from the stream. If the stream breaks, it requests the rest
// of the file alone.
func (s *Source) large(ctx context.Context, it *gear.StreamItem, deliver func(io.Reader) error) error {
	pr, pw := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, err := it.WriteTo(pw)
		pw.CloseWithError(err)
	}()
	r := &largeReader{ctx: ctx, s: s, name: it.Name, size: it.Size, from: pr}
	err := deliver(r)
	pr.Close()
	<-sent
	if r.rest != nil {
		err = errors.Join(err, r.rest.Close())
	}
	return err
}

// largeReader reads a content from a stream. If the stream breaks, it reads the rest in
// another way.
type largeReader struct {
	ctx       context.Context // the stream's
	s         *Source
	name      gear.Name
	size, off int64
	from      io.Reader
	rest      io.Closer
}

// Read implements io.Reader.
func (r *largeReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.off += int64(n)
	if err == nil || n > 0 {
		return n, nil
	}
	if r.off >= r.size || r.rest != nil || r.ctx.Err() != nil {
		return 0, err
	}
	rest, err := r.s.c.reg.GearFile(r.ctx, r.s.img.Repo, r.name, r.off, -1)
	if err != nil {
		return 0, fmt.Errorf("go on with file %x at byte %d: %w", r.name, r.off, err)
	}
	r.from, r.rest = rest, rest
	return r.Read(p)
}
