package tier

import (
	"errors"
	"time"

	"example.org/slipway/internal/policy"
)

// queue holds the entries whose bytes are to be moved, in the order in which they came.
// Store.mu guards it.
type queue struct {
	list    []*entry
	running bool
	wake    chan struct{} // of size 1
}

func (q *queue) len() int {
	n := len(q.list)
	if q.running {
		n++
	}
	return n
}

// enqueue queues an entry to be moved. mu is held.
func (s *Store) enqueue(q *queue, e *entry) {
	e.job = true
	q.list = append(q.list, e)
	q.kick()
}

func (q *queue) kick() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// each calls the function do for each queued entry, with mu held, until the Store is
// closed.
func (s *Store) each(q *queue, do func(e *entry)) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-q.wake:
		}
		s.mu.Lock()
		for len(q.list) > 0 && s.ctx.Err() == nil {
			e := q.list[0]
			q.list[0] = nil
			if q.list = q.list[1:]; len(q.list) == 0 {
				q.list = nil
			}
			q.running = true
			do(e)
			q.running = false
			e.job = false
			s.stay(e)
			s.settle(e)
		}
		s.mu.Unlock()
		s.reap()
	}
}

// dropQueued gives up the entries that wait for a slow SSD. mu is held.
func (s *Store) dropQueued() {
	list := s.down.list
	s.down.list = nil
	for _, e := range list {
		e.job = false
		s.stay(e)
		if e.at == policy.SSD && e.slab != nil {
			s.counts.dropped++
			s.lose(e)
		}
		s.settle(e)
	}
}

// demoter writes entries that RAM gave up to the SSD.
func (s *Store) demoter() { s.each(&s.down, s.demote) }

// demote writes an entry to the SSD if the entry still should be there. mu is held, and
// is released during the write.
func (s *Store) demote(e *entry) {
	if e.at != policy.SSD || e.slab == nil {
		return
	}
	b := e.slab
	b.refs.Add(1)
	defer b.releaseLocked()
	s.mu.Unlock()
	s.reap() // unlink the files that made room for this one
	s.mu.Lock()
	if e.at != policy.SSD {
		return
	}
	f, err := s.newFile(e.size)
	if err == nil {
		s.mu.Unlock()
		err = s.disk.writeSlab(f, e.k, b)
		s.mu.Lock()
	}
	switch {
	case err != nil:
		s.dropFile(f, err)
		s.counts.dropped++
		if e.at == policy.SSD {
			s.lose(e)
		}
	case e.at == policy.Nowhere:
		s.discard(f)
	default:
		s.counts.ssdWritten += e.size
		e.file = f
	}
}

// promoter reads entries that were hit on the SSD into RAM.
func (s *Store) promoter() { s.each(&s.up, s.promote) }

// promote reads an entry's file into RAM if the entry should be there. Meanwhile requests
// are served from the file. mu is held, and is released during the read.
func (s *Store) promote(e *entry) {
	if e.at != policy.RAM || e.file == nil {
		return
	}
	if !s.takeRAM(s.ctx, e.size) {
		if e.at == policy.RAM {
			s.counts.dropped++
			s.lose(e)
		}
		return
	}
	if e.at != policy.RAM || e.file == nil { // takeRAM had released the lock
		s.ram.give(e.size)
		return
	}
	f := e.file
	f.refs.Add(1)
	s.mu.Unlock()
	b, err := s.disk.readSlab(f, e.k)
	f.release()
	s.mu.Lock()
	if err != nil {
		s.ram.give(e.size)
		s.damaged(e, f, err)
		return
	}
	b.s = s
	b.refs.Store(1)
	if e.at == policy.Nowhere {
		b.releaseLocked()
		return
	}
	e.slab = b
}

// damaged drops an entry whose file is not as it should be, or cannot be read. mu is
// held.
func (s *Store) damaged(e *entry, f *file, err error) {
	if f.gone.Load() || e.file != f {
		return // it was given up meanwhile
	}
	s.counts.damaged++
	s.log.Warn("a file of the cache is unusable and is dropped", "file", f.path, "error", err)
	if s.objs[e.k] == e {
		s.lose(e)
	} else {
		s.leaveSSD(e)
	}
}

// These are errors of the SSD.
var (
	errNoRoom = errors.New("no room on the SSD")
	errAside  = errors.New("the SSD is not in use")
)

// remountEvery is how long a failed SSD is left alone.
const remountEvery = 30 * time.Second

// newFile takes room for a file. mu is held.
func (s *Store) newFile(size int64) (*file, error) {
	if s.disk == nil || !s.disk.usable() {
		return nil, errAside
	}
	if !s.ssd.take(size) {
		return nil, errNoRoom
	}
	f := s.disk.newFile(size)
	f.s = s
	f.refs.Store(1)
	return f, nil
}

// dropFile drops a file that could not be written, if there is one. mu is held.
func (s *Store) dropFile(f *file, err error) {
	if f == nil {
		return
	}
	s.discard(f)
	if !errors.Is(err, errNoRoom) && s.ctx.Err() == nil {
		s.disk.aside("write a file", err)
	}
}

// stepAside leaves the SSD alone for a while. It logs that once.
func (s *Store) stepAside(what string, err error) { s.disk.aside(what, err) }

// remounter checks from time to time whether a failed SSD works again.
func (s *Store) remounter() {
	tick := time.NewTicker(remountEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			s.remount()
		}
	}
}

// remount tries again to remove files and to mount the SSD.
func (s *Store) remount() {
	s.mu.Lock()
	s.garbage = append(s.garbage, s.stuck...)
	s.stuck = nil
	s.mu.Unlock()
	if !s.disk.usable() {
		_ = s.mount() // mount logs its failure
	}
	s.reap()
}
