package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// absentAgain is the time until the next look for a layer that has not arrived yet.
const absentAgain = 30 * time.Second

// StoredIndex returns the index of a layer that a repository shows, once all of its files
// are stored. It is for callers that convert the layer into something else. A layer that
// is not converted is queued, whatever the mode. embedded says that the layer belongs to
// a Gear image. Errors: *gear.PendingError.
func (s *Service) StoredIndex(ctx context.Context, repo string, d oci.Digest) (x *gear.Index, embedded bool, err error) {
	l, err := s.facts.Layer(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, false, s.wanted(ctx, repo, d)
	}
	if err != nil {
		return nil, false, err
	}
	if l.Embedded {
		if err := s.mayUse(ctx, repo, d); err != nil {
			return nil, true, err
		}
	}
	x, err = s.index(ctx, l.Index)
	var damaged *filestore.CorruptError // only the first reader gets it
	if errors.Is(err, filestore.ErrLost) || errors.As(err, &damaged) {
		return nil, l.Embedded, s.remaking(ctx, d)
	}
	return x, l.Embedded, err
}

// wanted queues a layer that has no index, and returns an error that says why it has
// none.
func (s *Service) wanted(ctx context.Context, repo string, d oci.Digest) error {
	job, err := s.facts.Job(ctx, d)
	switch {
	case err == nil:
		return s.waiting(job)
	case !errors.Is(err, catalog.ErrNotFound):
		return err
	}
	if active, _ := s.isActive(d); active {
		return &gear.PendingError{RetryAfter: retryAfter}
	}
	_, err = s.cat.StoredBlob(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) { // of a mirrored image
		return &gear.PendingError{RetryAfter: absentAgain, Reason: "the layer is not here yet"}
	}
	if err == nil {
		err = s.Queue(ctx, repo, []oci.Digest{d})
	}
	if err != nil {
		return err
	}
	return &gear.PendingError{RetryAfter: retryAfter}
}

// Contents returns the file store as a source, without checking who may read the files.
// It is for callers that use an index of StoredIndex.
func (s *Service) Contents() gear.FileSource { return contents{s.files} }

type contents struct{ files *filestore.Store }

// Fetch implements gear.FileSource.
func (c contents) Fetch(ctx context.Context, files []gear.File, deliver func(i int, content io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ask []int
	var names []gear.Name
	for i := range files {
		if files[i].Size > 0 {
			ask, names = append(ask, i), append(names, files[i].Name)
		} else if err := deliver(i, bytes.NewReader(nil)); err != nil {
			return err
		}
	}
	if len(ask) == 0 {
		return nil
	}
	pr, pw := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		pw.CloseWithError(c.files.Stream(ctx, pw, names, nil))
	}()
	err := receive(gear.NewStreamReader(pr), files, ask, deliver)
	cancel()
	pr.CloseWithError(context.Canceled)
	<-sent
	return err
}

// receive delivers files from a stream of them. ask has the positions of these files in
// files.
func receive(in *gear.StreamReader, files []gear.File, ask []int, deliver func(i int, content io.Reader) error) error {
	for k, i := range ask {
		it, err := in.Next()
		f := &files[i]
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the file store sent %d of %d files: %w", k, len(ask), io.ErrUnexpectedEOF)
		case err != nil:
			return fmt.Errorf("read %d files from the file store: %w", len(ask), err)
		case it.Name != f.Name:
			return fmt.Errorf("the file store sent file %x for %x", it.Name, f.Name)
		case it.Missing:
			return fmt.Errorf("file %x: %w", f.Name, filestore.ErrLost)
		case it.Failure != "":
			return fmt.Errorf("read file %x: %s", f.Name, it.Failure)
		case it.Size != f.Size:
			return fmt.Errorf("file %x has %d bytes in the file store, %d in the index: %w", f.Name, it.Size, f.Size, gear.ErrContent)
		case it.Size < gear.LargeFile:
			err = deliver(i, bytes.NewReader(it.Bytes()))
		default:
			err = piped(it, func(r io.Reader) error { return deliver(i, r) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// piped passes a large file to deliver while the file arrives.
func piped(it *gear.StreamItem, deliver func(io.Reader) error) error {
	pr, pw := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := it.WriteTo(pw)
		pw.CloseWithError(err)
		sent <- err
	}()
	err := deliver(pr)
	pr.Close()
	// A reader that reads only the expected number of bytes does not see that they are
	// wrong.
	if bad := <-sent; err == nil && !errors.Is(bad, io.ErrClosedPipe) {
		err = bad
	}
	return err
}
