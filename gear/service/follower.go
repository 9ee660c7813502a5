package service

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// errDropped ends the conversion of an upload that did not become a blob.
var errDropped = errors.New("the upload has ended without becoming a blob")

// errTaken ends the conversion of a layer that is converted, or being converted, already.
var errTaken = errors.New("the layer is being converted already")

// errSlow ends a conversion that has waited too long for bytes.
var errSlow = errors.New("the upload is slow; its layer is converted when it is there")

// follower provides the layer to one conversion while the layer is uploaded. It reads
// what the registry writes a moment later. It never delays the upload: once more than
// limit bytes wait to be read, it takes no more, and reads the rest from the object store
// when the blob is there. It does not wait forever for a slow upload either, because a
// slot for conversions, and other layers that need the same files, would wait as well.
type follower struct {
	limit int
	// open opens the published blob at an offset.
	open func(ctx context.Context, d oci.Digest, off int64) (io.ReadCloser, error)
	// claim is called when the upload has become a blob. It reports whether this follower
	// should do the conversion.
	claim func(d oci.Digest, size int64) bool

	mu sync.Mutex
	// changed is signalled when waiting or state grows.
	changed *sync.Cond
	waiting []byte
	// taken is how many bytes were ever put into waiting. full says that there was no
	// room for the bytes after them.
	taken int64
	full  bool
	ended bool
	blob  oci.Digest // the resulting blob; "" if there is none, or none yet
	size  int64
	// claimed is the result of claim. givenUp says that nobody reads any more.
	claimed, givenUp bool
}

func newFollower(limit int, open func(context.Context, oci.Digest, int64) (io.ReadCloser, error), claim func(oci.Digest, int64) bool) *follower {
	f := &follower{limit: limit, open: open, claim: claim}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// Write implements upload.Follower.
func (f *follower) Write(p []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full || f.givenUp {
		return
	}
	if len(f.waiting)+len(p) > f.limit {
		f.full = true
		return
	}
	f.waiting = append(f.waiting, p...)
	f.taken += int64(len(p))
	f.changed.Broadcast()
}

// Published implements upload.Follower.
func (f *follower) Published(d oci.Digest, size int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended, f.blob, f.size = true, d, size
	f.claimed = !f.givenUp && f.claim(d, size)
	f.changed.Broadcast()
}

// Dropped implements upload.Follower.
func (f *follower) Dropped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.changed.Broadcast()
}

// published waits until the upload has ended and returns the resulting blob.
func (f *follower) published(ctx context.Context) (oci.Digest, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.ended && ctx.Err() == nil {
		f.changed.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return "", 0, ctx.Err()
	case f.blob == "":
		return "", 0, errDropped
	case !f.claimed:
		return "", 0, errTaken
	}
	return f.blob, f.size, nil
}

// behind reports whether the conversion is slower than the upload.
func (f *follower) behind() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full || len(f.waiting) > f.limit/2
}

// giveUp says that nobody reads any more. It returns the blob whose conversion was
// claimed until now, or "".
func (f *follower) giveUp() oci.Digest {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.givenUp, f.waiting = true, nil
	if !f.claimed {
		return ""
	}
	f.claimed = false
	return f.blob
}

// reader returns a reader of the layer, from its first byte on. The reader waits for
// bytes for at most patience in total. There is at most one reader, and it must be
// closed.
func (f *follower) reader(ctx context.Context, patience time.Duration) io.ReadCloser {
	r := &followReader{f: f, ctx: ctx, patience: patience, awake: context.AfterFunc(ctx, f.wake)}
	r.timer = time.AfterFunc(time.Hour, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.late = true
		f.changed.Broadcast()
	})
	r.timer.Stop()
	return r
}

type followReader struct {
	f    *follower
	ctx  context.Context
	buf  []byte // taken from the follower
	have []byte // the part of buf that was not read yet
	rest io.ReadCloser
	// awake stops the wake-up that happens when ctx ends.
	awake func() bool
	// patience is the remaining time. timer runs while the reader waits. When the time is
	// used up, it sets late, which f.mu guards.
	patience time.Duration
	timer    *time.Timer
	late     bool
}

// Read implements io.Reader.
func (r *followReader) Read(p []byte) (int, error) {
	if r.rest != nil {
		return r.rest.Read(p)
	}
	if len(r.have) == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
		if r.rest != nil {
			return r.rest.Read(p)
		}
	}
	n := copy(p, r.have)
	r.have = r.have[n:]
	return n, nil
}

// next waits for bytes. After the bytes that were taken, it opens the published blob.
func (r *followReader) next() error {
	f := r.f
	f.mu.Lock()
	if err := r.wait(); err != nil {
		f.mu.Unlock()
		return err
	}
	// The two buffers are used in turn, so that a long layer allocates no more.
	r.buf, f.waiting = f.waiting, r.buf[:0]
	r.have = r.buf
	blob, size, taken := f.blob, f.size, f.taken
	f.mu.Unlock()
	switch {
	case len(r.have) > 0:
		return nil
	case taken == size:
		return io.EOF
	}
	rest, err := f.open(r.ctx, blob, taken)
	if err != nil {
		return err
	}
	r.rest = rest
	return nil
}

// wait waits until there are bytes or the upload has ended. f.mu is held.
func (r *followReader) wait() error {
	f := r.f
	if len(f.waiting) == 0 && !f.ended {
		began := time.Now()
		r.timer.Reset(max(r.patience, 0))
		for len(f.waiting) == 0 && !f.ended && r.ctx.Err() == nil && !r.late {
			f.changed.Wait()
		}
		r.timer.Stop()
		r.patience -= time.Since(began)
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	switch {
	case r.late && !f.ended:
		return errSlow
	case f.ended && f.blob == "":
		return errDropped
	case f.ended && !f.claimed:
		return errTaken
	}
	return nil
}

// Close implements io.Closer.
func (r *followReader) Close() error {
	r.timer.Stop()
	r.awake()
	if r.rest != nil {
		return r.rest.Close()
	}
	return nil
}

// wake makes a reader notice that its context has ended.
func (f *follower) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed.Broadcast()
}
