package block

import "example.org/slipway/oci/volref"

// Mapping is a volume as a node uses it: as a file or a device.
type Mapping struct {
	// Name of the file; one path element.
	Name string `json:"name"`
	// Place and ID of the volume.
	Place volref.Place `json:"place"`
	ID    string       `json:"id"`
	// Writable is a clone that is being written; otherwise the volume is committed.
	Writable bool `json:"writable,omitempty"`
	// Credential that it is opened with.
	Credential volref.Credential `json:"credential"`
}
