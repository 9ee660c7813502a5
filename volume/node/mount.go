package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/view"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/loop"
)

// These are the flags and options of mounts. The package comment says why there are no
// others.
//
// ext4 read-only: noload, because there is no journal to replay and the device cannot be
// written; errors=continue, because a passing error must leave nothing behind if nothing
// is written. ext4 read-write: discard frees what containers delete. noinit_itable,
// because otherwise the kernel writes all inode tables of each clone in the background.
// errors=remount-ro, so that a container whose storage was away reads correct data or
// gets an error, and does not continue with half of what it wrote. noatime, because
// otherwise each read writes an inode, and so copies a block to the clone.
const (
	readOnlyFlags  = unix.MS_RDONLY | unix.MS_NOATIME
	writableFlags  = unix.MS_NOATIME
	readOnlyExt4   = "noload,errors=continue"
	writableExt4   = "discard,noinit_itable,errors=remount-ro"
	readAheadBytes = 512 << 10
)

// bring maps a record's volume and mounts it in a separate directory. If it fails, the
// caller removes what is left.
func (m *Manager) bring(ctx context.Context, e *entry, r record, c volref.Credential) error {
	mp := r.mapping(e.name)
	mp.Credential = c
	mr := mountRecord{Boot: m.boot, Dir: m.dirOf(e.name, r.Tries)}
	m.setRunning(mr.Dir, true)
	defer m.setRunning(mr.Dir, false)
	err := m.call(ctx, "map", func(ctx context.Context) error {
		file, err := m.storage.Map(ctx, mp)
		mr.File = file
		return err
	})
	if err != nil {
		if errors.Is(err, block.ErrDenied) {
			m.creds.forget(&r.Image, r.Volume)
		}
		return fmt.Errorf("map it: %w", err)
	}
	if err := m.mount(ctx, &mr, &r); err != nil {
		return err
	}
	r.Mount, r.Phase = &mr, made
	if err := m.save(e, r); err != nil {
		return err
	}
	m.o.step("mounted")
	m.setReady(e, true)
	return nil
}

func (m *Manager) dirOf(name string, try int) string {
	return filepath.Join(m.o.Run, name+"."+strconv.Itoa(try))
}

func (m *Manager) setReady(e *entry, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.ready = ready
}

func (m *Manager) setRunning(dir string, running bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if running {
		m.running[dir] = true
	} else {
		delete(m.running, dir)
	}
}

// mount mounts the mapping mr.File at mr.Dir, and records the mount in mr.
func (m *Manager) mount(ctx context.Context, mr *mountRecord, r *record) error {
	if err := os.Mkdir(mr.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var err error
	if mr.Under, err = deviceUnder(mr.File); err != nil {
		return err
	}
	err = unix.ENOTBLK
	switch {
	case isDevice(mr.File):
		err = m.mountDevice(ctx, mr.File, mr.Dir, r)
	case r.Image.FS == volref.EROFS:
		err = m.timed("mount", func() error { return m.mountFile(mr.File, mr.Dir) })
	}
	if errors.Is(err, unix.ENOTBLK) {
		err = m.mountLoop(ctx, mr, r)
	}
	if err != nil {
		return err
	}
	return m.identify(mr)
}

// identify records what is mounted now.
func (m *Manager) identify(mr *mountRecord) error {
	root, ok, err := view.RootAt(mr.Dir)
	if err == nil && !ok {
		err = fmt.Errorf("%s is not a mount", mr.Dir)
	}
	mr.Root = root
	return err
}

// mountFile mounts an EROFS image without a device. ENOTBLK: the kernel is older than
// 6.12 and needs a device. Since 6.15 the kernel can bypass the page cache of the file.
// Then bytes are cached once, not twice, and the storage is read only as far as EROFS
// asks.
func (m *Manager) mountFile(file, dir string) error {
	before := backings()
	err := unix.Mount(file, dir, volref.EROFS, readOnlyFlags, "directio")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount(file, dir, volref.EROFS, readOnlyFlags, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s as %s: %w", file, volref.EROFS, err)
	}
	// Nothing says which one belongs to this mount. If two mount at once, each tunes
	// both.
	for _, name := range backings() {
		if strings.HasPrefix(name, volref.EROFS+"-") && !slices.Contains(before, name) {
			m.tune(filepath.Join(backingDir, name, "read_ahead_kb"))
		}
	}
	return nil
}

const backingDir = "/sys/class/bdi"

// backings returns the kernel's names for what it reads ahead from: one for each device,
// and one for each mount without a device.
func backings() []string {
	dirs, err := os.ReadDir(backingDir)
	if err != nil {
		return nil // tuning is for speed alone
	}
	names := make([]string, len(dirs))
	for i, d := range dirs {
		names[i] = d.Name()
	}
	return names
}

// mountLoop mounts through a loop device. The device bypasses the page cache of its file,
// because the file system has its own cache. So a flush reaches the storage.
func (m *Manager) mountLoop(ctx context.Context, mr *mountRecord, r *record) error {
	var dev *loop.Device
	err := m.timed("attach", func() (err error) {
		dev, err = loop.AttachPath(mr.File, loop.Options{ReadOnly: r.Key == "", DirectIO: true})
		return err
	})
	if err != nil {
		return err
	}
	err = m.mountDevice(ctx, dev.Path(), mr.Dir, r)
	// Once mounted, the mount holds the device. Otherwise closing frees it.
	return errors.Join(err, dev.Close())
}

func (m *Manager) mountDevice(ctx context.Context, dev, dir string, r *record) error {
	m.tune("/sys/block/" + filepath.Base(dev) + "/queue/read_ahead_kb")
	if r.Key != "" && r.Phase == made {
		if err := m.timed("check", func() error { return m.repair(ctx, dev) }); err != nil {
			return err
		}
	}
	return m.timed("mount", func() error { return mountAt(dev, dir, r) })
}

// repair checks a file system that a container wrote to, before it is mounted again: the
// machine may have gone down, or the storage stayed away, while it was mounted. A cleanly
// unmounted file system takes no time.
func (m *Manager) repair(ctx context.Context, dev string) error {
	program, err := exec.LookPath(m.o.Check)
	if err != nil {
		m.log.Warn("a container's volume is mounted again without a check", "error", err)
		return nil
	}
	out, err := exec.CommandContext(ctx, program, "-p", dev).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // it was repaired
		m.log.Info("a container's volume was repaired", "device", dev, "said", string(out))
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the file system on %s: %w: %.500s; repair it by hand, or drop the container", dev, err, out)
	}
	return nil
}

// mountAt mounts a device or an image file. It takes as long as the storage does.
func mountAt(source, dir string, r *record) error {
	flags, data := uintptr(readOnlyFlags), ""
	if r.Image.FS == volref.Ext4 {
		data = readOnlyExt4
		if r.Key != "" {
			flags, data = writableFlags, writableExt4
		}
	}
	if err := unix.Mount(source, dir, r.Image.FS, flags, data); err != nil {
		return fmt.Errorf("mount %s as %s: %w", source, r.Image.FS, err)
	}
	return nil
}

// tune sets how far ahead the kernel reads at most. The start of a container reads files
// of some dozens of KiB, and pages of much larger programs and libraries. The kernel
// never reads beyond the end of a file, so the bound matters only for large files. With
// the default of 128 KiB they would need four times as many round trips to the storage. A
// failure costs only speed.
func (m *Manager) tune(file string) {
	if err := os.WriteFile(file, []byte(strconv.Itoa(readAheadBytes>>10)), 0); err != nil {
		m.log.Debug("read-ahead stays as it is", "error", err)
	}
}

// failed reports whether a file system that was mounted read-write is read-only now,
// because of errors=remount-ro. It reads nothing.
func failed(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// isDevice reports whether a mapping is a block device.
func isDevice(file string) bool { return strings.HasPrefix(file, "/dev/") }

// deviceUnder returns the number of the file system that holds a mapping's directory. It
// does not ask file systems in user space.
func deviceUnder(file string) (uint64, error) {
	dev, _, err := view.Identity(filepath.Dir(file))
	return dev, err
}

// unmountOf unmounts a record's mounts. If lazy is set, it also detaches mounts in use,
// which end when they are no longer used. Otherwise it returns ErrInUse for a mount in
// use. It reports whether there was any mount.
func (m *Manager) unmountOf(name string, lazy bool) (some bool, err error) {
	all, err := view.Mounts(m.o.Run)
	if err != nil {
		return false, err
	}
	var errs []error
	for i := len(all) - 1; i >= 0; i-- {
		if dir := all[i].Dir; strings.HasPrefix(dir, filepath.Join(m.o.Run, name)+".") {
			some = true
			errs = append(errs, m.timed("unmount", func() error { return unmount(dir, lazy) }))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return some, err
	}
	return some, m.removeDirs(name)
}

func unmount(dir string, lazy bool) error {
	if lazy {
		_, err := view.Unmount(dir)
		return err
	}
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s is open: %w", dir, block.ErrInUse)
	case err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// removeDirs removes the empty directories of a record.
func (m *Manager) removeDirs(name string) error {
	dirs, err := os.ReadDir(m.o.Run)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if strings.HasPrefix(d.Name(), name+".") {
			err := unix.Rmdir(filepath.Join(m.o.Run, d.Name())) // never more than the empty directory
			if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
				return &os.PathError{Op: "rmdir", Path: d.Name(), Err: err}
			}
		}
	}
	return nil
}
