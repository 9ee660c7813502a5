// Package poolfs serves the pool of a lazy node: a FUSE file system of files named ab/cdef… (the SHA-256 of their
// content in hex, 2+62 digits) that lies as the last data-only layer below the overlay of every container.
//
// The kernel asks the pool only for a file that is not yet in the cache directory above it. The pool asks its [Backend]
// for the content, which may take as long as a fetch, and answers with FUSE passthrough: the kernel then reads the
// complete, verified file itself. A content that is still partial is opened in cached mode instead and its reads come
// to [Content].ReadAt. One inode is never in both modes: it stays in the mode of its first open until its last user
// has closed it.
//
// # Hand-over
//
// The connection lives as long as somebody holds the descriptor of /dev/fuse, which is why a tiny [Holder] (or systemd)
// keeps it and a worker serves it. Nothing breaks when the worker is killed: node ids are a function of the digest,
// backing ids and open files are in a state file on tmpfs, and the kernel sends the requests again that were not
// answered. See DESIGN.md, section "Pool".
//
// # What it promises
//
// A reader gets the right bytes, or EIO after a bound without progress; never wrong bytes and never an endless wait.
// Neither EIO nor ENOENT is remembered. What it leaves to others: fetching, verification, the cache directory, and who
// may see which content.
//
// # What a process that serves a pool must not do with it
//
// It must not start a program that lies on the pool: between fork and exec Go's runtime waits for the kernel, the kernel
// for the server, and the server for the runtime. It must not map a file of it. And it must not open one with package
// os, which adds it to Go's poller: the kernel asks the server about that while it holds the poller's lock, which every
// os.Open of the server needs. (A file seen through an overlay is not affected by the last.)
package poolfs
