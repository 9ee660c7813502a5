// Package loop makes block devices of files.
//
// A device is bound to its file until it is neither open nor mounted: the kernel
// frees it then by itself, so that one that a killed process made does not stay
// for ever. [Find] finds those of a file again.
package loop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNone says that the machine has no free loop device and makes no more: the
// module's max_loop, or /dev without the device nodes.
var ErrNone = errors.New("no loop device is left")

// Options are how a file becomes a device.
type Options struct {
	// ReadOnly lets nobody write to the device.
	ReadOnly bool
	// DirectIO passes by the page cache of the file: its blocks are cached once, as
	// those of the device. Where the file cannot do it, the kernel goes on without.
	DirectIO bool
	// Offset is where in the file the device begins, in bytes, a multiple of 512.
	Offset int64
}

// Device is a loop device that this process holds.
type Device struct {
	path string
	f    *os.File
}

// Path of the device, such as "/dev/loop3".
func (d *Device) Path() string { return d.path }

const (
	controlPath = "/dev/loop-control"
	loopMajor   = 7
	// attempts to take a free device that others take at the same time.
	attempts = 64
	// patientAttempts are those before one that waits for its file's server is left
	// the free device that the kernel names, and another made: 28 ms.
	patientAttempts = 8
)

// attaching are the numbers of devices that this process is about to take: parallel
// attempts only take them away from each other. The lock is not held while the
// kernel takes one, which waits for the file's server: it flushes the file for
// direct I/O.
var attaching = struct {
	sync.Mutex
	devices map[int]bool
}{devices: map[int]bool{}}

// Attach makes a device of a file, which may be closed after it. The device stays
// as long as it is held or mounted.
//
// A process that serves the file by FUSE must not call it: the kernel reads the
// file for the partition table. Errors: ErrNone.
func Attach(file *os.File, o Options) (*Device, error) {
	d, err := attach(file, o)
	if err != nil {
		return nil, fmt.Errorf("make a loop device of %s: %w", file.Name(), err)
	}
	return d, nil
}

// AttachPath is Attach for the file at path.
func AttachPath(path string, o Options) (*Device, error) {
	flags := unix.O_RDWR
	if o.ReadOnly {
		flags = unix.O_RDONLY
	}
	// Not by package os, which would have the kernel ask the file's server whether
	// it can be polled.
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a loop device of %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	d, err := Attach(file, o)
	return d, errors.Join(err, file.Close())
}

func attach(file *os.File, o Options) (*Device, error) {
	control, err := os.OpenFile(controlPath, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for try := range attempts {
		d, err := take(control, file, o, try >= patientAttempts)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return d, err
		}
		time.Sleep(time.Duration(try) * time.Millisecond) // somebody else was faster
	}
	return nil, fmt.Errorf("others took %d of them: %w", attempts, ErrNone)
}

// reserve finds a free device for this attempt alone. EBUSY: the first is that of
// another one. With more, a new device is made then.
func reserve(control *os.File, more bool) (n int, free func(), err error) {
	attaching.Lock()
	defer attaching.Unlock()
	n, err = unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err == nil && attaching.devices[n] {
		if !more {
			return 0, nil, unix.EBUSY
		}
		var r uintptr
		var errno unix.Errno
		if r, _, errno = unix.Syscall(unix.SYS_IOCTL, control.Fd(), unix.LOOP_CTL_ADD, ^uintptr(0)); errno != 0 { // -1: any number
			err = errno
		}
		n = int(r)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENODEV) {
		return 0, nil, ErrNone
	}
	if err != nil {
		return 0, nil, fmt.Errorf("find a free one: %w", err)
	}
	attaching.devices[n] = true
	return n, func() {
		attaching.Lock()
		defer attaching.Unlock()
		delete(attaching.devices, n)
	}, nil
}

// take binds a free device. EBUSY: somebody else takes it.
func take(control, file *os.File, o Options, more bool) (*Device, error) {
	n, free, err := reserve(control, more)
	if err != nil {
		return nil, err
	}
	defer free()
	d := &Device{path: fmt.Sprintf("/dev/loop%d", n)}
	if d.f, err = openDevice(d.path, n, o.ReadOnly); err != nil {
		return nil, err
	}
	config := &unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Offset: uint64(o.Offset), Flags: unix.LO_FLAGS_AUTOCLEAR}}
	if o.ReadOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if o.DirectIO {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file.Name())
	if err := unix.IoctlLoopConfigure(int(d.f.Fd()), config); err != nil {
		return nil, errors.Join(fmt.Errorf("configure %s: %w", d.path, err), d.f.Close())
	}
	return d, nil
}

// openDevice opens the device with number n. In a container /dev may lack its
// node, which is made then.
func openDevice(path string, n int, readOnly bool) (*os.File, error) {
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s has no device node, and none can be made: %w", path, errors.Join(err, ErrNone))
	}
	return os.OpenFile(path, flags, 0)
}

// Close lets go of the device, which is freed unless it is mounted or held by
// others. It is idempotent.
func (d *Device) Close() error {
	if d.f == nil {
		return nil
	}
	err := d.f.Close()
	d.f = nil
	return err
}

// Find returns the paths of the devices of a file, by the path that it was opened
// under: without asking the file system that has it. A file that was removed since
// is not found.
func Find(path string) ([]string, error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range all {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // freed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("find the loop devices of %s: %w", path, err)
		}
		if strings.TrimSuffix(string(b), "\n") == path {
			found = append(found, "/dev/"+strings.Split(name, "/")[3])
		}
	}
	return found, nil
}
