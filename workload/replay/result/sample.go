// Package result holds what a replay measured: one [Sample] for each request, in Parquet
// files that are readable once they have their name. From these it derives histograms,
// series, reports and comparisons.
package result

import (
	"encoding/binary"
	"errors"
	"math"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Outcome is how a request ended.
type Outcome uint8

// These are the outcomes.
const (
	// OK is the recorded answer, or a success.
	OK Outcome = iota
	// BadStatus is an HTTP error status other than the recorded one.
	BadStatus
	// Broken is a connection that could not be made or did not last.
	Broken
	// Timeout is an answer that did not end in time.
	Timeout
	// Wrong is content that does not have its digest, its size or its range.
	Wrong
	// Dropped is a request that was never sent, because too many were under way for too
	// long.
	Dropped
	// Lost is a request that a worker had when it was lost. Whether it was answered is
	// not known.
	Lost
	// Failed is a request that could not be made, because an earlier request of its push
	// or pull failed.
	Failed
	outcomes
)

var outcomeNames = [...]string{"ok", "status", "broken", "timeout", "wrong", "dropped", "lost", "dependency"}

// String returns the outcome's name in the files and reports.
func (o Outcome) String() string {
	if o < outcomes {
		return outcomeNames[o]
	}
	return "invalid"
}

func parseOutcome(s string) Outcome {
	for i, n := range outcomeNames {
		if n == s {
			return Outcome(i)
		}
	}
	return outcomes
}

// Object is what a request was about: the kinds of a trace, and whole sessions.
type Object uint8

// These are the objects that are no kinds of [trace.Kind]. Their numbers are greater than
// the numbers of the kinds.
const (
	PullSession Object = 16
	PushSession Object = 17
)

// String returns the object's name.
func (o Object) String() string {
	switch o {
	case PullSession:
		return "pull"
	case PushSession:
		return "push"
	}
	return trace.Kind(o).String()
}

func parseObject(s string) Object {
	for o := Object(0); o <= PushSession; o++ {
		if o.String() == s {
			return o
		}
	}
	return Object(trace.Other)
}

// Sample is one request, or one session. Times are in microseconds from the beginning of the
// run.
type Sample struct {
	// Task and Step say what the sample is of. Part counts the requests of a step. The
	// sample of a whole session has Step -1.
	Task int64
	Step int32
	Part uint8
	// Last marks the last sample of a task.
	Last bool
	// Worker and Target are indices of the names in the summary.
	Worker, Target uint8
	Method         store.Method
	Object         Object
	Outcome        Outcome
	Status         uint16
	// Intended is when the request was to be sent, Sent when it was sent, First when the
	// header of the answer came, and End when all of the answer was there. A request that
	// was never sent has Sent equal to Intended.
	Intended, Sent, First, End int64
	// Wait is the part of Sent-Intended in which too many other requests were under
	// way; the rest is the generator's own lag.
	Wait int64
	// Bytes is the size of the body that was sent or received.
	Bytes int64
	// Redirects is how many redirects were followed. They took RedirectTime.
	Redirects    uint8
	RedirectTime int64
	// Extra is set for a request that the trace does not have, such as the reopening of
	// an upload or a request for a token.
	Extra bool
}

// Latency returns the time in microseconds from the intended sending to the end.
func (s *Sample) Latency() int64 { return s.End - s.Intended }

// Service returns the time in microseconds from the actual sending to the end.
func (s *Sample) Service() int64 { return s.End - s.Sent }

// Lag returns the time in microseconds by which the generator itself was late.
func (s *Sample) Lag() int64 { return max(0, s.Sent-s.Intended-s.Wait) }

// Executed reports whether the request was sent and its end is known.
func (s *Sample) Executed() bool { return s.Outcome < Dropped }

// IsSession reports whether the sample is of a whole session.
func (s *Sample) IsSession() bool { return s.Object >= PullSession }

// SizeClass returns the class of a body's size, see [SizeClasses].
func (s *Sample) SizeClass() uint8 {
	for i, limit := range sizeLimits {
		if s.Bytes < limit {
			return uint8(i)
		}
	}
	return uint8(len(sizeLimits))
}

// sizeLimits are the upper bounds of the classes: the knots at which the size
// distribution of the FAST'18 traces is published.
var sizeLimits = [...]int64{1, 16 << 10, 1 << 20, 10_000_000, 64 << 20}

// sizeNames name the classes.
var sizeNames = [...]string{"0", "<16KiB", "<1MiB", "<10MB", "<64MiB", ">=64MiB"}

// AppendSample appends the binary form in which workers send samples.
func AppendSample(b []byte, s *Sample) []byte {
	flags := byte(0)
	if s.Last {
		flags |= 1
	}
	if s.Extra {
		flags |= 2
	}
	b = append(b, flags, s.Part, s.Worker, s.Target, byte(s.Method), byte(s.Object), byte(s.Outcome), s.Redirects)
	for _, v := range []int64{s.Task, int64(s.Step), int64(s.Status), s.Intended, s.Sent - s.Intended,
		s.First - s.Intended, s.End - s.Intended, s.Wait, s.Bytes, s.RedirectTime} {
		b = binary.AppendVarint(b, v)
	}
	return b
}

// ErrEncoding is returned for a sample that cannot be decoded.
var ErrEncoding = errors.New("malformed sample")

// DecodeSample reads a sample and returns what follows it.
func DecodeSample(b []byte) (s Sample, rest []byte, err error) {
	if len(b) < 8 {
		return s, nil, ErrEncoding
	}
	s.Last, s.Extra, s.Part, s.Worker, s.Target = b[0]&1 != 0, b[0]&2 != 0, b[1], b[2], b[3]
	s.Method, s.Object, s.Outcome, s.Redirects = store.Method(b[4]), Object(b[5]), Outcome(b[6]), b[7]
	b = b[8:]
	var v [10]int64
	for i := range v {
		n := 0
		if v[i], n = binary.Varint(b); n <= 0 {
			return s, nil, ErrEncoding
		}
		b = b[n:]
	}
	if v[2] < 0 || v[2] > math.MaxUint16 || s.Outcome >= outcomes || v[1] < -1 || v[1] > math.MaxInt32 || v[0] < 0 {
		return s, nil, ErrEncoding
	}
	s.Task, s.Step, s.Status, s.Intended = v[0], int32(v[1]), uint16(v[2]), v[3]
	s.Sent, s.First, s.End = v[3]+v[4], v[3]+v[5], v[3]+v[6]
	s.Wait, s.Bytes, s.RedirectTime = v[7], v[8], v[9]
	return s, b, nil
}
