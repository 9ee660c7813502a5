package recipes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/registry/catalog/gearfacts"
)

// protect keeps the groups in which the packs of dropped layers, and of layers that are
// due by a time, protect each other. Each such pack gets into a group. Groups that lack
// packs are merged. A group is forgotten when other groups protect its packs, or when no
// dropped layer needs them. A crash leaves at most groups that are not needed, and files
// that no group has; the next pass removes both.
func (k *Keeper) protect(ctx context.Context, rep *Report, due time.Time) error {
	facts := gearfacts.NewParity(k.s.cat.DB)
	groups, err := facts.Groups(ctx, gearfacts.Name{})
	if err != nil {
		return err
	}
	var packs []gearfacts.Object
	if k.s.opts.Parity > 0 {
		if packs, err = facts.ToProtect(ctx, due); err != nil {
			return err
		}
	}
	p := planGroups(groups, packs, k.s.opts.Parity)
	var bare int
	for _, group := range p.make {
		err := k.entered(func() error { return k.makeGroup(ctx, group) })
		var cut errCut
		if ctx.Err() != nil || errors.As(err, &cut) {
			return err
		}
		if errors.Is(err, gearfacts.ErrStale) { // a pack was replaced meanwhile
			continue
		}
		if err != nil {
			rep.Failed++
			bare += len(group)
			k.s.metrics.failures.Inc()
			k.s.log.Error("parity of packs cannot be made; it is tried again", "packs", len(group), "err", err)
		}
		if err := k.rest(ctx); err != nil {
			return err
		}
	}
	k.s.metrics.unprotected.Set(float64(bare))
	return k.dropGroups(ctx, p.drop)
}

// makeGroup makes the parity of a group.
func (k *Keeper) makeGroup(ctx context.Context, packs []gearfacts.Object) error {
	began := time.Now()
	err := k.s.guard.Protect(ctx, packs, func(g gearfacts.Group) error {
		if err := k.did("parity"); err != nil {
			return err
		}
		if err := gearfacts.NewParity(k.s.cat.DB).Put(ctx, g); err != nil {
			return err
		}
		return k.did("parity recorded")
	})
	k.busy += time.Since(began)
	var damaged *parity.DamagedError
	if errors.As(err, &damaged) && ctx.Err() == nil {
		// The next pass leaves the pack out, or it is sound by then.
		if _, e := k.s.guard.Scrub(ctx, damaged.Pack, nil); e != nil {
			return errors.Join(err, e)
		}
		if e := k.s.guard.Repair(ctx, damaged.Pack); e != nil && !errors.Is(e, parity.ErrNoParity) {
			return errors.Join(err, e)
		}
	}
	return err
}

// dropGroups forgets groups and deletes parity files that no group has.
func (k *Keeper) dropGroups(ctx context.Context, groups []int64) error {
	return k.entered(func() error {
		for _, id := range groups {
			// If the store is declared to be redundant, even the last group goes.
			if _, err := gearfacts.NewParity(k.s.cat.DB).Drop(ctx, id, k.s.opts.Parity == 0); err != nil {
				return fmt.Errorf("forget group %d: %w", id, err)
			}
		}
		if err := k.did("parity forgotten"); err != nil {
			return err
		}
		return k.s.guard.Sweep(ctx)
	})
}

// plan says which groups are to be made, and which may be forgotten then.
type plan struct {
	make [][]gearfacts.Object
	drop []int64
}

// planGroups puts packs, the largest first, into groups. It keeps full groups that are
// still needed. Packs of about the same size go together, because a parity file is as long
// as the largest pack of its group. Few packs that are left join a full group, which is
// made again: parity of their own would take as much as the largest of them.
func planGroups(groups []gearfacts.ParityGroup, packs []gearfacts.Object, files int) plan {
	needed := map[gearfacts.Name]bool{}
	for _, p := range packs {
		needed[p.Digest] = true
	}
	var p plan
	covered := map[gearfacts.Name]bool{}
	partial := map[string]int64{} // the ID of a partial group, by the packs in it
	var full []*gearfacts.ParityGroup
	for i := range groups {
		g := &groups[i]
		sound := !g.Broken && len(g.Files) == files && !slices.Contains(g.InUse, false)
		switch {
		case sound && len(g.Packs) >= parity.GroupPacks && slices.ContainsFunc(g.Packs, func(o gearfacts.Object) bool { return needed[o.Digest] }):
			for _, o := range g.Packs {
				covered[o.Digest] = true
			}
			// One with a damaged pack cannot be made again. Such packs do not count as needed.
			if !slices.ContainsFunc(g.Packs, func(o gearfacts.Object) bool { return !needed[o.Digest] }) {
				full = append(full, g)
			}
		case sound && partial[keyOf(g.Packs)] == 0:
			partial[keyOf(g.Packs)] = g.ID
		default:
			p.drop = append(p.drop, g.ID)
		}
	}
	packs = slices.DeleteFunc(slices.Clone(packs), func(o gearfacts.Object) bool { return covered[o.Digest] })
	parts := slices.Collect(slices.Chunk(packs, parity.GroupPacks))
	if n := len(parts); n > 0 && len(parts[n-1]) <= mostJoin {
		rest := parts[n-1]
		if n > 1 {
			parts[n-2] = slices.Concat(parts[n-2], rest)
			parts = parts[:n-1]
		} else if g := roomy(full, len(rest)); g != nil {
			parts[0] = slices.Concat(g.Packs, rest)
			p.drop = append(p.drop, g.ID)
		}
	}
	for _, part := range parts {
		if partial[keyOf(part)] != 0 {
			delete(partial, keyOf(part))
			continue
		}
		p.make = append(p.make, part)
	}
	for _, id := range partial {
		p.drop = append(p.drop, id)
	}
	return p
}

// mostJoin is how many packs join a full group instead of forming their own. So a group
// has at most parity.GroupPacks + mostJoin packs.
const mostJoin = 4

// roomy returns the group to which n packs can be added, and of which the parity is the
// longest, as it then becomes hardly longer. It returns nil if all are too large.
func roomy(groups []*gearfacts.ParityGroup, n int) (best *gearfacts.ParityGroup) {
	for _, g := range groups {
		if len(g.Packs)+n <= parity.GroupPacks+mostJoin && (best == nil || largest(g.Packs) > largest(best.Packs)) {
			best = g
		}
	}
	return best
}

// largest returns the size of the largest pack.
func largest(packs []gearfacts.Object) (n int64) {
	for _, p := range packs {
		n = max(n, p.Size)
	}
	return n
}

// keyOf identifies a list of packs.
func keyOf(packs []gearfacts.Object) string {
	var b []byte
	for _, p := range packs {
		b = append(b, p.Digest[:]...)
	}
	return string(b)
}
