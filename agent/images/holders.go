package images

import (
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/view"
)

// holders knows what holds files of the cache while no process uses them. The pool keeps
// files for the next open, and overlays remember where they found files. An evicted file
// takes space until both release it.
type holders struct {
	pool   *poolfs.Server
	chains *chains
}

var _ cachedir.Holders = (*holders)(nil)

// Release implements cachedir.Holders.
func (h *holders) Release(name gear.Name) { h.pool.Evict(name) }

// Forget implements cachedir.Holders.
func (h *holders) Forget(names []gear.Name) {
	c := h.chains
	all, err := view.Mounts("/")
	if err != nil {
		c.log.Warn("files that were evicted may take space for longer", "err", err)
		return
	}
	without := c.treesWithout(names)
	for _, m := range all {
		if m.Type != "overlay" {
			continue
		}
		l := m.Layers()
		if !slices.ContainsFunc(l.Data, c.cache.Owns) || len(l.Lower) > 0 && without[l.Lower[len(l.Lower)-1]] {
			continue
		}
		if err := view.Forget(m.Dir); err != nil {
			c.log.Warn("files that were evicted take space until their mount goes", "dir", m.Dir, "err", err)
		}
	}
}

// treesWithout returns the mounted trees that are known to have none of the files.
func (c *chains) treesWithout(names []gear.Name) map[string]bool {
	out := map[string]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for chain, t := range c.mounted {
		dir := t.layers.Lower[len(t.layers.Lower)-1]
		without, other := out[dir] // chains may share a tree
		out[dir] = !c.files.Holds(chain, names) && (without || !other)
	}
	return out
}
