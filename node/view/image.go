package view

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ImageOptions adjust how an image is mounted.
type ImageOptions struct {
	// Loop mounts the image through a loop device even if the kernel can read image files
	// itself (Linux 6.12). This is slower: a walk takes a quarter longer.
	Loop bool
}

// imageFlags are the flags of an image's mount. The image is only used through an
// overlay, which has its own flags.
const imageFlags = unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC

// MountImage mounts an image file read-only at a directory. If the kernel needs a loop
// device, MountImage creates one, which is removed with the mount.
func MountImage(file, dir string, opts *ImageOptions) error {
	err := error(unix.ENOTBLK)
	if opts == nil || !opts.Loop {
		err = unix.Mount(file, dir, "erofs", imageFlags, "")
	}
	// The kernel requires a block device, because it is older or because the file lies on
	// a file system that is itself stacked.
	if errors.Is(err, unix.ENOTBLK) {
		err = mountLoop(file, dir)
	}
	if err != nil {
		return fmt.Errorf("mount image %s at %s: %w", file, dir, err)
	}
	return nil
}

func mountLoop(file, dir string) error {
	image, err := os.Open(file)
	if err != nil {
		return err
	}
	defer image.Close()
	loop, err := attachLoop(image)
	if err != nil {
		return fmt.Errorf("loop device: %w", err)
	}
	// After a successful mount, the mount holds the device. Otherwise closing it frees
	// the device.
	defer loop.Close()
	return unix.Mount(loop.Name(), dir, "erofs", imageFlags, "")
}

// attachLoop returns a loop device of an image. The device exists until nobody holds it
// open.
func attachLoop(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	// Another process may take the device between the two calls, but not 64 times in a
	// row.
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free one: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		config := &unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{
			Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR,
		}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image.Name())
		err = unix.IoctlLoopConfigure(int(loop.Fd()), config)
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure %s: %w", loop.Name(), err)
		}
	}
	return nil, unix.EBUSY
}
