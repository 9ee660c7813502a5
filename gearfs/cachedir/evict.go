package cachedir

import (
	"container/heap"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// Set tells which files a lease is for. It is called while the directory is
// locked: it must be quick and call nothing of this package.
type Set interface {
	Has(name gear.Name) bool
}

// names is a Set of a few.
type names map[gear.Name]struct{}

// Has implements Set.
func (s names) Has(name gear.Name) bool {
	_, ok := s[name]
	return ok
}

const (
	// batchEvict is how many candidates one search through the table finds: it
	// takes some 10 ns a file.
	batchEvict = 1024
	// slack is which part of the budget is freed at once, so that not every new
	// file searches: 1/32.
	slack = 32
	// fullTries is how often a write that finds the disk full is tried.
	fullTries = 4
	// fullExtra is how many bytes are freed on a full disk beyond those needed.
	fullExtra = 32 << 20
	// ghostEvery is how often it is asked whether evicted files are gone.
	ghostEvery = time.Second
	// maxGhosts bounds their number; the oldest are taken for gone.
	maxGhosts = 1 << 14
)

// Lease marks files that a running container needs, whether they are there or
// not yet: they are evicted last. A lease of the same id is replaced.
func (d *Dir) Lease(id string, files []gear.Name) {
	s := make(names, len(files))
	for _, name := range files {
		s[name] = struct{}{}
	}
	d.LeaseSet(id, s)
}

// LeaseSet is Lease of files that need not be listed.
func (d *Dir) LeaseSet(id string, s Set) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases[id] = s
}

// Unlease ends a lease; one that is not there is no error.
func (d *Dir) Unlease(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.leases, id)
}

// leased tells whether a running container needs a file. mu is held.
func (d *Dir) leased(name gear.Name) bool {
	for _, s := range d.leases {
		if s.Has(name) {
			return true
		}
	}
	return false
}

// Evict evicts files until so many bytes are free of them, or nothing is left but
// leased and open ones, and returns how many it unlinked. Space that somebody
// still holds comes back later.
func (d *Dir) Evict(n int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.stats.EvictedBytes
	d.evict(func() bool { return d.stats.EvictedBytes-before < n }, false)
	return d.stats.EvictedBytes - before
}

// reserve sets n bytes of the budget aside, or gives them back.
func (d *Dir) reserve(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reserved += n; n > 0 {
		d.trim(0)
	}
}

// trim keeps the budget, with n bytes to spare. Files nobody needs go until also
// what is still open somewhere fits; leased ones only as far as their going
// brings anything: what a container has open frees nothing. mu is held.
func (d *Dir) trim(n int64) {
	most := d.opts.MaxBytes - n
	if d.opts.MaxBytes <= 0 || d.used+d.partial+d.reserved+d.late <= most {
		return
	}
	d.layGhosts()
	low := max(0, most-d.opts.MaxBytes/slack)
	if d.used+d.partial+d.reserved+d.late > most {
		d.evict(func() bool { return d.used+d.partial+d.reserved+d.late > low }, false)
	}
	if d.used+d.partial+d.reserved > most {
		d.evict(func() bool { return d.used+d.partial+d.reserved > most }, true)
	}
}

// candidate is a file that may go.
type candidate struct {
	name    gear.Name
	stamp   uint32
	partial bool
}

// oldest is a heap of the batchEvict oldest candidates, the youngest on top.
type oldest []candidate

func (h oldest) Len() int           { return len(h) }
func (h oldest) Less(i, j int) bool { return h[i].stamp > h[j].stamp }
func (h oldest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *oldest) Push(x any)        { *h = append(*h, x.(candidate)) }
func (h *oldest) Pop() any {
	s := *h
	x := s[len(s)-1]
	*h = s[:len(s)-1]
	return x
}

// candidates returns the oldest files that may go, the oldest first.
func (d *Dir) candidates(leased bool) []candidate {
	h := make(oldest, 0, batchEvict)
	offer := func(c candidate) {
		if len(h) == batchEvict && c.stamp >= h[0].stamp || !leased && d.leased(c.name) {
			return
		}
		if len(h) == batchEvict {
			heap.Pop(&h)
		}
		heap.Push(&h, c)
	}
	d.files.each(func(_ uint32, e *entry) bool {
		offer(candidate{e.name, e.stamp, false})
		return true
	})
	for name, p := range d.partials {
		if p.refs == 0 {
			offer(candidate{name, p.stamp, true})
		}
	}
	out := make([]candidate, len(h))
	for i := len(h) - 1; i >= 0; i-- {
		out[i] = heap.Pop(&h).(candidate)
	}
	return out
}

// evict unlinks files, the oldest first, as long as more says so. mu is held.
func (d *Dir) evict(more func() bool, leased bool) {
	for more() {
		gone := false
		for _, c := range d.candidates(leased) {
			if !more() {
				return
			}
			switch {
			case c.partial:
				d.stats.EvictedBytes += d.partials[c.name].bytes
				d.stats.Evicted++
				d.dropPartial(d.partials[c.name])
				gone = true
			case d.recentlyRead(c):
				gone = true // it comes later in the order
			default:
				d.unlink(c.name)
				d.stats.Evicted++
				gone = true
			}
		}
		if !gone {
			return
		}
	}
}

// recentlyRead tells whether the file system has seen a use of a file that the
// table has not: the kernel opens cached files without asking.
func (d *Dir) recentlyRead(c candidate) bool {
	if d.opts.Policy != LRU {
		return false
	}
	var st unix.Stat_t
	if err := unix.Lstat(d.path(c.name), &st); err != nil {
		return false
	}
	e := d.files.get(&c.name)
	if at := stampOf(st.Atim.Sec); e != nil && at > e.stamp && at <= d.stamp() {
		e.stamp = at
		return true
	}
	return false
}

// unlink removes a complete file, and tells whether there was one. mu is held.
func (d *Dir) unlink(name gear.Name) bool {
	e, ok := d.files.remove(&name)
	if !ok {
		return false
	}
	d.used -= int64(e.blocks) * 512
	d.stats.EvictedBytes += int64(e.blocks) * 512
	path := d.path(name)
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	if err := os.Remove(path); err != nil {
		d.log.Error("cached file cannot be removed", "err", err)
		return true
	}
	if err == nil {
		d.haunt(ghost{h, int64(e.blocks) * 512})
	}
	return true
}

// ghost is an evicted file whose inode may live on, because it is open, mapped,
// or known to an overlay that found its data there. Only then its handle can be
// opened.
type ghost struct {
	handle unix.FileHandle
	bytes  int64
}

// alive tells whether the inode is still there.
func (d *Dir) alive(g ghost) bool {
	fd, err := unix.OpenByHandleAt(d.fd, g.handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return false // ESTALE; or the file system cannot tell
	}
	_ = unix.Close(fd)
	return true
}

// haunt counts an evicted file as long as it takes space. mu is held.
func (d *Dir) haunt(g ghost) {
	if !d.alive(g) {
		return
	}
	if len(d.ghosts) == maxGhosts {
		d.late -= d.ghosts[0].bytes
		d.ghosts = d.ghosts[1:]
	}
	d.ghosts = append(d.ghosts, g)
	d.late += g.bytes
}

// layGhosts finds out which evicted files are gone by now. mu is held.
func (d *Dir) layGhosts() {
	now := time.Now()
	if len(d.ghosts) == 0 || now.Sub(d.ghostsAt) < ghostEvery {
		return
	}
	d.ghostsAt = now
	left := make([]ghost, 0, len(d.ghosts))
	for _, g := range d.ghosts {
		if d.alive(g) {
			left = append(left, g)
		} else {
			d.late -= g.bytes
		}
	}
	d.ghosts = left
}

// withRoom does what may find the disk full, evicts n bytes and more in that
// case, and tries again.
func (d *Dir) withRoom(n int64, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
		if try == fullTries {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		freed := d.Evict(n + fullExtra)
		if freed == 0 { // now also what running containers may need again
			d.mu.Lock()
			before := d.stats.EvictedBytes
			d.evict(func() bool { return d.stats.EvictedBytes-before < n+fullExtra }, true)
			freed = d.stats.EvictedBytes - before
			d.mu.Unlock()
		}
		if freed == 0 {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		d.log.Warn("disk of the cache is full", "evicted_bytes", freed)
		// A journalling file system gives blocks back once the unlink is written.
		if err := d.flush(); err != nil {
			return err
		}
	}
}
