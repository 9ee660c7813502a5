package view

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Root identifies a mount by the root directory that it shows.
type Root struct {
	// Mount is the mount's number. Since Linux 6.8 it is never reused. Before 6.8, it is
	// reused after the mount is gone.
	Mount uint64
	// Dev and Ino are the values of stat(2).
	Dev, Ino uint64
}

// RootAt returns the mount at a directory, or the topmost if there are several. It
// returns false if nothing is mounted there. It costs one system call, however many
// mounts the machine has, and sends no request to file systems in user space.
func RootAt(dir string) (Root, bool, error) {
	st, err := look(dir, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return Root{}, false, err
	}
	r := Root{Mount: st.Mnt_id, Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Mask&(unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE) != 0 {
		return r, st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	m, mounted, err := Mounted(dir) // Linux before 5.8
	r.Mount = uint64(m.ID)
	return r, mounted, err
}

// Identity returns the device and inode number of a file, as in stat(2). It sends no
// request to file systems in user space.
func Identity(path string) (dev, ino uint64, err error) {
	st, err := look(path, 0)
	if err != nil {
		return 0, 0, err
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, nil
}

// look calls statx(2) for the values that the kernel knows by itself.
func look(path string, flags int) (*unix.Statx_t, error) {
	var st unix.Statx_t
	flags |= unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	for {
		err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_INO|unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "statx", Path: path, Err: err}
		}
		return &st, nil
	}
}
