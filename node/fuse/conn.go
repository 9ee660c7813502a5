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

// ErrAborted is returned by [Conn.Serve] when the connection was aborted: every
// use of the mount fails from then on.
var ErrAborted = errors.New("the FUSE connection was aborted")

// Conn is the server's end of a connection.
type Conn struct {
	// Number of the connection, as [Connection] tells it.
	Number uint32

	log    *slog.Logger
	init   InitOptions
	master *device // the connection
	dev    *device // what requests are read from and answered on: master, or a clone of it

	base   context.Context // of all requests; ends with ErrStopping
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // requests in goroutines of their own

	mu  sync.Mutex
	ops map[uint64]*Op // in work, by number

	resent, interrupts atomic.Uint64
}

// Settled is what a connection agreed on in INIT: what a successor has to know.
type Settled struct {
	Minor, Flags uint64
}

// InitOptions are what a server wants of a connection.
type InitOptions struct {
	// Want are flags to take if the kernel offers them.
	Want uint64
	// NoResend behaves as on a kernel that cannot send requests again (below 6.9).
	NoResend bool
	// MaxReadahead bounds how many bytes the kernel reads ahead of a process.
	MaxReadahead uint32
	// MaxBackground is how many requests the kernel sends at once of those that no
	// process waits for, such as reading ahead and asynchronous direct I/O.
	MaxBackground uint16
	// MaxRead and MaxWrite are the most bytes of one request. MaxWrite is at least
	// 4,096; what a reader's buffer must hold follows from it.
	MaxRead, MaxWrite int
	// Settled is what a predecessor agreed on, nil if there was none.
	Settled *Settled
	// Save notes for a successor what was agreed on. It is called before the kernel
	// is answered, and an error ends the server.
	Save func(Settled) error
}

// Open makes the server's end of the connection of dev, which stays the caller's.
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

// Close lets go of the connection, if Serve was not called or has returned. The
// mount stays, and needs a successor.
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

// Context is that of all requests. It ends with ErrStopping.
func (c *Conn) Context() context.Context { return c.base }

// FD is the descriptor of the connection for ioctls on it.
func (c *Conn) FD() int { return c.master.fd }

// Resent is how many requests came again, Interrupts how many signals came to
// processes whose requests were in work.
func (c *Conn) Resent() uint64 { return c.resent.Load() }

// Interrupts is explained at Resent.
func (c *Conn) Interrupts() uint64 { return c.interrupts.Load() }

// Negotiate brings the connection to where requests can be answered: it asks for
// the requests that a predecessor left unanswered, and waits for INIT if there was
// none yet. Its error ends Serve; [EndOf] says what it means.
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

// resend asks the kernel to send again what it has no answer to. It is false where the kernel cannot.
func (c *Conn) resend() bool {
	if s := c.init.Settled; c.init.NoResend || s != nil && s.Flags&FlagHasResend == 0 {
		return false
	}
	var b [OutHeaderLen]byte
	PutHeader(b[:], 0, 0)
	le.PutUint32(b[4:], notifyResend) // unique 0 makes it a notification, whose code is positive
	return c.dev.write(b[:]) == nil
}

// Invalidate makes the kernel drop the pages and attributes that it remembers of a node. It waits for reads of the node
// that are in work. A node that the kernel does not know is no error.
func (c *Conn) Invalidate(node uint64) error {
	var b [OutHeaderLen + 24]byte // and the node, the first byte, and the number of bytes: 0 for all
	PutHeader(b[:], 0, 0)
	le.PutUint32(b[4:], notifyInval) // as in resend
	le.PutUint64(b[OutHeaderLen:], node)
	if err := c.dev.write(b[:]); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("have the kernel forget a node: %w", err)
	}
	return nil
}

// isolate lets this server work on a clone of the connection. Where requests cannot be sent again, those that a killed
// server has in hand would never be answered; on a clone of its own they fail with it, and only they.
func (c *Conn) isolate() error {
	d, err := c.master.clone()
	if err == nil {
		c.dev = d
	}
	return err
}

// answerInit answers INIT: of what the kernel offers, it takes what there is a use for.
func (c *Conn) answerInit(r *Request) error {
	in, o := r.init, &c.init
	if in.major > protoMajor {
		var b [initLen]byte
		putInit(b[:], initAnswer{})
		c.Answer(r.Unique, b[:]) // it asks again with our major number
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

// bufferLen is what one reader needs: the kernel asks for at least 8192 bytes and for room for the largest write.
func (c *Conn) bufferLen() int { return max(16<<10, c.init.MaxWrite+4096) }

// Serve reads requests and has each answered by handle, which several readers
// call concurrently and which must not wait for anything slow: a request that has
// to wait is taken into work with [Conn.Begin]. Requests about the connection
// itself do not come to handle.
//
// It returns when the file system is unmounted and unused (nil), the connection
// is aborted ([ErrAborted]), or ctx ends (its error): then no further request is
// taken, those in work get drain to end, and all others are left to the
// successor. It can be called once, after Negotiate.
func (c *Conn) Serve(ctx context.Context, drain time.Duration, handle func(*Request)) error {
	// A reader answers what needs no waiting itself, so a few are enough for any number of processes.
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

// EndOf turns what ended the reading of requests into what Serve returns.
func EndOf(err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, unix.ECONNABORTED):
		return ErrAborted
	}
	return err
}

// drain waits for requests in work, then leaves them. What does not heed its context is not waited for longer than
// twice d.
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

// read is one reader. It ends without an error when the server stops.
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
		case OpForget, OpBatchForget: // no answer; nothing is kept of a lookup
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

// Answer sends an answer whose body is in place. It reports whether the request
// still was there to be answered.
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
	// ENOENT, ENODEV: the request or the mount is gone.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		c.log.Error("answer a FUSE request", "err", err)
	}
	return err == nil
}
