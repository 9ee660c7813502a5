//go:build ceph

package rbd

import (
	"errors"
	"fmt"
	"syscall"

	"example.org/slipway/volume/block"
)

var errClosed = errors.New("the store is closed")

// errFenced: another client has made the cluster lock this client out. A new connection
// is let in.
var errFenced = fmt.Errorf("%w: the cluster has blocked this connection, because another has taken over what it wrote", block.ErrDenied)

const (
	eNoEntry   = syscall.ENOENT
	eExist     = syscall.EEXIST
	eBusy      = syscall.EBUSY
	eBlocklist = syscall.ESHUTDOWN // what the OSDs say to a client on the blocklist
)

// errno returns the errno of an error of librados or librbd, or 0 if err is no such
// error.
func errno(err error) syscall.Errno {
	var code interface{ ErrorCode() int }
	if !errors.As(err, &code) {
		return 0
	}
	n := code.ErrorCode()
	return syscall.Errno(max(n, -n))
}

// translate wraps an error of librados or librbd in the matching error of package block.
func translate(err error) error {
	var as error
	switch errno(err) {
	case eNoEntry:
		as = block.ErrNotFound
	case eExist:
		as = block.ErrExists
	case eBusy, syscall.ENOTEMPTY, syscall.EROFS:
		// librbd says EROFS where another has the exclusive lock.
		as = block.ErrInUse
	case syscall.ENOSPC, syscall.EDQUOT:
		as = block.ErrFull
	case syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.EAGAIN:
		as = block.ErrAway
	case syscall.EPERM, syscall.EACCES:
		as = block.ErrDenied
	case eBlocklist:
		as = errFenced
	default:
		return err
	}
	return fmt.Errorf("%w (%w)", as, err)
}

func isMissing(err error) bool { return errno(err) == eNoEntry }

func isDenied(err error) bool {
	n := errno(err)
	return n == syscall.EPERM || n == syscall.EACCES
}
