package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

// errOtherDomain says that a chain is known from registries of another trust domain.
var errOtherDomain = errors.New("it is known from a registry of another trust domain")

// keyIn returns the name of the record of a chain that is claimed for a domain. The name
// is the chain ID, unless another domain has that. What one domain says of a chain is not
// trusted for another domain.
func (c *claims) keyIn(chain, domain string) string {
	rec, err := c.sound(chain)
	if err != nil || rec.Domain == domain {
		return chain
	}
	return chain + "-" + gearfs.DomainID(domain)
}

// idOf returns the chain ID of a key that keyIn made.
func idOf(key string) string {
	id, _, _ := strings.Cut(key, "-")
	return id
}

// pile is the layers of a chain whose tree can be mounted.
type pile struct {
	layers []*gear.Index
	files  gearfs.FileSet // of layers
	// whole says that layers is the whole tree, because not each layer is sound by itself.
	whole bool
}

// with returns the pile with one more layer, or why its tree cannot be mounted.
//
// Laying out the whole tree for each layer would take as long as the rest of a pull.
// Nearly all layers are sound by themselves, and so is the tree of such layers if they
// agree about their files.
func (p *pile) with(ctx context.Context, x *gear.Index) (pile, error) {
	if !p.whole && alone(ctx, x) {
		if files, err := p.files.With(x.Files); err == nil {
			return pile{layers: append(slices.Clip(p.layers), x), files: files}, nil
		}
	}
	tree, err := flatten(append(slices.Clip(p.layers), x)...)
	if err != nil {
		return pile{}, err
	}
	if err := view.Fits(ctx, tree); err != nil {
		return pile{}, err
	}
	files, err := gearfs.FileSet{}.With(tree.Files)
	return pile{[]*gear.Index{tree}, files, true}, err
}

// alone reports whether an image could be made of a layer, and whether what lies below or
// above the layer cannot change that.
func alone(ctx context.Context, x *gear.Index) bool {
	// An image marks the directory of a device that looks like a whiteout. Another layer
	// may describe that directory.
	if slices.ContainsFunc(x.Entries, func(e gear.Entry) bool { return e.Type == rootfs.CharDevice }) {
		return false
	}
	tree, err := flatten(x) // fails if a hard link needs a layer below
	// Directories that no layer describes count, too. If they are few in each layer, they
	// are few in the tree.
	return err == nil && len(tree.Entries) <= 4*len(x.Entries) && view.Fits(ctx, tree) == nil
}

// tree returns the tree of the layers.
func (p *pile) tree() (*gear.Index, error) {
	if p.whole {
		return p.layers[0], nil
	}
	return flatten(p.layers...)
}

func flatten(layers ...*gear.Index) (*gear.Index, error) {
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, fmt.Errorf("the layers do not fit together: %w", err)
	}
	return x, nil
}

// tower is the pile on which the next layer is put. A pull requests one layer after the
// other.
type tower struct {
	pile
	chain string
	timer *time.Timer
}

// towerKeep is how long a pile is kept until the next layer is put on it.
const towerKeep = time.Minute

// keep keeps a pile for as long as a pull waits for the next layer.
func (c *chains) keep(chain string, p pile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tower.timer != nil {
		c.tower.timer.Stop()
	}
	c.tower = tower{p, chain, time.AfterFunc(towerKeep, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.tower.chain == chain {
			c.tower = tower{}
		}
	})}
}

// kept returns the pile of a chain if it is the tower.
func (c *chains) kept(chain string) (pile, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tower.chain != chain {
		return pile{}, false
	}
	return c.tower.pile, true
}

// layers reads the indexes of the layers of a chain, the lowest first.
func (c *chains) layers(chain string) ([]*gear.Index, error) {
	line, err := c.line(chain)
	if err != nil {
		return nil, err
	}
	var layers []*gear.Index
	for _, r := range line {
		x, err := c.records.index(r)
		if err != nil {
			return nil, err
		}
		layers = append(layers, x)
	}
	return layers, nil
}

// flat returns the tree of a chain.
func (c *chains) flat(chain string) (*gear.Index, error) {
	if p, ok := c.kept(chain); ok {
		return p.tree()
	}
	layers, err := c.layers(chain)
	if err != nil {
		return nil, err
	}
	return flatten(layers...)
}

// pileOf returns the pile of a chain. The chain "" has no layers. The error says why the
// tree cannot be mounted.
func (c *chains) pileOf(ctx context.Context, chain string) (pile, error) {
	if p, ok := c.kept(chain); ok || chain == "" {
		return p, nil
	}
	layers, err := c.layers(chain)
	if err != nil {
		return pile{}, err
	}
	var p pile
	for _, x := range layers {
		if p, err = p.with(ctx, x); err != nil {
			return pile{}, err
		}
	}
	return p, nil
}

// fits returns why the tree of a layer and the layers below it could not be mounted. It
// is called before the layer is claimed, while the layer can still be unpacked.
func (c *claims) fits(ctx context.Context, l snapshotter.Layer, x *gear.Index, domain string, sources []gearfs.SourceRef) error {
	p, err := c.pileOf(ctx, l.Parent)
	if err != nil {
		return err
	}
	if p, err = p.with(ctx, x); err != nil {
		return err
	}
	if err := c.files.Check(gearfs.ImageSpec{Domain: domain, Sources: sources}, x.Files); err != nil {
		return err
	}
	c.keep(l.ChainID, p)
	return nil
}
