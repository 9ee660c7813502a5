package rootfs

import (
	"cmp"
	"fmt"
)

// Options bounds what one layer may cost. The zero value is the defaults; a
// field that is zero or less means its default. The tags are what the configuration of
// a registry calls the fields, and [LimitError] as well. Fixed are the bounds of
// archive/tar, 1 MiB for a PAX header, a GNU long name and the map of a sparse
// file, and those of [CleanPath].
type Options struct {
	// MaxEntries is how many members a layer may have, ignored ones included.
	// Default 1,000,000.
	MaxEntries int64 `limit:"max_entries"`
	// MaxBytes bounds the uncompressed stream and, on its own, the sum of the
	// sizes of the files with the holes of sparse ones written out.
	// Default 256 GiB, more than any layer of model weights in use.
	MaxBytes int64 `limit:"max_layer_bytes"`
	// MaxFileSize bounds one file, holes included. Default 256 GiB.
	MaxFileSize int64 `limit:"max_file_bytes"`
	// MaxRatio is how many uncompressed bytes (counted as for MaxBytes) one
	// compressed byte may stand for once the layer is past RatioFree. It is
	// compared with the compressed bytes read so far, not with those to come.
	//
	// Default 200. Text and logs stay below 50, so what is refused is runs of
	// one byte. Deflate cannot do better than 1032:1 and so a bound near that
	// would only ever catch zstd and sparse files.
	MaxRatio int64 `limit:"max_ratio"`
	// RatioFree is the number of uncompressed bytes for which MaxRatio does not
	// hold, because images do contain files of zeros (lastlog, disk images, swap
	// files). Default 16 GiB, half a minute of work.
	RatioFree int64 `limit:"ratio_free"`
	// MaxMetadataBytes bounds what a consumer that keeps all entries has to
	// hold: paths, link targets and extended attributes of the layer together.
	// Default 128 MiB, which is 134 bytes for each of 1,000,000 entries.
	MaxMetadataBytes int64 `limit:"max_metadata_bytes"`
	// MaxXattrs is how many extended attributes an entry may have. Default 256.
	MaxXattrs int64 `limit:"max_xattrs"`
	// MaxXattrBytes bounds the names and values of the extended attributes of
	// an entry together. Default 128 KiB; Linux allows 64 KiB a value.
	MaxXattrBytes int64 `limit:"max_xattr_bytes"`
	// MaxWindow is the largest zstd window in bytes, at most 2 GiB. So much
	// memory is held while decoding. Default 128 MiB, which is what zstd needs for
	// --ultra -22 and --long; --long=31 needs 2 GiB.
	// Without --ultra and --long zstd stays at or below 8 MiB.
	MaxWindow int64 `limit:"max_window"`
}

// withDefaults is a copy of o, which may be nil, with every field set.
func (o *Options) withDefaults() Options {
	var f Options
	if o != nil {
		f = *o
	}
	def := func(field *int64, value int64) { *field = cmp.Or(max(*field, 0), value) }
	def(&f.MaxEntries, 1_000_000)
	def(&f.MaxBytes, 256<<30)
	def(&f.MaxFileSize, 256<<30)
	def(&f.MaxRatio, 200)
	def(&f.RatioFree, 16<<30)
	def(&f.MaxMetadataBytes, 128<<20)
	def(&f.MaxXattrs, 256)
	def(&f.MaxXattrBytes, 128<<10)
	def(&f.MaxWindow, 128<<20)
	return f
}

// Defaults are the bounds that hold where none are set.
func Defaults() Options { return (*Options)(nil).withDefaults() }

// checkBytes reports whether n uncompressed bytes, holes included, are allowed for
// as many compressed ones.
func (o *Options) checkBytes(n, compressed int64) error {
	if n > o.MaxBytes {
		return &LimitError{Limit: "max_layer_bytes", Max: o.MaxBytes}
	}
	// A quotient, because the product could overflow.
	if n > o.RatioFree && (n-o.RatioFree)/o.MaxRatio > compressed {
		return &LimitError{Limit: "max_ratio", Max: o.MaxRatio}
	}
	return nil
}

// LimitError says that a layer is beyond one of the [Options]. The layer may be
// sound; trying again without changing the option is of no use.
type LimitError struct {
	Limit string // the tag of the field of Options, such as "max_entries"
	Max   int64  // its value
	Entry string // path of the entry, or of the last one before; may be empty
}

// Error names the limit, the entry and the way out.
func (e *LimitError) Error() string {
	var what, hint string
	switch e.Limit {
	case "max_entries":
		what, hint = "more than %d entries", "split the layer"
	case "max_layer_bytes":
		what, hint = "more than %d uncompressed bytes, holes of sparse files included", "split the layer"
	case "max_file_bytes":
		what, hint = "a file of more than %d bytes", "split the file"
	case "max_ratio":
		what, hint = "more than %d uncompressed bytes to a compressed one", "leave out files that are all zeros"
	case "max_metadata_bytes":
		what, hint = "more than %d bytes of paths, link targets and extended attributes", "split the layer"
	case "max_xattrs":
		what, hint = "more than %d extended attributes", "remove some"
	case "max_xattr_bytes":
		what, hint = "more than %d bytes of extended attributes", "remove some"
	case "max_window":
		what, hint = "a zstd window of more than %d bytes", "compress with --long=27 or less"
	}
	at := ""
	if e.Entry != "" {
		at = fmt.Sprintf(" at entry %q", e.Entry)
	}
	return fmt.Sprintf("layer has "+what+"%s: %s or raise gear.%s", e.Max, at, hint, e.Limit)
}

// FormatError says that a layer is damaged, or holds what no layer may. Trying
// again with the same bytes is of no use.
type FormatError struct {
	Entry  string // path of the entry, or of the last one before; may be empty
	Offset int64  // bytes of the uncompressed stream read before the place
	Err    error
}

// Error names the place and the reason.
func (e *FormatError) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("layer at uncompressed byte %d: %v", e.Offset, e.Err)
	}
	return fmt.Sprintf("layer at uncompressed byte %d, entry %q: %v", e.Offset, e.Entry, e.Err)
}

// Unwrap returns the reason, such as [io.ErrUnexpectedEOF].
func (e *FormatError) Unwrap() error { return e.Err }
