package snapshotter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountTable is what is mounted in this mount namespace, in the order in which
// the kernel lists it.
type mountTable []*mountinfo.Info

func readMounts() (mountTable, error) {
	t, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return t, nil
}

// at returns what is mounted exactly there, the topmost, or nil.
func (t mountTable) at(point string) *mountinfo.Info {
	for _, m := range slices.Backward(t) {
		if m.Mountpoint == point {
			return m
		}
	}
	return nil
}

// over returns the mount that a path lies in, or nil.
func (t mountTable) over(path string) (over *mountinfo.Info) {
	for _, m := range t {
		if within(path, m.Mountpoint) && (over == nil || len(m.Mountpoint) >= len(over.Mountpoint)) {
			over = m
		}
	}
	return over
}

// below returns the mount points at dir and below, innermost first.
func (t mountTable) below(dir string) (points []string) {
	for _, m := range slices.Backward(t) {
		if within(m.Mountpoint, dir) {
			points = append(points, m.Mountpoint)
		}
	}
	// Order of mounting is not order of depth once something was moved.
	slices.SortStableFunc(points, func(a, b string) int { return len(b) - len(a) })
	return points
}

// users returns where outside of dir the overlay that is mounted at point, if
// any, is mounted too, and all overlays that write to upper.
func (t mountTable) users(dir, point, upper string) (points []string) {
	own := t.at(point)
	for _, m := range t {
		same := own != nil && m.Major == own.Major && m.Minor == own.Minor
		writes := m.FSType == "overlay" && slices.Contains(strings.Split(m.VFSOptions, ","), "upperdir="+upper)
		if (same || writes) && !within(m.Mountpoint, dir) {
			points = append(points, m.Mountpoint)
		}
	}
	return points
}

func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// unmount takes away what is mounted at dir and below. It stops at what is in
// use, and says what that is.
func unmount(t mountTable, dir string) error {
	for _, point := range t.below(dir) {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}
