// Package block keeps images as volumes: block devices in storage that all
// nodes share, of which a node reads the blocks that its containers touch
// (Cider, CLUSTER 2020; docs/volumes.md).
//
// A Store has the volumes of one place: RBD images of a Ceph pool (volume/rbd) or
// files of a shared directory (volume/file). A volume is written once, committed,
// and never changed after that; a clone of a committed one has its blocks and
// stores only what is written to it. An image is a chain of clones, one for each
// layer, so that images share the blocks of the layers they share; package
// volume/chain makes what is missing of one.
//
// What is in a volume follows from the trees of the layers and from nothing
// else. Two builders that know the same layers write the same bytes under the
// same names.
package block

import (
	"context"
	"errors"
	"io"

	"example.org/slipway/oci/volref"
)

// BlockSize is the unit in bytes of volumes' sizes and of plans.
const BlockSize = 4096

// Errors of a Store, wrapped with what they are about. Any other error is of the
// storage, and may pass.
var (
	// ErrNotFound says that there is no such volume.
	ErrNotFound = errors.New("no such volume")
	// ErrExists says that there is a volume of that name.
	ErrExists = errors.New("volume exists")
	// ErrNotCommitted says that a volume is still being written: it cannot be read
	// or cloned.
	ErrNotCommitted = errors.New("volume is not complete")
	// ErrCommitted says that a volume is complete: it cannot be written.
	ErrCommitted = errors.New("volume is complete and does not change")
	// ErrInUse says that a volume has clones, or readers or a writer somewhere.
	ErrInUse = errors.New("volume is in use")
	// ErrFull says that the storage has no room.
	ErrFull = errors.New("storage of volumes is full")
	// ErrAway says that the storage does not answer. It may pass.
	ErrAway = errors.New("storage of volumes does not answer")
	// ErrDenied says that the storage refuses these credentials.
	ErrDenied = errors.New("storage of volumes refuses the credentials")
)

// Info says what is known of a volume.
type Info struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"`
	// Size in bytes of the device.
	Size int64 `json:"size"`
	// Used is about how many bytes it stores of its own, without its parents'; -1
	// if the storage cannot tell.
	Used      int64 `json:"used"`
	Committed bool  `json:"committed"`
}

// Store has the volumes of one Place. Its methods may run concurrently, and
// several processes may use one place. A name is 1 to 100 of a-z, 0-9, '-', '.'
// and '_', and begins with a letter. No method hangs on storage that is away:
// after the bound that the store was opened with it returns ErrAway.
type Store interface {
	Place() volref.Place

	// Create makes a volume to be written: one of zeros, or a clone of a
	// committed parent, of size bytes, a multiple of 4,096 and no less than the
	// parent's. Errors: ErrExists, also of one that somebody else is writing;
	// of the parent ErrNotFound and ErrNotCommitted; ErrFull.
	Create(ctx context.Context, id, parent string, size int64) (Volume, error)

	// Open opens a committed volume for reading. It cannot be removed before it is
	// closed, or before the time of its lease after its process or machine died.
	// Errors: ErrNotFound, ErrNotCommitted.
	Open(ctx context.Context, id string) (Volume, error)

	// OpenWriter opens again one that is not committed. It has one writer at a
	// time: ErrInUse. Errors: ErrNotFound, ErrCommitted.
	OpenWriter(ctx context.Context, id string) (Volume, error)

	// Commit ends the writing of a volume, which nobody has open: what was written
	// is durable, and from now on it can be read, cloned, and never changed. To
	// commit a committed one is success. Errors: ErrNotFound, ErrInUse.
	Commit(ctx context.Context, id string) error

	// Remove deletes a volume, committed or not, with the storage that only it
	// uses. Success if there is none. Errors: ErrInUse.
	Remove(ctx context.Context, id string) error

	// Stat tells about a volume, List about all that begin with prefix, by name.
	// Errors of Stat: ErrNotFound.
	Stat(ctx context.Context, id string) (Info, error)
	List(ctx context.Context, prefix string) ([]Info, error)

	// Close ends the use of the store. What is open is closed before.
	Close() error
}

// Volume is an open volume. Reads and writes may run concurrently; offsets and
// lengths may be any. Beyond the end reads return io.EOF as io.ReaderAt does, and
// writes fail. A volume that was opened for reading fails to be written.
type Volume interface {
	io.ReaderAt
	io.WriterAt
	// Size in bytes.
	Size() int64
	// Zero makes n bytes from off on read as zeros, and gives back what storage it
	// can.
	Zero(off, n int64) error
	// Flush makes durable what was written.
	Flush() error
	// Close gives the volume back. It does not flush.
	Close() error
}
