// Package history records what clients of a registry did and saw. It judges whether a registry that
// keeps its promises could have answered in this way.
//
// It treats a registry as a set of registers, named cells: a tag, a manifest of a repository, the
// blobs of a manifest. A write gives a cell a value at some moment between its request and its
// answer. If the answer was lost, the write may take effect at any moment after its request, or
// never. A read may return any value that the cell had at some moment between a bound before the
// request and the answer.
package history

import (
	"fmt"
	"sync"
	"time"
)

// Absent is the value of a cell that does not exist, as is the case for every cell at the start.
const Absent = ""

// Kind says what an operation does to its cell.
type Kind uint8

// These are the kinds of operations.
const (
	// Read returned a value.
	Read Kind = iota
	// Write was acknowledged.
	Write
	// MayWrite has an unknown outcome: it takes effect at some time after its start, or
	// never.
	MayWrite
	// Failed did nothing to a cell and revealed nothing about it.
	Failed
	// Wrong returned bytes that do not match the digest, or contradicted itself.
	Wrong
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"read", "write", "may write", "failed", "wrong bytes"}[k]
}

// Op is an operation as its client saw it.
type Op struct {
	Kind Kind
	// Cell is the cell that the operation concerns.
	Cell string
	// Value is the value that was read or written.
	Value string
	// Start and End are the times of the request and of the answer, since the recorder's start.
	Start, End time.Duration
	// Client and Replica say who asked whom.
	Client  int
	Replica int
	// Request describes the method and its target in words.
	Request string
	// Status is the HTTP status of a Failed or MayWrite operation, or 0 without an answer.
	Status int
	// RetryAfter reports whether the answer had the header.
	RetryAfter bool
	// Excuse says why an answer that would otherwise be a fault is not one.
	Excuse string
	// Detail is what the answer said.
	Detail string
}

// String describes the operation on one line.
func (o Op) String() string {
	if o.Start == always {
		return "[in the beginning] absent"
	}
	s := fmt.Sprintf("[%9.3f %9.3f] client %d, replica %d: %s: %s", o.Start.Seconds(), o.End.Seconds(), o.Client, o.Replica, o.Request, o.Kind)
	if o.Kind != Failed {
		value := o.Value
		if value == Absent {
			value = "absent"
		}
		s += " " + value
	}
	if o.Status != 0 {
		s += fmt.Sprintf(", status %d", o.Status)
	}
	if o.Detail != "" {
		s += ": " + o.Detail
	}
	return s
}

// Recorder collects operations. Its methods may be called concurrently.
type Recorder struct {
	begin time.Time

	mu  sync.Mutex
	ops []Op
	// acked holds, by cell, the value acknowledged last; maybe holds the values that may still
	// come.
	acked map[string]string
	maybe map[string][]string
}

// NewRecorder returns a recorder that begins now.
func NewRecorder() *Recorder {
	return &Recorder{begin: time.Now(), acked: map[string]string{}, maybe: map[string][]string{}}
}

// Now returns the time since the start, on a clock that nobody sets.
func (r *Recorder) Now() time.Duration { return time.Since(r.begin) }

// Add records operations that have ended.
func (r *Recorder) Add(ops ...Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, ops...)
	for _, o := range ops {
		switch o.Kind {
		case Write:
			r.acked[o.Cell] = o.Value
		case MayWrite:
			r.maybe[o.Cell] = append(r.maybe[o.Cell], o.Value)
		}
	}
}

// Possible returns the values that a cell may have now or later. The cell must have a single
// writer, which is the caller.
func (r *Recorder) Possible(cell string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{r.acked[cell]}, r.maybe[cell]...)
}

// Ops returns what has been recorded so far.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Op(nil), r.ops...)
}
