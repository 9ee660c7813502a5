package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limits are what the registry promises.
type Limits struct {
	// Stale returns how long after an acknowledged change of a cell a read may still return the
	// value before it.
	Stale func(cell string) time.Duration
	// Answer is the maximum time of an operation.
	Answer time.Duration
}

// Violation is an operation that breaks a promise.
type Violation struct {
	// Rule names the promise.
	Rule string
	Op   Op
	// Because holds the operations that prove it.
	Because []Op
}

// These are the rules.
const (
	RuleWrong   = "wrong bytes"
	RuleLost    = "what was there is lost"
	RuleStale   = "a value from before an acknowledged change"
	RuleNever   = "a value that nobody has written"
	RuleError   = "an error that no fault explains"
	RuleNoRetry = "no Retry-After"
	RuleSlow    = "no answer in time"
)

// String describes the violation on several lines.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n\t%s", v.Rule, v.Op.Cell, v.Op)
	for _, o := range v.Because {
		fmt.Fprintf(&b, "\n\tbut %s", o)
	}
	return b.String()
}

// Check returns all violations of a history, in order of time.
func Check(ops []Op, l Limits) []Violation {
	var found []Violation
	cells := map[string][]Op{}
	for _, o := range ops {
		if v, ok := checkAnswer(o, l); !ok {
			found = append(found, v)
		}
		if o.Kind <= MayWrite && o.Cell != "" {
			cells[o.Cell] = append(cells[o.Cell], o)
		}
	}
	for _, list := range cells {
		found = append(found, checkCell(list, l.Stale(list[0].Cell))...)
	}
	slices.SortStableFunc(found, func(a, b Violation) int { return cmp.Compare(a.Op.End, b.Op.End) })
	return found
}

// checkAnswer judges a single operation.
func checkAnswer(o Op, l Limits) (v Violation, ok bool) {
	v.Op = o
	switch {
	case o.Kind == Wrong:
		v.Rule = RuleWrong
	case o.Excuse != "":
		return v, true
	case o.End-o.Start > l.Answer:
		v.Rule = RuleSlow
	case o.Kind != Failed && o.Kind != MayWrite, o.Status == 0: // a fault explains a lost connection
		return v, true
	case o.Status != 429 && o.Status < 500:
		v.Rule = RuleError
	case (o.Status == 429 || o.Status == 503) && !o.RetryAfter:
		v.Rule = RuleNoRetry
	default:
		return v, true
	}
	return v, false
}

// write is a write of a cell, with what the cell's history says of it.
type write struct {
	Op
	// done is the latest time at which the write had taken effect; math.MaxInt64 means never.
	done time.Duration
	// over is the latest time at which it was replaced, and by is the read that shows it.
	over time.Duration
	by   *Op
}

const (
	always = time.Duration(math.MinInt64)
	never  = time.Duration(math.MaxInt64)
)

// checkCell judges the reads of one cell.
//
// A read excludes a write as its origin if another write certainly followed that write
// and had certainly taken effect by the start of the read's window. Two concurrent writes
// take effect in one order only, which the reads reveal: a read of one of them after both
// have ended shows that this one was the later.
func checkCell(ops []Op, stale time.Duration) (found []Violation) {
	writes := []*write{{Op: Op{Kind: Write, Value: Absent, Start: always, End: always}, done: always, over: never}}
	var reads []Op
	for _, o := range ops {
		switch o.Kind {
		case Write:
			writes = append(writes, &write{Op: o, done: o.End, over: never})
		case MayWrite:
			writes = append(writes, &write{Op: o, done: never, over: never})
		default:
			reads = append(reads, o)
		}
	}
	slices.SortStableFunc(reads, func(a, b Op) int { return cmp.Compare(a.End, b.End) })
	for i := range reads {
		if v, ok := checkRead(writes, &reads[i], stale); !ok {
			found = append(found, v)
		}
	}
	return found
}

func checkRead(writes []*write, r *Op, stale time.Duration) (Violation, bool) {
	from := r.Start - stale // start of the window in which the value must have been current
	// This is the last write that had certainly taken effect by then.
	var latest *write
	for _, w := range writes {
		if w.done < from && (latest == nil || w.Start > latest.Start) {
			latest = w
		}
	}
	var origin, excluded *write
	origins := 0
	for _, w := range writes {
		if w.Value != r.Value || w.Start > r.End {
			continue
		}
		if latest != nil && latest != w && latest.Start > w.done || w.over < from {
			if excluded == nil || w.Start > excluded.Start {
				excluded = w
			}
			continue
		}
		origin = w
		origins++
	}
	switch {
	case origins == 1:
		origin.done = min(origin.done, r.End)
		for _, w := range writes {
			if w != origin && w.done < from && r.End < w.over {
				w.over, w.by = r.End, r
			}
		}
		return Violation{}, true
	case origins > 1:
		return Violation{}, true
	}
	v := Violation{Rule: RuleNever, Op: *r}
	if excluded == nil {
		return v, false
	}
	v.Rule = RuleStale
	v.Because = append(v.Because, excluded.Op)
	proof := excluded.by
	if excluded.over >= from {
		proof = &latest.Op
	}
	v.Because = append(v.Because, *proof)
	if r.Value == Absent && proof.Value != Absent {
		v.Rule = RuleLost
	}
	return v, false
}
