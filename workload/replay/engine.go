package replay

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/workload/replay/plan"
)

// engine runs tasks at their times.
type engine struct {
	run  func(ctx context.Context, t *plan.Task, intended, wait int64)
	drop func(t *plan.Task, intended, wait int64)
	// announce gets each task in order, before it is run or dropped.
	announce func(t *plan.Task)
	// most is how many tasks run at once; patience is how long one may wait for its
	// place before it is dropped.
	most     int
	patience time.Duration
	// closed makes the tasks follow each other without times.
	closed bool

	start      time.Time
	dispatched atomic.Int64

	mu      sync.Mutex
	running int
	waiting []waiter // the tasks that found no place, in order
	tasks   sync.WaitGroup
}

// waiter is a task that waits for its place; since is when it began to wait, in microseconds.
type waiter struct {
	task     *plan.Task
	intended int64
	since    int64
}

// maxClosed bounds how many tasks of a closed loop run at once, because each has a goroutine
// from the beginning.
const maxClosed = 1 << 16

// maxWaiting bounds the queue; a task that finds it full is dropped.
const maxWaiting = 100_000

// serve runs what comes from feed until feed is closed, and returns when all of it has
// ended.
func (e *engine) serve(ctx context.Context, start time.Time, feed <-chan *plan.Task) {
	e.start = start
	if e.closed {
		sleepUntil(ctx, start) // all workers begin at the same time, in a closed loop too
		for range e.most {
			e.tasks.Go(func() {
				for t := e.next(feed); t != nil; t = e.next(feed) {
					e.dispatched.Add(1)
					e.run(ctx, t, e.now(), 0)
				}
			})
		}
	} else {
		e.open(ctx, feed)
	}
	e.tasks.Wait()
}

// next returns the next task of a closed loop, or nil if there are no more.
func (e *engine) next(feed <-chan *plan.Task) *plan.Task {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := <-feed
	if t != nil {
		e.announce(t)
	}
	return t
}

func (e *engine) now() int64 { return time.Since(e.start).Microseconds() }

// open sends each task at its time, whatever became of the tasks before it.
func (e *engine) open(ctx context.Context, feed <-chan *plan.Task) {
	runtime.LockOSThread() // the timer slack is the thread's, and no other goroutine must run on it
	defer runtime.UnlockOSThread()
	// The kernel may wake a thread 50 µs late to save power; it must not wake this one late.
	if unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	}
	for t := range feed {
		sleepUntil(ctx, e.start.Add(t.At))
		e.dispatched.Add(1)
		e.admit(ctx, t)
	}
}

// admit begins a task or lets it wait.
func (e *engine) admit(ctx context.Context, t *plan.Task) {
	e.announce(t)
	intended := t.At.Microseconds()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.running < e.most:
		e.running++
		e.tasks.Go(func() { e.work(ctx, t, intended) })
	case len(e.waiting) < maxWaiting:
		e.waiting = append(e.waiting, waiter{t, intended, e.now()})
	default:
		e.tasks.Go(func() { e.drop(t, intended, 0) })
	}
}

// work runs a task, and then the tasks that wait.
func (e *engine) work(ctx context.Context, t *plan.Task, intended int64) {
	e.run(ctx, t, intended, 0)
	for {
		e.mu.Lock()
		if len(e.waiting) == 0 {
			e.running--
			e.mu.Unlock()
			return
		}
		w := e.waiting[0]
		e.waiting[0] = waiter{}
		e.waiting = e.waiting[1:]
		e.mu.Unlock()
		now := e.now()
		if wait := now - w.since; now-w.intended > e.patience.Microseconds() {
			e.drop(w.task, w.intended, wait)
		} else {
			e.run(ctx, w.task, w.intended, wait)
		}
	}
}

const (
	// spin is how long before its time a thread stops sleeping: waking up may take as long as
	// this.
	spin = 100 * time.Microsecond
	// nap is the longest sleep that the end of a context does not interrupt.
	nap = 20 * time.Millisecond
)

// sleepUntil returns at a time, or at once if that is past or ctx has ended. The
// runtime's timers are off by up to a millisecond on an idle machine; the kernel's
// are not.
func sleepUntil(ctx context.Context, at time.Time) {
	for {
		left := time.Until(at)
		switch {
		case left <= 0 || ctx.Err() != nil:
			return
		case left > 2*nap:
			timer := time.NewTimer(left - nap)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
		case left > spin:
			ts := unix.NsecToTimespec(int64(left - spin))
			_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // interrupted by a signal: the loop goes on
		default:
			for time.Until(at) > 0 {
			}
			return
		}
	}
}
