package filestore

import (
	"context"
	"fmt"
	"sync"

	"example.org/slipway/gear"
)

// claims say which writer of this process brings a content that the catalogue
// lacks, and which contents writers under way rely on.
type claims struct {
	mu sync.Mutex
	// by has the writer that is to put a content.
	by map[gear.Name]*Writer
	// pins count the writers that rely on a content.
	pins map[gear.Name]int
}

func (c *claims) init() {
	c.by = map[gear.Name]*Writer{}
	c.pins = map[gear.Name]int{}
}

// take gives w the names that nobody has claimed. It tells which of them are
// w's to put since now.
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

// pin notes that w relies on a name, which it brings without a claim.
func (c *claims) pin(w *Writer, name gear.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(w, name)
}

// add notes that w relies on a name. c.mu is held.
func (c *claims) add(w *Writer, name gear.Name) {
	if !w.names[name] && !w.ended {
		w.names[name] = true
		w.order = append(w.order, name)
		c.pins[name]++
	}
}

// giveBack ends w's claim on names that are here already.
func (c *claims) giveBack(w *Writer, names []gear.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		if c.by[n] == w {
			delete(c.by, n)
		}
	}
}

// end ends all claims of w, and its pins too.
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

// pinned reports whether a writer under way relies on a content.
func (c *claims) pinned(name gear.Name) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pins[name] > 0
}

// wait waits until all writers that w depends on have recorded their contents.
// None of them waits for another before it has done so, so there is no circle.
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
