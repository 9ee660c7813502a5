package admin

import (
	"context"
	"errors"
	"net/http"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/replication"
	"example.org/slipway/serve/dataroot"
)

// errReplicateReadOnly says that nothing may be changed.
var errReplicateReadOnly = errors.New("storage.maintenance.readonly is enabled, so nothing is replicated")

// handleReplication adds the tasks of replication.
func (s *tasks) handleReplication(mux *http.ServeMux) {
	mux.Handle("POST /admin/replication-status", task(func(ctx context.Context, _ struct{}, _ func([]replication.Status)) ([]replication.Status, error) {
		return s.root.Replicator.Status(ctx)
	}))
	mux.Handle("POST /admin/replicate", task(func(ctx context.Context, a replication.Args, p func(replication.Report)) (replication.Report, error) {
		if s.cfg.Storage.Maintenance.ReadOnly.Enabled && !a.DryRun {
			return replication.Report{}, errReplicateReadOnly
		}
		return replicate(ctx, s.root, s.o.Audit, a, p)
	}))
}

func replicate(ctx context.Context, root *dataroot.Root, audit *auth.AuditLog, a replication.Args, progress func(replication.Report)) (replication.Report, error) {
	rep, err := root.Replicator.Replicate(ctx, a, progress)
	if !a.DryRun {
		record(ctx, audit, "replicate", a.Rule, err)
	}
	return rep, err
}

// Replication returns the state of the rules of replication.
func (a *Admin) Replication(ctx context.Context) ([]replication.Status, error) {
	if a.local == nil {
		return askServer[struct{}, []replication.Status](ctx, a, "replication-status", struct{}{}, nil)
	}
	return a.local.Replicator.Status(ctx)
}

// Replicate does a run of a rule of replication.
func (a *Admin) Replicate(ctx context.Context, args replication.Args, progress func(replication.Report)) (replication.Report, error) {
	if a.local == nil {
		return askServer(ctx, a, "replicate", args, progress)
	}
	return replicate(ctx, a.local, nil, args, progress)
}
