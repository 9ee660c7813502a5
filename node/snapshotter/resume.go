package snapshotter

import (
	"context"
	"os"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// resume brings Lower up to date about the containers of an earlier run. A container
// whose file system is still mounted may be running, so Started is called for it. A
// snapshot that was committed just before a crash is released.
func (s *Snapshotter) resume(ctx context.Context) {
	table, err := readMounts()
	if err != nil {
		s.log.Warn("containers of an earlier run are not looked for", "error", err)
		return
	}
	known, err := s.known(ctx)
	if err != nil {
		s.log.Warn("containers of an earlier run are not looked for", "error", err)
		return
	}
	for id, n := range known {
		if ctx.Err() != nil {
			return
		}
		_, err := os.Lstat(s.container(s.path(id)))
		mounted, told := table.at(s.mnt(id)) != nil || s.mountedRoot(table, id), err == nil
		switch {
		case n.kind == snapshots.KindCommitted && (mounted || told):
			unlock := s.ids.lock(id)
			err := s.letGo(ctx, id)
			unlock()
			if err != nil {
				s.log.Warn("committed snapshot stays mounted for now", "snapshot", n.key, "error", err)
			}
		case mounted && told:
			s.started(ctx, n, true)
		}
	}
}

// known returns the ordinary snapshots over claimed chains, by id.
func (s *Snapshotter) known(ctx context.Context) (map[string]*snapshot, error) {
	all := map[string]*snapshot{}
	err := s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(ctx context.Context, info snapshots.Info) error {
			id, _, usage, err := storage.GetInfo(ctx, info.Name)
			if err != nil || isClaimed(usage) {
				return err
			}
			n := &snapshot{id: id, key: info.Name, kind: info.Kind, labels: info.Labels}
			if err := n.follow(ctx, info.Parent); err != nil || n.chain == "" {
				return err
			}
			all[id] = n
			return nil
		})
	})
	if errdefs.IsNotFound(err) {
		err = nil // nothing was ever recorded
	}
	return all, err
}
