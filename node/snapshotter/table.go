package snapshotter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountTable holds the mounts of this mount namespace, in the kernel's order.
type mountTable []*mountinfo.Info

func readMounts() (mountTable, error) {
	t, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return t, nil
}

// at returns the topmost mount exactly at point, or nil.
func (t mountTable) at(point string) *mountinfo.Info {
	for _, m := range slices.Backward(t) {
		if m.Mountpoint == point {
			return m
		}
	}
	return nil
}

// over returns the mount that contains a path, or nil.
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
	// If a mount was moved, the order of mounting differs from the order of depth.
	slices.SortStableFunc(points, func(a, b string) int { return len(b) - len(a) })
	return points
}

// users returns the mount points outside of dir of two kinds of overlays: the overlay
// that is mounted at point, if any, and all overlays that write to upper.
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

// unmount unmounts everything at dir and below. It stops at a mount that is in use, and
// returns an error that names it.
func unmount(t mountTable, dir string) error {
	for _, point := range t.below(dir) {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}
