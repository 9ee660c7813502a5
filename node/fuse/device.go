package fuse

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// device is our own descriptor of /dev/fuse.
//
// It is not in Go's poller. When a program opens a file of the mount with package os,
// package os adds the file to the program's poller. While the kernel does so, it holds
// the poller's lock and sends a request to the server. If the program is itself the
// server, it could never read that request.
type device struct {
	fd      int
	stopFD  int // an eventfd that becomes readable when the readers are to stop
	stopped atomic.Bool

	turn sync.Mutex // held by the one reader that waits: every request would wake all waiting readers
}

var errStopped = errors.New("told to stop")

// newDevice returns a device that owns the descriptor fd.
func newDevice(fd int) (*device, error) {
	err := unix.SetNonblock(fd, true)
	stop := -1
	if err == nil {
		stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the descriptor of a FUSE mount: %w", err), unix.Close(fd))
	}
	return &device{fd: fd, stopFD: stop}, nil
}

// duplicate returns a device for the connection of f.
func duplicate(f *os.File) (*device, error) {
	fd, err := RawFD(f)
	if err != nil {
		return nil, err
	}
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of a FUSE mount: %w", err)
	}
	return newDevice(n)
}

// clone returns another device of the same connection. A request that is read from the
// clone is answered on the clone, and fails when the clone is closed.
func (d *device) clone() (*device, error) {
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Device, err)
	}
	master := uint32(d.fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), iocClone, uintptr(unsafe.Pointer(&master))); errno != 0 {
		return nil, errors.Join(fmt.Errorf("clone the FUSE connection: %w", errno), unix.Close(fd))
	}
	return newDevice(fd)
}

func (d *device) close() error {
	return errors.Join(unix.Close(d.fd), unix.Close(d.stopFD))
}

// stop ends every current and later read with errStopped. No request is lost.
func (d *device) stop() {
	if d.stopped.Swap(true) {
		return
	}
	one := [8]byte{1}
	for {
		if _, err := unix.Write(d.stopFD, one[:]); err != unix.EINTR {
			return // the counter cannot overflow
		}
	}
}

// read reads one request. It may be called concurrently.
func (d *device) read(buf []byte) (int, error) {
	for {
		if d.stopped.Load() {
			return 0, errStopped
		}
		n, err := unix.Read(d.fd, buf)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR, unix.ENOENT: // ENOENT: the request was withdrawn while it was read
		case unix.EAGAIN:
			d.wait()
		default:
			return 0, fmt.Errorf("read from %s: %w", Device, err)
		}
	}
}

// wait returns when there may be something to read, or when the readers must stop.
func (d *device) wait() {
	d.turn.Lock()
	defer d.turn.Unlock()
	p := [2]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(d.stopFD), Events: unix.POLLIN}}
	// An error is EINTR, or the next read returns it.
	_, _ = unix.Poll(p[:], -1)
}

// write sends an answer or a notification in one system call.
func (d *device) write(b []byte) error {
	for {
		if _, err := unix.Write(d.fd, b); err != unix.EINTR {
			return err
		}
	}
}

// residentBuffer returns a buffer for requests. All pages of the buffer are already
// present in memory. If the process were killed while the kernel copied a request to a
// page that is not present, the kernel would end the request with EIO and never resend
// it.
func residentBuffer(n int) (buf []byte, free func(), err error) {
	buf, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, fmt.Errorf("memory for FUSE requests: %w", err)
	}
	// Mlock keeps the pages from being swapped out. If it is not allowed, they probably
	// still stay.
	_ = unix.Mlock(buf)
	return buf, func() { _ = unix.Munmap(buf) }, nil
}

const iocClone = 0x8004e500 // _IOR(229, 0, uint32)

// RawFD returns a file's descriptor. Unlike File.Fd, it never makes the descriptor
// blocking.
func RawFD(f *os.File) (int, error) {
	c, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	n := -1
	if err := c.Control(func(fd uintptr) { n = int(fd) }); err != nil {
		return -1, err
	}
	return n, nil
}
