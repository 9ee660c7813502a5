// Package erofslayout lays a tree out as one EROFS image with the contents of its
// files, uncompressed: what package erofs writes, and then the contents, each
// once, in blocks of their own. It computes; it reads and writes nothing.
package erofslayout

import (
	"bytes"
	"cmp"
	"slices"

	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/volume/block"
)

// stretch is the most bytes that one stretch of a plan has.
const stretch = 1 << 20

// Plan returns what brings a volume of zeros to the image of a tree. id is the
// UUID of the file system. The same tree and id give the same plan. The image is
// as long as the device; a node mounts it, as it is, by way of a block device or
// as a file. Errors: *[erofs.Error] for what an image cannot hold.
func Plan(t *geartree.Tree, id [16]byte) (*block.Plan, error) {
	var head bytes.Buffer
	room, err := erofs.WriteWithRoom(&head, t.Nodes, t.FileOf, &erofs.Options{UUID: id})
	if err != nil {
		return nil, err
	}
	p := &block.Plan{Size: room.Size}
	for off, b := int64(0), head.Bytes(); len(b) > 0; {
		n := min(len(b), stretch)
		p.Meta = append(p.Meta, block.Bytes{Off: off, Data: b[:n:n]})
		off, b = off+int64(n), b[n:]
	}
	for i, off := range room.Offsets {
		if off > 0 {
			f := t.Files[i]
			p.Files = append(p.Files, block.Placed{File: f, Extents: []block.Extent{{Off: off, Len: (f.Size + 4095) &^ 4095}}})
		}
	}
	slices.SortFunc(p.Files, func(a, b block.Placed) int { return cmp.Compare(a.Extents[0].Off, b.Extents[0].Off) })
	return p, nil
}
