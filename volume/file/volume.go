package file

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"example.org/slipway/volume/block"
)

// maxStep is how many bytes are read or written in one step that may hang.
const maxStep = 1 << 20

// steps holds the buffers of steps. A step that was given up keeps its buffer, so that
// the caller's is free.
var steps = sync.Pool{New: func() any { return new([maxStep]byte) }}

// errReadOnly is returned for a write to a volume that was opened for reading.
var errReadOnly = errors.New("it is open for reading only")

// volume is an open volume.
type volume struct {
	s     *Store
	id    string
	size  int64
	lease *lease
	top   *layer  // what is read; nil if the volume is written
	w     *writer // nil if the volume is read
	order order
}

func (s *Store) newVolume(id string, size int64, l *lease) *volume {
	return &volume{s: s, id: id, size: size, lease: l}
}

// errOf adds the volume to an error.
func (v *volume) errOf(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s volume %s: %w", what, v.id, storageError(err))
}

// Size implements [block.Volume].
func (v *volume) Size() int64 { return v.size }

// ReadAt implements [block.Volume].
func (v *volume) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, v.errOf("read", fmt.Errorf("offset %d", off))
	}
	if off >= v.size {
		return 0, io.EOF
	}
	end := error(nil)
	if int64(len(p)) > v.size-off {
		p, end = p[:v.size-off], io.EOF
	}
	for n < len(p) {
		part := p[n:min(len(p), n+maxStep)]
		if err := v.read(part, off+int64(n)); err != nil {
			return n, v.errOf("read", err)
		}
		n += len(part)
	}
	return n, end
}

func (v *volume) read(p []byte, off int64) error {
	buf := steps.Get().(*[maxStep]byte)
	from := v.top.readAt
	if v.w != nil {
		from = v.w.readAt
	}
	err := v.order.do(v.s.io, false, func(beat) error { return from(buf[:len(p)], off) })
	if errors.Is(err, block.ErrAway) {
		return err // the step may still have the buffer
	}
	if err == nil {
		copy(p, buf[:])
	}
	steps.Put(buf)
	return err
}

// writable returns an error if n bytes from off on cannot be written.
func (v *volume) writable(off, n int64) error {
	switch {
	case v.w == nil:
		return errReadOnly
	case off < 0 || n < 0 || off > v.size || n > v.size-off:
		return fmt.Errorf("%d bytes at %d are outside of its %d", n, off, v.size)
	}
	return v.lease.valid()
}

// WriteAt implements [block.Volume].
func (v *volume) WriteAt(p []byte, off int64) (n int, err error) {
	if err := v.writable(off, int64(len(p))); err != nil {
		return 0, v.errOf("write", err)
	}
	for n < len(p) {
		part := p[n:min(len(p), n+maxStep)]
		if err := v.write(part, off+int64(n)); err != nil {
			return n, v.errOf("write", err)
		}
		n += len(part)
	}
	return n, nil
}

func (v *volume) write(p []byte, off int64) error {
	buf := steps.Get().(*[maxStep]byte)
	copy(buf[:], p)
	err := v.order.do(v.s.io, true, func(beat) error {
		if err := v.lease.valid(); err != nil {
			return err
		}
		return v.w.writeAt(buf[:len(p)], off)
	})
	if !errors.Is(err, block.ErrAway) {
		steps.Put(buf)
	}
	return err
}

// Zero implements [block.Volume].
func (v *volume) Zero(off, n int64) error {
	err := v.writable(off, n)
	if err == nil {
		err = v.order.do(v.s.io, true, func(alive beat) error { return v.w.zero(off, n, alive) })
	}
	return v.errOf("zero", err)
}

// Flush implements [block.Volume].
func (v *volume) Flush() error {
	if v.w == nil {
		return nil
	}
	err := v.lease.valid()
	if err == nil {
		err = v.order.do(v.s.io, true, v.w.flush)
	}
	return v.errOf("flush", err)
}

// Close implements [block.Volume]. The lease ends when the last step has ended: at once,
// unless the directory hangs.
func (v *volume) Close() error {
	ended := make(chan error, 1)
	if !v.order.close(func() { go func() { ended <- v.release() }() }) {
		return nil
	}
	return v.errOf("close", v.s.io.await(ended))
}

// release releases what the volume holds. The lease comes last, because the files are
// used until then.
func (v *volume) release() error {
	var err error
	if v.w != nil {
		err = errors.Join(v.w.close(), v.s.drop(v.w.parent))
	}
	return errors.Join(err, v.s.drop(v.top), v.lease.end())
}
