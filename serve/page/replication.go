package page

import (
	"context"

	"example.org/slipway/registry/replication"
	"example.org/slipway/web/manage"
)

// replicates is how the web page looks after replication.
type replicates struct{ o *Options }

var _ manage.Replication = replicates{}

// Status implements manage.Replication.
func (r replicates) Status(ctx context.Context) ([]replication.Status, error) {
	return r.o.Root.Replicator.Status(ctx)
}

// Replicate implements manage.Replication.
func (r replicates) Replicate(ctx context.Context, args replication.Args, progress func(replication.Report)) (replication.Report, error) {
	if r.o.Config.Storage.Maintenance.ReadOnly.Enabled && !args.DryRun {
		return replication.Report{}, errReadOnly
	}
	return r.o.Root.Replicator.Replicate(ctx, args, progress)
}
