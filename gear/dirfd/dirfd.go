// Package dirfd accesses files through an open directory, so that nobody can substitute
// another directory.
package dirfd

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// Open opens a file. Signals do not interrupt it, although they interrupt the system call
// on a file system in user space.
func Open(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0o600)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Path returns a path to name in an open directory, for system calls that have no variant
// with a descriptor. Only name itself is looked up.
func Path(dir int, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(dir) + "/" + name
}
