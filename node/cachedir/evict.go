package cachedir

import (
	"container/heap"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// Set is the set of files that a lease covers. It is called while the directory is
// locked, so it must be fast and must not call this package.
type Set interface {
	Has(name gear.Name) bool
}

// names is a Set of a few names.
type names map[gear.Name]struct{}

// Has implements Set.
func (s names) Has(name gear.Name) bool {
	_, ok := s[name]
	return ok
}

const (
	// batchEvict is how many candidates one search through the table collects. A search
	// takes about 10 ns a file.
	batchEvict = 1024
	// fullTries bounds how often a write is tried while the disk is full.
	fullTries = 8
	// fullExtra is how many bytes are freed on a full disk beyond the needed ones, for
	// the file system's own writes.
	fullExtra = 1 << 20
	// maxKept bounds how many files in use are skipped in a row before the search ends.
	// Each costs about 10 µs.
	maxKept = 4096
)

// Lease marks files that a running container needs, whether or not they are in the cache
// yet. They are evicted last. Lease replaces an earlier lease with the same id.
func (d *Dir) Lease(id string, files []gear.Name) {
	s := make(names, len(files))
	for _, name := range files {
		s[name] = struct{}{}
	}
	d.LeaseSet(id, s)
}

// LeaseSet is like Lease, for files that need not be listed.
func (d *Dir) LeaseSet(id string, s Set) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases[id] = s
	d.queue, d.barren = nil, false
}

// Unlease ends a lease. It is no error if there is no such lease.
func (d *Dir) Unlease(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.leases, id)
	d.queue, d.barren = nil, false
}

// leased reports whether a running container needs a file. mu is held.
func (d *Dir) leased(name gear.Name) bool {
	for _, s := range d.leases {
		if s.Has(name) {
			return true
		}
	}
	return false
}

// Evict evicts files until it has freed n bytes, or only files that are leased or in use
// are left. It returns how many bytes it freed.
func (d *Dir) Evict(n int64) int64 { return d.free(n, false) }

// reserve reserves n bytes of the budget, or returns them if n is negative.
func (d *Dir) reserve(n int64) {
	d.mu.Lock()
	d.reserved += n
	d.mu.Unlock()
	if n > 0 {
		d.makeRoom()
	}
}

// total returns the disk space that counts towards the budget. mu is held.
func (d *Dir) total() int64 { return d.used + d.partial + d.reserved + d.late }

// makeRoom evicts files until the budget is met. It may take long. The caller holds no
// lock.
func (d *Dir) makeRoom() {
	if d.opts.MaxBytes <= 0 {
		return
	}
	d.mu.Lock()
	for d.total() > d.opts.MaxBytes {
		d.layGhosts()
		over := func() bool { return d.total()-d.hoped > d.opts.MaxBytes }
		for _, leased := range [2]bool{false, true} { // unleased files first
			d.evict(over, leased)
		}
		if !d.exorcise() {
			break
		}
	}
	d.mu.Unlock()
}

// free evicts files until it has freed n bytes or has no more candidates. leased says
// whether files that containers need are candidates, too. free returns how many bytes it
// freed.
func (d *Dir) free(n int64, leased bool) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	unlinked, late := d.stats.EvictedBytes, d.late
	freed := func() int64 { return d.stats.EvictedBytes - unlinked - (d.late - late) }
	for {
		d.evict(func() bool { return freed()+d.hoped < n }, leased)
		if freed() >= n || !d.exorcise() {
			return max(0, freed())
		}
	}
}

// candidate is a file that may be evicted.
type candidate struct {
	name    gear.Name
	stamp   int64
	partial *Partial // nil: a complete file
}

// oldest is a heap of the batchEvict oldest candidates. The youngest of them is on top.
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

// candidates returns the oldest files that may be evicted, the oldest first.
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
		offer(candidate{e.name, e.stamp, nil})
		return true
	})
	for _, p := range d.partials {
		if p.refs == 0 {
			offer(candidate{p.f.Name, p.stamp, p})
		}
	}
	out := make([]candidate, len(h))
	for i := len(h) - 1; i >= 0; i-- {
		out[i] = heap.Pop(&h).(candidate)
	}
	return out
}

// next returns the file to evict next, if there is one. When it has used up the
// candidates of a search, it searches again. A candidate that was used meanwhile has
// another stamp, and every new file is younger. mu is held.
func (d *Dir) next(leased bool) (candidate, bool) {
	for searched := false; ; searched = true {
		if leased != d.queueLeased {
			d.queue = nil
		}
		for len(d.queue) > 0 {
			c := d.queue[0]
			d.queue = d.queue[1:]
			if p := c.partial; p != nil && d.partials[p.key()] == p && p.refs == 0 && p.stamp == c.stamp {
				return c, true
			}
			if e := d.files.get(&c.name); c.partial == nil && e != nil && e.stamp == c.stamp {
				return c, true
			}
		}
		if searched || !leased && d.barren {
			return candidate{}, false
		}
		d.queue, d.queueLeased = d.candidates(leased), leased
		d.barren = !leased && len(d.queue) == 0
	}
}

// evict unlinks files, the oldest first, while more returns true. It skips a file that is
// in use: its space would not be freed, and the next open would fetch it a second time.
// mu is held.
func (d *Dir) evict(more func() bool, leased bool) {
	for kept := 0; more() && kept < maxKept && kept <= d.files.n; {
		c, ok := d.next(leased)
		switch {
		case !ok:
			return
		case c.partial != nil:
			d.stats.EvictedBytes += c.partial.bytes
			d.stats.Evicted++
			d.dropPartial(c.partial)
		case d.inUse(c.name):
			d.files.get(&c.name).stamp = d.stamp()
			kept++
		default:
			d.unlink(c.name)
			d.stats.Evicted++
			kept = 0
		}
	}
}

// unlink removes a complete file, and reports whether there was one. mu is held.
func (d *Dir) unlink(name gear.Name) bool {
	d.hide(name)
	e, ok := d.files.remove(&name)
	if !ok {
		return false
	}
	d.used -= int64(e.blocks) * 512
	d.stats.EvictedBytes += int64(e.blocks) * 512
	d.remove(name, d.path(name), int64(e.blocks)*512)
	return true
}

// Room evicts files until n bytes of the disk are free, as far as possible. A package
// that stores other things on the same disk calls it before writing them, because a
// cached file is worth less.
func (d *Dir) Room(n int64) {
	if d.plenty(n) {
		return
	}
	// Only the file system knows how much space a user may use, because it has reserves.
	err := d.withRoom(n, func() error {
		fd, err := unix.Open(filepath.Join(d.root, tmpDir), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fallocate(fd, 0, 0, n)
	})
	if err != nil {
		d.log.Warn("the cache makes no room on the disk", "bytes", n, "err", err)
	}
}

// fewInodes is a number of free inodes that is always enough.
const fewInodes = 64

// plenty reports whether n bytes are certainly free.
func (d *Dir) plenty(n int64) bool {
	var st unix.Statfs_t
	err := unix.Fstatfs(d.fd, &st)
	return err == nil && int64(st.Bavail) >= n/st.Bsize+1 && (st.Files == 0 || st.Ffree >= fewInodes)
}

// withRoom calls do, which may find the disk full. In that case it evicts n bytes and a
// few more, and tries again. The caller may hold pub and the p.mu of partial files.
func (d *Dir) withRoom(n int64, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
		if try == fullTries {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		freed := d.free(n+fullExtra, false)
		if freed == 0 { // now evict also what running containers may need again
			freed = d.free(n+fullExtra, true)
		}
		if freed == 0 {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		d.log.Warn("disk of the cache is full", "evicted_bytes", freed)
		// A journalling file system frees the blocks only when the unlink has been
		// written.
		if err := d.flush(); err != nil {
			return err
		}
	}
}
