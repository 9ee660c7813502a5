// Package gear turns layers into Gear form: an index and the contents. The index is the
// layer's file tree in which each file's content is replaced by its name. The contents
// are stored under their names, each once, however many layers hold it.
package gear

import (
	"context"
	"crypto/sha256"
	"io"
)

// Name is the SHA-256 of a content. A Gear file is identified by it.
type Name = [sha256.Size]byte

const (
	// ChunkSize is the size in bytes of the chunks of a large file. The last chunk may be
	// shorter.
	ChunkSize = 1 << 20
	// LargeFile is the minimum size in bytes of a file that has a chunk table.
	LargeFile = 4 << 20
	// PackFiles is how many names at the beginning of a profile can be requested by naming
	// the profile. Such a request is one stream, so clients would store many small files
	// slower than those of several requests.
	PackFiles = 4096
)

// File is a content.
type File struct {
	Name Name
	// Size is the size in bytes.
	Size int64
	// Chunks has the SHA-256 of each ChunkSize bytes of a file of LargeFile bytes or
	// more. It is nil for a smaller file.
	Chunks []Name
}

// FileSource provides the contents of files, for example a file store, or a server that
// is asked for many files at once.
type FileSource interface {
	// Fetch calls deliver exactly once for each of files; i is the file's position in
	// files. The order of calls is arbitrary, but calls never overlap. content is valid
	// only during the call and need not have been verified. If deliver returns an error,
	// the fetch ends and returns an error that wraps it. nil means that every file was
	// delivered. Fetch may run concurrently. ctx bounds the whole fetch. One Fetch should
	// cost one round trip.
	Fetch(ctx context.Context, files []File, deliver func(i int, content io.Reader) error) error
}
