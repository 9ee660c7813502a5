package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
)

// Status describes a Manager.
type Status struct {
	// Mapping says of each way to map RBD images, in order, whether it works. The last
	// one is in use.
	Mapping []string `json:"mapping"`
	// Volumes are sorted by name.
	Volumes []VolumeStatus `json:"volumes"`
}

// VolumeStatus describes an image or a container's copy.
type VolumeStatus struct {
	// Name is the name under which the volume is mapped.
	Name string `json:"name"`
	// Container is the key of the copy's container. It is "" for a shared image.
	Container string       `json:"container,omitempty"`
	Manifest  oci.Digest   `json:"manifest"`
	FS        string       `json:"fs"`
	Place     volref.Place `json:"place"`
	// Volume is the image's volume, and Clone its clone if there is one.
	Volume string `json:"volume"`
	Clone  string `json:"clone,omitempty"`
	// State is "mounted"; "unmounted" until the next use; "leaving" while it is being
	// removed; "busy" during an operation.
	State string `json:"state"`
	// Doing is the operation if State is "busy".
	Doing string `json:"doing,omitempty"`
	// Dir is where it is mounted, File the mapping.
	Dir  string `json:"dir,omitempty"`
	File string `json:"file,omitempty"`
	// Expires is when the credential expires. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
	// Error is the latest error. It is "" after a success.
	Error string `json:"error,omitempty"`
}

// Status returns the state without asking the storage.
func (m *Manager) Status(ctx context.Context) (Status, error) {
	m.mu.Lock()
	s := Status{Mapping: slices.Clone(m.reasons)}
	for _, e := range m.entries {
		if e.rec != nil {
			s.Volumes = append(s.Volumes, e.status())
		}
	}
	m.mu.Unlock()
	for i := range s.Volumes {
		v := &s.Volumes[i]
		if v.State != "mounted" {
			continue
		}
		if _, ok := m.mounted(v.Name); !ok {
			v.State = "unmounted"
		}
	}
	slices.SortFunc(s.Volumes, func(a, b VolumeStatus) int { return cmp.Compare(a.Name, b.Name) })
	return s, ctx.Err()
}

// status describes an entry. Manager.mu is held.
func (e *entry) status() VolumeStatus {
	r := e.rec
	v := VolumeStatus{Name: e.name, Container: r.Key, Manifest: r.Image.Manifest, FS: r.Image.FS, Place: r.Image.Place,
		Volume: r.Volume, Clone: r.Clone, Expires: r.Expires}
	if r.Mount != nil && e.ready {
		v.Dir, v.File = r.Mount.Dir, r.Mount.File
	}
	if e.err != nil {
		v.Error = e.err.Error()
	}
	switch {
	case e.flight != nil:
		v.State, v.Doing = "busy", e.flight.kind
	case r.Phase != made:
		v.State = "leaving"
	case e.ready:
		v.State = "mounted"
	default:
		v.State = "unmounted"
	}
	return v
}
