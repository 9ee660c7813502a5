package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"example.org/slipway/registry/objstore"
)

const (
	// headSize is how many bytes of a body are read, at most, before the read counts as
	// answered.
	headSize = 4 << 10
	// copyBuffer is the size of WriteTo's buffer, in bytes.
	copyBuffer = 128 << 10
)

// errStalled is the cause of the end of a stream that stalled.
var errStalled = errors.New("the object store stopped sending")

// Get opens n bytes of an object from the offset off. See [objstore.Store]. It returns
// when the first byte is there.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	begin := time.Now()
	st, err := s.open(ctx, key, off, n)
	s.metrics.done(actionGet, begin, err)
	if err != nil {
		return nil, err
	}
	o := &object{s: s, ctx: ctx, st: st, info: st.o.Info(), off: off}
	o.left = o.info.Size - min(off, o.info.Size)
	if n >= 0 {
		o.left = min(o.left, n)
	}
	return o, nil
}

// open begins a read, with a place among the operations, retries and perhaps a hedge. The
// open stream then holds no place, because its speed depends on the reader.
func (s *Store) open(ctx context.Context, key string, off, n int64) (st *stream, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	s.hedges.add()
	err = s.retry.run(ctx, s.metrics.retried(actionGet), func(ctx context.Context) (err error) {
		st, err = s.race(ctx, key, off, n)
		return err
	})
	return st, err
}

// race sends a read, and a second one if the first is late.
func (s *Store) race(ctx context.Context, key string, off, n int64) (*stream, error) {
	begin := time.Now()
	limit := s.first.limit()
	if s.o.HedgeAfter < 0 || limit == 0 {
		st, err := s.try(ctx, key, off, n)
		if err == nil {
			s.first.add(time.Since(begin))
		}
		return st, err
	}
	type result struct {
		st     *stream
		err    error
		second bool
	}
	results := make(chan result, 2)
	var cancels [2]context.CancelFunc
	send := func(i int) {
		tctx, cancel := context.WithCancel(ctx)
		cancels[i] = cancel
		s.reads.Go(func() {
			st, err := s.try(tctx, key, off, n)
			if err != nil {
				cancel()
			} else {
				st.release = cancel
			}
			results <- result{st, err, i == 1}
		})
	}
	send(0)
	sent, answered := 1, 0
	t := time.NewTimer(max(limit, s.o.HedgeAfter))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if s.hedges.take() {
				send(1)
				sent++
				s.metrics.hedged.Inc()
			}
		case r := <-results:
			if answered++; r.err != nil && answered < sent {
				continue // the other one may do better
			}
			if r.err != nil {
				return nil, r.err
			}
			s.first.add(time.Since(begin))
			if r.second {
				s.metrics.won.Inc()
			}
			if answered < sent { // the loser ends by itself
				loser := 1
				if r.second {
					loser = 0
				}
				cancels[loser]()
				s.reads.Go(func() {
					if r := <-results; r.st != nil {
						_ = r.st.close() // nobody has read from it
					}
				})
			}
			return r.st, nil
		}
	}
}

// stream is one body on its way.
type stream struct {
	o       objstore.Object
	ctx     context.Context
	cancel  context.CancelCauseFunc
	release context.CancelFunc // of the race's context, nil without one
	timer   *time.Timer        // ends the stream while somebody waits for it
	head    []byte             // what has been read already
	err     error              // what followed head
}

// try opens an object and waits for its first byte.
func (s *Store) try(ctx context.Context, key string, off, n int64) (*stream, error) {
	st := &stream{}
	st.ctx, st.cancel = context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.o.Timeout, func() { st.cancel(errTimeout) })
	o, err := s.inner.Get(st.ctx, key, off, n)
	if err == nil {
		st.o = o
		err = st.readHead()
	}
	if !timer.Stop() && ctx.Err() == nil {
		if err == nil {
			err = errTimeout
		}
		err = &objstore.BusyError{Err: fmt.Errorf("get object %s: %w (%v): %v", key, errTimeout, s.o.Timeout, err)}
	}
	if err != nil {
		_ = st.close() // the error at hand is what matters
		return nil, err
	}
	st.timer = time.AfterFunc(time.Hour, func() { st.cancel(errStalled) })
	st.timer.Stop()
	return st, nil
}

// readHead waits for the first byte. A body that ends before its first byte is an error.
func (st *stream) readHead() error {
	buf := make([]byte, headSize)
	for {
		n, err := st.o.Read(buf)
		switch {
		case n > 0, errors.Is(err, io.EOF):
			st.head, st.err = buf[:n], err
			return nil
		case err != nil:
			return err
		}
	}
}

// read is io.Reader's Read that gives up after stall.
func (st *stream) read(p []byte, stall time.Duration) (int, error) {
	if len(st.head) > 0 {
		n := copy(p, st.head)
		st.head = st.head[n:]
		return n, nil
	}
	if st.err != nil {
		return 0, st.err
	}
	st.timer.Reset(stall)
	n, err := st.o.Read(p)
	st.timer.Stop()
	if err != nil && errors.Is(context.Cause(st.ctx), errStalled) {
		err = fmt.Errorf("%w for %v", errStalled, stall)
	}
	return n, err
}

func (st *stream) close() error {
	if st.timer != nil {
		st.timer.Stop()
	}
	var err error
	if st.o != nil {
		err = st.o.Close()
	}
	st.cancel(nil)
	if st.release != nil {
		st.release()
	}
	return err
}

// object is a range being read, over as many streams as that takes.
type object struct {
	s       *Store
	ctx     context.Context // of Get, whose object this is
	st      *stream
	info    objstore.Info
	off     int64 // of the next byte
	left    int64
	got     int64 // bytes read since the last resume
	resumes int   // consecutive resumes that brought little
	closed  bool
	lost    error // why it cannot go on
}

var _ objstore.Object = (*object)(nil)

func (o *object) Info() objstore.Info { return o.info }

// Close ends the read. Closing twice is no error.
func (o *object) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	if o.st == nil {
		return nil
	}
	return o.st.close()
}

// Read implements [io.Reader].
func (o *object) Read(p []byte) (int, error) {
	switch {
	case o.closed:
		return 0, fmt.Errorf("read object %s at %d: %w", o.info.Key, o.off, os.ErrClosed)
	case o.left == 0:
		return 0, io.EOF
	case o.lost != nil:
		return 0, o.lost
	case len(p) == 0:
		return 0, nil
	}
	for {
		n, err := o.st.read(p[:min(int64(len(p)), o.left)], o.s.o.Stall)
		o.off += int64(n)
		o.left -= int64(n)
		o.got += int64(n)
		o.s.metrics.got(n)
		if n > 0 {
			return n, nil // an error comes again
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err := o.resume(err); err != nil {
			o.lost = fmt.Errorf("read object %s at %d: %w", o.info.Key, o.off, err)
			return 0, o.lost
		}
	}
}

// resume continues after the bytes that were read, when an error has ended the stream.
func (o *object) resume(cause error) error {
	s := o.s
	_ = o.st.close() // its error is known already
	if o.got >= resumeStep {
		o.resumes = 0
	}
	if o.ctx.Err() != nil || errors.Is(cause, os.ErrClosed) || o.resumes >= resumes || !s.retry.budget.take() {
		o.st = nil
		s.metrics.failed(actionGet, kind(cause))
		return cause
	}
	o.resumes++
	o.got = 0
	st, err := s.open(o.ctx, o.info.Key, o.off, o.left)
	if o.st = st; err != nil {
		s.metrics.failed(actionGet, kind(err))
		return fmt.Errorf("%w, and then: %w", cause, err)
	}
	if now := st.o.Info(); now.Size != o.info.Size || !now.ModTime.Equal(o.info.ModTime) {
		return fmt.Errorf("%w, and the object has changed since", cause)
	}
	s.metrics.resumed.Inc()
	return nil
}

// WriteTo copies what is left to w.
func (o *object) WriteTo(w io.Writer) (int64, error) {
	if o.closed {
		return 0, fmt.Errorf("read object %s at %d: %w", o.info.Key, o.off, os.ErrClosed)
	}
	buf := make([]byte, min(o.left+1, copyBuffer)) // never empty
	// Without the wrappers, io.Copy would use the ReadFrom or WriteTo of w or o, with
	// buffers of their own.
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{o}, buf)
}
