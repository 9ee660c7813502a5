// Package objstore is the contract of an object store: immutable objects under
// slash-separated keys, read whole or in ranges, written once and durably.
//
// Drivers are separate packages (fsstore, memstore, s3store, swiftstore); each passes the one
// suite in registry/objstore/objtest. Behaviour that is the same for all of them (retry,
// limits, metrics) belongs in wrappers of [Store], not in drivers.
package objstore

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// ErrNotExist is returned, possibly wrapped, for an object or upload that is
// not there.
var ErrNotExist = errors.New("object does not exist")

// ErrExist is returned, possibly wrapped, by a conditional write whose key is
// taken.
var ErrExist = errors.New("object exists already")

// ErrCorrupt is returned, possibly wrapped, by a store that verifies what it reads, when
// the bytes are wrong.
var ErrCorrupt = errors.New("object has other bytes than it should")

// ErrNoSpace is returned, possibly wrapped, when the store is full. What was
// stored before is intact, and the same call succeeds once there is room.
var ErrNoSpace = errors.New("no space left in the object store")

// ErrTaken is returned, possibly wrapped, by a write if something else is in the place of
// the object or of its directory. It is not an object, and the store does not move it
// away.
var ErrTaken = errors.New("something that is no object is in its place")

// Info describes a stored object.
type Info struct {
	Key string
	// Size in bytes.
	Size int64
	// ModTime is when the object was written, according to the store.
	ModTime time.Time
	// Tag is the store's name for these bytes, such as an ETag. It stays the same until
	// the object is written again. It is "" if the store has none. List does not fill it
	// in.
	Tag string
	// Proven says that the store itself verifies the bytes before it returns the last of
	// them, or any byte of a range. So nobody need read the object to verify it.
	Proven bool
}

// BusyError is returned, possibly wrapped, when the store refuses temporarily: it is
// overloaded or does not answer. Nothing has changed, and the same call may succeed
// later.
type BusyError struct {
	// RetryAfter is how long to wait before the next try. It is 0 if the store did not
	// say.
	RetryAfter time.Duration
	// Err is what the store said.
	Err error
}

// Error implements error.
func (e *BusyError) Error() string { return "the object store is busy: " + e.Err.Error() }

// Unwrap gives what the store said.
func (e *BusyError) Unwrap() error { return e.Err }

// IsBusy reports whether an error is a BusyError or wraps one, so that it says nothing about
// the object.
func IsBusy(err error) bool {
	var busy *BusyError
	return errors.As(err, &busy)
}

// Object is an open object or a range of one. It must be closed and is not safe
// for concurrent use.
//
// WriteTo sends it in the cheapest way the driver has: fsstore hands an
// *os.File to the writer's ReadFrom, so that the kernel copies (sendfile).
// Read and WriteTo must not be mixed.
type Object interface {
	io.ReadCloser
	io.WriterTo
	// Info describes the whole object, also when only a range is open.
	Info() Info
}

// Upload is an object being written, append only. It is used by one goroutine at a time.
//
// Bytes given to Write become part of the upload in order. A failed Write leaves the
// upload at some size between the sizes before and after the call. Size returns that
// size, and the upload can continue from there.
type Upload interface {
	io.Writer
	// Size returns the number of bytes the upload holds.
	Size() int64
	// Suspend releases what the upload holds in this process (descriptors, buffers) and
	// keeps its bytes, so that Resume can continue it, even in another process after this
	// one was killed. The Upload cannot be used afterwards. state is short, opaque text
	// that Resume needs.
	Suspend(ctx context.Context) (state string, err error)
	// Commit turns the upload into the object with the given key. When it returns nil the
	// object is durable (it survives a power cut) and whole: it is never visible in part.
	// An object already under the key is replaced by it, atomically: keys are content
	// addresses, so both hold the same bytes. The Upload cannot be used afterwards. After
	// an error the key is as it was, or holds the whole object; the upload itself is
	// gone.
	Commit(ctx context.Context, key string) error
	// Tag returns the object's Info.Tag after Commit, or "" if it is not known.
	Tag() string
	// Cancel drops the upload and frees its space. After Commit, Suspend or Cancel it is
	// a no-op, so that it can be deferred. It also works when ctx is done, because that
	// is when it is needed.
	Cancel(ctx context.Context) error
}

// Store is an object store. All methods may run concurrently.
//
// Keys are one or more segments of [A-Za-z0-9._=+-] split by '/', no segment "." or "..", at
// most 512 bytes ([CheckKey]); another key is an error and never reaches the disk or the
// network. A driver may also forbid keys that its store reserves for itself, and a key that is
// the directory of another key.
type Store interface {
	// Get opens n bytes of an object from the offset off; n < 0 means to its end. A range
	// that ends beyond the object is cut. A range that begins beyond the object is empty.
	// Errors: ErrNotExist.
	Get(ctx context.Context, key string, off, n int64) (Object, error)
	// Stat describes an object. Errors: ErrNotExist.
	Stat(ctx context.Context, key string) (Info, error)
	// Put writes a small object whole. The object is durable when Put returns nil, and
	// never visible in part. If ifAbsent is set and the key is taken, Put changes nothing
	// and returns ErrExist.
	Put(ctx context.Context, key string, data []byte, ifAbsent bool) error
	// Delete removes an object. Deleting a missing object is not an error. The removal is
	// durable no later than the next durable write.
	Delete(ctx context.Context, key string) error
	// List walks the objects whose key begins with prefix, in byte order of keys,
	// beginning after the key after. Objects that come or go during the walk may or may
	// not be listed. Unfinished uploads are not listed.
	List(ctx context.Context, prefix, after string) iter.Seq2[Info, error]
	// NewUpload begins an upload. sizeHint is the expected size in bytes, or
	// negative; a driver may use it to find early that there is no room.
	NewUpload(ctx context.Context, sizeHint int64) (Upload, error)
	// Resume continues a suspended upload at size bytes and drops what the store holds
	// beyond size. Errors: ErrNotExist, also if the store holds less than size.
	Resume(ctx context.Context, state string, size int64) (Upload, error)
	// Abandon drops a suspended upload. A missing upload is not an error.
	Abandon(ctx context.Context, state string) error
	// Close releases the store. It does not drop suspended uploads.
	Close() error
}

// UploadSweeper is the optional ability to find uploads that nobody continued,
// such as those of a process that died before it could record their state.
type UploadSweeper interface {
	// SweepUploads drops uploads that were last written before the given time and whose
	// state the function keep does not claim. It returns how many there were, and their
	// bytes.
	SweepUploads(ctx context.Context, before time.Time, keep func(state string) bool) (n int, bytes int64, err error)
}

// Mover is the optional ability to give an object another key without reading it, for
// instance because its bytes are unreadable.
type Mover interface {
	// Move gives an object another key, durably. It replaces an object that has the key.
	// Errors: ErrNotExist.
	Move(ctx context.Context, from, to string) error
}

// Adopter is the optional ability to turn a file of this machine into an object without
// copying it.
type Adopter interface {
	// AdoptFile turns the regular file at path into the object with the given key, as
	// Commit does with an upload: durable when it returns nil, never visible in part, and
	// replacing an object that has the key. Nobody may write to the file any more;
	// readers that have it open can continue. After nil the file is either gone from path
	// or still there as a copy, which the caller removes. After an error the key is as it
	// was, or holds the whole object. The file may be gone; then its bytes must be
	// written again.
	AdoptFile(ctx context.Context, key, path string) error
}

// Opener is the optional ability to read an object at many offsets without opening it for
// each.
type Opener interface {
	// OpenAt opens an object. The result may be read concurrently and must be closed. A
	// read beyond the object's end is io.EOF. Errors: ErrNotExist.
	OpenAt(ctx context.Context, key string) (ReadAtCloser, error)
}

// ReadAtCloser is an object open for reads at offsets.
type ReadAtCloser interface {
	io.ReaderAt
	io.Closer
}

// Redirector is the optional ability to let clients fetch an object elsewhere.
type Redirector interface {
	// URL returns an address at which anybody may read the object, whole or in ranges,
	// for at least the given time. It does not check that the object exists.
	URL(ctx context.Context, key string, valid time.Duration) (string, error)
}

// Distant marks a store whose requests go to another machine and so cost something.
// Callers that would ask often for the same thing remember the answer.
type Distant interface {
	// Distant does nothing.
	Distant()
}

// KeyedUploader is the optional ability to write an upload directly to its place if its
// key is known before its bytes. If a store cannot rename, that saves copying the object
// at the end.
type KeyedUploader interface {
	// NewUploadFor is NewUpload for an upload that will be committed under key, and
	// no other. Nothing is under the key before Commit.
	NewUploadFor(ctx context.Context, key string, sizeHint int64) (Upload, error)
}
