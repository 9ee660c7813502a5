package admin

import (
	"context"
	"errors"

	"example.org/slipway/gear/recipes"
	"example.org/slipway/serve/dataroot"
)

// Rehydrate restores dropped layers as objects.
func (a *Admin) Rehydrate(ctx context.Context, args dataroot.RehydrateArgs, progress func(recipes.Rehydrated)) (recipes.Rehydrated, error) {
	if args.All && a.cfg.Storage.Rebuild.ColdAfter > 0 {
		return recipes.Rehydrated{}, errors.New("storage.rebuild.cold_after is set, so layers would be dropped again; take it out and restart the server first")
	}
	if a.local == nil {
		return askServer(ctx, a, "rehydrate", args, progress)
	}
	return a.local.Rehydrate(ctx, args, progress)
}

// Recipes returns the state of the dropped layers.
func (a *Admin) Recipes(ctx context.Context) (recipes.Status, error) {
	if a.local == nil {
		return askServer[struct{}, recipes.Status](ctx, a, "recipes", struct{}{}, nil)
	}
	return a.local.Recipes(ctx)
}
