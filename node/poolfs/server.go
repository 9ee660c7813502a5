package poolfs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
)

// Backend makes contents readable.
type Backend interface {
	// Size returns the size of a content in bytes and whether the node knows the content
	// from the index of any image. It is called for every lookup and must not wait for
	// anything slow. It may be called concurrently.
	Size(k Key) (int64, bool)
	// Open makes a content readable. This may take as long as a fetch. Open calls
	// [Progress] whenever the fetch makes progress. ctx ends when every waiting process
	// is being killed, after the bound without progress, or when the server stops. Open
	// then returns soon. fs.ErrNotExist becomes ENOENT, any other error EIO, and neither
	// is cached. Open may be called concurrently, but as a rule only one call at a time
	// has the same name.
	Open(ctx context.Context, k Key) (Content, error)
}

// Content is an open content. The server closes it once: when no process uses it any
// more, or, for passthrough, as soon as the kernel holds the file.
type Content interface {
	// File returns the complete, verified file, or nil while the content is partial. The
	// file stays open until Close. After File has returned a file, it returns the same
	// file always.
	File() *os.File
	// ReadAt reads verified bytes like io.ReaderAt. It may wait for them to be fetched,
	// and then calls [Progress]. ctx belongs to one request and ends as for Open. ReadAt
	// may be called concurrently. If it cannot deliver all bytes, the process gets EIO.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Close releases the content.
	Close() error
}

// Resolver converts node ids back into contents. It may be called concurrently and must
// not wait for anything slow.
type Resolver interface {
	// Resolve returns the content whose [NodeID] is node, if it is known.
	Resolve(node uint64) (k Key, size int64, ok bool)
	// Views returns the views that have, or had, known contents.
	Views() []uint64
}

// Options are the options of [New]. The zero value works, but such a server cannot be
// handed over.
type Options struct {
	// State is the file that a successor of this server needs. It is on tmpfs. By default
	// there is none, and then the open files are lost if the server is killed.
	State string
	// Bound is how long an open or a read may wait without progress before it fails with
	// EIO. The default is 60 s.
	Bound time.Duration
	// Drain is how long a server that is stopping waits for the requests that it is
	// handling. It leaves the rest to the successor. The default is 2 s.
	Drain time.Duration
	// IdleBacking is how many files without users stay registered with the kernel for the
	// next open. Each pins an inode, and its disk space if the file is deleted without
	// [Server.Evict]. The default is 4096.
	IdleBacking int
	// MaxReadBytes bounds a read request of the kernel in cached mode. The default is 1
	// MiB, which is the kernel's maximum: 500 MB took 0.5 s, compared with 0.6 s to 1 s
	// for 256 KiB.
	MaxReadBytes int
	// ReadMemory bounds the total size of all read buffers in cached mode. The default is
	// 64 MiB.
	ReadMemory int64
	// NoPassthrough makes the server behave as on a kernel without FUSE passthrough
	// (below 6.9).
	NoPassthrough bool
	// NoResend makes the server behave as on a kernel that cannot resend requests (below
	// 6.9).
	NoResend bool
	// Opened is called for every open that was answered without the backend, for start-up
	// profiles and the order of eviction. It must not wait. By default nothing is called.
	Opened func(name [32]byte)
	// Log logs events for operators. By default nothing is logged.
	Log *slog.Logger
}

func (o *Options) withDefaults() Options {
	var r Options
	if o != nil {
		r = *o
	}
	def := func(p *time.Duration, d time.Duration) {
		if *p <= 0 {
			*p = d
		}
	}
	def(&r.Bound, 60*time.Second)
	def(&r.Drain, 2*time.Second)
	if r.IdleBacking <= 0 {
		r.IdleBacking = 4096
	}
	if r.MaxReadBytes <= 0 {
		r.MaxReadBytes = 1 << 20
	}
	r.MaxReadBytes = min(max(r.MaxReadBytes&^4095, 4096), 1<<20)
	if r.ReadMemory <= 0 {
		r.ReadMemory = 64 << 20
	}
	r.ReadMemory = max(r.ReadMemory, int64(r.MaxReadBytes))
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	return r
}

// ErrAborted is returned by [Server.Serve] if the connection was aborted. Every later use
// of the mount fails.
var ErrAborted = fuse.ErrAborted

// Server serves one pool.
type Server struct {
	backend  Backend
	resolver Resolver
	o        Options
	log      *slog.Logger

	conn *fuse.Conn

	readMem *semaphore.Weighted
	readBuf sync.Pool // *[]byte of fuse.OutHeaderLen+MaxReadBytes

	refuse bool // answer EIO instead of calling the backend
	table  table
	stats  counters
}

// New prepares to serve the connection of dev, starting from the state that a predecessor
// left. The caller still owns dev. r must already know all of its contents, because the
// files that processes have open are looked up there.
func New(dev *os.File, b Backend, r Resolver, o *Options) (*Server, error) {
	s := &Server{backend: b, resolver: r, o: o.withDefaults()}
	s.log = s.o.Log
	s.readMem = semaphore.NewWeighted(s.o.ReadMemory)
	s.readBuf.New = func() any {
		b := make([]byte, fuse.OutHeaderLen+s.o.MaxReadBytes)
		return &b
	}
	var err error
	if s.conn, err = fuse.Open(dev, s.log); err != nil {
		return nil, err
	}
	if err := s.table.load(s.o.State, s.conn.Number, &s.o); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	s.table.master = s.conn.FD()
	return s, nil
}

// Fresh reports whether the pool has never been served before. It must be called before
// Serve.
func (s *Server) Fresh() bool { return s.table.settled() == nil }

// Close releases what New acquired. It is for a server whose Serve was not called or has
// returned. The mount stays and needs a successor.
func (s *Server) Close() error { return errors.Join(s.table.close(), s.conn.Close()) }

// Serve answers requests. It returns nil when the file system is unmounted and unused,
// [ErrAborted] when the connection is aborted, and the context's error when ctx ends. In
// the last case it reads no further request, gives the requests being handled the time
// Options.Drain to end, and leaves all others to the successor. It can be called once. It
// waits at most twice Options.Drain, even for contents whose opening ignores its context.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.conn.Negotiate(ctx, s.initOptions()); err != nil {
		return fuse.EndOf(err)
	}
	s.table.reclaim()
	return s.conn.Serve(ctx, s.o.Drain, s.handle)
}

// handle answers one request. If the request may have to wait, handle answers it in a
// separate goroutine.
func (s *Server) handle(r *fuse.Request) {
	var buf [fuse.EntryLen]byte
	out := buf[:]
	switch r.Op {
	case fuse.OpLookup:
		s.lookup(r, out)
	case fuse.OpGetattr:
		s.getattr(r, out[:fuse.AttrLen])
	case fuse.OpOpen:
		s.open(r)
	case fuse.OpRead:
		s.startRead(r)
	case fuse.OpRelease:
		s.release(r)
	case fuse.OpStatfs:
		fuse.PutStatfs(out, maxNameLen)
		s.conn.Answer(r.Unique, out[:fuse.StatfsLen])
	case fuse.OpOpendir:
		s.conn.Answer(r.Unique, out[:fuse.OpenLen])
	case fuse.OpReaddir, fuse.OpReleasedir, fuse.OpAccess, fuse.OpDestroy:
		s.conn.Fail(r.Unique, 0)
	default:
		s.conn.Fail(r.Unique, unix.ENOSYS) // the kernel does not send this request again
	}
}

func (s *Server) lookup(r *fuse.Request, out []byte) {
	s.stats.lookups.Add(1)
	node, key, ok := lookupNode(r)
	if !ok {
		s.conn.Fail(r.Unique, unix.ENOENT)
		return
	}
	a := fuse.Attr{Node: node, Mode: unix.S_IFDIR | 0o700}
	if s.refuse {
		s.conn.Fail(r.Unique, unix.EIO)
		return
	}
	if !isDir(node) {
		// The resolver decides. An open has only the node, from which the resolver must
		// find the same name again. A name for which it does not is not found.
		size, known := s.backend.Size(key)
		if known {
			var resolved Key
			resolved, _, known = s.resolver.Resolve(node)
			known = known && resolved == key
		}
		if !known {
			s.conn.Fail(r.Unique, unix.ENOENT)
			return
		}
		a.Size, a.Mode = size, unix.S_IFREG|0o444
	}
	fuse.PutEntry(out, a, attrTTL, attrTTL)
	s.conn.Answer(r.Unique, out)
}

func (s *Server) getattr(r *fuse.Request, out []byte) {
	a := fuse.Attr{Node: r.Node, Mode: unix.S_IFDIR | 0o700}
	if r.Node != fuse.RootNode && !isDir(r.Node) {
		_, size, ok := s.resolver.Resolve(r.Node)
		if s.refuse {
			s.conn.Fail(r.Unique, unix.EIO)
			return
		}
		if !ok {
			s.conn.Fail(r.Unique, unix.ESTALE)
			return
		}
		a.Size, a.Mode = size, unix.S_IFREG|0o444
	}
	fuse.PutAttr(out, a, attrTTL)
	s.conn.Answer(r.Unique, out)
}
