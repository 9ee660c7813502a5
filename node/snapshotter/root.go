package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"example.org/slipway/internal/durable"
)

// Rooter is a Lower that can also give each container a complete, writable root file
// system, in place of an overlay over a shared tree.
//
// The key of a root consists of the key and the number of its snapshot. No two snapshots
// ever have the same key. Methods may run concurrently for different keys, but not for
// the same key.
type Rooter interface {
	// Roots reports whether a container that is created now on a claimed chain gets its
	// own root. It must be fast. The decision is final for the container, even if Roots
	// later returns something else.
	Roots(chain string) bool

	// Root makes the root of a container available, unless it is, and returns its
	// directory. The directory has everything that was written to it before.
	Root(ctx context.Context, key, chain string) (dir string, err error)

	// DropRoot deletes a root. It is called at least once, also if a crash prevented the
	// root from being created. It must succeed for an unknown key. An error is logged,
	// and DropRoot is called again at the next cleaning.
	DropRoot(ctx context.Context, key string) error

	// RootUsage returns the disk usage of what was written to a root.
	RootUsage(ctx context.Context, key string) (sizeBytes, inodes int64, err error)

	// CommitRoot makes a new chain from the present state of a root, which was created on
	// parent. Mount and Root then accept the new chain like a claimed one, and Drop
	// forgets it.
	CommitRoot(ctx context.Context, key, parent, chain string) error
}

// rooter returns Lower as a Rooter. It is an error if Lower is not a Rooter.
func (s *Snapshotter) rooter() (Rooter, error) {
	if r, ok := s.lower.(Rooter); ok {
		return r, nil
	}
	return nil, errNoLower
}

// rootMark returns the path of the file that marks a snapshot that has, or may have, a
// root from Lower. The file holds the root's key, and is durable before the root is
// created.
func rootMark(dir string) string { return filepath.Join(dir, "root") }

// rootKey reads a mark. It returns "" if there is none.
func rootKey(dir string) (string, error) {
	b, err := os.ReadFile(rootMark(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// wantsRoot decides whether a new snapshot gets a root from Lower.
func (s *Snapshotter) wantsRoot(n *snapshot) bool {
	if n.kind != snapshots.KindActive || !n.container() || len(n.lowers) > 0 {
		return false
	}
	r, err := s.rooter()
	return err == nil && r.Roots(n.chain)
}

// markRoot writes the mark of a new snapshot if the snapshot gets a root from Lower.
func (s *Snapshotter) markRoot(n *snapshot) error {
	if !n.rooted {
		return nil
	}
	return durable.WriteFile(rootMark(s.path(n.id)), []byte(n.key+"#"+n.id))
}

// ownRoot returns the directory of a snapshot's root, or "" if the snapshot has none. The
// caller holds the snapshot's lock.
func (s *Snapshotter) ownRoot(ctx context.Context, n *snapshot) (string, error) {
	key, err := rootKey(s.path(n.id))
	if err != nil || key == "" {
		return "", err
	}
	r, err := s.rooter()
	if err != nil {
		return "", err
	}
	dir, err := r.Root(ctx, key, n.chain)
	if err != nil {
		return "", fmt.Errorf("root file system of its own: %w", err)
	}
	return dir, durable.WriteFile(s.madeOf(n.id), []byte(dir))
}

// rootUsage returns the usage of a snapshot with a root, unless err is set.
func (s *Snapshotter) rootUsage(ctx context.Context, key, root string, err error) (snapshots.Usage, error) {
	var r Rooter
	if err == nil {
		r, err = s.rooter()
	}
	var u snapshots.Usage
	if err == nil {
		u.Size, u.Inodes, err = r.RootUsage(ctx, root)
	}
	if err != nil {
		return snapshots.Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, err)
	}
	return u, nil
}

// freeRoot checks that nobody uses the root of a snapshot that is about to be removed.
func (s *Snapshotter) freeRoot(table mountTable, id string) error {
	key, err := rootKey(s.path(id))
	if err != nil || key == "" {
		return err
	}
	dir, err := os.ReadFile(s.madeOf(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // never handed out
	}
	if err != nil {
		return err
	}
	if users := table.users(string(dir), string(dir), ""); len(users) > 0 {
		return fmt.Errorf("its file system is still mounted at %s; stop the container that uses it, or unmount it: %w", strings.Join(users, ", "), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// dropRoot deletes the root of the snapshot with the given directory.
func (s *Snapshotter) dropRoot(ctx context.Context, dir string) error {
	key, err := rootKey(dir)
	if err != nil || key == "" {
		return err
	}
	r, err := s.rooter()
	if err != nil {
		return err
	}
	if err := r.DropRoot(ctx, key); err != nil {
		return fmt.Errorf("delete the root file system of %s: %w", key, err)
	}
	return removeFile(rootMark(dir))
}

// commitRoot is like Commit, for a snapshot with a root from Lower. The root becomes a chain of
// Lower, and the snapshot becomes a claimed one.
func (s *Snapshotter) commitRoot(ctx context.Context, name, key, id, root string, opts []snapshots.Opt) error {
	r, err := s.rooter()
	if err != nil {
		return err
	}
	defer s.chains.lock(name)()
	defer s.ids.lock(id)()
	now, info, _, err := s.get(ctx, key)
	if err != nil {
		return err
	}
	if now != id {
		return fmt.Errorf("it was removed meanwhile: %w", errdefs.ErrNotFound)
	}
	if _, _, _, err := s.get(ctx, name); err == nil {
		return fmt.Errorf("snapshot %s: %w", name, errdefs.ErrAlreadyExists)
	}
	if err := s.notePending(name); err != nil {
		return err
	}
	if err = r.CommitRoot(ctx, root, chainName(info.Parent), chainName(name)); err == nil {
		err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
			_, err := storage.CommitActive(ctx, key, name, claimedUsage(), opts...)
			return err
		})
	}
	s.settle(context.WithoutCancel(ctx), name)
	if err != nil {
		return err
	}
	// The snapshot is committed. If a step fails now, the next cleaning repeats it.
	if err := s.stopped(context.WithoutCancel(ctx), s.path(id)); err != nil {
		s.log.Warn("committed container is still looked after", "snapshot", name, "error", err)
	}
	if err := s.retire(id); err != nil {
		s.log.Warn("committed snapshot stays on disk for now", "snapshot", name, "error", err)
	}
	return nil
}

// chainName returns the name of a claimed snapshot's chain in Lower. This is the
// snapshot's name if the name is a chain ID, as after a pull. Otherwise it is a digest of
// the name.
func chainName(snapshot string) string {
	if _, err := digest.Parse(snapshot); err == nil {
		return snapshot
	}
	return digest.FromString(snapshot).String()
}

// mountedRoot reports whether the root that a snapshot was given is mounted.
func (s *Snapshotter) mountedRoot(table mountTable, id string) bool {
	key, err := rootKey(s.path(id))
	if err != nil || key == "" {
		return false
	}
	dir, err := os.ReadFile(s.madeOf(id))
	return err == nil && table.at(string(dir)) != nil
}
