// Package volref holds what a registry, its clients and nodes exchange about an image as
// block volumes: the record that lists the volumes of its layers, the place that stores
// them, and the credential to read them. Package block handles the volumes themselves.
// docs/formats/volume.md specifies the JSON.
package volref

import (
	"time"

	"example.org/slipway/oci"
)

// File systems of volumes.
const (
	// Ext4 is a chain of clones, one for each layer.
	Ext4 = "ext4"
	// EROFS is one volume for the whole image, compact and read-only.
	EROFS = "erofs"
)

// Record says where the volumes of an image are, in one file system and one place. The
// registry serves it as JSON, and the referrer of the image holds it
// (docs/formats/volume.md).
type Record struct {
	// Version of the format: 1.
	Version int `json:"version"`
	// Manifest is the digest of the image's manifest.
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	Place    Place      `json:"place"`
	// Layers are the layers from the bottom up. With EROFS only the last one has a
	// volume.
	Layers []RecordLayer `json:"layers"`
	// Features are the features of the volumes. A node that does not know one of them
	// must not use the record.
	Features []string `json:"features,omitempty"`
}

// RecordLayer is a layer and the volume that holds the tree up to it.
type RecordLayer struct {
	Digest oci.Digest `json:"digest"`
	// Volume is the name of the volume. It is empty if there is none.
	Volume string `json:"volume,omitempty"`
	// Size is the size of the device, in bytes. Used is how many bytes the volume stores
	// in addition to the volume below it.
	Size int64 `json:"size,omitempty"`
	Used int64 `json:"used,omitempty"`
}

// Volume returns the name of the volume that holds the image's whole tree.
func (r *Record) Volume() string {
	if len(r.Layers) == 0 {
		return ""
	}
	return r.Layers[len(r.Layers)-1].Volume
}

// Place says where volumes are: what a node must be connected to in order to read them.
// Two stores of one Place have the same volumes.
type Place struct {
	// Driver is "rbd" or "file".
	Driver string `json:"driver"`
	// Cluster is the fsid of a Ceph cluster, or the random identity of a shared
	// directory.
	Cluster string `json:"cluster"`
	// Pool and Namespace say where in RBD the volumes are. They are empty for files.
	Pool      string `json:"pool,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Credential lets a node use volumes for a while. For a shared directory it is empty: the
// directory is mounted on the node, or it is not.
type Credential struct {
	// User is the user of cephx, without "client.", and Key is the user's key.
	User string `json:"user,omitempty"`
	Key  string `json:"key,omitempty"`
	// Monitors are the addresses of the cluster, as in mon_host.
	Monitors string `json:"monitors,omitempty"`
	// Clones is the namespace of the pool in which this credential may make
	// clones; empty if it may only read.
	Clones string `json:"clones,omitempty"`
	// Expires is when the credential ends. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
}
