package view

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Forget makes the overlay mounted at a directory forget the names and inodes that
// nobody uses at present. An inode knows where its data was found and holds that
// file, also when it has been deleted meanwhile; the next use looks for it again.
// What is open, mapped or a working directory stays as it is.
func Forget(dir string) error {
	err := reconfigure(dir)
	if errors.Is(err, unix.EROFS) { // an overlay without an upper directory insists on it
		err = reconfigure(dir, "ro")
	}
	if err != nil {
		return fmt.Errorf("make the overlay at %s forget: %w", dir, err)
	}
	return nil
}

// reconfigure sets options of a mounted file system. Without any it changes
// nothing, but the kernel drops all unused names on the way.
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
