//go:build ceph

package rbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/ceph/go-ceph/rbd"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

const (
	// mostRead is the most bytes that one call of librbd reads.
	mostRead = 8 << 20
	// mostDiscard is a limit of its interface, which returns an int.
	mostDiscard = 1 << 30
	// smallZero is the size up to which zeros are written rather than discarded while a
	// volume is being built: they are sent with the bytes around them.
	smallZero = 64 << 10
	// closeLimit is how long closing an image may take. librbd gives other watchers five
	// seconds to answer, twice. After an outage, the cluster still lists this client
	// itself as another one, for half a minute.
	closeLimit = 30 * time.Second
)

// volume is an open image.
type volume struct {
	s     *Store
	id    string
	img   *rbd.Image
	lease *lease
	size  int64
	// A writable volume has the image's exclusive lock. pending is nil for volumes whose
	// writes are not collected.
	writable bool
	pending  *pending

	mu     sync.RWMutex // held to use img
	closed bool
}

var _ block.Volume = (*volume)(nil)

var errReadOnly = errors.New("the volume was opened for reading")

func (s *Store) newVolume(id string, img *rbd.Image, l *lease, writable bool) (*volume, error) {
	size, err := img.GetSize()
	if err == nil && size > math.MaxInt64 {
		err = fmt.Errorf("a device of %d bytes", size)
	}
	if err != nil {
		return nil, translate(err)
	}
	v := &volume{s: s, id: id, img: img, lease: l, size: int64(size), writable: writable}
	if writable && !volref.IsClone(id) {
		v.pending = newPending(v.put)
	}
	s.note(v, true)
	return v, nil
}

// Size implements block.Volume.
func (v *volume) Size() int64 { return v.size }

// use returns a function. Until it is called, the image may be used.
func (v *volume) use() (func(), error) {
	if err := v.s.begin(); err != nil {
		return nil, err
	}
	v.mu.RLock()
	if v.closed {
		v.mu.RUnlock()
		v.s.calls.Done()
		return nil, errors.New("the volume is closed")
	}
	return func() {
		v.mu.RUnlock()
		v.s.calls.Done()
	}, nil
}

// held makes sure that the lease is valid. If it has lapsed, held renews it and checks
// that nothing happened meanwhile.
func (v *volume) held() error {
	if v.lease.valid() {
		return nil
	}
	if err := v.lease.revive(v.unchanged); err != nil {
		return fmt.Errorf("the lease has lapsed: %w", err)
	}
	return nil
}

// unchanged makes sure that nobody wrote to the volume or removed it while the lease had
// lapsed.
func (v *volume) unchanged() error {
	if v.writable {
		owner, err := v.img.LockIsExclusiveOwner()
		if err == nil && !owner {
			err = errFenced
		}
		return translate(err)
	}
	// This is the header of this very image. Another image may have the same name.
	now, err := state(v.img)
	if err == nil && now != stateCommitted {
		err = block.ErrNotFound
	}
	return err
}

// ReadAt implements block.Volume. The timeout of the operations of RADOS bounds its time.
func (v *volume) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read volume %s at %d: negative offset", v.id, off)
	}
	if off >= v.size {
		return 0, io.EOF
	}
	short := int64(len(p)) > v.size-off
	if short {
		p = p[:v.size-off]
	}
	if v.pending != nil {
		if err := v.pending.settle(off, int64(len(p))); err != nil {
			return 0, fmt.Errorf("write volume %s: %w", v.id, err)
		}
	}
	n, err := v.read(p, off)
	if err != nil {
		return n, fmt.Errorf("read volume %s at %d: %w", v.id, off, err)
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

func (v *volume) read(p []byte, off int64) (int, error) {
	done, err := v.use()
	if err != nil {
		return 0, err
	}
	defer done()
	for n := 0; n < len(p); {
		m, err := v.img.ReadAt(p[n:min(len(p), n+mostRead)], off+int64(n))
		if err == nil {
			// The check comes after the read, because the blocks of a removed image read
			// as zeros.
			err = v.held()
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // nobody may take it for the end of the device
		} else {
			err = translate(err)
		}
		if err != nil {
			return 0, err
		}
		n += m
	}
	return len(p), nil
}

// change checks the arguments of a call that writes.
func (v *volume) change(off, n int64) error {
	switch {
	case !v.writable:
		return errReadOnly
	case off < 0 || n < 0 || n > v.size-off:
		return fmt.Errorf("%d bytes at %d are not within the %d of the device", n, off, v.size)
	}
	return nil
}

// WriteAt implements block.Volume. Writes to a clone are on the OSDs when it returns.
// Writes to a volume that is being built are there after Flush, and WriteAt may return
// the error of an earlier write.
func (v *volume) WriteAt(p []byte, off int64) (int, error) {
	err := v.change(off, int64(len(p)))
	switch {
	case err != nil:
	case v.pending != nil:
		err = v.pending.write(p, off)
	default:
		// librbd may still read the buffer after the caller was told that the storage
		// does not answer.
		err = v.put(append([]byte(nil), p...), off)
	}
	if err != nil {
		return 0, fmt.Errorf("write volume %s at %d: %w", v.id, off, err)
	}
	return len(p), nil
}

// call runs f, which changes the image.
func (v *volume) call(f func() error) error {
	return v.s.do(context.Background(), func() error {
		done, err := v.use()
		if err != nil {
			return err
		}
		defer done()
		if err := v.held(); err != nil {
			return err
		}
		return translate(f())
	})
}

// put writes p, which must not change even after put has failed.
func (v *volume) put(p []byte, off int64) error {
	return v.call(func() error {
		_, err := v.img.WriteAt(p, off)
		return err
	})
}

// Zero implements block.Volume.
func (v *volume) Zero(off, n int64) error {
	err := v.change(off, n)
	switch {
	case err != nil:
	case v.pending != nil && n <= smallZero:
		err = v.pending.write(make([]byte, n), off)
	case v.pending != nil:
		if err = v.pending.settle(off, n); err == nil {
			err = v.discard(off, n)
		}
	default:
		err = v.discard(off, n)
	}
	if err != nil {
		return fmt.Errorf("zero volume %s at %d: %w", v.id, off, err)
	}
	return nil
}

// discard makes holes of whole blocks, and writes zeros at both ends, where librbd would
// leave the old bytes.
func (v *volume) discard(off, n int64) error {
	end := off + n
	from, to := (off+blockSize-1)/blockSize*blockSize, end/blockSize*blockSize
	if from >= to {
		return v.put(make([]byte, n), off)
	}
	if off < from {
		if err := v.put(make([]byte, from-off), off); err != nil {
			return err
		}
	}
	if to < end {
		if err := v.put(make([]byte, end-to), to); err != nil {
			return err
		}
	}
	return v.punch(from, to-from)
}

func (v *volume) punch(off, n int64) error {
	for n > 0 {
		m := min(n, mostDiscard)
		err := v.call(func() error {
			_, err := v.img.Discard(uint64(off), uint64(m))
			return err
		})
		if err != nil {
			return err
		}
		off, n = off+m, n-m
	}
	return nil
}

// Flush implements block.Volume.
func (v *volume) Flush() error {
	if !v.writable {
		return nil
	}
	var err error
	if v.pending != nil {
		err = v.pending.settle(0, v.size)
	}
	if err == nil {
		err = v.call(v.img.Flush)
	}
	if err != nil {
		return fmt.Errorf("flush volume %s: %w", v.id, err)
	}
	return nil
}

// Close implements block.Volume. It first sends what was collected. Commit makes that
// durable.
func (v *volume) Close() error {
	var sent error
	if v.pending != nil {
		sent = v.pending.settle(0, v.size)
	}
	_, err := run(context.Background(), v.s, closeLimit+2*v.s.o.Timeout,
		func() (struct{}, error) { return struct{}{}, v.close() }, nil)
	if err = errors.Join(sent, err); err != nil {
		return fmt.Errorf("close volume %s: %w", v.id, err)
	}
	return nil
}

func (v *volume) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	err := translate(v.img.Close())
	v.lease.release()
	v.s.note(v, false)
	return err
}
