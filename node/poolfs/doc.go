// Package poolfs serves the pool of a lazy node. The pool is a FUSE file system of files
// named ab/cdef… (the SHA-256 of their content in hex, 2+62 digits). It is the last
// data-only layer below the overlay of every container.
//
// The kernel asks the pool only for a file that is not yet in the cache directory, which
// is the layer above. The pool requests the content from its [Backend], which may take as
// long as a fetch, and answers with FUSE passthrough: the kernel then reads the complete,
// verified file itself. A content that is still partial is opened in cached mode instead,
// and reads of it go to [Content].ReadAt. An inode is never in both modes at once. It
// stays in the mode of its first open until its last user has closed it.
//
// # Hand-over
//
// The connection lives as long as some process holds the descriptor of /dev/fuse.
// Therefore a small process, the [Holder], or systemd keeps the descriptor, and a worker
// serves it. Killing the worker breaks nothing: node ids are a function of the digest,
// backing ids and open files are in a state file on tmpfs, and the kernel resends the
// requests that were not answered. See DESIGN.md, section "Pool".
//
// # Guarantees
//
// A reader gets the right bytes, or EIO after a bound without progress. It never gets
// wrong bytes and never waits endlessly. Neither EIO nor ENOENT is cached. Other packages
// are responsible for fetching, verification, the cache directory, and the decision who
// may see which content.
//
// # Restrictions on the serving process
//
// The process that serves a pool must not start a program that lies on the pool: between
// fork and exec Go's runtime waits for the kernel, the kernel waits for the server, and
// the server waits for the runtime. The process must not map a file of the pool. Nor may
// it open such a file with package os, which adds the file to Go's poller. The kernel
// would then hold the poller's lock while it sends the server a request, but every
// os.Open of the server needs this lock. (This last restriction does not apply to a file
// seen through an overlay.)
package poolfs
