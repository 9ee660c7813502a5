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

// idmapped mounts directories again below that of a snapshot, with the user ids that its
// labels want, and returns where. An overlay that was made of them needs them no more: done
// takes them away. Without such labels the directories are those that were given. What a
// crash leaves goes with the snapshot.
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
