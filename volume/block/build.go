package block

import (
	"log/slog"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// Layer of an image: its blob and its index.
type Layer struct {
	Digest oci.Digest
	Index  *gear.Index
}

// BuildOptions say what package volume/chain builds, and adjust how.
type BuildOptions struct {
	// FS is Ext4 or EROFS; default Ext4.
	FS string
	// Progress, when set, is told how far the build is.
	// Calls do not overlap.
	Progress func(Progress)
	// Log, when set, gets a line for each volume that is made.
	Log *slog.Logger
}

// Progress is how far a build is.
type Progress struct {
	// Volume that is being written, or waited for.
	Volume string
	// Written and Total are bytes of contents and of the file system's own.
	Written, Total int64
	// Waiting: another builder writes the volume.
	Waiting bool
}
