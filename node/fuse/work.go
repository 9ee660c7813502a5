package fuse

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// These are the reasons why the context of a request ended.
var (
	// ErrKilled says that the requesting process is being killed.
	ErrKilled = errors.New("the asking process is being killed")
	// ErrStopping says that the server stops: the request is left to the next one.
	ErrStopping = errors.New("the server stops")

	errDone = errors.New("the request is done")
)

// Op is a request that is answered in its own goroutine and may have to wait.
type Op struct {
	Ctx context.Context // of this request only

	unique   uint64 // as received
	pid      uint32
	cancel   context.CancelCauseFunc
	answered atomic.Bool
	recheck  *time.Timer // set after a signal that did not kill; guarded by Conn.mu
}

// Claim reports whether the caller may answer the request. It returns true at most once.
// A request that is left to a successor must not be answered.
func (o *Op) Claim() bool {
	return !errors.Is(context.Cause(o.Ctx), ErrStopping) && o.answered.CompareAndSwap(false, true)
}

// Unique returns the number under which the request is answered.
func (o *Op) Unique() uint64 { return o.unique }

// Begin registers a request that is being handled under ctx, which is derived from
// [Conn.Context]. Begin's cancel ends ctx, with ErrKilled if the request's process is
// being killed. End must be called.
func (c *Conn) Begin(r *Request, ctx context.Context, cancel context.CancelCauseFunc) *Op {
	o := &Op{unique: r.Unique, pid: r.PID, Ctx: ctx, cancel: cancel}
	c.work.Add(1)
	c.mu.Lock()
	c.ops[HandleOf(r.Unique)] = o
	c.mu.Unlock()
	return o
}

// End unregisters a request, whether it was answered or left to a successor.
func (c *Conn) End(o *Op) {
	c.mu.Lock()
	delete(c.ops, HandleOf(o.unique))
	if o.recheck != nil {
		o.recheck.Stop()
	}
	c.mu.Unlock()
	o.cancel(errDone)
	c.work.Done()
}

// Go runs f in a goroutine. A server that stops waits for it as it waits for requests.
func (c *Conn) Go(f func()) { c.work.Go(f) }

// interrupt handles INTERRUPT. The kernel sends it for any signal, and only once. But
// programs do not expect EINTR from files, so only the request of a process that is being
// killed is interrupted. For another process, interrupt checks again from time to time
// while the request waits.
func (c *Conn) interrupt(r *Request) {
	c.interrupts.Add(1)
	c.mu.Lock()
	o := c.ops[HandleOf(r.target)]
	c.mu.Unlock()
	if o == nil {
		// The request is answered already, or another reader has read it but not
		// registered it yet. The kernel knows which of these is true, and decides after
		// EAGAIN.
		c.Fail(r.Unique, unix.EAGAIN)
		return
	}
	c.checkKilled(o)
}

// killedPoll bounds how long a killed process keeps waiting if an earlier signal did not
// kill it.
const killedPoll = 100 * time.Millisecond

func (c *Conn) checkKilled(o *Op) {
	if killed(o.pid) {
		o.cancel(ErrKilled)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ops[HandleOf(o.unique)] == o {
		o.recheck = time.AfterFunc(killedPoll, func() { c.checkKilled(o) })
	}
}

// killed reports whether a thread is about to die. When any signal kills a process, the
// kernel marks each of its threads with a pending SIGKILL. A thread that is not visible
// from here counts as alive.
func killed(pid uint32) bool {
	if pid == 0 {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/status")
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	for _, key := range []string{"\nSigPnd:\t", "\nShdPnd:\t"} {
		if _, v, ok := bytes.Cut(b, []byte(key)); ok && len(v) >= 16 {
			set, err := strconv.ParseUint(string(v[:16]), 16, 64)
			if err == nil && set&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}
