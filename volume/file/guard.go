package file

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/volume/block"
)

// maxPending is how many steps may run at once, and so how many threads a hanging
// directory can hold.
const maxPending = 256

// beat reports that a step of many parts makes progress.
type beat func()

// guard runs steps that may hang, and waits for each only for a bounded time. A step that
// was given up continues on its own.
type guard struct {
	timeout time.Duration
	slots   chan struct{}
}

func newGuard(timeout time.Duration) *guard {
	return &guard{timeout, make(chan struct{}, maxPending)}
}

// do runs step and returns its error, or block.ErrAway if the step neither ends nor calls
// beat within the bound. The step's ctx ends with the caller's or when the step is given
// up. The step must own everything that it touches and that the caller may use again.
func (g *guard) do(ctx context.Context, step func(context.Context, beat) error) error {
	_, err := g.run(ctx, step)
	return err
}

// run is like do, and also reports whether the step was started at all.
func (g *guard) run(ctx context.Context, step func(context.Context, beat) error) (begun bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	t := time.NewTimer(g.timeout)
	defer t.Stop()
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.C:
		return false, fmt.Errorf("%w: %d earlier steps hang", block.ErrAway, maxPending)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	var beats atomic.Int64
	go func() {
		defer func() { <-g.slots }()
		done <- step(ctx, func() { beats.Add(1) })
	}()
	for seen := int64(0); ; {
		select {
		case err := <-done:
			return true, err
		case <-ctx.Done():
			return true, ctx.Err()
		case <-t.C:
		}
		if n := beats.Load(); n != seen {
			seen = n
			t.Reset(g.timeout)
			continue
		}
		return true, fmt.Errorf("%w: nothing for %v", block.ErrAway, g.timeout)
	}
}

// await waits in the same way as do, but for a step that something else started.
func (g *guard) await(done <-chan error) error {
	t := time.NewTimer(g.timeout)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return fmt.Errorf("%w: nothing for %v", block.ErrAway, g.timeout)
	}
}

// order tracks the steps of a volume. It holds back writes while earlier writes that were
// given up may still land, because they must not overwrite later ones.
type order struct {
	mu      sync.Mutex
	pending int           // steps that run
	lost    int           // running steps that write and were given up
	late    chan struct{} // closed when lost becomes 0; nil if it is
	closed  bool
	release func() // of close
}

// do runs a step as [guard].do does. Steps run concurrently, but a write waits for the
// end of writes that were given up.
func (o *order) do(g *guard, writes bool, step func(beat) error) error {
	if writes {
		if err := o.wait(g.timeout); err != nil {
			return err
		}
	}
	if !o.begin() {
		return errClosed
	}
	var mu sync.Mutex // guards ended and gone; before o.mu
	ended, gone := false, false
	begun, err := g.run(context.Background(), func(_ context.Context, alive beat) error {
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			ended = true
			o.end(gone)
		}()
		return step(alive)
	})
	mu.Lock()
	defer mu.Unlock()
	switch {
	case !begun:
		o.end(false)
	case !ended && writes:
		gone = true
		o.lose()
	}
	return err
}

func (o *order) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.pending++
	return true
}

func (o *order) lose() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost++; o.late == nil {
		o.late = make(chan struct{})
	}
}

func (o *order) end(lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if lost {
		if o.lost--; o.lost == 0 {
			close(o.late)
			o.late = nil
		}
	}
	if o.pending--; o.pending == 0 && o.closed {
		o.release()
	}
}

// close ends the use. release, which must not block, is called now or at the end of the
// last running step. close reports whether this was the first call.
func (o *order) close(release func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.closed, o.release = true, release
	if o.pending == 0 {
		release()
	}
	return true
}

// wait returns when no write that was given up is running any more.
func (o *order) wait(timeout time.Duration) error {
	t := time.NewTimer(timeout)
	defer t.Stop()
	for {
		o.mu.Lock()
		late := o.late
		o.mu.Unlock()
		if late == nil {
			return nil
		}
		select {
		case <-late:
		case <-t.C:
			return fmt.Errorf("%w: an earlier write hangs", block.ErrAway)
		}
	}
}
