package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	cfs "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"example.org/slipway/internal/durable"
)

// Prepare creates an active snapshot on parent. If containerd is about to unpack a layer
// into it and Lower has the layer, Prepare returns errdefs.ErrAlreadyExists. The layer
// then exists under its chain ID.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return s.create(ctx, snapshots.KindActive, key, parent, opts)
}

// View creates a snapshot that shows parent read-only.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return s.create(ctx, snapshots.KindView, key, parent, opts)
}

func (s *Snapshotter) create(ctx context.Context, kind snapshots.Kind, key, parent string, opts []snapshots.Opt) ([]mount.Mount, error) {
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return nil, err
		}
	}
	target := info.Labels[snapshots.LabelSnapshotRef]
	if kind == snapshots.KindActive && target != "" && s.lower != nil {
		claimed, err := s.claim(ctx, key, parent, info.Labels, opts)
		if err != nil {
			return nil, err
		}
		if claimed {
			return nil, fmt.Errorf("layer %s needs no unpacking: %w", target, errdefs.ErrAlreadyExists)
		}
	}
	n := snapshot{key: key, kind: kind, labels: info.Labels}
	if err := s.below(ctx, &n, parent); err != nil {
		return nil, fmt.Errorf("parent %s of snapshot %s: %w", parent, key, err)
	}
	owner, err := s.owner(ctx, &n)
	if err != nil {
		return nil, fmt.Errorf("owner of the root directory of snapshot %s: %w", key, err)
	}
	early, err := s.record(ctx, &n, parent, owner, opts)
	if err != nil {
		return nil, fmt.Errorf("make snapshot %s: %w", key, err)
	}
	err = s.markRoot(&n)
	var mounts []mount.Mount
	if err == nil {
		mounts, err = s.mounts(ctx, &n, early)
	}
	if err != nil {
		return nil, errors.Join(err, s.Remove(context.WithoutCancel(ctx), key))
	}
	return mounts, nil
}

// snapshot holds what is needed to mount a snapshot.
type snapshot struct {
	id     string
	key    string
	kind   snapshots.Kind
	labels map[string]string
	lowers []string // ids of the ordinary snapshots below, nearest first
	chain  string   // the claimed chain below these, or ""
	rooted bool     // new, and gets a root from Lower
}

// below sets what is under a snapshot with the given parent.
func (s *Snapshotter) below(ctx context.Context, n *snapshot, parent string) error {
	return s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return n.follow(ctx, parent)
	})
}

// follow is like below, inside of a transaction.
func (n *snapshot) follow(ctx context.Context, parent string) error {
	n.lowers, n.chain = nil, ""
	for parent != "" {
		id, info, usage, err := storage.GetInfo(ctx, parent)
		if err != nil {
			return err
		}
		if isClaimed(usage) {
			n.chain = chainName(parent) // and so is everything below
			return nil
		}
		n.lowers = append(n.lowers, id)
		parent = info.Parent
	}
	return nil
}

// unpacks reports whether containerd prepared the snapshot to unpack a layer.
func (n *snapshot) unpacks() bool { return n.labels[snapshots.LabelSnapshotRef] != "" }

// container reports whether the snapshot may become the root of a container that concerns
// Lower. The views that containerd creates briefly to compare two trees do not count,
// because no profile needs to be fetched for them.
func (n *snapshot) container() bool {
	if n.chain == "" || n.unpacks() {
		return false
	}
	return n.kind == snapshots.KindActive || !strings.HasSuffix(n.key, "-view-key") && !strings.Contains(n.key, "-parent-view-")
}

// owner returns the owner of the root directory of a new snapshot. This is root in the
// container's user ids if they are mapped, and otherwise the owner of the parent's root
// directory. owner returns nil if that is root.
func (s *Snapshotter) owner(ctx context.Context, n *snapshot) (*ids, error) {
	if mapped, err := mappedRoot(n.labels); err != nil || mapped != nil {
		if err == nil && s.wantsRoot(n) {
			err = fmt.Errorf("containers of image %s have volumes of their own, and these take no mapped user ids; run the container without a user namespace, or use volumes in mode local: %w", n.chain, errdefs.ErrNotImplemented)
		}
		return mapped, err
	}
	switch {
	case len(n.lowers) > 0:
		return ownerOf(s.upper(n.lowers[0]))
	case n.chain != "":
		layers, err := s.layers(ctx, n.chain)
		if err != nil {
			return nil, err
		}
		return ownerOf(layers.Lower[0])
	}
	return nil, nil
}

// record creates the directory and the record of a snapshot, the directory first. A crash
// in between leaves a directory without a record, perhaps with its overlay mounted. The
// record is durable when record returns. The directory need not be durable: if a power
// cut takes it, restoreLost recreates it as it was.
//
// The overlay of a new snapshot, if it has one, is mounted while the record is written to
// the disk. Each takes a millisecond, and a container waits for both. record returns the
// result of the mount, or nil if the snapshot has no overlay.
func (s *Snapshotter) record(ctx context.Context, n *snapshot, parent string, owner *ids, opts []snapshots.Opt) (*overlaid, error) {
	var (
		made  string
		early chan overlaid
		free  = func() {}
	)
	request := ctx
	err := s.meta.WithTransaction(ctx, true, func(ctx context.Context) (err error) {
		// The directory is created inside of the transaction, so that no cleaning finds
		// it incomplete.
		made, err = os.MkdirTemp(s.dir(), "new-")
		if err != nil {
			return err
		}
		sn, err := storage.CreateSnapshot(ctx, n.kind, n.key, parent, opts...)
		if err != nil {
			return err
		}
		// What is below can only have changed by being removed and created again.
		if err := n.follow(ctx, parent); err != nil {
			return err
		}
		n.id = sn.ID
		// A number is reused if its record could not be committed. The request that used
		// the number before no longer waits for a transaction.
		free = s.ids.lock(n.id)
		if err := s.fill(made, n, owner); err != nil {
			return err
		}
		if err := s.place(made, n.id); err != nil {
			return err
		}
		made = s.path(n.id)
		if n.rooted = s.wantsRoot(n); n.chain != "" && !n.rooted {
			early = make(chan overlaid, 1)
			go func() {
				dir, err := s.mountOverlay(request, n)
				early <- overlaid{dir, err}
			}()
		}
		return nil
	})
	defer func() { free() }()
	var o *overlaid
	if early != nil {
		got := <-early
		o = &got
	}
	switch {
	case err == nil || made == "":
	case o == nil: // nothing is mounted there
		err = errors.Join(err, os.RemoveAll(made))
	default:
		err = errors.Join(err, s.discard(made))
	}
	return o, err
}

// discard deletes the directory of a snapshot that could not be recorded. An overlay may
// be mounted on it.
func (s *Snapshotter) discard(dir string) error {
	table, err := readMounts()
	if err == nil {
		err = unmount(table, dir)
	}
	if err != nil {
		return err // the next cleaning tries again
	}
	return os.RemoveAll(dir)
}

// place renames a filled directory to its number. It retires what a crash left under that
// number.
func (s *Snapshotter) place(made, id string) error {
	// rename(2) replaces an empty directory. os.Rename would not.
	err := unix.Rename(made, s.path(id))
	if err == nil {
		return nil
	}
	if err := s.retire(id); err != nil {
		return fmt.Errorf("clear what a crash left: %w", err)
	}
	return os.Rename(made, s.path(id))
}

// fill creates the contents of a snapshot's directory, except for what already exists.
func (s *Snapshotter) fill(dir string, n *snapshot, owner *ids) error {
	upper := filepath.Join(dir, "fs")
	made, err := mkdirMode(upper, 0o755)
	if made && owner != nil {
		err = os.Lchown(upper, owner.uid, owner.gid)
	}
	if err == nil && n.kind == snapshots.KindActive {
		_, err = mkdirMode(filepath.Join(dir, "work"), 0o711)
	}
	if err == nil && n.chain != "" {
		_, err = mkdirMode(filepath.Join(dir, "mnt"), 0o700)
	}
	if err == nil && n.container() {
		// This is a symbolic link because a link is complete as soon as it exists.
		if err = os.Symlink(n.key, s.container(dir)); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return err
}

// mkdirMode creates a directory and reports whether it did. It is no error if the
// directory exists. The mode is set afterwards, because it must not depend on the umask.
func mkdirMode(dir string, mode os.FileMode) (made bool, err error) {
	err = os.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err == nil {
		err = os.Chmod(dir, mode)
	}
	return err == nil, err
}

// Commit makes a named layer of an active snapshot. It has only the labels that are given
// now. As with all snapshotters, labels are not inherited.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	id, _, _, err := s.get(ctx, key)
	if err != nil {
		return fmt.Errorf("commit snapshot %s: %w", key, err)
	}
	if root, err := rootKey(s.path(id)); err != nil {
		return fmt.Errorf("commit snapshot %s: %w", key, err)
	} else if root != "" {
		if err := s.commitRoot(ctx, name, key, id, root, opts); err != nil {
			return fmt.Errorf("commit snapshot %s as %s: %w", key, name, err)
		}
		return nil
	}
	defer s.ids.lock(id)()
	du, err := cfs.DiskUsage(ctx, s.upper(id))
	if err != nil {
		return fmt.Errorf("commit snapshot %s: usage: %w", key, err)
	}
	// The sync comes first because a layer that a power cut takes cannot be recreated.
	if err := durable.SyncDir(s.dir()); err != nil {
		return fmt.Errorf("commit snapshot %s: %w", key, err)
	}
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, err := storage.CommitActive(ctx, key, name, snapshots.Usage(du), opts...)
		return err
	})
	if err != nil {
		return fmt.Errorf("commit snapshot %s as %s: %w", key, name, err)
	}
	// The snapshot is committed. If a step fails now, the next cleaning repeats it.
	if err := s.letGo(context.WithoutCancel(ctx), id); err != nil {
		s.log.Warn("committed snapshot stays mounted for now", "snapshot", name, "error", err)
	}
	return nil
}
