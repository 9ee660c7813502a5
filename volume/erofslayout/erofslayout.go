// Package erofslayout lays a tree out as one EROFS image with the contents of its files,
// uncompressed: the metadata that package erofs writes, and then each content once, in
// its own blocks. It only computes; it does not read or write anything.
package erofslayout

import (
	"bytes"
	"cmp"
	"slices"

	"example.org/slipway/node/erofs"
	"example.org/slipway/node/erofs/geartree"
	"example.org/slipway/volume/block"
)

// stretch is the largest number of bytes in one stretch of a plan.
const stretch = 1 << 20

// Plan returns what turns a volume of zeros into the image of a tree. id is the UUID of
// the file system. The same tree and id give the same plan. The image is as long as the
// device. A node mounts it unchanged, through a block device or as a file. Errors:
// *[erofs.Error] for what an image cannot hold.
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
