package server

import (
	"time"

	"example.org/slipway/oci/imagecopy"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/registry/backup"
)

// copyReport says what was copied from a source, in JSON.
type copyReport struct {
	Source     string `json:"source,omitempty"`
	References int64  `json:"references"`
	Failed     int64  `json:"failed"`
	Manifests  int64  `json:"manifests"`
	Blobs      int64  `json:"blobs"`
	Bytes      int64  `json:"bytes"`
	Mounted    int64  `json:"mounted"`
	Present    int64  `json:"present"`
	Foreign    int64  `json:"foreign"`
	Absent     int64  `json:"absent"`
	Damaged    int64  `json:"damaged"`
}

func copyReportOf(source string, c imagecopy.Progress) copyReport {
	return copyReport{source, c.References, c.Failed, c.Manifests, c.Blobs, c.Bytes, c.Mounted, c.Present, c.Foreign, c.Absent, c.Damaged}
}

// restoreReport has Copied if a backup was merged, and Restored otherwise.
type restoreReport struct {
	Merged   bool           `json:"merged"`
	Restored *backup.Report `json:"restored,omitempty"`
	Copied   *copyReport    `json:"copied,omitempty"`
}

// adoption says what was found in a Distribution storage, in JSON.
type adoption struct {
	Repositories int            `json:"repositories"`
	Manifests    int            `json:"manifests"`
	Tags         int            `json:"tags"`
	Blobs        int            `json:"blobs"`
	NewManifests int            `json:"new_manifests"`
	NewTags      int            `json:"new_tags"`
	NewBlobs     int            `json:"new_blobs"`
	Bytes        int64          `json:"bytes"`
	Counts       map[string]int `json:"counts,omitempty"` // of notes, by reason
	Notes        []adoptionNote `json:"notes,omitempty"`  // at most 1000
	Took         time.Duration  `json:"took"`
}

type adoptionNote struct {
	Reason string `json:"reason"`
	Repo   string `json:"repo"`
	Ref    string `json:"ref"`
	Detail string `json:"detail,omitempty"`
}

func adoptionOf(r *adopt.Report) adoption {
	a := adoption{r.Repositories, r.Manifests, r.Tags, r.Blobs, r.NewManifests, r.NewTags, r.NewBlobs, r.Bytes, r.Counts, nil, r.Took}
	for _, n := range r.Notes {
		a.Notes = append(a.Notes, adoptionNote{n.Reason, n.Repo, n.Ref, n.Detail})
	}
	return a
}
