package snapshotter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"
)

// idmapped mounts directories again below the snapshot's directory, with the user ids
// that the snapshot's labels request, and returns the new paths. An overlay that was
// mounted from them does not need them any more, and done removes them. Without such
// labels, idmapped returns the given directories. What a crash leaves behind is removed
// with the snapshot.
func (s *Snapshotter) idmapped(n *snapshot, dirs []string) (mapped []string, done func() error, err error) {
	done = func() error {
		var errs []error
		for _, dir := range mapped {
			if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
				continue
			}
			errs = append(errs, os.Remove(dir))
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("map user ids: %w", err), done())
		}
	}()
	ids, err := mappedRoot(n.labels)
	if err != nil {
		return nil, done, err
	}
	if ids == nil {
		return dirs, func() error { return nil }, nil
	}
	users, err := mount.GetUsernsFD(n.labels[snapshots.LabelSnapshotUIDMapping], n.labels[snapshots.LabelSnapshotGIDMapping])
	if err != nil {
		return nil, done, err
	}
	defer users.Close()
	for i, dir := range dirs {
		at := filepath.Join(s.path(n.id), "ids"+strconv.Itoa(i))
		if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, done, err
		}
		if err := mount.IDMapMount(dir, at, int(users.Fd())); err != nil {
			return nil, done, errors.Join(err, os.Remove(at))
		}
		mapped = append(mapped, at)
	}
	return mapped, done, nil
}
