package filestore

import (
	"context"
	"fmt"
	"sync"

	"example.org/slipway/gear"
)

// claims says which writer of this process provides a content that the catalogue lacks,
// and on which contents active writers rely.
type claims struct {
	mu sync.Mutex
	// by maps a content to the writer that will put it.
	by map[gear.Name]*Writer
	// pins counts the writers that rely on a content.
	pins map[gear.Name]int
}

func (c *claims) init() {
	c.by = map[gear.Name]*Writer{}
	c.pins = map[gear.Name]int{}
}

// take claims for w the names that nobody has claimed. It reports for each name whether w
// has to put it from now on.
func (c *claims) take(w *Writer, names []gear.Name) []bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := make([]bool, len(names))
	for i, n := range names {
		c.add(w, n)
		switch owner := c.by[n]; owner {
		case nil:
			c.by[n] = w
			mine[i] = true
		case w: // asked for before
		default:
			w.waits[owner] = true
		}
	}
	return mine
}

// pin records that w relies on a name that it provides without a claim.
func (c *claims) pin(w *Writer, name gear.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(w, name)
}

// add records that w relies on a name. c.mu is held.
func (c *claims) add(w *Writer, name gear.Name) {
	if !w.names[name] && !w.ended {
		w.names[name] = true
		w.order = append(w.order, name)
		c.pins[name]++
	}
}

// giveBack ends w's claims on names that are stored already.
func (c *claims) giveBack(w *Writer, names []gear.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		if c.by[n] == w {
			delete(c.by, n)
		}
	}
}

// end ends all claims of w. If pins is set, it also ends the pins of w.
func (c *claims) end(w *Writer, pins bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range w.names {
		if c.by[n] == w {
			delete(c.by, n)
		}
		if !pins {
			continue
		}
		if c.pins[n]--; c.pins[n] == 0 {
			delete(c.pins, n)
		}
	}
	if pins {
		w.names = nil
	}
}

// pinned reports whether an active writer relies on a content.
func (c *claims) pinned(name gear.Name) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pins[name] > 0
}

// wait waits until all writers that w depends on have recorded their contents. No writer
// waits for another before it has recorded its own contents, so there is no cycle.
func (w *Writer) wait(ctx context.Context) error {
	for other := range w.waits {
		select {
		case <-other.recorded:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !other.ok {
			return fmt.Errorf("another conversion that brings the same contents failed: %w", ErrRetry)
		}
	}
	return nil
}
