package faultfs

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// pageSize is the unit in which the kernel writes back, in bytes.
const pageSize = 4096

type fileID struct{ dev, ino uint64 }

// unsynced holds what the disk has of the pages of a file that differ from the page
// cache. Its methods work on nil, for files of which nothing is kept.
//
// It behaves like Linux. A successful fsync writes a page to the disk. After a failed
// fsync the page is clean, although the disk has the old content. The next fsync skips
// the page, and only another write to the page gives it a new chance. Names and sizes are
// durable at once here.
type unsynced struct {
	mu    sync.Mutex
	disk  *os.File // the backing file; nil while there is no page
	pages map[int64]*page
}

// page is a page whose content on the disk differs from the page cache's.
type page struct {
	old  []byte // on the disk; bytes beyond the file's end are 0
	lost bool   // an fsync of the page failed, and it has not been written since
}

// lossesOf returns the unsynced pages of an open file.
func (f *FS) lossesOf(h *file) *unsynced {
	fd, _ := h.LoopbackFile.PassthroughFd()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		panic(fmt.Sprintf("faultfs: fstat of an open descriptor: %v", err))
	}
	f.lossMu.Lock()
	defer f.lossMu.Unlock()
	id := fileID{st.Dev, st.Ino}
	u := f.losses[id]
	if u == nil {
		u = &unsynced{pages: map[int64]*page{}}
		f.losses[id] = u
	}
	return u
}

// write carries out a write of n bytes at off to a file that is open as fd. It first saves what the
// disk holds there.
func (u *unsynced) write(fd int, off, n int64, do func() syscall.Errno) syscall.Errno {
	if u == nil {
		return do()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.disk == nil {
		// The file's own handle may be write-only.
		disk, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
		if err != nil {
			return syscall.EIO
		}
		u.disk = disk
	}
	for i := off / pageSize; i*pageSize < off+n; i++ {
		if p := u.pages[i]; p != nil {
			p.lost = false
			continue
		}
		old := make([]byte, pageSize)
		if _, err := u.disk.ReadAt(old, i*pageSize); err != nil && err != io.EOF {
			return syscall.EIO
		}
		u.pages[i] = &page{old: old}
	}
	return do()
}

// sync records an fsync and its success or failure.
func (u *unsynced) sync(ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, p := range u.pages {
		switch {
		case !ok:
			p.lost = true
		case !p.lost:
			delete(u.pages, i)
		}
	}
	u.shut()
}

// truncate drops pages beyond the file's new end.
func (u *unsynced) truncate(size int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.pages {
		if i*pageSize >= size {
			delete(u.pages, i)
		}
	}
	u.shut()
}

// released records that a handle was closed. A file without a name is then gone.
func (u *unsynced) released() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.disk == nil {
		return
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(u.disk.Fd()), &st); err == nil && st.Nlink == 0 {
		clear(u.pages)
		u.shut()
	}
}

// shut closes the backing file when it is not needed. u.mu is held.
func (u *unsynced) shut() {
	if u.disk != nil && len(u.pages) == 0 {
		_ = u.disk.Close() // nothing of it has to be durable
		u.disk = nil
	}
}

// Loss is what a power cut destroyed.
type Loss struct {
	// Lost counts pages of a failed fsync; Dropped counts pages that were not yet synced.
	Lost, Dropped int
	// Names counts file names that were put back to their state before a change.
	Names int
}

// PowerCut unmounts the file system and gives the backing directory the content that a
// loss of power leaves. Pages whose fsync failed get their old content. Unsynced pages
// get the old or the new content, by chance. The server must have been killed.
func (f *FS) PowerCut(random *rand.Rand) (Loss, error) {
	var loss Loss
	if !f.opts.Volatile {
		return loss, errors.New("the file system is not volatile")
	}
	if err := f.Close(); err != nil {
		return loss, err
	}
	f.lossMu.Lock()
	defer f.lossMu.Unlock()
	var errs []error
	for _, u := range f.losses {
		u.mu.Lock()
		for i, p := range u.pages {
			if !p.lost && random.IntN(2) == 0 {
				continue
			}
			if p.lost {
				loss.Lost++
			} else {
				loss.Dropped++
			}
			if f.opts.Torn && !p.lost && random.IntN(2) == 0 {
				errs = append(errs, u.tear(i, p, random))
				continue
			}
			errs = append(errs, u.revert(i, p))
		}
		clear(u.pages)
		u.shut()
		u.mu.Unlock()
	}
	lost, err := f.names.lose(random)
	loss.Names = lost
	return loss, errors.Join(append(errs, err)...)
}

// sectorSize is the unit that a disk writes as a whole, in bytes.
const sectorSize = 512

// tear makes an unsynced page partly new; chance decides for each sector. u.mu is held.
func (u *unsynced) tear(i int64, p *page, random *rand.Rand) error {
	now := make([]byte, pageSize)
	if _, err := u.disk.ReadAt(now, i*pageSize); err != nil && err != io.EOF {
		return err
	}
	for at := 0; at < pageSize; at += sectorSize {
		if random.IntN(2) == 0 {
			copy(p.old[at:at+sectorSize], now[at:])
		}
	}
	return u.revert(i, p)
}

// revert writes back what the disk had of a page, without making the file longer. u.mu is held.
func (u *unsynced) revert(i int64, p *page) error {
	st, err := u.disk.Stat()
	if err != nil {
		return err
	}
	n := min(pageSize, st.Size()-i*pageSize)
	if n <= 0 {
		return nil
	}
	_, err = u.disk.WriteAt(p.old[:n], i*pageSize)
	return err
}
