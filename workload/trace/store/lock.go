package store

import (
	"errors"
	"os"
	"syscall"
)

// ErrBusy is returned by [NewWriter] for a store that another Writer is writing.
var ErrBusy = errors.New("another process is writing to it")

// lockDir locks a directory until the returned file is closed or the process ends, in
// whatever way. A file system that cannot lock directories, such as NFS, is used without
// a lock.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(ErrBusy, f.Close())
	case err == nil, errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EBADF), errors.Is(err, syscall.ENOLCK):
		return f, nil
	default:
		return nil, errors.Join(err, f.Close())
	}
}
