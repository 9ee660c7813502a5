package cachedir

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// Holders know who else may hold a file whose name is gone, so that its space
// does not come back.
type Holders interface {
	// Release lets go of a file that is kept open for the next open although
	// nobody uses it. It is called while the directory is locked: it must be quick
	// and call nothing of this package.
	Release(name gear.Name)
	// Forget makes the kernel forget where file systems above found these files,
	// which are deleted. It may wait.
	Forget(names []gear.Name)
}

// SetHolders says who may hold files, nil for nobody that could let go of them, and
// evicts what is too much. Without holders no file is evicted that they have open.
func (d *Dir) SetHolders(h Holders) {
	d.mu.Lock()
	d.holders = h
	d.mu.Unlock()
	d.makeRoom()
}

// Pin keeps a file, or one that is about to come, from being evicted until Unpin:
// whoever fetches a file to open it must find it.
func (d *Dir) Pin(name gear.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pins[name]++
}

// Unpin undoes one Pin.
func (d *Dir) Unpin(name gear.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pins[name]--; d.pins[name] <= 0 {
		delete(d.pins, name)
	}
}

// inUse reports whether evicting a file would free nothing, because somebody has
// it open or mapped, or is about to open it. mu is held.
func (d *Dir) inUse(name gear.Name) bool {
	if d.pins[name] > 0 {
		return true
	}
	if d.holders != nil {
		d.holders.Release(name)
	}
	fd, err := unix.Open(d.path(name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// The kernel grants the lease only if there is no other open file of the inode,
	// and a mapping is one. An open that meets the lease waits for the microsecond
	// until it is given back.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}

const (
	// ghostCost is about how long it takes to ask whether an evicted file is gone.
	// A twentieth of the time may be spent on that.
	ghostCost = 3 * time.Microsecond
	// maxGhosts bounds their number; the oldest are taken for gone.
	maxGhosts = 1 << 14
)

// ghost is an evicted file whose inode may live on, because it is open, mapped,
// or known to an overlay that found its data there. Only then its handle can be
// opened.
type ghost struct {
	handle unix.FileHandle
	bytes  int64
	name   gear.Name
	// hope is set while an overlay alone may know it, and was not made to
	// forget it yet.
	hope bool
}

// remove deletes a file of so many bytes, and counts them as long as somebody has
// it. mu is held.
func (d *Dir) remove(name gear.Name, path string, bytes int64) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	if err := os.Remove(path); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.log.Error("cached file cannot be removed", "err", err)
		}
		return
	}
	g := ghost{h, bytes, name, d.holders != nil}
	if err != nil || !d.alive(g) {
		return
	}
	if len(d.ghosts) == maxGhosts {
		d.lay(d.ghosts[0])
		d.ghosts = d.ghosts[1:]
	}
	d.ghosts = append(d.ghosts, g)
	d.late += bytes
	if g.hope {
		d.hoped += bytes
	}
}

// alive reports whether the inode is still there.
func (d *Dir) alive(g ghost) bool {
	fd, err := unix.OpenByHandleAt(d.fd, g.handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return false // ESTALE; or the file system cannot tell
	}
	_ = unix.Close(fd)
	return true
}

// lay takes an evicted file off the books.
func (d *Dir) lay(g ghost) {
	d.late -= g.bytes
	if g.hope {
		d.hoped -= g.bytes
	}
}

// layGhosts finds out which evicted files are gone by now. mu is held.
func (d *Dir) layGhosts() {
	now := time.Now()
	if len(d.ghosts) == 0 || now.Sub(d.ghostsAt) < 20*ghostCost*time.Duration(len(d.ghosts)) {
		return
	}
	d.ghostsAt = now
	left := make([]ghost, 0, len(d.ghosts))
	for _, g := range d.ghosts {
		if d.alive(g) {
			left = append(left, g)
		} else {
			d.lay(g)
		}
	}
	d.ghosts = left
}

// exorcise makes overlays forget the evicted files that they know, and reports
// whether there were any. mu is held, but not while it waits.
func (d *Dir) exorcise() bool {
	var names []gear.Name
	for i := range d.ghosts {
		if g := &d.ghosts[i]; g.hope {
			g.hope = false
			names = append(names, g.name)
		}
	}
	d.hoped = 0
	if len(names) == 0 {
		return false
	}
	if h := d.holders; h != nil {
		d.mu.Unlock()
		h.Forget(names)
		d.mu.Lock()
	}
	d.ghostsAt = time.Time{}
	d.layGhosts()
	return true
}
