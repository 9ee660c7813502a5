package dataroot

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"example.org/slipway/config"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/recipes"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/patterns"
)

// openRecipes makes dropped layers readable like others, whatever the configuration now
// says.
func (r *Root) openRecipes() (err error) {
	r.recipes, err = recipes.New(r.Catalog, r.Objects, &recipes.Options{Log: r.log, TempDir: filepath.Join(r.Dir, gearTemp), Parity: r.cfg.Storage.Rebuild.Parity,
		OnCorrupt: func(e *filestore.CorruptError) {
			if r.Gear != nil {
				r.Gear.Remake(e)
			}
		}})
	if err != nil {
		return err
	}
	r.Objects = r.recipes
	r.Store = r.Objects
	return nil
}

// newKeeper creates the keeper, which drops layers and restores them.
func (r *Root) newKeeper(c *config.Rebuild, enter func() (func(), error)) (*recipes.Keeper, error) {
	repos, err := patterns.CompileAll(c.Repositories)
	if err != nil {
		return nil, fmt.Errorf("storage.rebuild.repositories: %w", err)
	}
	return recipes.NewKeeper(r.recipes, r.files, r.Registry, recipes.Policy{
		ColdAfter: c.ColdAfter, Again: c.Again, Repositories: repos, LeastBytes: int64(c.LeastBytes), LeastRate: int64(c.LeastRate),
		MostRecipe: int64(c.MostRecipe), Share: c.Share, Enter: enter,
		BringBackAfter: c.BringBack, ScrubEvery: c.ScrubEvery, ScrubRate: int64(c.ScrubRate),
	}), nil
}

// RehydrateArgs are the arguments of [Root.Rehydrate].
type RehydrateArgs struct {
	// Images are written NAME, NAME:TAG or NAME@DIGEST. With All there are none.
	Images []string
	// All selects all layers.
	All bool
}

// Rehydrate restores dropped layers as objects.
func (r *Root) Rehydrate(ctx context.Context, args RehydrateArgs, progress func(recipes.Rehydrated)) (rep recipes.Rehydrated, err error) {
	if args.All == (len(args.Images) > 0) {
		return rep, errors.New("name images, or ask for all layers")
	}
	if args.All {
		return r.keeper.Rehydrate(ctx, progress)
	}
	list, err := layersOf(ctx, r.Catalog, CacheWarmArgs{Images: args.Images})
	if err != nil || len(list) == 0 {
		return rep, err
	}
	layers := make([]oci.Digest, len(list))
	for i, l := range list {
		layers[i] = l.Digest
	}
	return r.keeper.Rehydrate(ctx, progress, layers...)
}

// Recipes returns the state of the dropped layers.
func (r *Root) Recipes(ctx context.Context) (recipes.Status, error) { return r.recipes.Status(ctx) }

// DropLayers looks once for layers that may be dropped, and drops them.
func (r *Root) DropLayers(ctx context.Context) (recipes.Report, error) { return r.keeper.Pass(ctx) }

// Scrub reads the packs that hold contents of dropped layers, as far as that is due.
func (r *Root) Scrub(ctx context.Context) (recipes.ScrubReport, error) { return r.keeper.Scrub(ctx) }
