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

// device is a descriptor of /dev/fuse of our own.
//
// It stays out of Go's poller: a program that opens a file of the mount with package os adds it to its poller, for which
// the kernel asks the server while it holds the poller's lock. Where this program is the server, it would never read
// the question.
type device struct {
	fd      int
	stopFD  int // an eventfd that becomes readable when the readers are to stop
	stopped atomic.Bool

	turn sync.Mutex // of the one reader that waits: more would all be woken by every request
}

var errStopped = errors.New("told to stop")

// newDevice takes over a descriptor.
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

// clone returns another device of the same connection: what is read from it is answered on it, and fails when it is
// closed.
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

// stop ends every read, now and later, with errStopped. No request is lost to it.
func (d *device) stop() {
	if d.stopped.Swap(true) {
		return
	}
	one := [8]byte{1}
	for {
		if _, err := unix.Write(d.stopFD, one[:]); err != unix.EINTR {
			return // the counter cannot be full
		}
	}
}

// read takes one request. It may be called concurrently.
func (d *device) read(buf []byte) (int, error) {
	for {
		if d.stopped.Load() {
			return 0, errStopped
		}
		n, err := unix.Read(d.fd, buf)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR, unix.ENOENT: // ENOENT: the request went away while it was read
		case unix.EAGAIN:
			d.wait()
		default:
			return 0, fmt.Errorf("read from %s: %w", Device, err)
		}
	}
}

// wait returns when there may be something to read, or when the readers are to stop.
func (d *device) wait() {
	d.turn.Lock()
	defer d.turn.Unlock()
	p := [2]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(d.stopFD), Events: unix.POLLIN}}
	// An error is EINTR, or will show when reading.
	_, _ = unix.Poll(p[:], -1)
}

// write sends an answer or a notification as one system call.
func (d *device) write(b []byte) error {
	for {
		if _, err := unix.Write(d.fd, b); err != unix.EINTR {
			return err
		}
	}
}

// residentBuffer is memory for requests all of whose pages are there already. When the process is killed while the
// kernel copies a request to a page that is not, the kernel ends the request with EIO and never sends it again.
func residentBuffer(n int) (buf []byte, free func(), err error) {
	buf, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, fmt.Errorf("memory for FUSE requests: %w", err)
	}
	// Lest they are swapped out. Where that is not allowed it is only likely that they stay.
	_ = unix.Mlock(buf)
	return buf, func() { _ = unix.Munmap(buf) }, nil
}

const iocClone = 0x8004e500 // _IOR(229, 0, uint32)

// RawFD is the number of a file's descriptor. Unlike File.Fd it never makes the descriptor blocking.
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
