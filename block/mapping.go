package block

import "time"

// Credential lets a node use volumes for a while. That of a shared directory is
// empty: the directory is mounted on the node, or it is not.
type Credential struct {
	// User without "client." and Key of cephx.
	User string `json:"user,omitempty"`
	Key  string `json:"key,omitempty"`
	// Monitors are the addresses of the cluster, as in mon_host.
	Monitors string `json:"monitors,omitempty"`
	// Clones is the namespace of the pool in which this credential may make
	// clones; empty if it may only read.
	Clones string `json:"clones,omitempty"`
	// Expires is when it ends; zero: never.
	Expires time.Time `json:"expires,omitzero"`
}

// Mapping is a volume as a node uses it: as a file or a device.
type Mapping struct {
	// Name of the file; one path element.
	Name string `json:"name"`
	// Place and ID of the volume.
	Place Place  `json:"place"`
	ID    string `json:"id"`
	// Writable is a clone that is being written; otherwise the volume is committed.
	Writable bool `json:"writable,omitempty"`
	// Credential that it is opened with.
	Credential Credential `json:"credential"`
}
