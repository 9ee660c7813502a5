package block

import "example.org/slipway/oci/volref"

// Mapping is a volume as a node uses it: as a file or a device.
type Mapping struct {
	// Name is the name of the file, a single path element.
	Name string `json:"name"`
	// Place and ID identify the volume.
	Place volref.Place `json:"place"`
	ID    string       `json:"id"`
	// Writable marks a clone that is being written. Otherwise the volume is committed.
	Writable bool `json:"writable,omitempty"`
	// Credential is the credential with which the volume is opened.
	Credential volref.Credential `json:"credential"`
}
