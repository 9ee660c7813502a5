// Package block keeps images as volumes: block devices in storage that all nodes share. A
// node reads only the blocks that its containers touch (Cider, HPCC 2017;
// docs/volumes.md).
//
// A Store holds the volumes of one place: RBD images of a Ceph pool (volume/rbd) or files
// of a shared directory (volume/file). A volume is written once, committed, and never
// changed after that. A clone of a committed volume has its blocks and stores only what
// is written to the clone. An image is a chain of clones, one for each layer, so that
// images share the blocks of common layers. Package volume/chain builds the missing
// volumes of a chain.
//
// The bytes of a volume follow from the trees of the layers and from nothing else. Two
// builders that know the same layers write the same bytes under the same names.
package block

import (
	"context"
	"errors"
	"io"

	"example.org/slipway/oci/volref"
)

// BlockSize is the unit of volumes' sizes and of plans, in bytes.
const BlockSize = 4096

// These are the errors of a Store, wrapped with what they are about. Any other error
// comes from the storage, and may pass.
var (
	// ErrNotFound says that the volume does not exist.
	ErrNotFound = errors.New("no such volume")
	// ErrExists says that a volume of that name exists.
	ErrExists = errors.New("volume exists")
	// ErrNotCommitted says that a volume is still being written: it cannot be read
	// or cloned.
	ErrNotCommitted = errors.New("volume is not complete")
	// ErrCommitted says that a volume is complete: it cannot be written.
	ErrCommitted = errors.New("volume is complete and does not change")
	// ErrInUse says that a volume has clones, readers or a writer somewhere.
	ErrInUse = errors.New("volume is in use")
	// ErrFull says that the storage has no room.
	ErrFull = errors.New("storage of volumes is full")
	// ErrAway says that the storage does not answer. It may pass.
	ErrAway = errors.New("storage of volumes does not answer")
	// ErrDenied says that the storage refuses these credentials.
	ErrDenied = errors.New("storage of volumes refuses the credentials")
)

// Info describes a volume.
type Info struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"`
	// Size is the size of the device in bytes.
	Size int64 `json:"size"`
	// Used is about how many bytes the volume itself stores, without its parents; -1 if
	// the storage cannot say.
	Used      int64 `json:"used"`
	Committed bool  `json:"committed"`
}

// Store holds the volumes of one Place. Its methods may run concurrently, and several
// processes may use one place. A name is 1 to 100 of a-z, 0-9, '-', '.' and '_', and
// begins with a letter. No method hangs if the storage does not answer: after the bound
// with which the store was opened it returns ErrAway.
type Store interface {
	Place() volref.Place

	// Create makes a volume for writing: zeros, or a clone of a committed parent. size is
	// in bytes, a multiple of 4,096 and no less than the parent's. Errors: ErrExists,
	// even if somebody else is still writing that volume; ErrNotFound and ErrNotCommitted
	// for the parent; ErrFull.
	Create(ctx context.Context, id, parent string, size int64) (Volume, error)

	// Open opens a committed volume for reading. The volume cannot be removed before it
	// is closed. After the death of its process or machine, it cannot be removed before
	// its lease ends. Errors: ErrNotFound, ErrNotCommitted.
	Open(ctx context.Context, id string) (Volume, error)

	// OpenWriter reopens a volume that is not committed. A volume has one writer at a
	// time: ErrInUse. Errors: ErrNotFound, ErrCommitted.
	OpenWriter(ctx context.Context, id string) (Volume, error)

	// Commit ends the writing of a volume, which nobody may have open. Afterwards
	// everything written is durable, and the volume can be read and cloned, and never
	// changes. Committing a committed volume succeeds. Errors: ErrNotFound, ErrInUse.
	Commit(ctx context.Context, id string) error

	// Remove deletes a volume, committed or not, and the storage that only it uses. It
	// succeeds if the volume does not exist. Errors: ErrInUse.
	Remove(ctx context.Context, id string) error

	// Stat describes a volume. List describes all volumes whose names begin with prefix,
	// by name. Errors of Stat: ErrNotFound.
	Stat(ctx context.Context, id string) (Info, error)
	List(ctx context.Context, prefix string) ([]Info, error)

	// Close closes the store, and first everything open in it.
	Close() error
}

// Volume is an open volume. Reads and writes may run concurrently, with any offset and
// length. Reads beyond the end return io.EOF as io.ReaderAt does, and writes there fail.
// Writing to a volume that was opened for reading fails.
type Volume interface {
	io.ReaderAt
	io.WriterAt
	// Size returns the size in bytes.
	Size() int64
	// Zero makes n bytes from off on read as zeros, and frees storage where it can.
	Zero(off, n int64) error
	// Flush makes everything written durable.
	Flush() error
	// Close releases the volume. It does not flush.
	Close() error
}
