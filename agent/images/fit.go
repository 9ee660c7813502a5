package images

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/gear"
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

// tower is the tree of the chain on which the next layer is put. A pull requests one
// layer after the other.
type tower struct {
	chain string
	x     *gear.Index
	timer *time.Timer
}

// towerKeep is how long a tree is kept until the next layer is put on it.
const towerKeep = time.Minute

// put keeps a tree for as long as a pull waits for the next layer. The caller holds mu.
func (t *tower) put(chain string, x *gear.Index, forget func()) {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.chain, t.x, t.timer = chain, x, time.AfterFunc(towerKeep, forget)
}

// flat returns the tree of a chain.
func (c *chains) flat(chain string) (*gear.Index, error) {
	c.mu.Lock()
	if c.tower.chain == chain {
		defer c.mu.Unlock()
		return c.tower.x, nil
	}
	c.mu.Unlock()
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
	return flatten(layers...)
}

func flatten(layers ...*gear.Index) (*gear.Index, error) {
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, fmt.Errorf("the layers do not fit together: %w", err)
	}
	return x, nil
}

// mountable returns why a tree could not be mounted. files are the files that were not
// checked yet.
func (c *claims) mountable(ctx context.Context, tree *gear.Index, files []gear.File, domain string, sources []gearfs.SourceRef) error {
	if err := view.Fits(ctx, tree); err != nil {
		return err
	}
	return c.files.Check(gearfs.ImageSpec{Domain: domain, Sources: sources}, files, tree.Files)
}

// fits returns why the tree of a layer and the layers below it could not be mounted. It
// is called before the layer is claimed, while the layer can still be unpacked.
func (c *claims) fits(ctx context.Context, l snapshotter.Layer, x *gear.Index, domain string, sources []gearfs.SourceRef) error {
	layers := []*gear.Index{x}
	if l.Parent != "" {
		below, err := c.flat(l.Parent)
		if err != nil {
			return err
		}
		layers = []*gear.Index{below, x}
	}
	tree, err := flatten(layers...)
	if err != nil {
		return err
	}
	if err := c.mountable(ctx, tree, x.Files, domain, sources); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tower.put(l.ChainID, tree, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.tower.x == tree {
			c.tower = tower{}
		}
	})
	return nil
}
