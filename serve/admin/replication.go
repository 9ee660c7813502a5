package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"example.org/slipway/config"
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
		return replicate(ctx, s.cfg, s.root, s.o.Audit, a, p)
	}))
}

func replicate(ctx context.Context, cfg *config.Config, root *dataroot.Root, audit *auth.AuditLog, a replication.Args, progress func(replication.Report)) (replication.Report, error) {
	if cfg.Storage.Maintenance.ReadOnly.Enabled && !a.DryRun {
		return replication.Report{}, errReplicateReadOnly
	}
	rep, err := root.Replicator.Replicate(ctx, a, progress)
	if !a.DryRun {
		record(ctx, audit, "replicate", a.Rule, err)
	}
	return rep, err
}

// Replication returns the state of the rules of replication. It is an error if the
// configuration has a rule that a running server has not read.
func (a *Admin) Replication(ctx context.Context) ([]replication.Status, error) {
	if a.local != nil {
		return a.local.Replicator.Status(ctx)
	}
	list, err := askServer[struct{}, []replication.Status](ctx, a, "replication-status", struct{}{}, nil)
	if err != nil {
		return nil, err
	}
	for _, rule := range a.cfg.Replication {
		if !slices.ContainsFunc(list, func(s replication.Status) bool { return s.Rule == rule.Name }) {
			return nil, fmt.Errorf("the server has not read the replication rule %q yet; it does so some seconds after a change of its configuration, and slipway config reload says what is wrong if it does not", rule.Name)
		}
	}
	return list, nil
}

// Replicate does a run of a rule of replication.
func (a *Admin) Replicate(ctx context.Context, args replication.Args, progress func(replication.Report)) (replication.Report, error) {
	if a.local == nil {
		return askServer(ctx, a, "replicate", args, progress)
	}
	return replicate(ctx, a.cfg, a.local, nil, args, progress)
}
