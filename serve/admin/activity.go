package admin

import (
	"context"
	"errors"

	"example.org/slipway/config"
	"example.org/slipway/registry/activity"
)

var errNoAudit = errors.New("nothing is recorded: log.audit.file names no file for the audit log")

// Activity returns what the audit log has about who did what.
func (a *Admin) Activity(ctx context.Context, f activity.Filter) (activity.Report, error) {
	if a.local == nil {
		return askServer[activity.Filter, activity.Report](ctx, a, "activity", f, nil)
	}
	return readActivity(ctx, a.cfg, f)
}

func readActivity(ctx context.Context, cfg *config.Config, f activity.Filter) (activity.Report, error) {
	if cfg.Log.Audit.File == "" {
		return activity.Report{}, errNoAudit
	}
	return activity.Read(ctx, cfg.Log.Audit.File, f)
}
