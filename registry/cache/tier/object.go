package tier

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"example.org/slipway/registry/objstore"
)

// span is the part of an object that is still to be read, for all kinds of objects. The
// context of Get has to last as long as the object is read, because the inner store takes
// over if the cache cannot continue.
type span struct {
	s        *Store
	ctx      context.Context
	info     objstore.Info
	off, end int64
	rest     objstore.Object // from the inner store, or nil
	closed   bool
}

// cut sets the range to be read.
func (p *span) cut(off, n int64) {
	p.off, p.end = min(off, p.info.Size), p.info.Size
	if n >= 0 && n < p.end-p.off {
		p.end = p.off + n
	}
}

func (p *span) Info() objstore.Info { return p.info }

func (p *span) check() error {
	if p.closed {
		return p.wrap(os.ErrClosed)
	}
	return nil
}

func (p *span) wrap(err error) error {
	return fmt.Errorf("read object %s at %d: %w", p.info.Key, p.off, err)
}

// detour continues with the inner store.
func (p *span) detour() error {
	rest, err := p.s.inner.Get(p.ctx, p.info.Key, p.off, p.end-p.off)
	if err != nil {
		return p.wrap(err)
	}
	if got := rest.Info().Size; got != p.info.Size {
		_ = rest.Close()
		return p.wrap(fmt.Errorf("the object had %d bytes and now has %d", p.info.Size, got))
	}
	p.rest = rest
	return nil
}

func (p *span) readRest(b []byte) (int, error) {
	n, err := p.rest.Read(b[:min(int64(len(b)), p.end-p.off)])
	p.off += int64(n)
	if err == io.EOF && p.off < p.end {
		err = p.wrap(io.ErrUnexpectedEOF)
	}
	return n, err
}

func (p *span) sendRest(w io.Writer) (int64, error) {
	n, err := p.rest.WriteTo(w)
	p.off += n
	if err == nil && p.off < p.end {
		err = p.wrap(io.ErrUnexpectedEOF)
	}
	return n, err
}

func (p *span) closeRest() error {
	if p.rest == nil {
		return nil
	}
	return p.rest.Close()
}

// ramObject is an object in RAM.
type ramObject struct {
	info   objstore.Info
	data   []byte // what is still to be read
	slab   *slab
	closed bool
}

var _ objstore.Object = (*ramObject)(nil)

func (o *ramObject) Info() objstore.Info { return o.info }

func (o *ramObject) check() error {
	if o.closed {
		return fmt.Errorf("read object %s: %w", o.info.Key, os.ErrClosed)
	}
	return nil
}

func (o *ramObject) Read(p []byte) (int, error) {
	if err := o.check(); err != nil {
		return 0, err
	}
	if len(o.data) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, o.data)
	o.data = o.data[n:]
	return n, nil
}

// WriteTo sends everything in one Write.
func (o *ramObject) WriteTo(w io.Writer) (int64, error) {
	if err := o.check(); err != nil || len(o.data) == 0 {
		return 0, err
	}
	n, err := w.Write(o.data)
	if err == nil && n < len(o.data) {
		err = io.ErrShortWrite
	}
	o.data = o.data[n:]
	return int64(n), err
}

func (o *ramObject) Close() error {
	if !o.closed {
		o.closed, o.data = true, nil
		o.slab.release()
	}
	return nil
}

// fileObject is an object in a file of the SSD.
type fileObject struct {
	span
	f *file // its bytes count as taken while this is open
	h *os.File
	e *entry // to be dropped if the file cannot be read
}

var _ objstore.Object = (*fileObject)(nil)

func (o *fileObject) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	err := o.closeRest()
	_ = o.h.Close() // it was only read
	o.f.release()
	return err
}

// broken drops the file and continues with the inner store.
func (o *fileObject) broken(err error) error {
	o.s.mu.Lock()
	o.s.damaged(o.e, o.f, err)
	o.s.mu.Unlock()
	o.s.reap()
	return o.detour()
}

func (o *fileObject) Read(p []byte) (int, error) {
	switch err := o.check(); {
	case err != nil:
		return 0, err
	case o.off >= o.end && len(p) > 0:
		return 0, io.EOF
	}
	if o.rest == nil {
		n, err := o.h.ReadAt(p[:min(int64(len(p)), o.end-o.off)], o.off)
		o.off += int64(n)
		if err == nil || n > 0 { // the next read returns an error again
			return n, nil
		}
		if err := o.broken(err); err != nil {
			return 0, err
		}
	}
	return o.readRest(p)
}

func (o *fileObject) WriteTo(w io.Writer) (int64, error) {
	if err := o.check(); err != nil || o.off >= o.end {
		return 0, err
	}
	var n int64
	if o.rest == nil {
		var broken, err error
		n, broken, err = o.s.send(w, o.h, o.off, o.end-o.off)
		o.off += n
		if broken == nil {
			return n, err
		}
		if err := o.broken(broken); err != nil {
			return n, err
		}
	}
	m, err := o.sendRest(w)
	return n + m, err
}

// send writes n bytes of a file from the offset off. It sends a short range with one read
// and one Write, and a long range through w's ReadFrom, which for a socket is sendfile.
// The reader must be an *io.LimitedReader on an *os.File, because any other type hides
// the file from net.TCPConn. broken is the file's error, and is nil if w failed.
func (s *Store) send(w io.Writer, h *os.File, off, n int64) (sent int64, broken, err error) {
	rf, ok := w.(io.ReaderFrom)
	if !ok || n <= pieceSize {
		return s.sendPieces(w, h, off, n)
	}
	if _, err := h.Seek(off, io.SeekStart); err != nil {
		return 0, err, nil
	}
	sent, err = rf.ReadFrom(&io.LimitedReader{R: h, N: n})
	if sent == n {
		return sent, nil, err
	}
	var b [1]byte
	if _, broken := h.ReadAt(b[:], off+sent); broken != nil {
		return sent, broken, nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	return sent, nil, err
}

func (s *Store) sendPieces(w io.Writer, h *os.File, off, n int64) (sent int64, broken, err error) {
	var p []byte
	if n <= smallPiece {
		b := s.pieces.getSmall()
		defer s.pieces.putSmall(b)
		p = b[:]
	} else {
		b := s.pieces.get()
		defer s.pieces.put(b)
		p = b[:]
	}
	for sent < n {
		b := p[:min(int64(len(p)), n-sent)]
		m, broken := h.ReadAt(b, off+sent)
		if m == 0 {
			return sent, broken, nil
		}
		wrote, err := w.Write(b[:m])
		sent += int64(wrote)
		if err == nil && wrote < m {
			err = io.ErrShortWrite
		}
		if err != nil {
			return sent, nil, err
		}
	}
	return sent, nil, nil
}

// fillObject is an object that is being fetched.
type fillObject struct {
	span
	f *fill
	h *os.File // the opened file of the fill, or nil
}

var _ objstore.Object = (*fillObject)(nil)

func (o *fillObject) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	err := o.closeRest()
	if o.h != nil {
		_ = o.h.Close() // it was only read
	}
	o.f.leave()
	return err
}

// await waits for bytes at off and returns how many of the wanted bytes are there. The
// result is 0 if the inner store has to provide them.
func (o *fillObject) await() (int64, error) {
	f := o.f
	f.mu.Lock()
	for {
		if f.win != nil {
			f.win.reached(o.off)
			if o.off < f.win.tail() {
				break
			}
		}
		if o.off < f.done {
			n := min(f.done, o.end) - o.off
			f.mu.Unlock()
			return n, nil
		}
		if f.state != filling {
			break
		}
		changed := f.wait()
		f.mu.Unlock()
		select {
		case <-changed:
		case <-o.ctx.Done():
			return 0, o.wrap(context.Cause(o.ctx))
		}
		f.mu.Lock()
	}
	state, err := f.state, f.err
	f.mu.Unlock()
	if state == failed {
		return 0, o.wrap(err)
	}
	return 0, nil
}

// window copies bytes out of a moving window. It returns 0 if the bytes have just been
// overwritten.
func (o *fillObject) window(p []byte) int {
	f := o.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.off < f.win.tail() {
		return 0
	}
	return f.win.copyOut(p, o.off, min(o.end, f.done))
}

// file opens the fill's file for this reader, so that the reader has a separate position.
func (o *fillObject) file() error {
	if o.h != nil {
		return nil
	}
	s := &o.f.file.seal
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := os.Open(o.f.file.path)
	o.h = h
	return err
}

func (o *fillObject) Read(p []byte) (int, error) {
	switch err := o.check(); {
	case err != nil:
		return 0, err
	case o.off >= o.end && len(p) > 0:
		return 0, io.EOF
	case o.rest != nil:
		return o.readRest(p)
	}
	avail, err := o.await()
	if err != nil {
		return 0, err
	}
	p = p[:min(int64(len(p)), max(avail, 1))]
	n := 0
	switch {
	case avail == 0:
	case o.f.slab != nil:
		n = copy(p, o.f.slab.data[o.off:])
	case o.f.win != nil:
		n = o.window(p)
	case o.file() == nil:
		n, _ = o.h.ReadAt(p, o.off) // the inner store provides the missing bytes
	}
	if n > 0 || len(p) == 0 {
		o.off += int64(n)
		return n, nil
	}
	if err := o.detour(); err != nil {
		return 0, err
	}
	return o.readRest(p)
}

func (o *fillObject) WriteTo(w io.Writer) (total int64, err error) {
	if err := o.check(); err != nil {
		return 0, err
	}
	for o.off < o.end {
		if o.rest != nil {
			n, err := o.sendRest(w)
			return total + n, err
		}
		avail, err := o.await()
		if err != nil {
			return total, err
		}
		begins := total == 0
		if begins {
			avail = min(avail, smallPiece)
		}
		n, err := o.send(w, avail)
		o.off += n
		if begins {
			runtime.Gosched() // readers without any bytes go first
		}
		if total += n; err != nil {
			return total, err
		}
		if n == 0 {
			if err := o.detour(); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// send sends bytes that have arrived. It sends none if they are not available here.
func (o *fillObject) send(w io.Writer, n int64) (int64, error) {
	switch {
	case n == 0:
		return 0, nil
	case o.f.slab != nil:
		m, err := w.Write(o.f.slab.data[o.off : o.off+n])
		if err == nil && int64(m) < n {
			err = io.ErrShortWrite
		}
		return int64(m), err
	case o.f.win != nil:
		return o.sendWindow(w, n)
	case o.file() != nil:
		return 0, nil
	}
	sent, _, err := o.s.send(w, o.h, o.off, n)
	return sent, err
}

func (o *fillObject) sendWindow(w io.Writer, avail int64) (int64, error) {
	p := o.s.pieces.get()
	defer o.s.pieces.put(p)
	n := o.window(p[:min(avail, windowPiece)])
	if n == 0 {
		return 0, nil
	}
	m, err := w.Write(p[:n])
	if err == nil && m < n {
		err = io.ErrShortWrite
	}
	return int64(m), err
}

// spareObject is an object of the inner store that was fetched for the cache and passed
// on to a reader.
type spareObject struct {
	objstore.Object
	cancel context.CancelFunc
}

func (o *spareObject) Close() error {
	err := o.Object.Close()
	o.cancel()
	return err
}
