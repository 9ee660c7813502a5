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

// Why the context of a request ended.
var (
	// ErrKilled says that the asking process is being killed.
	ErrKilled = errors.New("the asking process is being killed")
	// ErrStopping says that the server stops: the request is left to the next one.
	ErrStopping = errors.New("the server stops")

	errDone = errors.New("the request is done")
)

// Op is a request that is answered in a goroutine of its own and may have to wait.
type Op struct {
	Ctx context.Context // of this request alone

	unique   uint64 // as received
	pid      uint32
	cancel   context.CancelCauseFunc
	answered atomic.Bool
	recheck  *time.Timer // after a signal that did not kill; under Conn.mu
}

// Claim gives the right to answer, once. A request that is left to a successor
// must not be answered.
func (o *Op) Claim() bool {
	return !errors.Is(context.Cause(o.Ctx), ErrStopping) && o.answered.CompareAndSwap(false, true)
}

// Unique is the number that the request is answered under.
func (o *Op) Unique() uint64 { return o.unique }

// Begin takes a request into work under a context that is derived from
// [Conn.Context] and that cancel ends: with ErrKilled when its process is being
// killed. End must be called.
func (c *Conn) Begin(r *Request, ctx context.Context, cancel context.CancelCauseFunc) *Op {
	o := &Op{unique: r.Unique, pid: r.PID, Ctx: ctx, cancel: cancel}
	c.work.Add(1)
	c.mu.Lock()
	c.ops[HandleOf(r.Unique)] = o
	c.mu.Unlock()
	return o
}

// End takes a request out of work, answered or left.
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

// Go runs f in a goroutine that a server which stops waits for, as for requests.
func (c *Conn) Go(f func()) { c.work.Go(f) }

// interrupt handles INTERRUPT. The kernel sends it for any signal, and once. But
// programs do not expect EINTR from files, so only a process that is being killed
// is let go; for another the question is asked again now and then while its
// request waits.
func (c *Conn) interrupt(r *Request) {
	c.interrupts.Add(1)
	c.mu.Lock()
	o := c.ops[HandleOf(r.target)]
	c.mu.Unlock()
	if o == nil {
		// Answered already, or read by another reader that has not come so far: the kernel knows which.
		c.Fail(r.Unique, unix.EAGAIN)
		return
	}
	c.checkKilled(o)
}

// killedPoll is how long a killed process may go on waiting after a signal that
// did not kill it, in vain.
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

// killed reports whether a thread is about to die: the kernel marks every thread of
// a process that was killed, by whatever signal, with a pending SIGKILL. A thread
// that cannot be seen from here counts as alive.
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
