package poolfs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Why the context of a request or of a fetch ended.
var (
	errKilled    = errors.New("the asking process is being killed")
	errStalled   = errors.New("no progress within the bound")
	errStopping  = errors.New("the server stops")
	errAbandoned = errors.New("nobody waits any more")
	errDone      = errors.New("the request is done")
)

// watch is the bound of one piece of work: it ends its context when Progress is not called for long enough.
type watch struct {
	d time.Duration
	t *time.Timer
}

type watchKey struct{}

// Progress tells the pool that the work done under ctx, a context that it gave to a [Backend] or [Content], gets on: the
// bound without progress begins anew. Call it when bytes arrive. Any other context is left alone.
func Progress(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok && ctx.Err() == nil {
		w.t.Reset(w.d)
	}
}

// watched derives the context of a piece of work that has to make progress.
func watched(ctx context.Context, d time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{d: d}
	w.t = time.AfterFunc(d, func() { cancel(errStalled) })
	return context.WithValue(ctx, watchKey{}, w), func(cause error) {
		w.t.Stop()
		cancel(cause)
	}
}

// op is a request that is answered in a goroutine of its own and may have to wait.
type op struct {
	unique   uint64 // as received: with the bit of a resent one
	pid      uint32
	ctx      context.Context
	cancel   context.CancelCauseFunc
	answered atomic.Bool
	recheck  *time.Timer // after a signal that did not kill; under waitTable.mu
}

// claim gives the right to answer, once. A request that is left to a successor must not be answered.
func (o *op) claim() bool {
	return !errors.Is(context.Cause(o.ctx), errStopping) && o.answered.CompareAndSwap(false, true)
}

// waitTable finds the requests in work by their number.
type waitTable struct {
	mu  sync.Mutex
	ops map[uint64]*op
}

// begin takes a request into work under a context that ends with cause errKilled when its process is being killed.
func (s *Server) begin(r *request, ctx context.Context, cancel context.CancelCauseFunc) *op {
	o := &op{unique: r.unique, pid: r.pid, ctx: ctx, cancel: cancel}
	s.work.Add(1)
	s.waiting.mu.Lock()
	s.waiting.ops[r.unique&^uniqueResend] = o
	s.waiting.mu.Unlock()
	return o
}

func (s *Server) end(o *op) {
	s.waiting.mu.Lock()
	delete(s.waiting.ops, o.unique&^uniqueResend)
	if o.recheck != nil {
		o.recheck.Stop()
	}
	s.waiting.mu.Unlock()
	o.cancel(errDone)
	s.work.Done()
}

// interrupt handles FUSE_INTERRUPT. The kernel sends it for any signal, and once. But programs do not expect EINTR from
// opening a file, so only a process that is being killed is let go; for another the question is asked again now and
// then while its request waits.
func (s *Server) interrupt(r *request) {
	s.stats.interrupts.Add(1)
	s.waiting.mu.Lock()
	o := s.waiting.ops[r.target&^uniqueResend]
	s.waiting.mu.Unlock()
	if o == nil {
		// Answered already, or read by another reader that has not come so far: the kernel knows which.
		s.fail(r.unique, unix.EAGAIN)
		return
	}
	s.checkKilled(o)
}

// killedPoll is how long a killed process may go on waiting after a signal that did not kill it, in vain.
const killedPoll = 100 * time.Millisecond

func (s *Server) checkKilled(o *op) {
	if killed(o.pid) {
		o.cancel(errKilled)
		return
	}
	s.waiting.mu.Lock()
	defer s.waiting.mu.Unlock()
	if s.waiting.ops[o.unique&^uniqueResend] == o {
		o.recheck = time.AfterFunc(killedPoll, func() { s.checkKilled(o) })
	}
}

// killed tells whether a thread is about to die: the kernel marks every thread of a process that was killed, by
// whatever signal, with a pending SIGKILL. A thread that cannot be seen from here counts as alive.
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
