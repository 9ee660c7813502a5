package serve

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// keepFree returns how many bytes of a disk uploads leave free. The catalogue needs the
// last bytes to record the uploads.
func keepFree(dir string) int64 {
	const most, share = 64 << 20, 32
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bsize <= 0 {
		return 0
	}
	return min(most, int64(st.Blocks/share)*st.Bsize)
}

// full returns why new content is refused, or nil while there is room for it.
func (r *root) full() error {
	if err := r.cat.DB.Room(); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.dir, &st); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", r.dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; r.local && free < keepFree(r.dir) {
		return fmt.Errorf("%d bytes are free on the disk of %s", free, r.dir)
	}
	return nil
}

// impaired returns the reason why the data directory's disk cannot be used properly: it
// is read-only, has no free inodes, or files on it cannot be opened.
func (r *root) impaired() error {
	f, err := os.Open(r.dir)
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	defer f.Close() // nothing is written to it
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", r.dir, err)
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	switch err := unix.UtimesNanoAt(unix.AT_FDCWD, r.dir, now, 0); {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("the disk of %s is mounted read-only: pushes are refused; see the kernel's log for why, and mount it again", r.dir)
	case st.Files > 0 && st.Ffree == 0:
		return fmt.Errorf("the disk of %s has no inodes left: pushes are refused; delete files", r.dir)
	}
	return nil
}
