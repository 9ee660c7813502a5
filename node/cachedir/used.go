package cachedir

import (
	"errors"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// The kernel opens cached files without notice: an overlay opens the files below it with
// O_NOATIME and without events. But one can see afterwards which files are in the page
// cache.

// Observe counts a use of a file if the file is in the cache and the kernel has any of it
// in memory. This means that somebody has read it lately, or that it has just come.
// Observe takes some microseconds.
func (d *Dir) Observe(name gear.Name) {
	if d.opts.Policy != LRU || !d.Has(name) {
		return
	}
	fd, err := unix.Open(d.path(name), unix.O_RDONLY|unix.O_NOATIME|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // evicted meanwhile
	}
	defer unix.Close(fd)
	if inMemory(fd) {
		d.markUsed(name, fd)
	}
}

// inMemory reports whether the page cache has any of a file. Before Linux 6.5 the kernel
// cannot report this, and inMemory returns true.
func inMemory(fd int) bool {
	var all unix.CachestatRange
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &all, &st, 0)
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || st.Cache > 0
}

// markUsed counts a use of a file and records it in the file's access time, which the
// next start reads.
func (d *Dir) markUsed(name gear.Name, fd int) {
	d.mu.Lock()
	at := d.stamp()
	if e := d.files.get(&name); e != nil {
		e.stamp = at
	}
	d.mu.Unlock()
	times := []unix.Timespec{unix.NsecToTimespec(at), {Nsec: unix.UTIME_OMIT}}
	_ = unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH) // the time only guides the order of eviction
}
