package chain

import (
	"context"
	"errors"

	"example.org/slipway/gear"
	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/erofslayout"
	"example.org/slipway/volume/ext4"
)

// source says where a content is in a complete volume.
type source struct {
	id      string
	extents []block.Extent
}

// plan computes what is to be written in the steps from missing on. It also computes the
// steps below, because the changes of a layer depend on where the layers below put their
// contents.
func (b *build) plan(ctx context.Context, digests []oci.Digest, missing int) error {
	placed := map[gear.Name]source{}
	next := b.planner(digests)
	total := int64(0)
	for i := range b.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		st := &b.steps[i]
		p, err := next(st.layer)
		if err != nil {
			return unsupported(err)
		}
		st.plan, st.below = nil, map[gear.Name]source{}
		if i >= missing {
			st.plan = p
			total += sizeOf(p)
		}
		for k := range p.Files {
			f := &p.Files[k]
			from, ok := placed[f.File.Name]
			switch {
			case !ok:
				placed[f.File.Name] = source{st.id, f.Extents}
			case i >= missing && from.id != st.id:
				st.below[f.File.Name] = from
			}
		}
	}
	b.meter.begin(b.o.Progress, total)
	return nil
}

// planner returns a function that plans the volumes in order, each by its last layer.
func (b *build) planner(digests []oci.Digest) func(layer int) (*block.Plan, error) {
	if b.o.FS == volref.EROFS {
		return func(layer int) (*block.Plan, error) {
			t, err := b.tree(layer)
			if err != nil {
				return nil, err
			}
			return erofslayout.Plan(t, volref.VolumeUUID(volref.EROFS, digests))
		}
	}
	m := ext4.New(volref.VolumeUUID(volref.Ext4, digests[:1]))
	return func(layer int) (*block.Plan, error) {
		t, err := b.tree(layer)
		if err != nil {
			return nil, err
		}
		return m.Next(t)
	}
}

// tree returns the tree of the layers up to and including one.
func (b *build) tree(layer int) (*geartree.Tree, error) {
	indexes := make([]*gear.Index, layer+1)
	for i := range indexes {
		indexes[i] = b.layers[i].Index
	}
	x, err := gear.Flatten(indexes...)
	if err != nil {
		return nil, err
	}
	return geartree.Of(x)
}

// unsupported turns an error about a tree that can never be laid out into an
// UnsupportedError.
func unsupported(err error) error {
	var cannot *erofs.Error
	if errors.As(err, &cannot) || errors.Is(err, gear.ErrConflict) || errors.Is(err, gear.ErrTooLarge) {
		return &volref.UnsupportedError{Reason: err.Error()}
	}
	return err
}

// sizeOf returns how many bytes a plan writes.
func sizeOf(p *block.Plan) (n int64) {
	for i := range p.Meta {
		n += int64(len(p.Meta[i].Data))
	}
	for i := range p.Files {
		n += p.Files[i].File.Size
	}
	return n
}
