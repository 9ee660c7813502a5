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
	// Size tells the size of a content in bytes and whether the node knows of it, from the index of any image. It is
	// asked for every lookup and must not wait for anything slow. It may be called concurrently.
	Size(k Key) (int64, bool)
	// Open makes a content readable, which may take as long as a fetch: it calls [Progress] whenever the fetch gets
	// on. ctx ends when every process that waits is being killed, after the bound without progress, or when the
	// server stops; Open then returns soon. An fs.ErrNotExist is shown as ENOENT, any other error as EIO, and neither
	// is remembered. It may be called concurrently, for one name by one call at a time as a rule.
	Open(ctx context.Context, k Key) (Content, error)
}

// Content is an open content. The server closes it once, when no process uses it any more or, for passthrough, as soon
// as the kernel holds the file.
type Content interface {
	// File is the complete, verified file, or nil while the content is partial. It stays open until Close. Once it was
	// not nil it stays what it is.
	File() *os.File
	// ReadAt reads verified bytes like io.ReaderAt and may wait for them to be fetched, calling [Progress]; ctx is
	// that of one request, as for Open. It may be called concurrently. Whatever it cannot deliver in full is EIO to
	// the process.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// Close lets go of the content.
	Close() error
}

// Resolver turns node ids back into contents. It may be called concurrently and must not wait for anything slow.
type Resolver interface {
	// Resolve returns the content whose [NodeID] is node, if it is known.
	Resolve(node uint64) (k Key, size int64, ok bool)
	// Views lists the views of which contents are known, or were.
	Views() []uint64
}

// Options are the choices of [New]. The zero value works, but cannot be handed over.
type Options struct {
	// State is the file that a successor of this server needs, on tmpfs. Default none: a killed server then takes the
	// open files with it.
	State string
	// Bound is how long an open or a read may wait without progress before it fails with EIO. Default 60 s.
	Bound time.Duration
	// Drain is how long a server that is told to stop waits for requests it works on. What is not done then is left
	// to the successor. Default 2 s.
	Drain time.Duration
	// IdleBacking is how many files without users stay known to the kernel for the next open. Each pins an inode, and
	// its disk space if the file is deleted without [Server.Evict]. Default 4096.
	IdleBacking int
	// MaxReadBytes is the largest read the kernel is to ask for in cached mode. Default 1 MiB, the most it does: 500 MB
	// took 0.5 s, with 256 KiB 0.6 s to 1 s.
	MaxReadBytes int
	// ReadMemory bounds the buffers of all reads in cached mode together. Default 64 MiB.
	ReadMemory int64
	// NoPassthrough behaves as on a kernel without FUSE passthrough (below 6.9).
	NoPassthrough bool
	// NoResend behaves as on a kernel that cannot send requests again (below 6.9).
	NoResend bool
	// Opened is told of every open that was answered without asking the backend, for start-up profiles and the order
	// of eviction. It must not wait. Default none.
	Opened func(name [32]byte)
	// Log gets what an operator would want to know. Default none.
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

// ErrAborted is returned by [Server.Serve] when the connection was aborted: every use of the mount fails from then on.
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

	refuse bool // answer EIO where the backend would be asked
	table  table
	stats  counters
}

// New prepares to serve the connection of dev, which stays the caller's, from the state that a predecessor left. The
// contents r knows must be complete by then: a file that a process has open is looked for there.
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

// Fresh reports whether nobody has served the pool before. It is asked before Serve.
func (s *Server) Fresh() bool { return s.table.settled() == nil }

// Close lets go of what New took, if Serve was not called or has returned. The mount stays, and needs a successor.
func (s *Server) Close() error { return errors.Join(s.table.close(), s.conn.Close()) }

// Serve answers requests until the file system is unmounted and unused (nil), the connection is aborted
// ([ErrAborted]), or ctx ends (its error): then no further request is taken, those in work get Options.Drain to end,
// and all others are left to the successor. It can be called once. Contents whose opening does not heed its context
// are not waited for longer than twice Options.Drain.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.conn.Negotiate(ctx, s.initOptions()); err != nil {
		return fuse.EndOf(err)
	}
	s.table.reclaim()
	return s.conn.Serve(ctx, s.o.Drain, s.handle)
}

// handle answers one request, here or in a goroutine of its own when it may have to wait.
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
		s.conn.Fail(r.Unique, unix.ENOSYS) // the kernel does not ask again
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
		// The resolver has the last word: what opens cannot turn back into this name must not be found under it.
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
