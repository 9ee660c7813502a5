package rootfs

import (
	"cmp"
	"fmt"
)

// Options bounds what one layer may cost. The zero value means the defaults, and so does
// a field that is zero or less. The tags are the names of the fields in the configuration
// of a registry and in [LimitError]. Some bounds are fixed: what archive/tar limits (a
// PAX header, a GNU long name and the map of a sparse file have at most 1 MiB), and what
// [CleanPath] limits.
type Options struct {
	// MaxEntries is the maximum number of members of a layer, including ignored ones.
	// Default 1,000,000.
	MaxEntries int64 `limit:"max_entries"`
	// MaxBytes bounds the uncompressed stream. It also bounds, separately, the sum of the
	// sizes of the files, including the holes of sparse files. Default 256 GiB, more than
	// any layer of model weights in use.
	MaxBytes int64 `limit:"max_layer_bytes"`
	// MaxFileSize bounds one file, including holes. Default 256 GiB.
	MaxFileSize int64 `limit:"max_file_bytes"`
	// MaxRatio is the maximum number of uncompressed bytes (counted as for MaxBytes) for
	// each compressed byte, once the layer exceeds RatioFree. It is compared with the
	// compressed bytes read so far, and not with the remaining ones.
	//
	// Default 200. Text and logs stay below 50, so only runs of one byte are refused.
	// Deflate cannot do better than 1032:1, so a bound near that would only ever catch
	// zstd and sparse files.
	MaxRatio int64 `limit:"max_ratio"`
	// RatioFree is the number of uncompressed bytes to which MaxRatio does not apply,
	// because images do contain files of zeros (lastlog, disk images, swap files).
	// Default 16 GiB, half a minute of work.
	RatioFree int64 `limit:"ratio_free"`
	// MaxMetadataBytes bounds what a consumer that keeps all entries has to hold: the
	// paths, link targets and extended attributes of the whole layer. Default 128 MiB,
	// which is 134 bytes for each of 1,000,000 entries.
	MaxMetadataBytes int64 `limit:"max_metadata_bytes"`
	// MaxXattrs is the maximum number of extended attributes of an entry. Default 256.
	MaxXattrs int64 `limit:"max_xattrs"`
	// MaxXattrBytes bounds the total size of the names and values of an entry's extended
	// attributes. Default 128 KiB; Linux allows 64 KiB for each value.
	MaxXattrBytes int64 `limit:"max_xattr_bytes"`
	// MaxWindow is the size in bytes of the largest zstd window, at most 2 GiB. Decoding
	// holds that much memory. Default 128 MiB, which zstd needs for --ultra -22 and
	// --long; --long=31 needs 2 GiB. Without --ultra and --long zstd needs at most 8 MiB.
	MaxWindow int64 `limit:"max_window"`
}

// withDefaults returns a copy of o, which may be nil, with every field set.
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

// Defaults returns the bounds that apply if none are set.
func Defaults() Options { return (*Options)(nil).withDefaults() }

// checkBytes returns an error unless n uncompressed bytes, including holes, are allowed
// for that many compressed ones.
func (o *Options) checkBytes(n, compressed int64) error {
	if n > o.MaxBytes {
		return &LimitError{Limit: "max_layer_bytes", Max: o.MaxBytes}
	}
	// The code divides, because a product could overflow.
	if n > o.RatioFree && (n-o.RatioFree)/o.MaxRatio > compressed {
		return &LimitError{Limit: "max_ratio", Max: o.MaxRatio}
	}
	return nil
}

// LimitError says that a layer exceeds one of the [Options]. The layer may be sound.
// Trying again without changing the option is useless.
type LimitError struct {
	Limit string // the tag of the field of Options, such as "max_entries"
	Max   int64  // its value
	Entry string // path of the entry, or of the entry before it; may be empty
}

// Error names the limit, the entry and the remedy.
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

// FormatError says that a layer is damaged, or contains something that no layer may
// contain. Trying again with the same bytes is useless.
type FormatError struct {
	Entry  string // path of the entry, or of the entry before it; may be empty
	Offset int64  // bytes of the uncompressed stream read before the error
	Err    error
}

// Error names the position and the reason.
func (e *FormatError) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("layer at uncompressed byte %d: %v", e.Offset, e.Err)
	}
	return fmt.Sprintf("layer at uncompressed byte %d, entry %q: %v", e.Offset, e.Entry, e.Err)
}

// Unwrap returns the reason, such as [io.ErrUnexpectedEOF].
func (e *FormatError) Unwrap() error { return e.Err }
