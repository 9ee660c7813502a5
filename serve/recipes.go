package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"example.org/slipway/registry/auth"

	"example.org/slipway/config"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/recipes"
	"example.org/slipway/oci"
)

// openRecipes makes dropped layers readable like others, whatever the configuration now
// says.
func (r *root) openRecipes(log *slog.Logger) (err error) {
	r.recipes, err = recipes.New(r.cat, r.inner, &recipes.Options{Log: log, TempDir: filepath.Join(r.dir, gearTemp),
		OnCorrupt: func(e *filestore.CorruptError) {
			if r.gear != nil {
				r.gear.Remake(e)
			}
		}})
	if err != nil {
		return err
	}
	r.inner = r.recipes
	r.store = r.inner
	return nil
}

// newKeeper creates the keeper, which drops layers and restores them.
func (r *root) newKeeper(c *config.Rebuild, enter func() (func(), error)) (*recipes.Keeper, error) {
	repos, err := auth.CompilePatterns(c.Repositories)
	if err != nil {
		return nil, fmt.Errorf("storage.rebuild.repositories: %w", err)
	}
	return recipes.NewKeeper(r.recipes, r.files, r.reg, recipes.Policy{
		ColdAfter: c.ColdAfter, Again: c.Again, Repositories: repos, LeastBytes: int64(c.LeastBytes), LeastRate: int64(c.LeastRate),
		MostRecipe: int64(c.MostRecipe), Share: c.Share, Enter: enter,
	}), nil
}

// dropLayers looks once for layers that may be dropped, and drops them.
func (s *Server) dropLayers(ctx context.Context) {
	began := time.Now()
	rep, err := s.root.keeper.Pass(ctx)
	switch {
	case ctx.Err() != nil || unavailable(err): // writes are stopped, or the object store is unavailable
	case err != nil:
		s.log.Error("layers cannot be dropped; it is tried again at the next run", "err", err)
	case rep.Made+rep.Refused+rep.Dropped+rep.Failed > 0:
		s.log.Info("made recipes and dropped layers", "made", rep.Made, "refused", rep.Refused, "dropped", rep.Dropped,
			"bytes", rep.DroppedBytes, "failed", rep.Failed, "dur", time.Since(began))
	}
}

// unavailable reports whether an error is temporary.
func unavailable(err error) bool {
	var e *oci.Error
	return errors.As(err, &e) && e.Code == oci.CodeUnavailable
}

// RehydrateArgs are the arguments of [Admin.Rehydrate].
type RehydrateArgs struct {
	// Images are written NAME, NAME:TAG or NAME@DIGEST. With All there are none.
	Images []string
	// All selects all layers.
	All bool
}

func (r *root) rehydrate(ctx context.Context, args RehydrateArgs, progress func(recipes.Rehydrated)) (rep recipes.Rehydrated, err error) {
	if args.All == (len(args.Images) > 0) {
		return rep, errors.New("name images, or ask for all layers")
	}
	if args.All {
		return r.keeper.Rehydrate(ctx, progress)
	}
	list, err := r.layersOf(ctx, CacheWarmArgs{Images: args.Images})
	if err != nil || len(list) == 0 {
		return rep, err
	}
	layers := make([]oci.Digest, len(list))
	for i, l := range list {
		layers[i] = l.Digest
	}
	return r.keeper.Rehydrate(ctx, progress, layers...)
}

// Rehydrate restores dropped layers as objects.
func (a *Admin) Rehydrate(ctx context.Context, args RehydrateArgs, progress func(recipes.Rehydrated)) (recipes.Rehydrated, error) {
	if args.All && a.cfg.Storage.Rebuild.ColdAfter > 0 {
		return recipes.Rehydrated{}, errors.New("storage.rebuild.cold_after is set, so layers would be dropped again; take it out and restart the server first")
	}
	if a.local == nil {
		return askServer(ctx, a, "rehydrate", args, progress)
	}
	return a.local.rehydrate(ctx, args, progress)
}

// Recipes returns the state of the dropped layers.
func (a *Admin) Recipes(ctx context.Context) (recipes.Status, error) {
	if a.local == nil {
		return askServer[struct{}, recipes.Status](ctx, a, "recipes", struct{}{}, nil)
	}
	return a.local.recipes.Status(ctx)
}
