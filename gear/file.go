// Package gear turns layers into Gear form: an index, which is the layer's file
// tree with each file's content replaced by its name, and the contents, which
// are stored once under that name whatever layers hold them.
package gear

import (
	"context"
	"crypto/sha256"
	"io"
)

// Name is the SHA-256 of a content, and what a Gear file is called.
type Name = [sha256.Size]byte

const (
	// ChunkSize is the size in bytes of the chunks of a large file; the last
	// one may be shorter.
	ChunkSize = 1 << 20
	// LargeFile is the least size in bytes of a file that has a chunk table.
	LargeFile = 4 << 20
)

// File is a content.
type File struct {
	Name Name
	// Size in bytes.
	Size int64
	// Chunks are the SHA-256 of each ChunkSize bytes of a file of LargeFile
	// bytes or more; nil of a smaller one.
	Chunks []Name
}

// FileSource is where the contents of files come from: a file store, or a
// server asked for many files at once.
type FileSource interface {
	// Fetch calls deliver exactly once for each of files, i being its place
	// there, in any order but never two calls at a time. Content is good for
	// the length of the call only and need not have been verified. An error of
	// deliver ends the fetch and is in the chain of the error returned; nil
	// means every file was delivered. Fetch may run concurrently; ctx bounds
	// the whole of it. One Fetch should cost one round trip.
	Fetch(ctx context.Context, files []File, deliver func(i int, content io.Reader) error) error
}
