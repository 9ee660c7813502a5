package mirror

import (
	"context"
	"errors"
	"hash"
	"io"

	"example.org/slipway/oci"
)

// passage is a part of a blob that goes from the upstream to one reader and is
// kept nowhere: what is done when the spool's disk is full. The blob is always
// fetched from its beginning on, because its last bytes must not be given out
// before its digest is known to be right.
type passage struct {
	ctx      context.Context
	m        *Registry
	by       reader
	digest   oci.Digest
	size     int64
	off, end int64

	// Of the download under way:
	w    io.Writer
	at   int64
	sent int64
	hash hash.Hash
	buf  [64 << 10]byte
	tail []byte

	// Of a reader that uses Read:
	pipe   *io.PipeReader
	done   chan struct{}
	cancel context.CancelFunc
}

var _ sink = (*passage)(nil)

// newPassage is for what is left of a content.
func newPassage(c *fillContent) *passage {
	return &passage{ctx: c.ctx, m: c.f.m, by: c.by, digest: c.f.digest, size: c.size, off: c.off, end: c.end}
}

// WriteTo sends the part.
func (p *passage) WriteTo(w io.Writer) (int64, error) {
	p.w, p.at, p.sent, p.hash, p.tail = w, 0, 0, newHash(p.digest), nil
	d := &download{m: p.m, s: p.by.s, name: p.by.name, repo: p.by.repo, digest: p.digest, size: p.size}
	err := d.run(p.ctx, p)
	if err == nil {
		if got := digestOf(p.digest, p.hash); got != p.digest {
			err = d.wrongDigest(got)
		}
	}
	if err == nil {
		err = p.emit(p.tail, p.size-int64(len(p.tail)))
	}
	var own *sinkError
	if errors.As(err, &own) {
		err = own.err // the reader's
	}
	return p.sent, err
}

// begin implements sink.
func (p *passage) begin(context.Context, int64) error { return nil }

// space implements sink.
func (p *passage) space() []byte { return p.buf[:] }

// take implements sink.
func (p *passage) take(n int) error {
	b := p.buf[:n]
	p.hash.Write(b)
	at := p.at
	p.at += int64(n)
	free := min(int64(n), max(0, p.size-heldBack-at)) // how many are not held back
	p.tail = append(p.tail, b[free:]...)
	return p.emit(b[:free], at)
}

// emit sends what of b, which lies at a place of the blob, belongs to the part.
func (p *passage) emit(b []byte, at int64) error {
	from, to := max(p.off, at), min(p.end, at+int64(len(b)))
	if from >= to {
		return nil
	}
	n, err := p.w.Write(b[from-at : to-at])
	p.sent += int64(n)
	return err
}

// Read implements io.Reader.
func (p *passage) Read(b []byte) (int, error) {
	if p.pipe == nil {
		r, w := io.Pipe()
		p.pipe, p.done = r, make(chan struct{})
		p.ctx, p.cancel = context.WithCancel(p.ctx)
		go func() {
			defer close(p.done)
			_, err := p.WriteTo(w)
			w.CloseWithError(err)
		}()
	}
	return p.pipe.Read(b)
}

// close ends the reading and waits for its goroutine.
func (p *passage) close() {
	if p.pipe != nil {
		p.cancel()
		p.pipe.Close()
		<-p.done
	}
}
