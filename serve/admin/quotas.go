package admin

import (
	"context"

	"example.org/slipway/registry/quota"
)

// Quotas returns the state of the quotas.
func (a *Admin) Quotas(ctx context.Context) ([]quota.Status, error) {
	if a.local == nil {
		return askServer[struct{}, []quota.Status](ctx, a, "quotas", struct{}{}, nil)
	}
	return a.local.Quotas.Status(ctx)
}
