package cachedir

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
)

// Holders represents everybody who may still hold a deleted file, so that its space is
// not freed.
type Holders interface {
	// Release closes a file that is kept open for the next open although nobody uses it.
	// It is called while the directory is locked, so it must be fast and must not call
	// this package.
	Release(name gear.Name)
	// Forget makes the kernel forget where the file systems above found these deleted
	// files. It may wait.
	Forget(names []gear.Name)
}

// SetHolders sets who may hold files, and evicts files beyond the budget. nil means that
// nobody could release files. Files that are held open are then not evicted.
func (d *Dir) SetHolders(h Holders) {
	d.mu.Lock()
	d.holders = h
	d.mu.Unlock()
	d.makeRoom()
}

// Pin keeps a file from being evicted until Unpin, even if the file is yet to come. A
// caller that fetches a file to open it must find it.
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

// inUse reports whether evicting a file would free no space, because a process has it
// open or mapped, or is about to open it. mu is held.
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
	// The kernel grants the lease only if the inode has no other open file. A mapping
	// counts as an open file. An open that meets the lease waits for about a microsecond
	// until the lease is released.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}

const (
	// ghostCost is about how long it takes to check whether an evicted file is gone. At
	// most a twentieth of the time is spent on these checks.
	ghostCost = 3 * time.Microsecond
	// maxGhosts bounds the number of ghosts. Beyond it, the oldest are assumed to be
	// gone.
	maxGhosts = 1 << 14
)

// ghost is an evicted file whose inode may live on, because it is open or mapped, or
// because an overlay still refers to it. While the inode lives, and only then, its handle
// can be opened.
type ghost struct {
	handle unix.FileHandle
	bytes  int64
	name   gear.Name
	// hope is set while only an overlay may refer to the file and has not been made to
	// forget it.
	hope bool
}

// remove deletes a file and counts its bytes while somebody still has it. mu is held.
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

// alive reports whether the inode still exists.
func (d *Dir) alive(g ghost) bool {
	fd, err := unix.OpenByHandleAt(d.fd, g.handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return false // ESTALE, or a file system without handles
	}
	_ = unix.Close(fd)
	return true
}

// lay removes an evicted file from the accounts.
func (d *Dir) lay(g ghost) {
	d.late -= g.bytes
	if g.hope {
		d.hoped -= g.bytes
	}
}

// layGhosts finds the evicted files that are gone by now. mu is held.
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

// exorcise makes overlays forget the evicted files to which they refer. It reports
// whether there were any. mu is held, but released while exorcise waits.
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
