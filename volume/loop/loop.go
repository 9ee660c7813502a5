// Package loop makes block devices of files.
//
// A device is bound to its file while it is open or mounted. Then the kernel frees it by
// itself, so that the device of a killed process does not stay.
package loop

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNone says that the machine has no free loop device and cannot create more, because
// of the module's max_loop, or because /dev lacks the device nodes.
var ErrNone = errors.New("no loop device is left")

// Options say how a file becomes a device.
type Options struct {
	// ReadOnly makes the device read-only.
	ReadOnly bool
	// DirectIO bypasses the page cache of the file, so that blocks are cached only once,
	// as blocks of the device. If the file does not support it, the kernel uses the
	// cache.
	DirectIO bool
	// Offset is where in the file the device begins, in bytes. It is a multiple of 512.
	Offset int64
}

// Device is a loop device that this process holds.
type Device struct {
	path string
	f    *os.File
}

// Path returns the path of the device, such as "/dev/loop3".
func (d *Device) Path() string { return d.path }

const (
	controlPath = "/dev/loop-control"
	loopMajor   = 7
	// attempts bounds how often Attach tries to take a free device while others take it
	// first.
	attempts = 64
	// patientAttempts is how often the free device that the kernel names is tried (28 ms
	// in all). After that, the device is left to an attempt that waits for its file's
	// server, and another device is created.
	patientAttempts = 8
)

// attaching holds the numbers of devices that this process is about to take, because
// parallel attempts only take them away from each other. The lock is not held while the
// kernel binds a device, which may wait for the file's server: for direct I/O the kernel
// flushes the file.
var attaching = struct {
	sync.Mutex
	devices map[int]bool
}{devices: map[int]bool{}}

// Attach makes a device of a file, which may be closed afterwards. The device stays as
// long as it is held or mounted.
//
// A process that serves the file by FUSE must not call Attach, because the kernel then
// reads the partition table from the file. Errors: ErrNone.
func Attach(file *os.File, o Options) (*Device, error) {
	d, err := attach(file, o)
	if err != nil {
		return nil, fmt.Errorf("make a loop device of %s: %w", file.Name(), err)
	}
	return d, nil
}

// AttachPath is like Attach, for the file at path.
func AttachPath(path string, o Options) (*Device, error) {
	flags := unix.O_RDWR
	if o.ReadOnly {
		flags = unix.O_RDONLY
	}
	// Package os would make the kernel ask the file's server whether the file can be
	// polled.
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

// reserve finds a free device for this attempt only. EBUSY: the first free device belongs
// to another attempt. If more is set, a new device is then created.
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

// openDevice opens the device with number n. In a container, /dev may lack its node; then
// it is created.
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

// Close releases the device. The device is freed unless it is mounted or others hold it.
// Close may be called again.
func (d *Device) Close() error {
	if d.f == nil {
		return nil
	}
	err := d.f.Close()
	d.f = nil
	return err
}
