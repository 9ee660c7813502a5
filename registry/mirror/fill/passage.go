package fill

import (
	"context"
	"errors"
	"hash"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/verify"
)

// passage sends a part of a blob from the upstream to one reader, without keeping it. It
// is used when the spool's disk is full. It always fetches the blob from its beginning,
// because the last bytes must not be given out before the digest is known to be right.
type passage struct {
	ctx      context.Context
	fs       *Fills
	by       Origin
	digest   oci.Digest
	size     int64
	off, end int64

	// The next fields are about the download under way:
	w    io.Writer
	at   int64
	sent int64
	hash hash.Hash
	buf  [64 << 10]byte
	tail []byte

	// The next fields are for readers that use Read:
	pipe   *io.PipeReader
	done   chan struct{}
	cancel context.CancelFunc
}

var _ sink = (*passage)(nil)

// newPassage returns a passage for the rest of a content.
func newPassage(c *content) *passage {
	return &passage{ctx: c.ctx, fs: c.f.fs, by: c.by, digest: c.f.digest, size: c.size, off: c.off, end: c.end}
}

// WriteTo sends the part of the blob to w.
func (p *passage) WriteTo(w io.Writer) (int64, error) {
	p.w, p.at, p.sent, p.hash, p.tail = w, 0, 0, verify.NewHash(p.digest), nil
	d := &download{fs: p.fs, o: p.by, digest: p.digest, size: p.size}
	err := d.run(p.ctx, p)
	if err == nil {
		if got := verify.Sum(p.digest, p.hash); got != p.digest {
			err = d.wrongDigest(got)
		}
	}
	if err == nil {
		err = p.emit(p.tail, p.size-int64(len(p.tail)))
	}
	var own *sinkError
	if errors.As(err, &own) {
		err = own.err // the error of w
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
	free := min(int64(n), max(0, p.size-heldBack-at)) // how many of them are not held back
	p.tail = append(p.tail, b[free:]...)
	return p.emit(b[:free], at)
}

// emit sends those bytes of b that belong to the part. The argument named at is the
// offset of b in the blob.
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

// close ends the reading and waits for the passage's goroutine.
func (p *passage) close() {
	if p.pipe != nil {
		p.cancel()
		p.pipe.Close()
		<-p.done
	}
}
