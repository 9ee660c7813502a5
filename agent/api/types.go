// Package api is what an agent does for callers on its machine: the requests and answers, the
// handler that serves them on the agent's socket, and the caller.
package api

import (
	"encoding/json"
	"time"

	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/node"
)

// Status is the state of an agent.
type Status struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Root    string    `json:"root"`
	// Tier is how images are mounted. Reasons says what became of each tier that was
	// tried.
	Tier    string   `json:"tier"`
	Reasons []string `json:"reasons"`
	// Snapshotter is the socket for containerd.
	Snapshotter string        `json:"snapshotter"`
	Mounts      []MountStatus `json:"mounts"`
	Pool        poolfs.Stats  `json:"pool"`
	// Volumes is nil if none are configured.
	Volumes *VolumesStatus `json:"volumes,omitempty"`
	gearfs.Status
}

// MountStatus is an image mounted without containerd.
type MountStatus struct {
	Image string `json:"image"`
	Dir   string `json:"dir"`
	Upper string `json:"upper,omitempty"`
	Chain string `json:"chain"`
	// Way is gear or volume. Clone reports whether it is a clone of the volume.
	Way   string `json:"way,omitempty"`
	Clone bool   `json:"clone,omitempty"`
	// Mapped reports whether this is not a directory but an image that slipway volume map
	// keeps as a volume.
	Mapped bool `json:"mapped,omitempty"`
}

// ProfileAnswer is the known start-up profile of an image.
type ProfileAnswer struct {
	Image string         `json:"image"`
	Chain string         `json:"chain"`
	Files []ProfileEntry `json:"files"`
	Bytes int64          `json:"bytes"`
	// Donor is the manifest of the image from which files were inherited, if any were.
	Donor string `json:"donor,omitempty"`
}

// ProfileEntry is a file of a profile.
type ProfileEntry struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	// From says why the file is expected to be opened: own, series, closure or vote.
	From string `json:"from"`
}

// VerifyAnswer says what a check of the cache found.
type VerifyAnswer struct {
	Files   int `json:"files"`
	Damaged int `json:"damaged"`
}

// MountRequest is a request to mount an image at a directory without containerd.
type MountRequest struct {
	Image string `json:"image"`
	// Dir is where the tree is mounted. It must exist.
	Dir string `json:"dir"`
	// Upper is the directory for changes; if it is empty, the mount is read-only. The
	// kernel needs another directory next to it, whose name is Upper with ".work"
	// appended.
	Upper    string `json:"upper,omitempty"`
	Platform string `json:"platform,omitempty"`
	// Mode is gear, volume-local or volume-network. If it is empty or auto, the
	// configuration decides. With volume-network, changes go to a clone in the storage,
	// which umount deletes, and Upper must be empty.
	Mode string `json:"mode,omitempty"`
	// Suid makes the image's set-user-id programs and file capabilities effective on this
	// machine. Dev makes its devices effective.
	Suid bool `json:"suid,omitempty"`
	Dev  bool `json:"dev,omitempty"`
}

// These are modes of a mount without containerd.
const (
	ModeAuto    = "auto"
	ModeGear    = "gear"
	ModeLocal   = "volume-local"
	ModeNetwork = "volume-network"
	ModePlain   = "plain"
)

// MountAnswer says what was mounted.
type MountAnswer struct {
	Image    string          `json:"image"`
	Manifest oci.Digest      `json:"manifest"`
	Chain    string          `json:"chain"`
	Config   json.RawMessage `json:"config"`
	// Why says what became of each way that was tried; the last one was used.
	Why []string `json:"why,omitempty"`
}

// MapRequest is a request to map and mount an image as a volume. It stays mapped until it
// is given back.
type MapRequest struct {
	Image    string `json:"image"`
	Platform string `json:"platform,omitempty"`
}

// MapAnswer says where the volume is.
type MapAnswer struct {
	Image  string       `json:"image"`
	Volume string       `json:"volume"`
	FS     string       `json:"fs"`
	Place  volref.Place `json:"place"`
	// File is the volume as a file or a device. Dir is where it is mounted read-only.
	File string `json:"file"`
	Dir  string `json:"dir"`
}

// VolumeUse is an image or a container's clone that is a volume.
type VolumeUse struct {
	node.VolumeStatus
	ReadBytes    int64  `json:"read_bytes"`
	WrittenBytes int64  `json:"written_bytes"`
	Errors       int64  `json:"errors"`
	LastError    string `json:"last_error,omitempty"`
}

// VolumesStatus is the state of an agent's volumes.
type VolumesStatus struct {
	Mode    string      `json:"mode"`
	Mapping []string    `json:"mapping"`
	Volumes []VolumeUse `json:"volumes"`
	// Problem says why the read counters of the volumes are not known.
	Problem string `json:"problem,omitempty"`
}

// Explanation says in sentences how an image is started.
type Explanation struct {
	Image string   `json:"image"`
	Chain string   `json:"chain"`
	Lines []string `json:"lines"`
	// Start is the last start, if there was one since the worker started. Chart draws it
	// as text, SVG as a picture.
	Start *starts.Start `json:"start,omitempty"`
	Chart []string      `json:"chart,omitempty"`
	SVG   string        `json:"svg,omitempty"`
}

// StopRequest is a request to end an agent.
type StopRequest struct {
	// Now ends the agent even if containers or mounts use its files.
	Now bool `json:"now,omitempty"`
}
