package block

import (
	"log/slog"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// Layer is a layer of an image: its blob and its index.
type Layer struct {
	Digest oci.Digest
	Index  *gear.Index
}

// BuildOptions say what package volume/chain builds, and how.
type BuildOptions struct {
	// FS is Ext4 or EROFS; default Ext4.
	FS string
	// Progress, if set, is called with the progress of the build. Calls do not overlap.
	Progress func(Progress)
	// Log, if set, gets a line for each volume that is built.
	Log *slog.Logger
}

// Progress is the progress of a build.
type Progress struct {
	// Volume is the volume that is being written or waited for.
	Volume string
	// Written and Total count bytes of contents and of the file system itself.
	Written, Total int64
	// Waiting reports that another builder writes the volume.
	Waiting bool
}
