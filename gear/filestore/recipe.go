package filestore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"example.org/slipway/registry/catalog/gearfacts"
)

// PutRecipe stores the recipe of a layer as one of the layer's contents. When it returns
// nil, the recipe is durable. It uses the digest, the index and the size of l. Errors:
// gearfacts.ErrStale if the layer is no longer the one that the recipe was made from, or
// already has a recipe.
func (s *Store) PutRecipe(ctx context.Context, l gearfacts.LayerRecipe, recipe []byte) error {
	w, err := s.NewWriter(ctx)
	if err != nil {
		return err
	}
	defer w.Abort(ctx)
	if l.Recipe, err = w.PutIndex(ctx, recipe); err != nil {
		return err
	}
	l.RecipeSize = int64(len(recipe))
	return w.end(ctx, gearfacts.Record{Recipe: &l})
}

// readBack reads the contents of packs that were just written, from where they are
// stored, and verifies them. Once they have replaced other contents, they may be all that
// is left of layers. readBack does nothing as long as no layer has a recipe.
func (s *Store) readBack(ctx context.Context, packs []gearfacts.NewPack) error {
	needed, err := gearfacts.NewRecipes(s.cat.DB).AnyRecipe(ctx, gearfacts.RecipeMade)
	if err != nil || !needed {
		return err
	}
	from := s
	if s.opts.Proof != nil {
		from = s.opts.Proof
	}
	for i := range packs {
		for _, f := range packs[i].Files {
			f.Pack = packs[i].Digest
			if err := from.verifyFile(ctx, &f, nil, true, true); err != nil {
				return fmt.Errorf("read back content %x of the new pack %x: %w", f.Name, f.Pack, err)
			}
		}
	}
	return nil
}

// move replaces packs by new ones. If dropped layers need their contents, the new packs
// have parity from the beginning.
func (s *Store) move(ctx context.Context, r gearfacts.Replacement, group []gearfacts.Pack) error {
	r.Parity = s.guard.Files() > 0
	if !r.Parity || len(r.Packs) == 0 {
		return s.facts.Move(ctx, r)
	}
	needed := false
	for i := range group {
		is, err := gearfacts.NewRecipes(s.cat.DB).PackNeeded(ctx, group[i].Digest)
		if err != nil {
			return err
		}
		needed = needed || is
	}
	if !needed {
		return s.facts.Move(ctx, r)
	}
	list := make([]gearfacts.Object, len(r.Packs))
	for i, p := range r.Packs {
		list[i] = gearfacts.Object{Digest: p.Digest, Size: p.Size}
	}
	return s.guard.Protect(ctx, list, func(g gearfacts.Group) error {
		r.Group = &g
		return s.facts.Move(ctx, r)
	})
}

// unsettleable returns the number of the pack in a group that has a damaged content whose
// place must not be forgotten.
func unsettleable(err error, group []gearfacts.Pack) (id int64, ok bool) {
	var corrupt *CorruptError
	if !errors.Is(err, gearfacts.ErrNeeded) || !errors.As(err, &corrupt) {
		return 0, false
	}
	for _, p := range group {
		if hex.EncodeToString(p.Digest[:]) == corrupt.Pack {
			return p.ID, true
		}
	}
	return 0, false
}
