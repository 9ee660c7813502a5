package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ErrAborted is returned by [Conn.Serve] if the connection was aborted. Every later use
// of the mount fails.
var ErrAborted = errors.New("the FUSE connection was aborted")

// Conn is the server's end of a connection.
type Conn struct {
	// Number is the number of the connection, as [Connection] returns it.
	Number uint32

	log    *slog.Logger
	init   InitOptions
	master *device // the connection
	dev    *device // requests are read from it and answered on it: master, or a clone of it

	base   context.Context // the parent of every request's context; ends with ErrStopping
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // requests that have their own goroutines

	mu  sync.Mutex
	ops map[uint64]*Op // being handled, by number

	resent, interrupts atomic.Uint64
}

// Settled is what a connection agreed on in INIT. A successor has to know it.
type Settled struct {
	Minor, Flags uint64
}

// InitOptions are a server's wishes for a connection.
type InitOptions struct {
	// Want holds the flags to set if the kernel offers them.
	Want uint64
	// NoResend makes the server behave as on a kernel that cannot resend requests (below
	// 6.9).
	NoResend bool
	// MaxReadahead bounds how many bytes the kernel reads ahead of a process.
	MaxReadahead uint32
	// MaxBackground bounds how many background requests the kernel sends at once. No
	// process waits for these: they are, for example, readahead and asynchronous direct
	// I/O.
	MaxBackground uint16
	// MaxRead and MaxWrite bound the bytes of one request. MaxWrite is at least 4,096.
	// The size of a reader's buffer follows from it.
	MaxRead, MaxWrite int
	// Settled is what a predecessor agreed on, or nil if there was none.
	Settled *Settled
	// Save stores what was agreed on, for a successor. It is called before the kernel is
	// answered. If it returns an error, the server ends.
	Save func(Settled) error
}

// Open returns the server's end of the connection of dev. The caller still owns dev.
// Close must be called.
func Open(dev *os.File, log *slog.Logger) (*Conn, error) {
	n, err := Connection(dev)
	if err != nil {
		return nil, err
	}
	c := &Conn{Number: n, log: log, ops: map[uint64]*Op{}}
	if c.master, err = duplicate(dev); err != nil {
		return nil, err
	}
	c.dev = c.master
	c.base, c.cancel = context.WithCancelCause(context.Background())
	return c, nil
}

// Close releases the connection. It is for a connection whose Serve was not called or has
// returned. The mount stays and needs a successor.
func (c *Conn) Close() error {
	if c.master == nil {
		return nil
	}
	c.cancel(ErrStopping)
	var err error
	if c.dev != c.master {
		err = c.dev.close()
	}
	err = errors.Join(err, c.master.close())
	c.dev, c.master = nil, nil
	return err
}

// Context returns the parent of every request's context. It ends with ErrStopping.
func (c *Conn) Context() context.Context { return c.base }

// FD returns the descriptor of the connection, for ioctls.
func (c *Conn) FD() int { return c.master.fd }

// Resent returns how many requests the kernel sent again. Interrupts returns how many
// signals came to processes whose requests were being handled.
func (c *Conn) Resent() uint64 { return c.resent.Load() }

// Interrupts is described at Resent.
func (c *Conn) Interrupts() uint64 { return c.interrupts.Load() }

// Negotiate prepares the connection for answering requests. It asks the kernel to resend
// the requests that a predecessor left unanswered, or waits for INIT if there was none
// yet. After an error of Negotiate, do not call Serve: [EndOf] returns what Serve would
// return.
func (c *Conn) Negotiate(ctx context.Context, o InitOptions) error {
	c.init = o
	resend := c.resend()
	if c.init.Settled != nil {
		if !resend {
			return c.isolate()
		}
		return nil
	}
	stop := context.AfterFunc(ctx, c.dev.stop)
	defer stop()
	buf, free, err := residentBuffer(c.bufferLen())
	if err != nil {
		return err
	}
	defer free()
	var r Request
	for c.init.Settled == nil {
		n, err := c.dev.read(buf)
		if errors.Is(err, errStopped) {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if err := Parse(buf[:n], &r); err != nil || r.Op != OpInit {
			c.log.Warn("FUSE request before INIT", "opcode", r.Op)
			c.Fail(r.Unique, unix.EIO)
			continue
		}
		if err := c.answerInit(&r); err != nil {
			return err
		}
	}
	if c.init.Settled.Flags&FlagHasResend == 0 {
		return c.isolate()
	}
	return nil
}

// resend asks the kernel to send all unanswered requests again. It reports whether the
// kernel can do this.
func (c *Conn) resend() bool {
	if s := c.init.Settled; c.init.NoResend || s != nil && s.Flags&FlagHasResend == 0 {
		return false
	}
	var b [OutHeaderLen]byte
	PutHeader(b[:], 0, 0)
	le.PutUint32(b[4:], notifyResend) // unique 0 makes it a notification, whose code is positive
	return c.dev.write(b[:]) == nil
}

// Invalidate makes the kernel drop the cached pages and attributes of a node. It waits
// for reads of the node that are being handled. It is no error if the kernel does not
// know the node.
func (c *Conn) Invalidate(node uint64) error {
	var b [OutHeaderLen + 24]byte // then the node, the first byte, and the number of bytes: 0 means all
	PutHeader(b[:], 0, 0)
	le.PutUint32(b[4:], notifyInval) // as in resend
	le.PutUint64(b[OutHeaderLen:], node)
	if err := c.dev.write(b[:]); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("have the kernel forget a node: %w", err)
	}
	return nil
}

// isolate makes this server work on its own clone of the connection. If the kernel cannot
// resend requests, the requests that a killed server had read would never be answered.
// With a clone, exactly these requests fail when the server dies.
func (c *Conn) isolate() error {
	d, err := c.master.clone()
	if err == nil {
		c.dev = d
	}
	return err
}

// answerInit answers INIT. Of the kernel's offers, it accepts what the server can use.
func (c *Conn) answerInit(r *Request) error {
	in, o := r.init, &c.init
	if in.major > protoMajor {
		var b [initLen]byte
		putInit(b[:], initAnswer{})
		c.Answer(r.Unique, b[:]) // the kernel asks again with our major number
		return nil
	}
	if in.major < protoMajor || in.minor < protoMinorMin {
		c.Fail(r.Unique, unix.EPROTO)
		return fmt.Errorf("the kernel speaks FUSE %d.%d, at least %d.%d is needed", in.major, in.minor, protoMajor, protoMinorMin)
	}
	want := o.Want | FlagAbortError | FlagMaxPages | FlagInitExt
	if !o.NoResend {
		want |= FlagHasResend
	}
	flags := in.flags & want
	if flags&FlagInitExt == 0 {
		flags &= 1<<32 - 1
	}
	a := initAnswer{
		minor: min(in.minor, protoMinor), maxReadahead: o.MaxReadahead, maxWrite: uint32(max(o.MaxWrite, 4096)),
		maxBackground: o.MaxBackground, congestion: uint16(uint32(o.MaxBackground) * 3 / 4), // the kernel's own share
		maxPages: uint16(max(o.MaxRead, o.MaxWrite) / 4096), flags: flags,
	}
	s := Settled{Minor: uint64(a.minor), Flags: flags}
	if err := o.Save(s); err != nil {
		c.Fail(r.Unique, unix.EIO)
		return err
	}
	o.Settled = &s
	var b [initLen]byte
	putInit(b[:], a)
	c.Answer(r.Unique, b[:])
	c.log.Info("FUSE connected", "kernel", fmt.Sprintf("%d.%d", in.major, in.minor),
		"passthrough", flags&FlagPassthrough != 0, "resend", flags&FlagHasResend != 0)
	return nil
}

// bufferLen returns the buffer size that one reader needs. The kernel demands at least
// 8192 bytes and room for the largest write.
func (c *Conn) bufferLen() int { return max(16<<10, c.init.MaxWrite+4096) }

// Serve reads requests and calls handle for each. Several readers call handle
// concurrently, and handle must not wait for anything slow: it passes a request that has
// to wait to [Conn.Begin]. Serve answers requests about the connection itself and does
// not pass them to handle.
//
// Serve returns nil when the file system is unmounted and unused, [ErrAborted] when the
// connection is aborted, and the context's error when ctx ends. In the last case it reads
// no further request, gives the requests being handled the time drain to end, and leaves
// all others to the successor. Serve can be called once, after Negotiate.
func (c *Conn) Serve(ctx context.Context, drain time.Duration, handle func(*Request)) error {
	// A reader itself answers requests that need no waiting, so a few readers are enough
	// for any number of processes.
	n := min(max(runtime.GOMAXPROCS(0), 2), 8)
	ends := make(chan error, n)
	for range n {
		go func() { ends <- c.read(handle) }()
	}
	stop := context.AfterFunc(ctx, c.dev.stop)
	defer stop()
	var err error
	for range n {
		if e := <-ends; e != nil && err == nil {
			err = e
			c.dev.stop()
		}
	}
	c.drain(drain)
	if err == nil {
		return context.Cause(ctx)
	}
	return EndOf(err)
}

// EndOf converts the error that ended the reading of requests into the error that Serve
// returns.
func EndOf(err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, unix.ECONNABORTED):
		return ErrAborted
	}
	return err
}

// drain waits for the requests being handled, and then abandons them. It waits at most
// 2d, even for requests that ignore their context.
func (c *Conn) drain(d time.Duration) {
	done := make(chan struct{})
	go func() { c.work.Wait(); close(done) }()
	for range 2 {
		t := time.NewTimer(d)
		select {
		case <-done:
		case <-t.C:
		}
		t.Stop()
		c.cancel(ErrStopping)
	}
}

// read is the loop of one reader. It returns nil when the server stops.
func (c *Conn) read(handle func(*Request)) error {
	buf, free, err := residentBuffer(c.bufferLen())
	if err != nil {
		return err
	}
	defer free()
	var r Request
	for {
		n, err := c.dev.read(buf)
		if errors.Is(err, errStopped) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := Parse(buf[:n], &r); err != nil {
			c.log.Warn("malformed FUSE request", "opcode", r.Op, "bytes", n)
			if r.Unique != 0 {
				c.Fail(r.Unique, unix.EIO)
			}
			continue
		}
		if r.Resent() {
			c.resent.Add(1)
		}
		switch r.Op {
		case OpForget, OpBatchForget: // they have no answer, and the server keeps no state of a lookup
		case OpInterrupt:
			c.interrupt(&r)
		case OpInit: // a predecessor died before it answered
			if err := c.answerInit(&r); err != nil {
				c.log.Error("answer INIT", "err", err)
			}
		default:
			handle(&r)
		}
	}
}

// Answer sends an answer whose body is already in b. It reports whether the request was
// still waiting for an answer.
func (c *Conn) Answer(unique uint64, b []byte) bool {
	PutHeader(b, unique, 0)
	return c.write(b)
}

// Fail sends an answer without a body: an error, or success if errno is 0.
func (c *Conn) Fail(unique uint64, errno unix.Errno) bool {
	var b [OutHeaderLen]byte
	PutHeader(b[:], unique, errno)
	return c.write(b[:])
}

func (c *Conn) write(b []byte) bool {
	err := c.dev.write(b)
	// ENOENT and ENODEV mean that the request or the mount is gone.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		c.log.Error("answer a FUSE request", "err", err)
	}
	return err == nil
}
