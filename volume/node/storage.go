package node

import (
	"context"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// Storage is what a node does with volumes. The process that has them open is
// another one than that of the Manager: who serves a file system from user space
// must not mount what lies on it. Methods may run concurrently. Errors are those
// of block, wrapped; any other may pass. No method hangs for ever on storage
// that is away.
type Storage interface {
	// Map makes a volume a file or a block device of this machine and tells its
	// path, which stays the same as long as it is mapped. One that is mapped under
	// that name already keeps its path and takes the new credential. Errors:
	// ErrNotFound, ErrNotCommitted of one that is to be read, ErrCommitted of one
	// that is to be written, ErrInUse of one that is written elsewhere, ErrDenied,
	// ErrAway.
	Map(ctx context.Context, m block.Mapping) (file string, err error)

	// Unmap takes it away, after what was written to it is durable. Success if
	// there is none. Errors: ErrInUse while it is mounted or open.
	Unmap(ctx context.Context, name string) error

	// Mapped lists the names of all that is mapped.
	Mapped(ctx context.Context) ([]string, error)

	// Clone makes a volume to be written that is like a committed one, of the same
	// size. Errors: ErrExists; of the parent ErrNotFound and ErrNotCommitted;
	// ErrFull, ErrDenied, ErrAway.
	Clone(ctx context.Context, place volref.Place, c volref.Credential, id, parent string) error

	// Remove deletes a volume. Success if there is none. Errors: ErrInUse,
	// ErrDenied, ErrAway.
	Remove(ctx context.Context, place volref.Place, c volref.Credential, id string) error

	// Commit ends the writing of a volume that is not mapped. Success if it was
	// committed before. Errors: ErrNotFound, ErrInUse, ErrDenied, ErrAway.
	Commit(ctx context.Context, place volref.Place, c volref.Credential, id string) error

	// Exists tells whether there is a committed volume of that name: false for one
	// that is still to be written. Errors: ErrDenied, ErrAway.
	Exists(ctx context.Context, place volref.Place, c volref.Credential, id string) (bool, error)
}

// Refuser is a Storage that can tell when what is mapped is refused after it was
// mapped: a credential may be taken back before its time.
type Refuser interface {
	// Refused lists the names of mappings whose credential was refused when something
	// was last asked of their storage.
	Refused(ctx context.Context) ([]string, error)
}
