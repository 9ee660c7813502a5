// Package blockfs makes small file systems for fault tests. Some have a fixed size, for tests that
// fill them up. Others lie on a disk whose content can be copied at one instant, as a power cut
// would leave it.
package blockfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/tool"
)

// ficlone is the ioctl that shares one file's blocks with another, from
// linux/fs.h: _IOW(0x94, 9, int).
const ficlone = 0x40049409

// outerSize is the size in bytes of the file system that holds the disks. It is sparse; XFS needs
// at least 300 MB.
const outerSize = 8 << 30

// Lab is a directory in which disks are made and copied. It is an XFS file system, because XFS
// clones a file at one instant: no write to the file can pass while it shares the blocks. A copy
// that reads the file from front to back would combine the front of one moment with the back of
// another, a state that no loss of power can leave.
type Lab struct {
	dir   string
	env   *tool.Env
	mkfs  string // of ext4
	mount string
	disks int
}

// NewLab makes a lab, or skips the test if it cannot be made.
func NewLab(t testing.TB) *Lab {
	t.Helper()
	tool.NeedRoot(t)
	mkxfs := tool.System(t, "mkfs.xfs")
	top := tool.ShortTempDir(t)
	l := &Lab{
		dir: filepath.Join(top, "lab"), env: tool.NewEnv(top),
		mkfs: tool.System(t, "mkfs.ext4"), mount: tool.System(t, "mount"),
	}
	image := filepath.Join(top, "lab.img")
	makeSparse(t, image, outerSize)
	l.env.Run(t, mkxfs, "-q", "-m", "reflink=1", image)
	l.mountImage(t, image, l.dir)
	return l
}

// Disk is an ext4 file system in a file, mounted at Dir.
type Disk struct {
	Dir   string
	lab   *Lab
	image string
}

// NewDisk makes and mounts an ext4 file system of sizeBytes. It is unmounted
// at the end of the test at the latest.
func (l *Lab) NewDisk(t testing.TB, sizeBytes int64) *Disk {
	t.Helper()
	d := l.newDisk()
	makeSparse(t, d.image, sizeBytes)
	l.env.Run(t, l.mkfs, "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", d.image)
	l.mountImage(t, d.image, d.Dir)
	return d
}

func (l *Lab) newDisk() *Disk {
	l.disks++
	name := filepath.Join(l.dir, fmt.Sprintf("d%d", l.disks))
	return &Disk{Dir: name, lab: l, image: name + ".img"}
}

// Cut copies the disk as it is at this instant and mounts the copy. The copy lacks what the file
// system had not yet written to the disk. The disk itself stays in use.
func (d *Disk) Cut(t testing.TB) *Disk {
	t.Helper()
	after := d.lab.newDisk()
	if err := clone(d.image, after.image); err != nil {
		t.Fatalf("copy disk: %v", err)
	}
	d.lab.mountImage(t, after.image, after.Dir) // replays the journal
	return after
}

func clone(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dst.Fd(), ficlone, src.Fd()); errno != 0 {
		return fmt.Errorf("clone %s: %w", from, errno)
	}
	return dst.Close()
}

// Discard unmounts the disk and deletes its content.
func (d *Disk) Discard(t testing.TB) {
	t.Helper()
	if err := unmount(d.Dir); err != nil {
		t.Fatalf("unmount %s: %v", d.Dir, err)
	}
	if err := os.Remove(d.image); err != nil {
		t.Fatal(err)
	}
}

// mountImage mounts an image file through a loop device that goes away with
// the mount. A machine without loop devices skips the test.
func (l *Lab) mountImage(t testing.TB, image, dir string) {
	t.Helper()
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("needs loop devices: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l.env.Run(t, l.mount, "-o", "loop", image, dir)
	t.Cleanup(func() { UnmountBelow(t, dir) })
}

func makeSparse(t testing.TB, path string, sizeBytes int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(sizeBytes); err != nil {
		t.Fatal(err)
	}
}

// UnmountBelow unmounts dir and everything that is mounted below it,
// innermost first.
func UnmountBelow(t testing.TB, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
		return
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 1 && (f[1] == dir || strings.HasPrefix(f[1], dir+"/")) {
			points = append(points, f[1])
		}
	}
	slices.Reverse(points) // the kernel lists a mount after the one below it
	for _, p := range points {
		if err := unmount(p); err != nil {
			t.Errorf("unmount %s: %v", p, err)
		}
	}
}

// busyFor is how long a mount or device may stay busy after its last use here. A process
// that copied the mounts into its own namespace, as container runtimes do, keeps
// everything below a loop device until the process ends.
const busyFor = 30 * time.Second

// unmount waits while a mount is busy. If the mount stays busy, it detaches the mount,
// because nothing else would.
func unmount(dir string) error {
	var err error
	for end := time.Now().Add(busyFor); ; time.Sleep(50 * time.Millisecond) {
		if err = syscall.Unmount(dir, 0); !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			break
		}
	}
	if errors.Is(err, syscall.EBUSY) {
		return errors.Join(err, syscall.Unmount(dir, syscall.MNT_DETACH))
	}
	return err
}
