package block

import "example.org/slipway/oci"

// File systems of volumes.
const (
	// Ext4 is a chain of clones, one for each layer.
	Ext4 = "ext4"
	// EROFS is one volume for the whole image, compact and read-only.
	EROFS = "erofs"
)

// Record says where an image is as volumes, in one file system and one place. Its
// JSON is what the registry serves and what the referrer of the image holds
// (docs/formats/volume.md).
type Record struct {
	// Version of the format: 1.
	Version int `json:"version"`
	// Manifest is the digest of the image's manifest.
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	Place    Place      `json:"place"`
	// Layers from the bottom up; with EROFS only the last one has a volume.
	Layers []RecordLayer `json:"layers"`
	// Features of the volumes that a node must know; a node that does not know one
	// must not use the record.
	Features []string `json:"features,omitempty"`
}

// RecordLayer is a layer and the volume that holds the tree up to it.
type RecordLayer struct {
	Digest oci.Digest `json:"digest"`
	// Volume is empty where there is none.
	Volume string `json:"volume,omitempty"`
	// Size in bytes of the device, and Used of what it stores over the one below.
	Size int64 `json:"size,omitempty"`
	Used int64 `json:"used,omitempty"`
}

// Volume is the name of the volume with the image's whole tree.
func (r *Record) Volume() string {
	if len(r.Layers) == 0 {
		return ""
	}
	return r.Layers[len(r.Layers)-1].Volume
}
