// Package workload pushes to a registry from several goroutines at once and keeps a
// ledger of what the registry acknowledged. After a fault it checks the registry against
// the ledger.
//
// Users rely on the following rule. Every acknowledged push is present, with every byte.
// Every acknowledged deletion is in effect. An operation under way has either happened
// completely or not at all.
package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"example.org/slipway/integration/internal/wire"
)

// absent is the value of a cell whose content does not exist.
const absent = ""

// cell is something that a registry can return: a blob, or a manifest by tag or by
// digest. Its value is the digest of its content.
type cell struct {
	blob      bool
	repo, ref string
	sizeBytes int64 // only for a blob

	// history holds every value that was written to the cell, in order. acked is the
	// index of the last acknowledged value. The value in the registry must be
	// history[acked] or a later one.
	history []string
	acked   int
}

func (c *cell) String() string {
	if c.blob {
		return "blob " + c.repo + "@" + c.ref
	}
	return "manifest " + c.repo + ":" + c.ref
}

// Ledger records what was sent and what was acknowledged. Its methods may be
// called concurrently.
type Ledger struct {
	mu    sync.Mutex
	cells []*cell
}

// newCell adds a cell that does not exist in the registry yet.
func (l *Ledger) newCell(blob bool, repo, ref string, sizeBytes int64) *cell {
	c := &cell{blob: blob, repo: repo, ref: ref, sizeBytes: sizeBytes, history: []string{absent}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cells = append(l.cells, c)
	return c
}

// begin records that the cells are about to be given a value. One goroutine
// owns a cell, so that its requests are sent one after another.
func (l *Ledger) begin(value string, cells ...*cell) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range cells {
		c.history = append(c.history, value)
	}
}

// acknowledge records that the last begun value of the cells was acknowledged.
func (l *Ledger) acknowledge(cells ...*cell) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range cells {
		c.acked = len(c.history) - 1
	}
}

// Acknowledged returns the number of values that have been acknowledged for good.
func (l *Ledger) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.cells {
		if c.acked > 0 {
			n++
		}
	}
	return n
}

// Mark is a moment in a ledger.
type Mark struct {
	acked []int // by index of the cell; later cells did not exist yet
}

// Mark returns the present moment: everything acknowledged by now.
func (l *Ledger) Mark() Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := Mark{make([]int, len(l.cells))}
	for i, c := range l.cells {
		m.acked[i] = c.acked
	}
	return m
}

// claim holds the values that a cell may have. They are copied so that the load can
// continue.
type claim struct {
	*cell
	allowed []string
}

// claims returns what the registry may hold if its state is from some time between the
// mark and now.
func (l *Ledger) claims(since Mark) []claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []claim
	for i, c := range l.cells {
		from := 0
		if i < len(since.acked) {
			from = since.acked[i]
		}
		all = append(all, claim{c, slices.Clone(c.history[from:])})
	}
	return all
}

// Check asks the registry for everything in the ledger. It returns an error for each
// thing that contradicts what was acknowledged at the mark.
func (l *Ledger) Check(ctx context.Context, client *wire.Client, since Mark) error {
	return l.check(ctx, client, since, func(claim, string) {})
}

// Settle does what Check does, with everything that has been acknowledged by now. In
// addition, what it finds becomes the truth: from then on, the outcome of a request that
// was under way must stay the same. No load may be running.
func (l *Ledger) Settle(ctx context.Context, client *wire.Client) error {
	return l.check(ctx, client, l.Mark(), func(c claim, value string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.history, c.acked = []string{absent, value}, 1
	})
}

func (l *Ledger) check(ctx context.Context, client *wire.Client, since Mark, found func(claim, string)) error {
	const workers = 4
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	todo := make(chan claim)
	for range workers {
		wg.Go(func() {
			for c := range todo {
				value, err := observe(ctx, client, c.cell)
				if err == nil && !slices.Contains(c.allowed, value) {
					err = fmt.Errorf("is %s, want %s", describe(value), describe(c.allowed...))
				}
				if err == nil {
					found(c, value)
					continue
				}
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", c, err))
				mu.Unlock()
			}
		})
	}
	for _, c := range l.claims(since) {
		todo <- c
	}
	close(todo)
	wg.Wait()
	return shorten(errs)
}

// observe returns the value that the cell has in the registry. It is an error if content does not
// have the digest that it is stored under.
func observe(ctx context.Context, client *wire.Client, c *cell) (string, error) {
	var (
		value string
		err   error
	)
	if c.blob {
		value, err = c.ref, client.CheckBlob(ctx, c.repo, c.ref, c.sizeBytes)
	} else {
		var m *wire.Manifest
		if m, err = client.GetManifest(ctx, c.repo, c.ref); err == nil {
			value = m.Digest
		}
	}
	if wire.StatusOf(err) == http.StatusNotFound {
		return absent, nil
	}
	return value, err
}

func describe(values ...string) string {
	var words []string
	for _, v := range values {
		if v == absent {
			v = "absent"
		}
		words = append(words, v)
	}
	return strings.Join(words, " or ")
}

// shorten joins the errors. It keeps the first twenty in full.
func shorten(errs []error) error {
	const most = 20
	if n := len(errs); n > most {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", n-most))
	}
	return errors.Join(errs...)
}
