package block

import "example.org/slipway/gear"

// Plan is what must be written to a volume to change it from one tree to the next: from
// zeros to the tree of the first layer, or from a layer's tree to the next layer's.
// Extents of a plan do not overlap and consist of blocks of 4,096 bytes. Blocks that a
// plan does not name stay as they are in the volume below.
type Plan struct {
	// Size is the size in bytes of the device.
	Size int64
	// Meta is what the file system itself writes, by offset.
	Meta []Bytes
	// Files says where contents go. The rest of a file's last block is zeros.
	Files []Placed
	// Zeros are extents that must read as zeros and may not do so in the volume below.
	Zeros []Extent
}

// Bytes is a stretch of the device and its bytes, in whole blocks.
type Bytes struct {
	Off  int64
	Data []byte
}

// Extent is a stretch of the device.
type Extent struct {
	Off, Len int64
}

// Placed is a content and where it goes: its bytes fill the extents one after the other.
// A content may be at several places of the plan.
type Placed struct {
	File    gear.File
	Extents []Extent
}
