package images

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

// sound loads the record of a chain. It rebuilds a damaged record from what else is known
// of the chain. If that is too little, it puts the record aside, and the layer then
// counts as never claimed. Errors: errNoRecord.
func (c *chains) sound(chain string) (*chainRecord, error) {
	rec, err := c.records.load(chain)
	if errors.Is(err, errDamaged) {
		return c.remake(chain, err)
	}
	return rec, err
}

// line is like sound, for a chain and all chains below it. It returns their records, the lowest
// first.
func (c *chains) line(chain string) ([]*chainRecord, error) {
	return lineOf(chain, c.sound)
}

// remake replaces a damaged record by one made from other sources, and returns it. damage says
// what is wrong with the damaged record.
func (c *chains) remake(chain string, damage error) (*chainRecord, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	if rec, err := c.records.load(chain); !errors.Is(err, errDamaged) {
		return rec, err // another claim was faster
	}
	rec, index, err := c.remembered(chain)
	if aside := c.records.putAside(chain); aside != nil {
		return nil, aside
	}
	if err == nil {
		err = c.records.create(rec, index)
	}
	if err != nil {
		c.log.Error("the record of a layer is damaged and was put aside; pull its image again", "chain", chain, "damage", damage, "err", err)
		return nil, fmt.Errorf("%s: its record was damaged and is put aside: %w", chain, errNoRecord)
	}
	c.log.Warn("the record of a layer was damaged and is made again", "chain", chain, "damage", damage)
	return rec, nil
}

// remembered returns the record of a chain as far as other sources know it. The file
// service knows the images that were mounted, and other records know the layers below
// their own. The layer's index is next to the record, or is fetched when it is needed.
func (c *chains) remembered(chain string) (rec *chainRecord, index []byte, err error) {
	all, err := c.records.all(func(string, error) {})
	if err != nil {
		return nil, nil, err
	}
	spec, known := c.files.Spec(chain)
	if i := slices.IndexFunc(all, func(r *chainRecord) bool { return r.Parent == chain && len(r.Layers) > 1 }); !known && i >= 0 {
		above := all[i]
		known = true
		spec = gearfs.ImageSpec{Chain: chain, Ref: above.Ref, Domain: above.Domain, Sources: above.Sources, Layers: above.Layers[:len(above.Layers)-1]}
	}
	n := len(spec.Layers)
	if !known || n == 0 {
		return nil, nil, errors.New("nothing else has it")
	}
	// A snapshot may need this layer, which cannot be known here. A layer that is kept
	// too long does no harm.
	rec = &chainRecord{Chain: chain, Digest: spec.Layers[n-1], Ref: spec.Ref, Domain: spec.Domain, Sources: spec.Sources, Layers: spec.Layers, Snapshot: true}
	if n > 1 {
		i := slices.IndexFunc(all, func(r *chainRecord) bool { return r.Domain == spec.Domain && slices.Equal(r.Layers, spec.Layers[:n-1]) })
		if i < 0 {
			return nil, nil, errors.New("the layer below it is not known")
		}
		rec.Parent = all[i].Chain
	}
	dir, err := c.records.path(chain)
	if err != nil {
		return nil, nil, err
	}
	if index, err = os.ReadFile(filepath.Join(dir, "index")); err == nil {
		_, err = gear.Decode(bytes.NewReader(index), nil)
	}
	if err != nil {
		return rec, nil, nil //nolint:nilerr // the index is fetched later
	}
	return rec, index, nil
}
