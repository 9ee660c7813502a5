package recipes

import (
	"context"
	"errors"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

// backWithin is the time in which rebuilds of a layer are counted together.
const backWithin = 24 * time.Hour

// counts has how often each dropped layer was rebuilt since a time. The Store's mutex
// guards it.
type counts struct {
	since time.Time
	of    map[oci.Digest]int
}

// often returns the layers that were rebuilt at least n times within the last day, and
// begins a new day if one has passed.
func (s *Store) often(n int, now time.Time) []oci.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []oci.Digest
	for d, count := range s.counts.of {
		if count >= n {
			list = append(list, d)
			delete(s.counts.of, d)
		}
	}
	if now.Sub(s.counts.since) > backWithin {
		s.counts = counts{since: now, of: map[oci.Digest]int{}}
	}
	return list
}

// bringBack turns the layers that clients pull often into objects again. Rebuilds for the
// check or for a backup do not count alone: somebody must have pulled an image with the
// layer.
func (k *Keeper) bringBack(ctx context.Context, rep *Report) error {
	if k.p.BringBackAfter <= 0 {
		return nil
	}
	facts := gearfacts.NewRecipes(k.s.cat.DB)
	for _, d := range k.s.often(k.p.BringBackAfter, k.now()) {
		err := k.alone(ctx, rep, d, func() error {
			l, err := facts.LayerRecipe(ctx, d)
			if errors.Is(err, catalog.ErrNotFound) || err == nil && !l.Dropped() {
				return nil
			}
			if err != nil {
				return err
			}
			cold, _, err := facts.IsCold(ctx, d, k.now().Add(-backWithin))
			if err != nil || cold {
				return err
			}
			if err := k.rehydrate(ctx, &l); err != nil {
				return err
			}
			rep.Back++
			k.s.log.Info("stored a dropped layer again, which is pulled often", "layer", d, "bytes", l.Size)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
