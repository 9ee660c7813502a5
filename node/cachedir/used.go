package cachedir

import (
	"errors"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// The kernel opens cached files without telling anybody: an overlay opens the
// files below it with O_NOATIME and without events. What can be seen afterwards is
// which files are in its page cache.

// Observe counts as a use of a file if it is there and the kernel has any of it in
// memory, because somebody read it lately or it has just come. It takes some
// microseconds.
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

// inMemory reports whether the page cache has any of a file. Kernels before Linux
// 6.5 cannot tell; there it counts as used.
func inMemory(fd int) bool {
	var all unix.CachestatRange
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &all, &st, 0)
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || st.Cache > 0
}

// markUsed counts a use of a file, and notes it in its access time, which is what
// the next start goes by.
func (d *Dir) markUsed(name gear.Name, fd int) {
	d.mu.Lock()
	at := d.stamp()
	if e := d.files.get(&name); e != nil {
		e.stamp = at
	}
	d.mu.Unlock()
	times := []unix.Timespec{unix.NsecToTimespec(at), {Nsec: unix.UTIME_OMIT}}
	_ = unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH) // it only guides the order
}
