package cluster

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"time"

	"example.org/slipway/registry/objstore"
)

// object is a read from a peer. If the peer fails, the read continues in the inner store
// at the same position. One goroutine uses it. ctx and reading.ctx span its life.
type object struct {
	*reading
	info objstore.Info
	at   int64 // what is read next
	end  int64 // where the range ends

	// These fields are the peer's part, until body is nil. The part began at position
	// begin. waited is how long the read has waited for its bytes.
	body   io.ReadCloser
	ctx    context.Context
	stop   context.CancelCauseFunc
	begin  int64
	waited time.Duration
	// rest is the part from the inner store.
	rest objstore.Object

	// sum is the hash of all bytes that were read. It is used for a whole object, whose
	// digest must be want.
	sum  hash.Hash
	want string
	err  error // the error of every further Read
}

var _ objstore.Object = (*object)(nil)

// Info implements objstore.Object.
func (o *object) Info() objstore.Info { return o.info }

// Close implements objstore.Object.
func (o *object) Close() error {
	var err error
	if o.body != nil && o.at < o.end {
		_ = o.leave(failedAbandoned, context.Canceled)
	} else if o.body != nil {
		o.delivered()
	}
	if o.rest != nil {
		err = o.rest.Close()
		o.rest = nil
	}
	if o.err == nil {
		o.err = fmt.Errorf("read object %s: %w", o.key, fs.ErrClosed)
	}
	return err
}

// delivered ends the peer's part after its last byte.
func (o *object) delivered() {
	discard(o.body)
	o.body = nil
	o.stop(nil)
	o.c.metrics.reads.peer.Inc()
	o.c.metrics.peerBytes.Add(float64(o.end - o.begin))
	o.c.end(o.reading, verdictGood)
}

// leave ends the peer's part before its last byte.
func (o *object) leave(f failure, err error) error {
	o.body.Close()
	o.body = nil
	o.stop(nil)
	o.c.metrics.peerBytes.Add(float64(o.at - o.begin))
	return o.fail(f, err)
}

// Read implements io.Reader.
func (o *object) Read(p []byte) (n int, err error) {
	if o.err == nil && o.at >= o.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), max(o.end-o.at, 0))]
	for n == 0 && o.err == nil && len(p) > 0 {
		n = o.readSome(p)
	}
	if n > 0 && o.sum != nil {
		o.sum.Write(p[:n])
		// The last bytes of a wrong object are held back, so that nobody takes the object
		// for complete.
		if o.at+int64(n) == o.end && hex.EncodeToString(o.sum.Sum(nil)) != o.want {
			n = 0
			o.wrong()
		}
	}
	o.at += int64(n)
	if n == 0 {
		return 0, o.err
	}
	return n, nil // the next call returns the error
}

func (o *object) wrong() {
	o.err = fmt.Errorf("the bytes of %s do not have its digest", o.key)
	if o.body != nil {
		o.err = o.leave(failedWrong, o.err)
		return
	}
	// Either the peer's part or the store's part was wrong. The peer is not asked until
	// somebody had time to look at it.
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	o.c.judge(o.peer, verdictWrong)
}

// readSome reads from the peer or, once that has failed, from the inner store. It may
// return 0. It stores errors that end the read in o.err.
func (o *object) readSome(p []byte) int {
	if o.body != nil {
		n, err := o.readPeer(p)
		if err != nil && o.at+int64(n) < o.end {
			f := broke(o.ctx, failedCut)
			if err := o.leave(f, err); f == failedAbandoned {
				o.err = err
			}
		}
		return n
	}
	if o.rest == nil {
		rest, err := o.inner.Get(o.reading.ctx, o.key, o.at, o.end-o.at)
		if err != nil {
			o.err = err
			return 0
		}
		o.rest = rest
	}
	n, err := o.rest.Read(p)
	if errors.Is(err, io.EOF) {
		err = nil
		if o.at+int64(n) < o.end {
			err = fmt.Errorf("read object %s at %d: %w", o.key, o.at+int64(n), io.ErrUnexpectedEOF)
		}
	}
	o.err = err
	return n
}

// readPeer reads from the peer within the limits on its slowness.
func (o *object) readPeer(p []byte) (int, error) {
	opts := &o.c.opts
	begin := time.Now()
	timer := time.AfterFunc(opts.StallTimeout, func() { o.stop(errStall) })
	n, err := o.body.Read(p)
	timer.Stop()
	o.waited += time.Since(begin)
	read := float64(o.at + int64(n) - o.begin)
	allowed := opts.StallTimeout + time.Duration(read/float64(opts.MinRate)*float64(time.Second))
	if err == nil && o.waited > allowed {
		o.stop(errStall)
		err = errStall
	}
	return n, err
}

// readAhead reads a whole small object and checks it, before the caller gets any of it.
// If the object is wrong, the caller can still read it from the store.
func (o *object) readAhead() (objstore.Object, error) {
	b := make([]byte, o.end)
	for o.at < o.end {
		n, err := o.readPeer(b[o.at:])
		o.at += int64(n)
		if err != nil && o.at < o.end {
			return nil, o.leave(broke(o.ctx, failedCut), err)
		}
	}
	o.sum.Write(b)
	if hex.EncodeToString(o.sum.Sum(nil)) != o.want {
		return nil, o.leave(failedWrong, fmt.Errorf("the bytes of %s do not have its digest", o.key))
	}
	o.delivered()
	return &small{bytes.NewReader(b), o.info}, nil
}

// WriteTo implements io.WriterTo.
func (o *object) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{o}, make([]byte, 128<<10))
}

// small is an object in memory that came from a peer.
type small struct {
	*bytes.Reader
	info objstore.Info
}

var _ objstore.Object = (*small)(nil)

// Info implements objstore.Object.
func (o *small) Info() objstore.Info { return o.info }

// Close implements objstore.Object.
func (o *small) Close() error { return nil }
