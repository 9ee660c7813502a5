package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"

	"example.org/slipway/internal/durable"
)

// restoreLost recreates the directories of recorded snapshots that a power cut has taken.
// A record is durable before its directory is. But when a writer made something in a
// directory durable, the directory became durable, too. So a lost directory held only
// what a new snapshot has.
//
// The directory of a committed snapshot was durable before the commit, so only somebody
// else can have removed it. This is reported, because an empty layer in its place would
// be a different layer.
func (s *Snapshotter) restoreLost(ctx context.Context) error {
	lost, err := s.lost(ctx)
	if err != nil {
		return err
	}
	for i := range lost {
		n := &lost[i].snapshot
		if n.kind == snapshots.KindCommitted {
			s.log.Error("files of a layer are gone; remove the image and pull it again", "snapshot", n.key, "dir", s.path(n.id))
			continue
		}
		if err := s.restore(ctx, n, lost[i].parent); err != nil {
			s.log.Error("directory of a snapshot is gone and cannot be made again; remove the container", "snapshot", n.key, "dir", s.path(n.id), "error", err)
			continue
		}
		s.log.Warn("directory of a snapshot went with a power cut and was made again; what was in it had not been synced", "snapshot", n.key, "dir", s.path(n.id))
	}
	if len(lost) == 0 {
		return nil
	}
	return durable.SyncDir(s.dir())
}

// lostSnapshot is a snapshot that lacks some of its directories.
type lostSnapshot struct {
	snapshot
	parent string
}

// lost returns the snapshots that lack something.
func (s *Snapshotter) lost(ctx context.Context) (lost []lostSnapshot, err error) {
	err = s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(ctx context.Context, info snapshots.Info) error {
			id, _, usage, err := storage.GetInfo(ctx, info.Name)
			if err != nil || isClaimed(usage) {
				return err
			}
			n := lostSnapshot{snapshot{id: id, key: info.Name, kind: info.Kind, labels: info.Labels}, info.Parent}
			if err := n.follow(ctx, info.Parent); err != nil {
				return err
			}
			whole, err := s.whole(&n.snapshot)
			if !whole {
				lost = append(lost, n)
			}
			return err
		})
	})
	if errdefs.IsNotFound(err) {
		err = nil // nothing was ever recorded
	}
	if err != nil {
		return nil, fmt.Errorf("look for what a power cut took: %w", err)
	}
	return lost, nil
}

// whole reports whether a snapshot has everything that fill creates and that is needed.
func (s *Snapshotter) whole(n *snapshot) (bool, error) {
	names := []string{"fs"}
	if n.kind == snapshots.KindActive {
		names = append(names, "work")
	}
	if n.kind != snapshots.KindCommitted && n.chain != "" {
		names = append(names, "mnt")
	}
	if n.kind != snapshots.KindCommitted && n.container() {
		names = append(names, filepath.Base(s.container("")))
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(s.path(n.id), name)); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return true, err
		}
	}
	return true, nil
}

// restore creates what a snapshot lacks.
func (s *Snapshotter) restore(ctx context.Context, n *snapshot, parent string) error {
	owner, err := s.owner(ctx, n)
	if err != nil {
		return fmt.Errorf("owner of the root directory over %s: %w", parent, err)
	}
	if _, err := os.Lstat(s.path(n.id)); err == nil {
		return s.fill(s.path(n.id), n, owner)
	}
	// The directory is created under another name first, so that it never exists under
	// its own name with the wrong owner.
	made, err := os.MkdirTemp(s.dir(), "new-")
	if err != nil {
		return err
	}
	if err = s.fill(made, n, owner); err == nil {
		err = s.place(made, n.id)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(made))
	}
	return err
}
