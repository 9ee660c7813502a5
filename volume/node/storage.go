package node

import (
	"context"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// Storage is what a node does with volumes. It is implemented in another process than the
// Manager's, which has the volumes open, because a process that serves a file system from
// user space must not mount what lies on it. Methods may run concurrently. Their errors
// are the errors of package block, wrapped; any other error may pass. No method hangs for
// ever if the storage does not answer.
type Storage interface {
	// Map makes a volume a file or a block device of this machine and returns its path,
	// which stays the same while it is mapped. If a volume is mapped under that name
	// already, it keeps its path and takes the new credential. Errors: ErrNotFound;
	// ErrNotCommitted for reading; ErrCommitted for writing; ErrInUse if it is written
	// elsewhere; ErrDenied; ErrAway.
	Map(ctx context.Context, m block.Mapping) (file string, err error)

	// Unmap removes a mapping after everything written to it is durable. It succeeds if
	// there is none. Errors: ErrInUse while it is mounted or open.
	Unmap(ctx context.Context, name string) error

	// Mapped lists the names of all mappings.
	Mapped(ctx context.Context) ([]string, error)

	// Clone makes a writable clone of a committed volume, of the same size. Errors:
	// ErrExists; ErrNotFound and ErrNotCommitted for the parent; ErrFull, ErrDenied,
	// ErrAway.
	Clone(ctx context.Context, place volref.Place, c volref.Credential, id, parent string) error

	// Remove deletes a volume. It succeeds if there is none. Errors: ErrInUse, ErrDenied,
	// ErrAway.
	Remove(ctx context.Context, place volref.Place, c volref.Credential, id string) error

	// Commit ends the writing of a volume that is not mapped. It succeeds if the volume
	// is committed. Errors: ErrNotFound, ErrInUse, ErrDenied, ErrAway.
	Commit(ctx context.Context, place volref.Place, c volref.Credential, id string) error

	// Exists reports whether there is a committed volume of that name. It returns false
	// for one that is still being written. Errors: ErrDenied, ErrAway.
	Exists(ctx context.Context, place volref.Place, c volref.Credential, id string) (bool, error)
}

// Refuser is a Storage that knows when a mapping is refused after it was made: a
// credential may be revoked before its time.
type Refuser interface {
	// Refused lists the names of mappings whose credential was refused at the last
	// request to their storage.
	Refused(ctx context.Context) ([]string, error)
}
