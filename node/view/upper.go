package view

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// PrepareUpper creates the directories that an overlay writes to. If upper is new, it
// gets the owner, mode, time and attributes of lower, the root of the tree below, because
// the overlay shows the root of the upper directory instead of lower.
func PrepareUpper(lower, upper, work string) error {
	if err := os.MkdirAll(work, 0o700); err != nil {
		return fmt.Errorf("prepare upper directory: %w", err)
	}
	err := os.Mkdir(upper, 0o700)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err == nil {
		err = copyRoot(lower, upper)
	}
	if err != nil {
		return fmt.Errorf("prepare upper directory %s: %w", upper, err)
	}
	return nil
}

// copyRoot copies the stat values and the attributes of a directory.
func copyRoot(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return &os.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := os.Chown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyXattrs(from, to); err != nil {
		return err
	}
	if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: to, Err: err}
	}
	if err := unix.UtimesNano(to, []unix.Timespec{st.Mtim, st.Mtim}); err != nil {
		return &os.PathError{Op: "utimes", Path: to, Err: err}
	}
	return nil
}

// unheld are the errors of a file system that cannot hold an attribute.
var unheld = []error{unix.ENOTSUP, unix.ENOSPC, unix.E2BIG, unix.ERANGE}

// copyXattrs copies all attributes, except the marks of overlayfs and attributes that the
// file system of the upper directory cannot hold (ext4, for example, cannot hold long
// ones). Escaped attributes are copied unchanged: the overlay looks for them in all of
// its layers.
func copyXattrs(from, to string) error {
	list := make([]byte, 64<<10) // the longest list that Linux returns
	n, err := unix.Listxattr(from, list)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return &os.PathError{Op: "listxattr", Path: from, Err: err}
	}
	value := make([]byte, 64<<10) // the longest value possible
	for name := range strings.SplitSeq(string(list[:max(n, 0)]), "\x00") {
		if name == "" || strings.HasPrefix(name, marks) && !strings.HasPrefix(name, escapedMarks) {
			continue
		}
		n, err := unix.Getxattr(from, name, value)
		if err == nil {
			err = unix.Setxattr(to, name, value[:n], 0)
		}
		if err != nil && !slices.ContainsFunc(unheld, func(e error) bool { return errors.Is(err, e) }) {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	return nil
}
