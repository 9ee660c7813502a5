package ctrnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Leftovers lists the kernel's objects that a node holds. After containers and images are gone it
// should be the same as before they came.
type Leftovers struct {
	// Mounts holds entries of the form "type path", and Loops "device backing-file". Paths are
	// relative to the node's directory.
	Mounts, Loops []string
}

// Leftovers lists the node's mounts and loop devices.
func (n *Node) Leftovers() (l Leftovers, err error) {
	mounts, err := mountsBelow(n.Dir)
	if err != nil {
		return l, err
	}
	for _, m := range mounts {
		l.Mounts = append(l.Mounts, m.kind+" "+strings.TrimPrefix(m.point, n.Dir+"/"))
	}
	loops, err := loopsBelow(n.Dir)
	if err != nil {
		return l, err
	}
	for device, file := range loops {
		l.Loops = append(l.Loops, device+" "+strings.TrimPrefix(file, n.Dir+"/"))
	}
	slices.Sort(l.Mounts)
	slices.Sort(l.Loops)
	return l, nil
}

// String lists everything.
func (l Leftovers) String() string {
	return fmt.Sprintf("%d mounts %q, %d loop devices %q", len(l.Mounts), l.Mounts, len(l.Loops), l.Loops)
}

// Equal reports whether both lists hold the same mounts and loop devices. The names of loop devices
// may differ.
func (l Leftovers) Equal(other Leftovers) bool {
	return slices.Equal(l.Mounts, other.Mounts) && len(l.Loops) == len(other.Loops)
}

type mount struct{ minor, point, kind string }

// mountsBelow returns the mounts at and below a directory, in the kernel's order: each comes after
// the mount that it lies on.
func mountsBelow(dir string) ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []mount
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(b)) {
		front, back, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(front), strings.Fields(back)
		if len(f) < 5 || len(g) < 1 {
			continue
		}
		point := unescape.Replace(f[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			_, minor, _ := strings.Cut(f[2], ":")
			out = append(out, mount{minor, point, g[0]})
		}
	}
	return out, nil
}

// loopsBelow returns the loop devices whose backing files lie below a directory, with
// these files.
func loopsBelow(dir string) (map[string]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // detached meanwhile
		}
		if file := strings.TrimSpace(string(b)); strings.HasPrefix(file, dir+"/") {
			out[strings.Split(f, "/")[3]] = file
		}
	}
	return out, nil
}

// abortBelow makes everyone who waits for a FUSE server below a directory get an error.
func abortBelow(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mounts {
		if !strings.HasPrefix(m.kind, "fuse") {
			continue
		}
		err := os.WriteFile("/sys/fs/fuse/connections/"+m.minor+"/abort", []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("abort %s: %w", m.point, err))
		}
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything below a directory, innermost first.
func unmountBelow(dir string) error {
	for range 20 { // mounts can lie upon each other, and propagate
		mounts, err := mountsBelow(dir)
		if err != nil || len(mounts) == 0 {
			return err
		}
		for _, m := range slices.Backward(mounts) {
			if err := unix.Unmount(m.point, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				_ = unix.Unmount(m.point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH) // the next round shows whether it worked
			}
		}
	}
	mounts, err := mountsBelow(dir)
	return errors.Join(err, fmt.Errorf("still mounted: %v", mounts))
}

// detachBelow detaches the loop devices whose backing files lie below a directory.
func detachBelow(dir string) error {
	loops, err := loopsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for device := range loops {
		f, err := os.Open("/dev/" + device)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// ENXIO means that the device has already gone with its last mount.
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			errs = append(errs, fmt.Errorf("detach %s: %w", device, err))
		}
		f.Close()
	}
	return errors.Join(errs...)
}
