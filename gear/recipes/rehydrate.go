package recipes

import (
	"context"
	"errors"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// Rehydrated is what Rehydrate did.
type Rehydrated struct {
	// Layers is the number of layers that have objects again, and Bytes their size.
	Layers int   `json:"layers"`
	Bytes  int64 `json:"bytes"`
	// Left has the layers that were not rebuilt. The log says why.
	Left []oci.Digest `json:"left,omitempty"`
}

// Rehydrate makes layers objects again and gives up their recipes. It does so for the
// given layers, or for all layers if none are given. It skips layers that have no recipe.
// It may be interrupted at any point. progress may be nil.
func (k *Keeper) Rehydrate(ctx context.Context, progress func(Rehydrated), layers ...oci.Digest) (rep Rehydrated, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := func(l *gearfacts.LayerRecipe) error {
		err := k.rehydrate(ctx, l)
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			k.s.log.Error("a dropped layer cannot be made an object again", "layer", l.Digest, "err", err)
			rep.Left = append(rep.Left, l.Digest)
			return nil
		}
		rep.Layers++
		rep.Bytes += l.Size
		if progress != nil {
			progress(rep)
		}
		return nil
	}
	if len(layers) == 0 {
		var none Report
		err = k.each(ctx, gearfacts.RecipeMade, gearfacts.RecipeAlone, &none, one)
	}
	for _, d := range layers {
		l, lookErr := gearfacts.NewRecipes(k.s.cat.DB).LayerRecipe(ctx, d)
		if errors.Is(lookErr, catalog.ErrNotFound) || lookErr == nil && l.State == gearfacts.RecipeRefused {
			continue
		}
		if err = lookErr; err == nil {
			err = one(&l)
		}
		if err != nil {
			break
		}
	}
	if err == nil && len(rep.Left) > 0 {
		err = fmt.Errorf("%d layers were not rebuilt, the first is %s", len(rep.Left), rep.Left[0])
	}
	return rep, errors.Join(err, k.s.metrics.count(ctx, k.s.cat))
}

// rehydrate makes a layer an object again. It gives up the recipe once the object is
// durable. An object that is there is read first: if it is damaged, the recipe is what is
// left of the layer.
func (k *Keeper) rehydrate(ctx context.Context, l *gearfacts.LayerRecipe) (err error) {
	right, err := k.objectRight(ctx, l)
	if err != nil {
		return err
	}
	if right {
		return gearfacts.NewRecipes(k.s.cat.DB).EndRecipe(ctx, l.Digest)
	}
	src, err := k.s.Rebuilt(ctx, l)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := k.s.Store.NewUpload(ctx, l.Size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Cancel(ctx)) }()
	n, match, err := verify.Copy(ctx, dst, src, l.Digest, func(int) {})
	if err != nil {
		return err
	}
	if !match || n != l.Size {
		return fmt.Errorf("its %d bytes are not the layer", n)
	}
	up := k.reg.Upkeep()
	release, err := up.Freeze(ctx)
	if err != nil {
		return err
	}
	defer release()
	defer up.Storage.Locks.Lock(l.Digest)()
	if _, err := k.s.cat.StoredBlob(ctx, l.Digest); errors.Is(err, catalog.ErrNotFound) { // it was deleted
		return nil
	} else if err != nil {
		return err
	}
	if err := dst.Commit(ctx, storage.BlobKey(l.Digest)); err != nil {
		return err
	}
	if err := k.did("back"); err != nil {
		return err
	}
	up.Storage.Trust(l.Digest)
	return gearfacts.NewRecipes(k.s.cat.DB).EndRecipe(ctx, l.Digest)
}
