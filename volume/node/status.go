package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
)

// Status is what a Manager has.
type Status struct {
	// Mapping says of each way to map RBD images, in order, whether it works; the
	// last is the one that is used.
	Mapping []string `json:"mapping"`
	// Volumes are sorted by name.
	Volumes []VolumeStatus `json:"volumes"`
}

// VolumeStatus is an image or a container's copy.
type VolumeStatus struct {
	// Name it is mapped under.
	Name string `json:"name"`
	// Container is the key of the container whose copy it is; "" if it is shared.
	Container string       `json:"container,omitempty"`
	Manifest  oci.Digest   `json:"manifest"`
	FS        string       `json:"fs"`
	Place     volref.Place `json:"place"`
	// Volume of the image, and Clone of it if there is one.
	Volume string `json:"volume"`
	Clone  string `json:"clone,omitempty"`
	// State is "mounted"; "unmounted" until it is used the next time; "leaving" if
	// what is left of it goes as soon as that works; "busy" while something is done.
	State string `json:"state"`
	// Doing says what, if State is "busy".
	Doing string `json:"doing,omitempty"`
	// Dir is where it is mounted, and File what.
	Dir  string `json:"dir,omitempty"`
	File string `json:"file,omitempty"`
	// Expires is when the credential ends; zero: never.
	Expires time.Time `json:"expires,omitzero"`
	// Error is what went wrong the last time; "" if nothing did.
	Error string `json:"error,omitempty"`
}

// Status tells what there is, without asking the storage.
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

// status tells what an entry is. Manager.mu is held.
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
