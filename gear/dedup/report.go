package dedup

import (
	"encoding/json"
	"io"
)

// Level is a way of sharing. Each one's number is its place in [Group.Rows].
type Level int

// The ways of sharing.
const (
	None Level = iota
	Layer
	File
	Chunk
	levels
)

// String returns the level's name, in lower case.
func (l Level) String() string {
	names := [levels]string{"none", "layer", "file", "chunk"}
	if l >= 0 && l < levels {
		return names[l]
	}
	return "unknown"
}

// MarshalText implements [encoding.TextMarshaler].
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// objects is what there is a number of.
func (l Level) objects() string {
	names := [levels]string{"images", "layers", "files", "chunks"}
	return names[l]
}

// Report is what an analysis found.
type Report struct {
	// Level of zstd by which files and chunks were compressed.
	Level int `json:"zstd_level"`
	// Images analysed, and those left out because of a problem.
	Images  int `json:"images"`
	LeftOut int `json:"left_out"`
	// Skipped are references to something else than an image for the platform.
	Skipped int `json:"skipped"`

	// All is the images together, pooled: what two series share counts once.
	// Categories is the same for each category, if there are any, sorted by
	// name, and Series for each series, sorted by category and name.
	All        Group   `json:"all"`
	Categories []Group `json:"categories,omitempty"`
	Series     []Group `json:"series"`

	// Paths are the files at all paths of all images by size, and Unique the
	// distinct contents among them.
	Paths  Sizes `json:"paths"`
	Unique Sizes `json:"unique"`

	// Redundancy of what the images of a series need, for those of which it is
	// known; the last one, "all", is all of them if there are several.
	Redundancy []Redundancy `json:"redundancy,omitempty"`
	// UsedImages of the set are known, and UsedUnknown paths in them were no
	// files of the image.
	UsedImages  int `json:"used_images,omitempty"`
	UsedUnknown int `json:"used_unknown,omitempty"`

	// Problems, sorted; each names the images left out for it.
	Problems []Problem `json:"problems,omitempty"`
}

// Group is some of the images: Gear's Table II for them.
type Group struct {
	Name     string      `json:"name"`
	Category string      `json:"category,omitempty"`
	Images   int         `json:"images"`
	Rows     [levels]Row `json:"rows"`
}

// Row is how much images take with one way of sharing.
type Row struct {
	Dedup Level `json:"dedup"`
	// Objects stored: images, layers, files or chunks.
	Objects int64 `json:"objects"`
	// StoredBytes are compressed, RawBytes are not.
	StoredBytes int64 `json:"stored_bytes"`
	RawBytes    int64 `json:"raw_bytes"`
	// SavedOfNone is the share of the stored bytes without sharing that this
	// saves; SavedOfLayer the share of those with shared layers, which is
	// Figure 7(a) for files. The latter is 0 for none and layer, and both are
	// negative where single compression costs more than sharing saves.
	SavedOfNone  float64 `json:"saved_of_none"`
	SavedOfLayer float64 `json:"saved_of_layer"`
}

// SizeClass is the files of a class.
type SizeClass struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Sizes are the files below 4 KiB, 64 KiB, 1 MiB, and all larger ones.
type Sizes [4]SizeClass

// sizeClasses are the names of Sizes.
func sizeClasses() [4]string {
	return [4]string{"<4 KiB", "4-64 KiB", "64 KiB-1 MiB", ">=1 MiB"}
}

func (s *Sizes) add(size int64) {
	class := 3
	for i, limit := range [3]int64{4 << 10, 64 << 10, 1 << 20} {
		if size < limit {
			class = i
			break
		}
	}
	s[class].Files++
	s[class].Bytes += size
}

func (s Sizes) total() (t SizeClass) {
	for _, c := range s {
		t.Files += c.Files
		t.Bytes += c.Bytes
	}
	return t
}

// Redundancy is how much of what images need is the same: Gear's Figure 2. All
// sizes are uncompressed.
type Redundancy struct {
	Name   string `json:"name"`
	Images int    `json:"images"`
	// HeldBytes are all files of the images, NeededBytes the distinct contents
	// that each image needs, one image after the other, and DistinctBytes the
	// distinct ones among these.
	HeldBytes     int64 `json:"held_bytes"`
	NeededBytes   int64 `json:"needed_bytes"`
	DistinctBytes int64 `json:"distinct_bytes"`
	// Redundant is 1 - DistinctBytes/NeededBytes. It grows with the number of
	// images.
	Redundant float64 `json:"redundant"`
}

// WriteJSON writes the report as one JSON value.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// groups returns all groups with what kind of group each is.
func (r *Report) groups(fn func(kind string, g Group)) {
	fn("all", r.All)
	for _, g := range r.Categories {
		fn("category", g)
	}
	for _, g := range r.Series {
		fn("series", g)
	}
}
