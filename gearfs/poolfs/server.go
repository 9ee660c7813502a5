package poolfs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// Backend makes contents readable.
type Backend interface {
	// Size tells the size of a content in bytes and whether the node knows of it, from the index of any image. It is
	// asked for every lookup and must not wait for anything slow. It may be called concurrently.
	Size(name [32]byte) (int64, bool)
	// Open makes a content readable, which may take as long as a fetch: it calls [Progress] whenever the fetch gets
	// on. ctx ends when every process that waits is being killed, after the bound without progress, or when the
	// server stops; Open then returns soon. An fs.ErrNotExist is shown as ENOENT, any other error as EIO, and neither
	// is remembered. It may be called concurrently, for one name by one call at a time as a rule.
	Open(ctx context.Context, name [32]byte) (Content, error)
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
	Resolve(node uint64) (name [32]byte, size int64, ok bool)
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
var ErrAborted = errors.New("the FUSE connection was aborted")

// Server serves one pool.
type Server struct {
	backend  Backend
	resolver Resolver
	o        Options
	log      *slog.Logger

	conn   uint32
	master *device // the connection
	dev    *device // what requests are read from and answered on: master, or a clone of it

	readMem *semaphore.Weighted
	readBuf sync.Pool // *[]byte of outHeaderLen+MaxReadBytes

	base   context.Context // of all requests; ends with errStopping
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // requests in goroutines of their own

	refuse  bool // answer EIO where the backend would be asked
	waiting waitTable
	table   table
	stats   counters
}

// New prepares to serve the connection of dev, which stays the caller's, from the state that a predecessor left. The
// contents r knows must be complete by then: a file that a process has open is looked for there.
func New(dev *os.File, b Backend, r Resolver, o *Options) (*Server, error) {
	s := &Server{backend: b, resolver: r, o: o.withDefaults()}
	s.log = s.o.Log
	s.readMem = semaphore.NewWeighted(s.o.ReadMemory)
	s.readBuf.New = func() any {
		b := make([]byte, outHeaderLen+s.o.MaxReadBytes)
		return &b
	}
	s.base, s.cancel = context.WithCancelCause(context.Background())
	s.waiting.ops = map[uint64]*op{}
	var err error
	if s.conn, err = Connection(dev); err != nil {
		return nil, err
	}
	if err := s.table.load(s.o.State, s.conn, &s.o); err != nil {
		return nil, err
	}
	if s.master, err = duplicate(dev); err != nil {
		return nil, errors.Join(err, s.table.log.close())
	}
	s.dev = s.master
	s.table.master = s.master.fd
	return s, nil
}

// Close lets go of what New took, if Serve was not called or has returned. The mount stays, and needs a successor.
func (s *Server) Close() error {
	s.cancel(errStopping)
	err := s.table.close()
	if s.dev != nil && s.dev != s.master {
		err = errors.Join(err, s.dev.close())
	}
	if s.master != nil {
		err = errors.Join(err, s.master.close())
	}
	s.dev, s.master = nil, nil
	return err
}

// Serve answers requests until the file system is unmounted and unused (nil), the connection is aborted
// ([ErrAborted]), or ctx ends (its error): then no further request is taken, those in work get Options.Drain to end,
// and all others are left to the successor. It can be called once.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.negotiate(ctx); err != nil {
		return endOf(err)
	}
	s.table.reclaim()
	// A reader answers what needs no waiting itself, so a few are enough for any number of processes.
	n := min(max(runtime.GOMAXPROCS(0), 2), 8)
	ends := make(chan error, n)
	for range n {
		go func() { ends <- s.read() }()
	}
	stop := context.AfterFunc(ctx, s.dev.stop)
	defer stop()
	var err error
	for range n {
		if e := <-ends; e != nil && err == nil {
			err = e
			s.dev.stop()
		}
	}
	s.drain()
	if err == nil {
		return context.Cause(ctx)
	}
	return endOf(err)
}

// endOf turns what ended the reading of requests into what Serve returns.
func endOf(err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, unix.ECONNABORTED):
		return ErrAborted
	}
	return err
}

// drain waits for requests in work, then leaves them. Contents whose opening does not heed its context are not waited
// for longer than twice Options.Drain.
func (s *Server) drain() {
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	for range 2 {
		t := time.NewTimer(s.o.Drain)
		select {
		case <-done:
		case <-t.C:
		}
		t.Stop()
		s.cancel(errStopping)
	}
}

// readBufferLen is what one reader needs: the kernel asks for at least 8192 bytes and for room for the largest write.
const readBufferLen = 16 << 10

// read is one reader. It ends without an error when the server stops.
func (s *Server) read() error {
	buf := make([]byte, readBufferLen)
	var out [entryAnswerLen]byte
	var r request
	for {
		n, err := s.dev.read(buf)
		if errors.Is(err, errStopped) {
			return nil
		}
		if err != nil {
			return err
		}
		s.handle(buf[:n], &r, out[:])
	}
}

// handle answers one request, here or in a goroutine of its own when it may have to wait.
func (s *Server) handle(in []byte, r *request, out []byte) {
	if err := parse(in, r); err != nil {
		s.log.Warn("malformed FUSE request", "opcode", r.op, "bytes", len(in))
		if r.unique != 0 {
			s.fail(r.unique, unix.EIO)
		}
		return
	}
	if r.unique&uniqueResend != 0 {
		s.stats.resent.Add(1)
	}
	switch r.op {
	case opForget, opBatchForget: // no answer; nothing is kept of a lookup
	case opLookup:
		s.lookup(r, out[:entryAnswerLen])
	case opGetattr:
		s.getattr(r, out[:attrAnswerLen])
	case opOpen:
		s.open(r)
	case opRead:
		s.startRead(r)
	case opRelease:
		s.release(r)
	case opInterrupt:
		s.interrupt(r)
	case opStatfs:
		clear(out)
		putStatfs(out)
		s.answer(r.unique, out[:statfsAnswerLen])
	case opOpendir:
		clear(out)
		s.answer(r.unique, out[:openAnswerLen])
	case opReaddir, opReleasedir, opAccess, opDestroy:
		s.fail(r.unique, 0)
	case opInit:
		s.init(r)
	default:
		s.fail(r.unique, unix.ENOSYS) // the kernel does not ask again
	}
}

// answer sends an answer whose body is in place. It tells whether the request still was there to be answered.
func (s *Server) answer(unique uint64, b []byte) bool {
	putHeader(b, unique, 0)
	return s.write(b)
}

// fail sends an answer without a body.
func (s *Server) fail(unique uint64, errno unix.Errno) bool {
	var b [outHeaderLen]byte
	putHeader(b[:], unique, errno)
	return s.write(b[:])
}

func (s *Server) write(b []byte) bool {
	err := s.dev.write(b)
	// ENOENT, ENODEV: the request or the mount is gone.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		s.log.Error("answer a FUSE request", "err", err)
	}
	return err == nil
}

func (s *Server) lookup(r *request, out []byte) {
	s.stats.lookups.Add(1)
	node, name, ok := r.lookupNode()
	if !ok {
		s.fail(r.unique, unix.ENOENT)
		return
	}
	a := attr{node: node, mode: unix.S_IFDIR | 0o700}
	if s.refuse {
		s.fail(r.unique, unix.EIO)
		return
	}
	if !isDir(node) {
		// The resolver has the last word: what opens cannot turn back into this name must not be found under it.
		size, known := s.backend.Size(name)
		if known {
			var resolved [32]byte
			resolved, _, known = s.resolver.Resolve(node)
			known = known && resolved == name
		}
		if !known {
			s.fail(r.unique, unix.ENOENT)
			return
		}
		a.size, a.mode = size, unix.S_IFREG|0o444
	}
	clear(out)
	putEntry(out, a)
	s.answer(r.unique, out)
}

func (s *Server) getattr(r *request, out []byte) {
	a := attr{node: r.node, mode: unix.S_IFDIR | 0o700}
	if r.node != rootNode && !isDir(r.node) {
		_, size, ok := s.resolver.Resolve(r.node)
		if s.refuse {
			s.fail(r.unique, unix.EIO)
			return
		}
		if !ok {
			s.fail(r.unique, unix.ESTALE)
			return
		}
		a.size, a.mode = size, unix.S_IFREG|0o444
	}
	clear(out)
	putAttr(out, a)
	s.answer(r.unique, out)
}
