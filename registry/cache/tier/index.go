package tier

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"example.org/slipway/internal/policy"
)

// entry is an object that the policy holds. For a while its bytes may be at another place
// than the policy says, until settle has moved them. Store.mu guards it.
type entry struct {
	k    policy.Key
	size int64
	at   policy.Level // Nowhere: given up, and in no table any more

	slab *slab // its bytes in RAM, or nil
	file *file // its bytes on the SSD, or nil
	fill *fill // the fill that fetches its bytes, or nil
	job  bool  // queued to be moved, or being moved
	// leaving says that its size counts in room.leaving of RAM.
	leaving bool

	used uint64 // Store.tick of the last request
}

// room counts the bytes of a tier that are taken. Store.mu guards it.
type room struct {
	limit, used, most int64
	// leaving is how much of used is already on its way out: the bytes that are queued to
	// be moved away.
	leaving int64
	freed   chan struct{} // closed when bytes are given back; nil if nobody waits
}

// take takes n bytes if they are available.
func (r *room) take(n int64) bool {
	if n > r.limit-r.used {
		return false
	}
	r.used += n
	r.most = max(r.most, r.used)
	return true
}

func (r *room) give(n int64) {
	r.used -= n
	r.stir()
}

// stir wakes those who wait for room.
func (r *room) stir() {
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// roomWait is how long a fill waits until bytes that leave RAM are written to the SSD. A
// slower SSD loses what is queued for it.
const roomWait = 250 * time.Millisecond

// takeRAM takes n bytes of RAM. If necessary, it waits for bytes that are on their way to
// the SSD. mu is held, and is released during the wait.
func (s *Store) takeRAM(ctx context.Context, n int64) bool {
	if s.ram.take(n) {
		return true
	}
	late := time.NewTimer(roomWait)
	defer late.Stop()
	for n <= s.ram.limit-s.ram.used+s.ram.leaving {
		if s.ram.freed == nil {
			s.ram.freed = make(chan struct{})
		}
		freed := s.ram.freed
		s.mu.Unlock()
		expired := false
		select {
		case <-freed:
		case <-ctx.Done():
			expired = true
		case <-late.C:
			expired = true
		}
		s.mu.Lock()
		if s.ram.take(n) {
			return true
		}
		if expired {
			s.dropQueued()
			return s.ram.take(n)
		}
	}
	return false
}

// slab is the bytes of an object in RAM. They never change once the object is complete.
type slab struct {
	s    *Store
	data []byte
	mod  time.Time
	crc  uint32
	// refs counts the entry, the fill and the open objects that use the slab. A holder of
	// a reference can add another. A caller that finds the slab in an entry, under
	// Store.mu, can do so, too.
	refs atomic.Int32
}

func (b *slab) release() {
	if b.refs.Add(-1) == 0 {
		b.s.mu.Lock()
		b.s.ram.give(int64(cap(b.data)))
		b.s.mu.Unlock()
	}
}

// releaseLocked is like release, for a caller that holds Store.mu.
func (b *slab) releaseLocked() {
	if b.refs.Add(-1) == 0 {
		b.s.ram.give(int64(cap(b.data)))
	}
}

// file is an object on the SSD, or on its way there.
type file struct {
	s    *Store
	path string
	seq  uint64
	size int64
	// refs is as in slab. The bytes are given back with the last reference, after the
	// name is removed. The file system keeps them until then.
	refs atomic.Int32
	gone atomic.Bool // in garbage, so failure to open it is expected
	seal seal
}

func (f *file) release() {
	if f.refs.Add(-1) == 0 {
		f.s.mu.Lock()
		f.s.ssd.give(f.size)
		f.s.mu.Unlock()
	}
}

// moved receives each change of place from the policy. mu is held.
func (s *Store) moved(m policy.Move) {
	e := s.objs[m.Key]
	if e == nil {
		e = &entry{k: m.Key, size: m.Size, fill: s.fills[m.Key], used: s.tick}
		s.objs[m.Key] = e
	}
	e.at = m.To
	if m.To == policy.Nowhere {
		delete(s.objs, m.Key)
	}
	if m.From != policy.Nowhere {
		s.settle(e)
	}
}

// settle moves the bytes of an entry to where the policy has it, or queues the move. mu
// is held.
func (s *Store) settle(e *entry) {
	if e.at == policy.Nowhere {
		s.leaveRAM(e)
		s.leaveSSD(e)
		return
	}
	if e.job || e.fill != nil {
		return // when that ends, settle is called again
	}
	switch {
	case e.at == policy.RAM && e.slab != nil:
		s.leaveSSD(e)
	case e.at == policy.SSD && e.file != nil:
		s.leaveRAM(e)
	case e.at == policy.RAM && e.file != nil:
		s.enqueue(&s.up, e)
	case e.at == policy.SSD && e.slab != nil:
		s.ram.leaving += e.size
		e.leaving = true
		s.enqueue(&s.down, e)
	}
}

// stay says that an entry is no longer about to leave RAM. mu is held.
func (s *Store) stay(e *entry) {
	if e.leaving {
		e.leaving = false
		s.ram.leaving -= e.size
		s.ram.stir()
	}
}

func (s *Store) leaveRAM(e *entry) {
	s.stay(e)
	if e.slab != nil {
		e.slab.releaseLocked()
		e.slab = nil
	}
}

func (s *Store) leaveSSD(e *entry) {
	if e.file != nil {
		s.discard(e.file)
		e.file = nil
	}
}

// discard gives up a file, and takes over the caller's reference. mu is held.
func (s *Store) discard(f *file) {
	f.gone.Store(true)
	s.garbage = append(s.garbage, f)
}

// reap unlinks files that were given up. When it returns, all files that were given up
// before the call are removed. It is called after everything that may give up a file,
// except for hits, which leave it to the demoter.
func (s *Store) reap() {
	if s.disk == nil {
		return
	}
	s.reapMu.Lock()
	defer s.reapMu.Unlock()
	s.mu.Lock()
	list := s.garbage
	s.garbage = nil
	s.mu.Unlock()
	for _, f := range list {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.stepAside("remove a file", err)
			s.mu.Lock()
			s.stuck = append(s.stuck, f) // its bytes stay taken
			s.mu.Unlock()
			continue
		}
		f.release()
	}
}

// forget drops what is kept of a key, and lets no new request join a fill of the key. mu
// is held.
func (s *Store) forget(k policy.Key) bool {
	f := s.fills[k]
	delete(s.fills, k)
	held := s.two.Remove(k)
	return held || f != nil
}

// lose drops an entry whose bytes cannot be where they should be. mu is held.
func (s *Store) lose(e *entry) {
	if s.objs[e.k] == e {
		s.two.Remove(e.k)
	}
}
