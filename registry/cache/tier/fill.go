package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/cache/tier/format"
	"example.org/slipway/registry/objstore"
)

// fillTries is how often an interrupted fetch is continued from its position.
const fillTries = 2

// fill is an object that is being fetched for all who request it. Its bytes go to RAM, to
// a file, or, if the object is not to be kept, to a window that moves over the object.
// Readers do not slow the fetch down, except with a window.
type fill struct {
	s      *Store
	k      policy.Key
	key    string
	ctx    context.Context // the context of the fetch, not of any waiter
	cancel context.CancelFunc

	// Guarded by Store.mu.
	waiters int
	warms   int       // the waiters that are calls of Warm, which read nothing
	pending int       // requests to report to the policy once the size is known
	pinned  bool      // a pin to report to the policy then; it ends at until
	until   time.Time // zero: never
	sized   bool      // the policy knows the object
	stored  bool      // the bytes will stay, unless something else prevents it
	ended   bool
	size    int64
	cost    float64

	// Only the goroutine that fetches uses these.
	slot bool     // it has one of Store.slots
	w    *os.File // the opened file
	at   int64    // bytes that have come
	crc  uint32
	sum  hash.Hash
	want []byte

	mu      sync.Mutex // guards everything below
	changed chan struct{}
	opened  bool // info and the place of the bytes are known
	info    objstore.Info
	done    int64 // number of bytes that can be read
	state   fillState
	err     error
	slab    *slab
	file    *file
	win     *window
	// spare is the opened object if there is no place at all for its bytes. It goes to
	// the first reader that wants the bytes from the beginning.
	spare objstore.Object
}

// fillState is the state of a fill.
type fillState uint8

const (
	filling fillState = iota
	whole
	failed
	// detour says that no more bytes come. Readers get the rest from the inner store.
	detour
)

// startFill begins to fetch an object. mu is held.
func (s *Store) startFill(k policy.Key, key string) *fill {
	f := &fill{s: s, k: k, key: key}
	f.ctx, f.cancel = context.WithCancel(s.ctx)
	if s.o.Verify != nil {
		f.sum, f.want = s.o.Verify(key)
	}
	s.fills[k] = f
	s.running++
	s.counts.fills++
	s.wg.Go(f.run)
	return f
}

func (f *fill) run() {
	defer func() {
		f.s.mu.Lock()
		f.s.running--
		f.s.mu.Unlock()
	}()
	select {
	case f.s.slots <- struct{}{}:
		f.slot = true
		defer f.freeSlot()
	case <-f.ctx.Done():
		f.end(context.Cause(f.ctx))
		return
	}
	err := f.fetch()
	f.end(err)
	if !errors.Is(err, errNoPlace) { // otherwise the reader that takes the spare object cancels
		f.cancel()
	}
}

// freeSlot lets another fill begin.
func (f *fill) freeSlot() {
	if f.slot {
		f.slot = false
		<-f.s.slots
	}
}

// fetch gets the object, and continues if the transfer breaks off.
func (f *fill) fetch() error {
	began := time.Now()
	obj, err := f.s.inner.Get(f.ctx, f.key, 0, -1)
	if err != nil {
		return err
	}
	if !f.begin(obj, time.Since(began)) {
		return errNoPlace
	}
	for try := 0; ; try++ {
		err := f.pump(obj)
		_ = obj.Close() // only the received bytes count
		if err == nil || f.ctx.Err() != nil || errors.Is(err, errStorage) || try == fillTries {
			return err
		}
		f.s.log.Info("a fetch into the cache broke off and is continued", "key", f.key, "at", f.at, "error", err)
		if obj, err = f.s.inner.Get(f.ctx, f.key, f.at, -1); err != nil {
			return err
		}
		if got := obj.Info().Size; got != f.info.Size {
			_ = obj.Close()
			return fmt.Errorf("object %s had %d bytes and now has %d", f.key, f.info.Size, got)
		}
	}
}

// begin reports the object to the policy and finds a place for its bytes. If there is no
// place, the object becomes spare.
func (f *fill) begin(obj objstore.Object, wait time.Duration) bool {
	s, info := f.s, obj.Info()
	info.Key = f.key
	f.size, f.cost = info.Size, 1
	if s.o.Cost != nil {
		f.cost = s.o.Cost(info.Size, wait)
	}
	s.mu.Lock()
	f.admit()
	s.mu.Unlock()
	s.reap()

	b, file := f.place(info.ModTime)
	var win *window
	if b == nil && file == nil {
		win = f.newWindow()
		f.freeSlot() // from here on the fetch is as fast as its clients
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.info, f.slab, f.file, f.win = true, info, b, file, win
	if b == nil && file == nil && win == nil && f.size > 0 {
		f.state, f.spare = detour, obj
	}
	f.wake()
	return f.state == filling
}

// place takes room at the level that the policy chose for the object. It returns a slab
// or a file. It returns neither if there is no room, or the policy does not want the
// object.
func (f *fill) place(mod time.Time) (*slab, *file) {
	s := f.s
	s.mu.Lock()
	e := s.objs[f.k]
	if e == nil || e.fill != f {
		s.mu.Unlock()
		return nil, nil
	}
	if e.at == policy.RAM {
		ok := s.takeRAM(f.ctx, f.size)
		s.mu.Unlock()
		if !ok {
			return nil, nil
		}
		b := &slab{s: s, data: make([]byte, f.size), mod: mod}
		b.refs.Store(1)
		return b, nil
	}
	file, err := s.newFile(f.size)
	s.mu.Unlock()
	if err != nil {
		return nil, nil
	}
	if f.w, err = s.disk.create(file); err != nil {
		s.mu.Lock()
		s.dropFile(file, err)
		s.mu.Unlock()
		return nil, nil
	}
	return nil, file
}

// admit reports the object and its requests to the policy, in the order of the requests.
// mu of the Store is held.
func (f *fill) admit() {
	s := f.s
	f.sized = true
	if s.fills[f.k] != f {
		return // dropped meanwhile
	}
	if f.size > 0 && s.changes[f.k] == nil && s.objs[f.k] == nil {
		s.two.Add(f.k, f.size, f.cost)
		e := s.objs[f.k]
		f.stored = e != nil && e.fill == f
	}
	for ; f.pending > 0; f.pending-- {
		s.request(f.k, f)
	}
	if f.pinned {
		s.pin(f.k, f.until)
	}
}

// newWindow turns this fill into one whose bytes do not stay. It returns nil if there is
// no room even for a window. Then every reader reads for itself.
func (f *fill) newWindow() *window {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	f.stored = false
	s.counts.bypassed++
	if e := s.objs[f.k]; e != nil && e.fill == f {
		s.lose(e)
	}
	n := min(f.size, windowSize, s.ram.limit-s.two.RAM().Limit())
	// A window of less than a piece is not worth it.
	if f.waiters == f.warms || n < min(f.size, pieceSize) || n == 0 || !s.ram.take(n) {
		return nil
	}
	return &window{buf: make([]byte, n)}
}

// errStorage says that the bytes could not be stored where they should be.
var errStorage = errors.New("the cache cannot take the object in")

// errNoPlace is errStorage for an object that had no place from the beginning.
var errNoPlace = fmt.Errorf("%w: no place", errStorage)

// pump moves bytes from the inner store to where they can be read.
func (f *fill) pump(obj objstore.Object) error {
	var piece *[pieceSize]byte
	if f.slab == nil {
		piece = f.s.pieces.get()
		defer f.s.pieces.put(piece)
	}
	for idle := 0; f.at < f.size; {
		var p []byte
		if n := min(pieceSize, f.size-f.at); f.slab != nil {
			p = f.slab.data[f.at : f.at+n]
		} else {
			p = piece[:n]
		}
		n, err := obj.Read(p)
		if n > 0 {
			idle = 0
			if err := f.put(p[:n]); err != nil {
				return err
			}
		} else if idle++; idle > 100 && err == nil {
			err = io.ErrNoProgress
		}
		switch {
		case err == nil || f.at == f.size:
		case err == io.EOF:
			return fmt.Errorf("fetch object %s: it ends at %d of %d bytes: %w", f.key, f.at, f.size, io.ErrUnexpectedEOF)
		default:
			return fmt.Errorf("fetch object %s at %d: %w", f.key, f.at, err)
		}
	}
	return nil
}

// put stores received bytes and makes them readable. It holds back the last ones if a sum
// has to be checked first.
func (f *fill) put(p []byte) error {
	f.crc = crc32.Update(f.crc, format.Castagnoli, p)
	if f.sum != nil {
		f.sum.Write(p)
	}
	switch {
	case f.file != nil:
		if _, err := f.w.Write(p); err != nil {
			f.s.disk.aside("write a file", err)
			return fmt.Errorf("%w: %w", errStorage, err)
		}
	case f.win != nil:
		if err := f.putWindow(p); err != nil {
			return err
		}
	}
	begins := f.at == 0
	f.at += int64(len(p))
	f.mu.Lock()
	if f.at < f.size || f.sum == nil {
		f.done = f.at
		f.wake()
	}
	f.mu.Unlock()
	if begins {
		runtime.Gosched() // let the waiters for the first bytes run
	}
	return nil
}

// wake makes everybody who waits for the fill look again. f.mu is held.
func (f *fill) wake() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// wait returns a channel that is closed when the fill has changed. f.mu is held.
func (f *fill) wait() <-chan struct{} {
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

// end takes the object into the cache, or gives it up.
func (f *fill) end(err error) {
	s := f.s
	if err == nil && f.sum != nil && !bytes.Equal(f.sum.Sum(nil), f.want) {
		err = fmt.Errorf("object %s: %w", f.key, ErrCorrupt)
		s.log.Error("an object in the store has other bytes than its key says", "key", f.key, "bytes", f.size)
	}
	kept := err == nil
	if f.w != nil {
		if err == nil {
			if werr := s.disk.finish(f.file, f.w, f.k, f.info.ModTime, f.crc); werr != nil {
				s.disk.aside("write a file", werr)
				kept = false
			}
		} else {
			_ = f.w.Close() // the file is dropped
		}
	}
	if f.slab != nil {
		f.slab.crc = f.crc
	}
	s.mu.Lock()
	f.settle(kept, err)
	alone := f.waiters == 0
	s.mu.Unlock()
	f.mu.Lock()
	switch {
	case err == nil:
		f.state, f.done = whole, f.size
	case errors.Is(err, errStorage):
		f.state = detour
	default:
		f.state, f.err = failed, err
	}
	f.wake()
	f.mu.Unlock()
	if spare := f.takeSpare(alone); spare != nil {
		_ = spare.Close() // it was not read
	}
	s.reap()
}

// ErrCorrupt is returned for an object whose bytes do not have the sum from
// [Options.Verify].
var ErrCorrupt = fmt.Errorf("the bytes are not those of the key: %w", objstore.ErrCorrupt)

// settle gives the bytes to the entry, if there still is an entry for them. Store.mu is
// held.
func (f *fill) settle(kept bool, err error) {
	s := f.s
	if s.fills[f.k] == f {
		delete(s.fills, f.k)
	}
	f.ended = true
	if err != nil && f.ctx.Err() == nil && !errors.Is(err, objstore.ErrNotExist) && !errors.Is(err, errStorage) {
		s.counts.fillErrors++
	}
	if kept && f.file != nil {
		s.counts.ssdWritten += f.size
	}
	e := s.objs[f.k]
	switch {
	case e == nil || e.fill != f:
		if f.file != nil {
			f.file.refs.Add(1)
			s.discard(f.file)
		}
	case !kept || f.slab == nil && f.file == nil:
		s.lose(e)
		e.fill = nil
		if f.file != nil {
			f.file.refs.Add(1)
			s.discard(f.file)
		}
	default:
		e.fill = nil
		if f.slab != nil {
			f.slab.refs.Add(1)
			e.slab = f.slab
		}
		if f.file != nil {
			f.file.refs.Add(1)
			e.file = f.file
		}
		s.settle(e)
	}
	f.drop()
}

// drop releases the bytes once nobody reads them here any more. Store.mu is held.
func (f *fill) drop() {
	if !f.ended || f.waiters > 0 {
		return
	}
	if f.slab != nil {
		f.slab.releaseLocked()
		f.slab = nil
	}
	if f.file != nil {
		if f.file.refs.Add(-1) == 0 {
			f.s.ssd.give(f.file.size)
		}
		f.file = nil
	}
	if f.win != nil {
		f.s.ram.give(int64(len(f.win.buf)))
		f.win = nil
	}
}

// leave is called once by each waiter. A fill without waiters continues if most of the
// object has arrived. Otherwise it is given up.
func (f *fill) leave() {
	s := f.s
	s.mu.Lock()
	f.waiters--
	if f.ended {
		f.drop()
	} else if f.waiters == 0 && !f.worthwhile() {
		f.abandon()
	}
	last := f.waiters == 0
	s.mu.Unlock()
	if spare := f.takeSpare(last); spare != nil {
		_ = spare.Close() // it was not read
	}
	s.reap()
}

// takeSpare returns the spare object. It returns nil if there is none, or if somebody has
// taken it.
func (f *fill) takeSpare(want bool) objstore.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !want || f.spare == nil {
		return nil
	}
	o := f.spare
	f.spare = nil
	return &spareObject{o, f.cancel}
}

// worthwhile reports whether a fill should continue without waiters. Store.mu is held.
func (f *fill) worthwhile() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != filling { // it is about to end, and a spare object has a reader
		return true
	}
	left := f.info.Size - f.done
	return f.opened && f.stored && (left <= keepFill || left <= f.done)
}

// abandon gives up a fill. Store.mu is held.
func (f *fill) abandon() {
	s := f.s
	if s.fills[f.k] == f {
		delete(s.fills, f.k)
	}
	if e := s.objs[f.k]; e != nil && e.fill == f {
		s.lose(e)
	}
	f.cancel()
}
