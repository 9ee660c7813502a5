package block

import "example.org/slipway/gear"

// Plan is what has to be written to a volume to bring it from one tree to the
// next: from zeros to the tree of the first layer, from that of one layer to that
// of the next. Extents of a plan do not overlap and are in blocks of 4,096 bytes;
// what it does not name stays as it is below.
type Plan struct {
	// Size in bytes of the device.
	Size int64
	// Meta is what the file system itself writes, by offset.
	Meta []Bytes
	// Files is where contents go. The rest of a file's last block is zeros.
	Files []Placed
	// Zeros are extents that must read as zeros and may not do so below.
	Zeros []Extent
}

// Bytes is a stretch of the device and what is in it, whole blocks.
type Bytes struct {
	Off  int64
	Data []byte
}

// Extent is a stretch of the device.
type Extent struct {
	Off, Len int64
}

// Placed is a content and where it goes: its bytes fill the extents one after the
// other. One content may be at several places of the plan.
type Placed struct {
	File    gear.File
	Extents []Extent
}
