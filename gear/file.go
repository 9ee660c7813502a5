// Package gear turns layers into Gear form: an index, which is the layer's file
// tree with each file's content replaced by its name, and the contents, which
// are stored once under that name whatever layers hold them.
package gear

import "crypto/sha256"

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
