package recipes

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/registry/catalog/gearfacts"
)

// ScrubReport says what a scrub found.
type ScrubReport struct {
	// Packs is the number of packs that were read, and Bytes their size.
	Packs int   `json:"packs"`
	Bytes int64 `json:"bytes"`
	// Damaged is the number of packs that are damaged, unreadable or missing. Repaired is
	// the number of packs that had such a fault and were made again from their parity.
	Damaged  int `json:"damaged"`
	Repaired int `json:"repaired"`
}

// scrubPage is how many packs are looked up at a time.
const scrubPage = 16

// Scrub reads the packs that are needed to rebuild dropped layers, and compares them with
// their digests. It reads packs that were not read for Policy.ScrubEvery, and damaged
// packs. The catalogue remembers each pack, so a scrub that was interrupted goes on where
// it was.
func (k *Keeper) Scrub(ctx context.Context) (rep ScrubReport, err error) {
	if k.p.ScrubEvery <= 0 {
		return rep, nil
	}
	k.scrubbing.Lock()
	defer k.scrubbing.Unlock()
	if any, err := gearfacts.NewRecipes(k.s.cat.DB).AnyRecipe(ctx, gearfacts.RecipeStands); err != nil || !any {
		return rep, err
	}
	if err := k.reg.CheckStore(ctx); err != nil {
		return rep, err
	}
	began := k.now()
	before := began.Add(-k.p.ScrubEvery)
	checks := gearfacts.NewChecks(k.s.cat.DB)
	for {
		if err := k.scrubbed(ctx, before); err != nil {
			return rep, err
		}
		packs, err := checks.Due(ctx, before, began, scrubPage)
		if err != nil {
			return rep, fmt.Errorf("look for packs to scrub: %w", err)
		}
		if len(packs) == 0 {
			return rep, k.scrubParity(ctx, before)
		}
		for i := range packs {
			if err := k.entered(func() error { return k.scrubOne(ctx, &packs[i], &rep) }); err != nil {
				return rep, fmt.Errorf("scrub pack %x: %w", packs[i].Digest, err)
			}
		}
	}
}

// scrubOne reads one pack.
func (k *Keeper) scrubOne(ctx context.Context, p *gearfacts.Pack, rep *ScrubReport) error {
	m := k.s.metrics
	damage, err := k.s.guard.Scrub(ctx, p.Digest, k.limited)
	if err != nil {
		return err
	}
	rep.Packs++
	rep.Bytes += p.Size
	m.scrubbedBytes.Add(float64(p.Size))
	if damage == nil {
		m.scrubbed.WithLabelValues("sound").Inc()
		return nil
	}
	m.scrubbed.WithLabelValues("damaged").Inc()
	if err := k.s.guard.Repair(ctx, p.Digest); err != nil {
		rep.Damaged++
		k.s.log.Error("a pack that dropped layers need cannot be read", "pack", fmt.Sprintf("%x", p.Digest), "err", damage, "repair", err)
		return ctx.Err()
	}
	rep.Repaired++
	return nil
}

// scrubParity reads the parity files of the groups that were not read since before. The
// next pass makes damaged ones anew.
func (k *Keeper) scrubParity(ctx context.Context, before time.Time) error {
	groups, err := gearfacts.NewParity(k.s.cat.DB).Groups(ctx, gearfacts.Name{})
	if err != nil {
		return fmt.Errorf("look for groups of packs: %w", err)
	}
	for i := range groups {
		g := &groups[i]
		if g.Broken || !g.Checked.Before(before) {
			continue
		}
		err := k.entered(func() error {
			damage, err := k.s.guard.Check(ctx, g, k.limited)
			if damage != nil {
				k.s.log.Warn("a parity file is damaged; it is made anew", "group", g.ID, "err", damage)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("scrub the parity of group %d: %w", g.ID, err)
		}
	}
	return nil
}

// limited waits until n bytes may be read.
func (k *Keeper) limited(ctx context.Context, n int) error {
	if k.limiter == nil {
		return nil
	}
	return k.limiter.WaitN(ctx, min(n, k.limiter.Burst()))
}

// newLimiter limits reading to a number of bytes a second; 0: no limit.
func newLimiter(bytesPerSec int64) *rate.Limiter {
	if bytesPerSec <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSec), 1<<20)
}

// scrubbed sets the gauge that says how far the scrub has come.
func (k *Keeper) scrubbed(ctx context.Context, since time.Time) error {
	n, err := gearfacts.NewChecks(k.s.cat.DB).Counts(ctx, since)
	if err != nil {
		return fmt.Errorf("count the packs that were scrubbed: %w", err)
	}
	k.s.metrics.scrubBehind.Set(float64(n.Bytes - n.CheckedBytes))
	return nil
}
