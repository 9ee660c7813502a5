package dedup

import (
	"encoding/json"
	"io"
)

// Level is a way of sharing. Its number is the index of its row in [Group.Rows].
type Level int

// These are the ways of sharing.
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

// objects returns the name of the objects that are counted at this level.
func (l Level) objects() string {
	names := [levels]string{"images", "layers", "files", "chunks"}
	return names[l]
}

// Report is what an analysis found.
type Report struct {
	// Level is the zstd level with which files and chunks were compressed.
	Level int `json:"zstd_level"`
	// Images is the number of images analysed, and LeftOut the number left out because of
	// a problem.
	Images  int `json:"images"`
	LeftOut int `json:"left_out"`
	// Skipped is the number of references to something other than an image for the
	// platform.
	Skipped int `json:"skipped"`

	// All pools all images: what two series share counts once. Categories has a group for
	// each category, if there are any, sorted by name. Series has a group for each
	// series, sorted by category and name.
	All        Group   `json:"all"`
	Categories []Group `json:"categories,omitempty"`
	Series     []Group `json:"series"`

	// Paths counts the files at all paths of all images by size. Unique counts the
	// distinct contents among them.
	Paths  Sizes `json:"paths"`
	Unique Sizes `json:"unique"`

	// Redundancy says how much of what the images of a series need is redundant. It has
	// an element for each series for which that is known. With several such series, the
	// last element, "all", is for all of them.
	Redundancy []Redundancy `json:"redundancy,omitempty"`
	// UsedImages is the number of images in the set whose needs are known. UsedUnknown is
	// the number of used paths that were not files of the image.
	UsedImages  int `json:"used_images,omitempty"`
	UsedUnknown int `json:"used_unknown,omitempty"`

	// Problems is sorted. Each problem names the images that were left out because of it.
	Problems []Problem `json:"problems,omitempty"`
}

// Group describes some of the images as Gear's Table II does.
type Group struct {
	Name     string      `json:"name"`
	Category string      `json:"category,omitempty"`
	Images   int         `json:"images"`
	Rows     [levels]Row `json:"rows"`
}

// Row is how much space images take with one way of sharing.
type Row struct {
	Dedup Level `json:"dedup"`
	// Objects is the number of stored images, layers, files or chunks.
	Objects int64 `json:"objects"`
	// StoredBytes is the compressed size, RawBytes the uncompressed size.
	StoredBytes int64 `json:"stored_bytes"`
	RawBytes    int64 `json:"raw_bytes"`
	// SavedOfNone is the share that this level saves of the bytes stored without sharing.
	// SavedOfLayer is the share that it saves of the bytes stored with shared layers; for
	// files this is Figure 7(a). SavedOfLayer is 0 for none and layer. Both are negative
	// if compressing each object singly costs more than sharing saves.
	SavedOfNone  float64 `json:"saved_of_none"`
	SavedOfLayer float64 `json:"saved_of_layer"`
}

// SizeClass counts the files of a class.
type SizeClass struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Sizes has the classes of files below 4 KiB, below 64 KiB, below 1 MiB, and of all
// larger files.
type Sizes [4]SizeClass

// sizeClasses returns the names of the classes of Sizes.
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

// Redundancy is how much of what images need is the same, as in Gear's Figure 2. All
// sizes are uncompressed.
type Redundancy struct {
	Name   string `json:"name"`
	Images int    `json:"images"`
	// HeldBytes is the size of all files of the images. NeededBytes is the size of the
	// distinct contents that each image needs, summed over the images. DistinctBytes
	// counts the contents that several images need once.
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

// groups calls fn for all groups with the kind of each group.
func (r *Report) groups(fn func(kind string, g Group)) {
	fn("all", r.All)
	for _, g := range r.Categories {
		fn("category", g)
	}
	for _, g := range r.Series {
		fn("series", g)
	}
}
