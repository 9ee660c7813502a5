package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/view"
)

// Mounts returns how to mount an active snapshot or a view. It mounts the overlay over a
// claimed chain again if the overlay is gone.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	n := snapshot{key: key}
	err := s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		sn, err := storage.GetSnapshot(ctx, key)
		if err != nil {
			return err
		}
		_, info, _, err := storage.GetInfo(ctx, key)
		if err != nil {
			return err
		}
		n.id, n.kind, n.labels = sn.ID, sn.Kind, info.Labels
		return n.follow(ctx, info.Parent)
	})
	if err != nil {
		return nil, fmt.Errorf("mounts of snapshot %s: %w", key, err)
	}
	return s.mounts(ctx, &n, nil)
}

// mounts returns how to mount the snapshot. If the snapshot lies over a claimed chain and
// was not mounted early, mounts mounts it.
func (s *Snapshotter) mounts(ctx context.Context, n *snapshot, early *overlaid) ([]mount.Mount, error) {
	if n.chain == "" {
		return s.ordinary(n), nil
	}
	if early == nil {
		early = new(overlaid)
		early.dir, early.err = s.attach(ctx, n)
	}
	dir, err := early.dir, early.err
	if err != nil {
		return nil, fmt.Errorf("mount snapshot %s: %w", n.key, err)
	}
	if n.container() {
		s.started(ctx, n, false)
	}
	return bind(dir, n.kind == snapshots.KindActive), nil
}

func bind(dir string, writable bool, options ...string) []mount.Mount {
	mode := "ro"
	if writable {
		mode = "rw"
	}
	return []mount.Mount{{Type: "bind", Source: dir, Options: append(options, mode, "rbind")}}
}

// ordinary returns the mounts of a snapshot without a claimed chain below it, in the form
// of containerd's overlayfs snapshotter. The differ of containerd, for example, knows
// this form and unpacks into the upper directory without mounting.
func (s *Snapshotter) ordinary(n *snapshot) []mount.Mount {
	var options []string
	if s.idmap {
		if v, ok := n.labels[snapshots.LabelSnapshotUIDMapping]; ok {
			options = append(options, "uidmap="+v)
		}
		if v, ok := n.labels[snapshots.LabelSnapshotGIDMapping]; ok {
			options = append(options, "gidmap="+v)
		}
	}
	writable := n.kind == snapshots.KindActive
	switch {
	case len(n.lowers) == 0:
		return bind(s.upper(n.id), writable, options...)
	case writable:
		options = append(options, "workdir="+s.work(n.id), "upperdir="+s.upper(n.id))
	case len(n.lowers) == 1:
		return bind(s.upper(n.lowers[0]), false, options...)
	}
	lowers := make([]string, len(n.lowers))
	for i, id := range n.lowers {
		lowers[i] = s.upper(id)
	}
	options = append(options, "lowerdir="+strings.Join(lowers, ":"))
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append(options, s.options...)}}
}

// layers returns the directories of a chain, from Lower.
func (s *Snapshotter) layers(ctx context.Context, chain string) (Layers, error) {
	l, err := s.needLower().Mount(ctx, chain)
	if err == nil && len(l.Lower) == 0 {
		err = errors.New("no directories")
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; remove the image and pull it again", err)
	}
	if err != nil {
		return Layers{}, fmt.Errorf("chain %s: %w", chain, err)
	}
	return l, nil
}

// attach mounts the overlay of a snapshot over a claimed chain and returns the mount
// point. It does nothing if the overlay is mounted already and consists of the right
// directories. For a read-only view of a single directory it returns that directory.
func (s *Snapshotter) attach(ctx context.Context, n *snapshot) (string, error) {
	defer s.ids.lock(n.id)()
	if id, _, _, err := s.get(ctx, n.key); err != nil {
		return "", err
	} else if id != n.id {
		return "", fmt.Errorf("it was removed meanwhile: %w", errdefs.ErrNotFound)
	}
	if dir, err := s.ownRoot(ctx, n); err != nil || dir != "" {
		return dir, err
	}
	return s.mountOverlay(ctx, n)
}

// overlaid is where the overlay of a snapshot is mounted, or the error of mounting it.
type overlaid struct {
	dir string
	err error
}

// mountOverlay is like attach, for a caller that holds the snapshot's lock and knows that the
// snapshot has no root from Lower.
func (s *Snapshotter) mountOverlay(ctx context.Context, n *snapshot) (string, error) {
	layers, err := s.layers(ctx, n.chain)
	if err != nil {
		return "", err
	}
	o := view.OverlayOptions{Data: layers.Data, Metacopy: layers.Metacopy, UserXattr: s.userxattr}
	for _, id := range n.lowers {
		o.Lower = append(o.Lower, s.upper(id))
	}
	o.Lower = append(o.Lower, layers.Lower...)
	if n.kind == snapshots.KindActive {
		o.Upper, o.Work = s.upper(n.id), s.work(n.id)
	} else if len(o.Lower) == 1 && len(o.Data) == 0 {
		return o.Lower[0], nil
	}
	parts, err := partsOf(&o)
	if err != nil {
		return "", err
	}
	dir := s.mnt(n.id)
	if _, mounted, err := view.RootAt(dir); err != nil {
		return "", err
	} else if mounted {
		if was, err := os.ReadFile(s.madeOf(n.id)); err == nil && string(was) == parts {
			return dir, nil
		}
		if gone, err := s.removeStale(n); err != nil || !gone {
			return dir, err
		}
	}
	if err := os.WriteFile(s.madeOf(n.id), []byte(parts), 0o600); err != nil {
		return "", err
	}
	lower, done, err := s.idmapped(n, o.Lower)
	if err != nil {
		return "", err
	}
	o.Lower = lower
	return dir, errors.Join(view.Overlay(dir, o), done())
}

// madeOf returns the path of the file that describes a mounted overlay's parts. It is
// read only while the overlay is mounted, so it need not survive a reboot.
func (s *Snapshotter) madeOf(id string) string { return filepath.Join(s.path(id), "layers") }

// partsOf describes the parts of an overlay. The description changes if something else is
// mounted in a directory of the same name.
func partsOf(o *view.OverlayOptions) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "metacopy %t\n", o.Metacopy)
	for kind, dirs := range [][]string{o.Lower, o.Data} {
		for _, dir := range dirs {
			dev, ino, err := view.Identity(dir)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "%d %d:%d %s\n", kind, dev, ino, dir)
		}
	}
	return b.String(), nil
}

// removeStale unmounts an overlay whose layers are no longer the current ones, because it
// belongs to a run whose file service is gone. It returns false if the overlay must stay
// because somebody uses it.
func (s *Snapshotter) removeStale(n *snapshot) (gone bool, err error) {
	table, err := readMounts()
	if err != nil {
		return false, err
	}
	if users := s.users(table, n.id); len(users) > 0 {
		err = fmt.Errorf("it is mounted at %s: %w", strings.Join(users, ", "), unix.EBUSY)
	} else {
		err = unmount(table, s.path(n.id))
	}
	switch {
	case err == nil:
		s.log.Info("stale mount was replaced", "snapshot", n.key, "mount", s.mnt(n.id))
		return true, nil
	case errors.Is(err, unix.EBUSY):
		// A second overlay over the same upper directory would corrupt that directory.
		s.log.Warn("stale mount is in use and stays; stop the container and start it again", "snapshot", n.key, "mount", s.mnt(n.id), "error", err)
		return false, nil
	}
	return false, err
}

// users returns the other places where the file system of a snapshot is mounted, for
// example by a container. If directories are shared, the snapshot's own mount point can
// have several names, and unmounting one unmounts all.
func (s *Snapshotter) users(table mountTable, id string) []string {
	return slices.DeleteFunc(table.users(s.path(id), s.mnt(id), s.upper(id)), func(point string) bool {
		return strings.HasSuffix(point, filepath.Join("/snapshots", id, "mnt"))
	})
}

// letGo ends the use of a snapshot as a container: it unmounts the overlay and calls
// Stopped of Lower. The caller holds the snapshot's lock.
func (s *Snapshotter) letGo(ctx context.Context, id string) error {
	table, err := readMounts()
	if err != nil {
		return err
	}
	err = unmount(table, s.path(id))
	if errors.Is(err, unix.EBUSY) {
		// Somebody still uses the tree. After the detach it disappears with its last
		// user. No new user can reach it, and the mount point is free.
		err = unix.Unmount(s.mnt(id), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return errors.Join(err, s.stopped(ctx, s.path(id)))
}

// started calls Started of Lower for a container. If the container is gone afterwards,
// Lower may have been called for its end before Started returned. So started calls
// Stopped again.
func (s *Snapshotter) started(ctx context.Context, n *snapshot, running bool) {
	c := Container{Key: n.key, Chain: n.chain, Mount: s.mnt(n.id), Running: running}
	if err := s.needLower().Started(ctx, c); err != nil {
		s.log.Warn("container starts without preparation", "snapshot", n.key, "chain", n.chain, "error", err)
	}
	defer s.ids.lock(n.id)()
	if _, err := os.Lstat(s.container(s.path(n.id))); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := s.needLower().Stopped(context.WithoutCancel(ctx), n.key); err != nil {
		s.log.Warn("container that was removed is still looked after", "snapshot", n.key, "error", err)
	}
}

// stopped calls Stopped of Lower for the container with the given directory.
func (s *Snapshotter) stopped(ctx context.Context, dir string) error {
	if err := s.dropRoot(ctx, dir); err != nil {
		return err
	}
	key, err := os.Readlink(s.container(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The key may belong to a younger snapshot by now. The start of that snapshot has
	// brought Lower up to date.
	if id, info, _, err := s.get(ctx, key); err != nil && !errdefs.IsNotFound(err) {
		return err
	} else if err == nil && info.Kind != snapshots.KindCommitted && s.path(id) != dir {
		return removeFile(s.container(dir))
	}
	if err := s.needLower().Stopped(ctx, key); err != nil {
		return fmt.Errorf("container %s stopped: %w", key, err)
	}
	return removeFile(s.container(dir))
}

// removeFile removes a file that somebody else may have removed.
func removeFile(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
