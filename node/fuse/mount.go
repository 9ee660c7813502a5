package fuse

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MountOptions are the options of [Mount].
type MountOptions struct {
	// Source is what mountinfo shows as the mounted device.
	Source string
	// ReadaheadBytes is how many bytes the kernel reads ahead of a process. The default
	// is 1 MiB: with the kernel's own 128 KiB, the requests of a big sequential read are
	// too small.
	ReadaheadBytes int
	// ReadOnly makes the mount read-only.
	ReadOnly bool
	// NoExec forbids starting programs from the mount.
	NoExec bool
}

// Device is the device file through which connections are opened.
const Device = "/dev/fuse"

const (
	fuseType        = "fuse.slipway"
	defaultReadhead = 1 << 20
)

// Mount mounts a FUSE file system at an existing directory and returns the descriptor of
// its connection. The mount works as long as any process holds the descriptor. Mount
// needs CAP_SYS_ADMIN. Requests wait until a server answers them.
//
// The mount is nodev and nosuid. The kernel checks permissions by the attributes that the
// server returns.
func Mount(dir string, o MountOptions) (*os.File, error) {
	// The descriptor is blocking for now, so that NewFile does not add it to Go's poller,
	// which every request would wake.
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", Device, err)
	}
	dev := os.NewFile(uintptr(fd), Device)
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", fd)
	if err := unix.Mount(o.Source, dir, fuseType, o.flags(), data); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s at %s: %w", o.Source, dir, err), dev.Close())
	}
	conn, err := Connection(dev)
	if err == nil {
		err = setReadahead(conn, o.ReadaheadBytes)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), dev.Close())
	}
	return dev, nil
}

func (o *MountOptions) flags() uintptr {
	flags := uintptr(unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOATIME)
	if o.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	if o.NoExec {
		flags |= unix.MS_NOEXEC
	}
	return flags
}

// setReadahead sets how many bytes the kernel reads ahead. The server's answer to INIT
// can only lower the value.
func setReadahead(conn uint32, size int) error {
	if size == 0 {
		size = defaultReadhead
	}
	path := fmt.Sprintf("/sys/class/bdi/0:%d/read_ahead_kb", conn)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EROFS) {
		return nil // an older kernel, or a container whose /sys is read-only: reads are only slower
	}
	if err != nil {
		return fmt.Errorf("set read-ahead: %w", err)
	}
	_, err = f.WriteString(strconv.Itoa(size >> 10))
	return errors.Join(err, f.Close())
}

// Connection returns the number of the connection of a descriptor of /dev/fuse, as the
// kernel's control file system names it. It is also the minor number of the mounted file
// system's device.
func Connection(dev *os.File) (uint32, error) {
	fd, err := RawFD(dev)
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, fmt.Errorf("number of the FUSE connection: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "fuse_connection:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 32)
			if err != nil {
				return 0, fmt.Errorf("number of the FUSE connection: %w", err)
			}
			return uint32(n), nil
		}
	}
	return 0, errors.New("the descriptor does not belong to a mounted FUSE file system")
}

// ConnectionAt returns the number of the connection mounted at dir, from mountinfo. It
// makes no request to the file system, so it works even if the server hangs.
func ConnectionAt(dir string) (uint32, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, fmt.Errorf("read mounts: %w", err)
	}
	found, conn := false, uint64(0)
	for line := range strings.Lines(string(b)) {
		// ID parent major:minor root mountpoint options… - type source superoptions
		f := strings.Fields(line)
		if len(f) < 5 || unescapeMount(f[4]) != dir || !strings.Contains(line, " - fuse") {
			continue
		}
		_, minor, _ := strings.Cut(f[2], ":")
		if conn, err = strconv.ParseUint(minor, 10, 32); err != nil {
			return 0, fmt.Errorf("read mounts: %w", err)
		}
		found = true // the last mount at dir is on top
	}
	if !found {
		return 0, fmt.Errorf("no FUSE file system at %s: %w", dir, os.ErrNotExist)
	}
	return uint32(conn), nil
}

// unescapeMount decodes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Abort ends a connection, whatever state its server and users are in: every waiting
// request and every later one fails. Use it when a server hangs, and in every teardown.
// It is no error if the connection is already gone.
func Abort(conn uint32) error {
	ctl, err := control()
	if err != nil {
		return fmt.Errorf("mount the FUSE control file system: %w", err)
	}
	defer unix.Close(ctl)
	fd, err := unix.Openat(ctl, strconv.FormatUint(uint64(conn), 10)+"/abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte("1"))
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("abort FUSE connection %d: %w", conn, err)
	}
	return nil
}

// control returns a descriptor of the control file system without mounting it in a
// directory. It cannot use the customary mount in /sys, because a container whose /sys is
// read-only lacks it.
func control() (int, error) {
	ctx, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, err
	}
	return unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

// Unmount unmounts the FUSE file system at dir. Processes that still use the mount keep
// it alive, and it must be served until they end. It is no error if nothing is mounted at
// dir.
func Unmount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// Teardown aborts the connection mounted at dir and unmounts it. It is for the end of a
// node's service or of a test, after which no process may be left hanging. It is no error
// if nothing is mounted there.
func Teardown(dir string) error {
	conn, err := ConnectionAt(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(Abort(conn), Unmount(dir))
}
