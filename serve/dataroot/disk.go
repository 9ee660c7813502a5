package dataroot

import (
	"errors"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"
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

// Full returns why new content is refused, or nil while there is room for it.
func (r *Root) Full() error {
	if err := r.Catalog.DB.Room(); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.Dir, &st); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", r.Dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; r.local && free < keepFree(r.Dir) {
		return fmt.Errorf("%d bytes are free on the disk of %s", free, r.Dir)
	}
	return nil
}

// Impaired returns the reason why the data directory's disk cannot be used properly: it
// is read-only, has no free inodes, or files on it cannot be opened.
func (r *Root) Impaired() error {
	f, err := os.Open(r.Dir)
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	defer f.Close() // nothing is written to it
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", r.Dir, err)
	}
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
	switch err := unix.UtimesNanoAt(unix.AT_FDCWD, r.Dir, now, 0); {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("the disk of %s is mounted read-only: pushes are refused; see the kernel's log for why, and mount it again", r.Dir)
	case st.Files > 0 && st.Ffree == 0:
		return fmt.Errorf("the disk of %s has no inodes left: pushes are refused; delete files", r.Dir)
	}
	return nil
}

// freeSpace returns a metric: the free space of the file system that a directory is on.
func freeSpace(dir string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slipway_storage_free_bytes",
		Help: "Bytes free for this process on the file system of the data directory."}, func() float64 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return -1
		}
		return float64(st.Bavail) * float64(st.Bsize)
	})
}
