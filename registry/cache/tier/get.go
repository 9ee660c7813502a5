package tier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/objstore"
)

// Get opens a range of an object. See [objstore.Store]. ctx has to last until the object
// is closed.
//
// A range that begins more than 8 MiB into an object that is not kept is read from the
// inner store, and no fetch begins. The same holds while the object is being fetched, for
// a range that begins more than 8 MiB after the received bytes.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if off < 0 || !s.keeps(key) {
		return s.inner.Get(ctx, key, off, n)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k := keyOf(key)
	for counted := false; ; counted = true {
		s.mu.Lock()
		if s.closed || s.changes[k] != nil {
			s.mu.Unlock()
			return s.inner.Get(ctx, key, off, n)
		}
		e := s.objs[k]
		if e == nil || e.slab == nil && e.file == nil {
			return s.getFilling(ctx, k, key, off, n, counted)
		}
		if b := e.slab; b != nil {
			b.refs.Add(1)
			s.hit(e, counted)
			s.mu.Unlock()
			return newRAMObject(b, key, off, n), nil
		}
		f := e.file
		f.refs.Add(1)
		s.hit(e, counted)
		s.mu.Unlock()
		if o, err := s.openFile(ctx, e, f, key, off, n); o != nil || err != nil {
			return o, err
		}
	}
}

// hit reports to the policy a request for an object that is there, unless the request was
// counted already. mu is held.
func (s *Store) hit(e *entry, counted bool) {
	if !counted {
		s.request(e.k, nil)
	}
	e.used = s.tick
	if len(s.garbage) > 0 { // rare, and must not delay this request
		s.down.kick()
	}
}

// request reports a request to the policy, as a simulation does. If the policy does not
// have the object, request offers it, provided that f has it. mu is held.
func (s *Store) request(k policy.Key, f *fill) {
	s.tick++
	if s.two.Get(k) == policy.Nowhere && f != nil && f.stored {
		s.two.Add(k, f.size, f.cost)
	}
}

func newRAMObject(b *slab, key string, off, n int64) *ramObject {
	size := int64(len(b.data))
	data := b.data[min(off, size):]
	if n >= 0 && n < int64(len(data)) {
		data = data[:n]
	}
	return &ramObject{info: objstore.Info{Key: key, Size: size, ModTime: b.mod}, data: data, slab: b}
}

// openFile opens an entry's file. It takes over the caller's reference to the file. It
// returns nil if the entry has moved meanwhile, or if the file is bad and the entry is
// now dropped. If this process has too many files open, the file is not at fault, and
// openFile opens the object in the inner store.
func (s *Store) openFile(ctx context.Context, e *entry, f *file, key string, off, n int64) (objstore.Object, error) {
	h, err := s.disk.open(f, e.k)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		f.release()
		return s.inner.Get(ctx, key, off, n)
	}
	if err != nil {
		s.mu.Lock()
		s.damaged(e, f, err)
		s.mu.Unlock()
		f.release()
		s.reap()
		return nil, nil
	}
	o := &fileObject{f: f, h: h, e: e}
	o.s, o.ctx, o.info = s, ctx, objstore.Info{Key: key, Size: f.size, ModTime: f.modTime()}
	o.cut(off, n)
	return o, nil
}

// getFilling opens a range of an object that is being fetched, or begins to fetch it. mu
// is held, and is released. The request may have been counted already.
func (s *Store) getFilling(ctx context.Context, k policy.Key, key string, off, n int64, counted bool) (objstore.Object, error) {
	f := s.fills[k]
	if f != nil {
		s.counts.shared++
	}
	switch {
	case f == nil && (off > ahead || n == 0):
		s.mu.Unlock()
		return s.inner.Get(ctx, key, off, n)
	case f == nil:
		if !counted {
			s.request(k, nil)
		}
		f = s.startFill(k, key)
	case counted:
	case f.sized:
		s.request(k, f)
	default:
		f.pending++
	}
	f.waiters++
	s.mu.Unlock()

	info, here, err := f.ready(ctx, off)
	switch {
	case err != nil:
		f.leave()
		return nil, err
	case !here:
		return f.aside(ctx, off, n)
	}
	o := &fillObject{f: f}
	o.s, o.ctx, o.info = s, ctx, info
	o.cut(off, n)
	if f.file != nil && o.off < o.end && o.file() != nil { // the file has just lost its name
		return f.aside(ctx, off, n)
	}
	return o, nil
}

// aside opens a range that cannot be read from the fill. It leaves the fill.
func (f *fill) aside(ctx context.Context, off, n int64) (objstore.Object, error) {
	f.mu.Lock()
	err := f.err // a corrupt object is also corrupt in the inner store
	f.mu.Unlock()
	spare := f.takeSpare(off == 0 && n < 0)
	f.leave()
	if err != nil {
		return nil, err
	}
	if spare != nil {
		return spare, nil
	}
	return f.s.inner.Get(ctx, f.key, off, n)
}

// ready waits until a fill knows its object, and reports whether the bytes at off can be
// read from the fill.
func (f *fill) ready(ctx context.Context, off int64) (info objstore.Info, here bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.opened && f.state == filling {
		changed := f.wait()
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		f.mu.Lock()
		if err != nil {
			return info, false, err
		}
	}
	switch {
	case !f.opened, f.state == failed:
		return info, false, f.err
	case off >= f.info.Size, f.state == whole && f.win == nil:
		return f.info, true, nil
	case f.state == detour && off >= f.done, f.win != nil && off < f.win.tail():
		return info, false, nil
	}
	return f.info, off-f.done <= ahead, nil
}

// Warm fetches an object that is likely to be requested, unless it is here, and returns
// when it is here. Warm does not count as a request to the policy. At most
// [Options.WarmLimit] objects are fetched for Warm at once. Requests for such an object
// share the fetch. size is the object's size, or negative if it is not known. When ctx
// ends, the fetch ends too, unless somebody else waits for it. Errors: [ErrNotKept], and
// the errors of the inner store.
func (s *Store) Warm(ctx context.Context, key string, size int64) error {
	if !s.keeps(key) || size == 0 || size > max(s.two.RAM().Limit(), s.two.SSD().Limit()) {
		return fmt.Errorf("object %s: %w", key, ErrNotKept)
	}
	select {
	case s.warms <- struct{}{}:
		defer func() { <-s.warms }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	k := keyOf(key)
	s.mu.Lock()
	f := s.fills[k]
	switch {
	case s.closed:
		s.mu.Unlock()
		return fmt.Errorf("warm object %s: %w", key, fs.ErrClosed)
	case s.changes[k] != nil:
		s.mu.Unlock()
		return fmt.Errorf("object %s is being changed: %w", key, ErrNotKept)
	case f == nil && s.objs[k] != nil:
		s.mu.Unlock()
		return nil
	case f == nil:
		f = s.startFill(k, key)
	}
	f.waiters++
	f.warms++
	s.mu.Unlock()
	err := f.finished(ctx)
	s.mu.Lock()
	f.warms--
	held := s.objs[k] != nil
	s.mu.Unlock()
	f.leave()
	if err == nil && !held {
		err = fmt.Errorf("object %s: %w", key, ErrNotKept)
	}
	return err
}

// finished waits until a fill has ended, or until it is known that nothing of it will
// stay.
func (f *fill) finished(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.state == filling && f.win == nil {
		changed := f.wait()
		f.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		f.mu.Lock()
		if err != nil {
			return err
		}
	}
	return f.err
}

// Pin keeps an object until a given time, by [Options.Clock], whatever the policy
// decides. The zero time means until Unpin. A later Pin replaces an earlier one. At most
// half of a tier is ever pinned. Pin reports whether the object is pinned now, or is on
// its way and will be pinned if there is room.
func (s *Store) Pin(key string, until time.Time) bool {
	k := keyOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pin(k, until) {
		return true
	}
	f := s.fills[k]
	if f == nil || f.sized {
		return false
	}
	f.pinned, f.until = true, until
	return true
}

// pin pins an object that the policy holds, unless half of the tier is pinned. The other
// half is for requested objects. mu is held.
func (s *Store) pin(k policy.Key, until time.Time) bool {
	for _, c := range []*policy.Cache{s.two.RAM(), s.two.SSD()} {
		if e, ok := c.Lookup(k); ok {
			return (c.Pinned(k) || c.PinnedBytes()+e.Size <= c.Limit()/2) && c.Pin(k, until)
		}
	}
	return false
}

// Unpin ends a pin. It reports whether there was one.
func (s *Store) Unpin(key string) bool {
	k := keyOf(key)
	s.mu.Lock()
	was := s.two.RAM().Unpin(k) || s.two.SSD().Unpin(k)
	if f := s.fills[k]; f != nil && !f.sized {
		was = was || f.pinned
		f.pinned = false
	}
	s.mu.Unlock()
	s.reap()
	return was
}

// Holds returns the level at which the policy has an object. It does not count as a
// request. The object's bytes may still be on their way.
func (s *Store) Holds(key string) policy.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.two.Where(keyOf(key))
}

// Drop drops objects, pinned or not, and returns how many of them were here or on their
// way. Readers of an object can go on reading it.
func (s *Store) Drop(keys ...string) (n int) {
	s.mu.Lock()
	for _, key := range keys {
		if s.forget(keyOf(key)) {
			n++
		}
	}
	s.mu.Unlock()
	s.reap()
	return n
}

// DropAll drops everything, and returns the number of objects.
func (s *Store) DropAll() (n int) {
	s.mu.Lock()
	for k := range s.fills {
		if s.forget(k) {
			n++
		}
	}
	for k := range s.objs {
		if s.forget(k) {
			n++
		}
	}
	s.mu.Unlock()
	s.reap()
	return n
}
