package view

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Forget makes the overlay mounted at a directory forget all unused names and inodes. An
// inode remembers where its data was found and holds that file, even if the file has been
// deleted since. After Forget, the next use looks for the data again. Files that are open
// or mapped, and working directories, are not affected.
func Forget(dir string) error {
	err := reconfigure(dir)
	if errors.Is(err, unix.EROFS) { // an overlay without an upper directory must stay read-only
		err = reconfigure(dir, "ro")
	}
	if err != nil {
		return fmt.Errorf("make the overlay at %s forget: %w", dir, err)
	}
	return nil
}

// reconfigure sets options of a mounted file system. Without options it changes nothing,
// but as a side effect the kernel drops all unused names.
func reconfigure(dir string, flags ...string) error {
	fs, err := unix.Fspick(unix.AT_FDCWD, dir, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT|unix.FSPICK_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	for _, f := range flags {
		if err := unix.FsconfigSetFlag(fs, f); err != nil {
			return explain(fs, err)
		}
	}
	if err := unix.FsconfigReconfigure(fs); err != nil {
		return explain(fs, err)
	}
	return nil
}
