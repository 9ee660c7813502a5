package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// trash is the prefix of the names of directories that wait for deletion.
const trash = "trash-"

// Remove forgets a snapshot. Its files are deleted by the next Cleanup, which containerd
// calls after removals. A snapshot whose overlay is in use or still mounted elsewhere
// stays: Remove returns errdefs.ErrFailedPrecondition, and Cleanup tries again.
func (s *Snapshotter) Remove(ctx context.Context, key string) error {
	id, info, usage, err := s.get(ctx, key)
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", key, err)
	}
	if isClaimed(usage) {
		err = s.removeClaimed(ctx, key)
	} else {
		err = s.removeOrdinary(ctx, key, id, info.Kind)
	}
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", key, err)
	}
	return nil
}

func (s *Snapshotter) removeClaimed(ctx context.Context, chain string) error {
	defer s.chains.lock(chain)()
	if err := s.notePending(chain); err != nil {
		return err
	}
	err := s.removeRecord(ctx, chain)
	s.settle(ctx, chain)
	return err
}

func (s *Snapshotter) removeRecord(ctx context.Context, key string) error {
	return s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, _, err := storage.Remove(ctx, key)
		return err
	})
}

func (s *Snapshotter) removeOrdinary(ctx context.Context, key, id string, kind snapshots.Kind) error {
	defer s.ids.lock(id)()
	if kind != snapshots.KindCommitted {
		if err := s.release(id); err != nil {
			s.setBusy(key, id)
			return err
		}
	}
	if err := s.removeRecord(ctx, key); err != nil {
		return err
	}
	// The snapshot is removed. If a step fails now, the next cleaning repeats it.
	s.setBusy(key, "")
	if err := s.stopped(context.WithoutCancel(ctx), s.path(id)); err != nil {
		s.log.Warn("removed container is still looked after", "snapshot", key, "error", err)
	}
	if err := s.retire(id); err != nil {
		s.log.Warn("removed snapshot stays on disk for now", "snapshot", key, "error", err)
	}
	return nil
}

// release unmounts the overlay of a snapshot that is about to be removed.
func (s *Snapshotter) release(id string) error {
	table, err := readMounts()
	if err != nil {
		return err
	}
	if users := s.users(table, id); len(users) > 0 {
		return fmt.Errorf("its file system is still mounted at %s; stop the container that uses it, or unmount it: %w", strings.Join(users, ", "), errdefs.ErrFailedPrecondition)
	}
	if err := s.freeRoot(table, id); err != nil {
		return err
	}
	if err := unmount(table, s.path(id)); err != nil {
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w: a process has files open or its working directory there (fuser -vm shows which); end it, and this is tried again: %w", err, errdefs.ErrFailedPrecondition)
		}
		return err
	}
	return nil
}

// setBusy notes a snapshot whose removal is to be tried again. With an empty id it
// deletes the note.
func (s *Snapshotter) setBusy(key, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" {
		delete(s.busy, key)
	} else {
		s.busy[key] = id
	}
}

// retire renames the directory of a snapshot without a record, if the directory exists,
// so that its number is free and nobody finds it.
func (s *Snapshotter) retire(id string) error {
	name, err := os.MkdirTemp(s.dir(), trash) // an unused name
	if err != nil {
		return err
	}
	// rename(2) replaces an empty directory. os.Rename would not.
	if err := unix.Rename(s.path(id), name); errors.Is(err, unix.ENOENT) {
		return os.Remove(name)
	} else if err != nil {
		return errors.Join(&os.LinkError{Op: "rename", Old: s.path(id), New: name, Err: err}, os.Remove(name))
	}
	return nil
}

// retireOrphans retires all directories that belong to no record, or to a record that
// needs no directory.
func (s *Snapshotter) retireOrphans(ctx context.Context) error {
	// The transaction is a write transaction because directories are created inside of
	// one. It changes nothing and is rolled back: a commit would sync, and containers
	// would wait for it.
	err := s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		entries, err := os.ReadDir(s.dir())
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), trash) {
				continue
			}
			if key, ok := known[e.Name()]; ok {
				// When a root is committed, the snapshot's directory stays although the
				// snapshot no longer needs it.
				if _, _, usage, err := storage.GetInfo(ctx, key); err != nil || !isClaimed(usage) {
					continue
				}
			}
			if err := s.retire(e.Name()); err != nil {
				s.log.Warn("directory without a snapshot stays", "dir", s.path(e.Name()), "error", err)
			}
		}
		return errUnchanged
	})
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return err
}

// errUnchanged rolls back a transaction that has nothing to commit.
var errUnchanged = errors.New("nothing was changed")

// Cleanup deletes the files of removed snapshots. It also repeats what failed before:
// removals of snapshots that were in use, and calls of Lower. If something fails again,
// it is logged and left for the next time.
func (s *Snapshotter) Cleanup(ctx context.Context) error {
	s.clean.Lock()
	defer s.clean.Unlock()
	s.removeBusy(ctx)
	if err := s.retireOrphans(ctx); err != nil {
		return fmt.Errorf("clean up %s: %w", s.root, err)
	}
	if err := s.emptyTrash(ctx); err != nil {
		return fmt.Errorf("clean up %s: %w", s.root, err)
	}
	if err := s.settleAll(ctx); err != nil {
		return fmt.Errorf("clean up %s: %w", s.root, err)
	}
	return ctx.Err()
}

func (s *Snapshotter) removeBusy(ctx context.Context) {
	s.mu.Lock()
	again := make(map[string]string, len(s.busy))
	for key, id := range s.busy {
		again[key] = id
	}
	s.mu.Unlock()
	for key, id := range again {
		now, info, _, err := s.get(ctx, key)
		if err != nil || now != id || info.Kind == snapshots.KindCommitted {
			s.setBusy(key, "") // the snapshot was removed or committed, and perhaps created anew
			continue
		}
		if err := s.Remove(ctx, key); err != nil {
			s.log.Warn("snapshot is still in use", "snapshot", key, "error", err)
		}
	}
}

func (s *Snapshotter) emptyTrash(ctx context.Context) error {
	entries, err := os.ReadDir(s.dir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), trash) || ctx.Err() != nil {
			continue
		}
		if err := s.deleteTrash(ctx, filepath.Join(s.dir(), e.Name())); err != nil {
			s.log.Warn("removed snapshot stays on disk for now", "dir", e.Name(), "error", err)
		}
	}
	return nil
}

// deleteTrash deletes a directory in which nothing is mounted. Only this process knows
// its name, so nothing can be mounted there meanwhile.
func (s *Snapshotter) deleteTrash(ctx context.Context, dir string) error {
	table, err := readMounts()
	if err != nil {
		return err
	}
	if err := unmount(table, dir); err != nil {
		return err
	}
	if table, err = readMounts(); err != nil {
		return err
	}
	if left := table.below(dir); len(left) > 0 {
		return fmt.Errorf("still mounted: %s", strings.Join(left, ", "))
	}
	if err := s.stopped(ctx, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
