package history_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/replicas/history"
)

// at returns an operation on cell "c" with times in seconds.
func at(kind history.Kind, value string, start, end float64) history.Op {
	sec := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	return history.Op{Kind: kind, Cell: "c", Value: value, Start: sec(start), End: sec(end), Request: kind.String()}
}

const (
	read  = history.Read
	write = history.Write
	maybe = history.MayWrite
)

var limits = history.Limits{Stale: func(string) time.Duration { return 4 * time.Second }, Answer: time.Minute}

// TestCheck checks that the checker accepts what a registry may do, and finds what it may not.
func TestCheck(t *testing.T) {
	answer := func(kind history.Kind, status int, retry bool, excuse string) history.Op {
		o := at(kind, "", 0, 1)
		o.Status, o.RetryAfter, o.Excuse = status, retry, excuse
		return o
	}
	for _, c := range []struct {
		name string
		want string // the rule of the first violation; empty for none
		ops  []history.Op
	}{
		{"nothing", "", nil},
		{"write and read", "", []history.Op{at(write, "a", 0, 1), at(read, "a", 2, 3)}},
		{"absent in the beginning", "", []history.Op{at(read, "", 0, 1), at(write, "a", 2, 3)}},
		{"read while it is written", "", []history.Op{at(write, "a", 0, 10), at(read, "a", 1, 2), at(read, "", 3, 4)}},
		{"old within the bound", "", []history.Op{at(write, "a", 0, 1), at(read, "", 4.9, 5)}},
		{"lost", history.RuleLost, []history.Op{at(write, "a", 0, 1), at(read, "", 5.1, 5.2)}},
		{"lost, and found again", history.RuleLost, []history.Op{at(write, "a", 0, 1), at(read, "", 6, 7), at(read, "a", 8, 9)}},
		{"overwritten", "", []history.Op{at(write, "a", 0, 1), at(write, "b", 2, 3), at(read, "b", 9, 10), at(read, "a", 6.9, 7)}},
		{"stale", history.RuleStale, []history.Op{at(write, "a", 0, 1), at(write, "b", 2, 3), at(read, "a", 7.1, 8)}},
		{"stale while something else is being written", history.RuleStale, []history.Op{at(write, "a", 0, 1), at(write, "b", 2, 3), at(write, "c", 7, 20), at(read, "a", 8, 9)}},
		{"never written", history.RuleNever, []history.Op{at(write, "a", 0, 1), at(read, "x", 2, 3)}},
		{"written later", history.RuleNever, []history.Op{at(read, "a", 0, 1), at(write, "a", 2, 3)}},
		{"unknown that happened", "", []history.Op{at(maybe, "a", 0, 1), at(read, "a", 50, 51), at(read, "a", 60, 61)}},
		{"unknown that did not", "", []history.Op{at(maybe, "a", 0, 1), at(read, "", 50, 51)}},
		{"unknown that happened late", "", []history.Op{at(maybe, "a", 0, 1), at(read, "", 50, 51), at(read, "a", 60, 61)}},
		{"unknown that was taken back", history.RuleLost, []history.Op{at(maybe, "a", 0, 1), at(read, "a", 50, 51), at(read, "", 60, 61)}},
		{"unknown over an acknowledged one", "", []history.Op{at(write, "a", 0, 1), at(maybe, "b", 2, 3), at(read, "a", 50, 51), at(read, "b", 60, 61)}},
		{"back from an unknown one", history.RuleStale, []history.Op{at(write, "a", 0, 1), at(maybe, "b", 2, 3), at(read, "b", 50, 51), at(read, "a", 60, 61)}},
		{"deleted", "", []history.Op{at(write, "a", 0, 1), at(write, "", 2, 3), at(read, "", 50, 51)}},
		{"deleted and still there", history.RuleStale, []history.Op{at(write, "a", 0, 1), at(write, "", 2, 3), at(read, "a", 50, 51)}},
		{"perhaps deleted", "", []history.Op{at(write, "a", 0, 1), at(maybe, "", 2, 3), at(read, "", 50, 51), at(read, "", 60, 61)}},
		{"perhaps deleted, gone and back", history.RuleStale, []history.Op{at(write, "a", 0, 1), at(maybe, "", 2, 3), at(read, "", 50, 51), at(read, "a", 60, 61)}},
		{"lost although an earlier one was deleted", history.RuleLost, []history.Op{at(write, "a", 0, 1), at(write, "", 2, 3), at(write, "b", 4, 5), at(read, "", 50, 51)}},
		{"two at once, one wins", "", []history.Op{at(write, "a", 0, 3), at(write, "b", 1, 2), at(read, "a", 50, 51), at(read, "a", 60, 61)}},
		{"two at once, the other wins", "", []history.Op{at(write, "a", 0, 3), at(write, "b", 1, 2), at(read, "b", 50, 51), at(read, "b", 60, 61)}},
		{"two at once, both win", history.RuleStale, []history.Op{at(write, "a", 0, 3), at(write, "b", 1, 2), at(read, "b", 50, 51), at(read, "a", 60, 61)}},
		{"two at once, within the bound", "", []history.Op{at(write, "a", 0, 3), at(write, "b", 1, 2), at(read, "b", 50, 51), at(read, "a", 53, 54)}},
		{"the same value twice", "", []history.Op{at(write, "a", 0, 1), at(write, "b", 2, 3), at(write, "a", 4, 5), at(read, "a", 50, 51)}},
		{"failed and not there", "", []history.Op{answer(history.Failed, 500, false, ""), at(read, "", 50, 51)}},
		{"wrong bytes", history.RuleWrong, []history.Op{at(history.Wrong, "a", 0, 1)}},
		{"no connection", "", []history.Op{answer(history.Failed, 0, false, "")}},
		{"500", "", []history.Op{answer(history.Failed, 500, false, "")}},
		{"503", "", []history.Op{answer(history.MayWrite, 503, true, "")}},
		{"503 without a time", history.RuleNoRetry, []history.Op{answer(history.MayWrite, 503, false, "")}},
		{"429 without a time", history.RuleNoRetry, []history.Op{answer(history.Failed, 429, false, "")}},
		{"400", history.RuleError, []history.Op{answer(history.Failed, 400, false, "")}},
		{"400 with an excuse", "", []history.Op{answer(history.Failed, 400, false, "too slow")}},
		{"hung", history.RuleSlow, []history.Op{at(read, "", 0, 61)}},
	} {
		found := history.Check(c.ops, limits)
		got := ""
		if len(found) > 0 {
			got = found[0].Rule
			if s := found[0].String(); !strings.Contains(s, "client 0") {
				t.Errorf("%s: described as %q", c.name, s)
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q: %v", c.name, got, c.want, found)
		}
	}
}

// TestCheckCells checks that cells do not mix.
func TestCheckCells(t *testing.T) {
	a, b := at(write, "a", 0, 1), at(read, "", 50, 51)
	b.Cell = "other"
	if found := history.Check([]history.Op{a, b}, limits); len(found) > 0 {
		t.Errorf("got %v", found)
	}
}

// TestCheckSimulated checks that a register that keeps the promise never fails the check, whatever
// the times, and that one that lies is caught.
func TestCheckSimulated(t *testing.T) {
	const rounds = 300
	caught := 0
	for seed := range uint64(rounds) {
		if found := history.Check(simulate(seed, 0), limits); len(found) > 0 {
			t.Fatalf("seed %d: an honest register: %v", seed, found[0])
		}
		if len(history.Check(simulate(seed, 20), limits)) > 0 {
			caught++
		}
	}
	if caught < rounds*9/10 {
		t.Errorf("a register that forgets was caught in %d of %d histories", caught, rounds)
	}
}

// simulate returns the history of a register with writers and readers at random times. Some of
// their answers are lost. Each read returns a value that was current within the bound. With a
// register that forgets, some reads return a value from before the last forget seconds.
func simulate(seed uint64, forget float64) []history.Op {
	rng := rand.New(rand.NewPCG(seed, 1))
	type effect struct {
		at    float64
		value string
	}
	effects := []effect{{-1e9, ""}}
	var ops []history.Op
	now := 0.0
	for i := range 60 { // effects are in order; the requests around them overlap
		now += rng.ExpFloat64() * 3
		value := ""
		if rng.IntN(4) > 0 {
			value = string(rune('a'+i%26)) + string(rune('a'+i/26))
		}
		start, end := now-rng.Float64()*2, now+rng.Float64()*2
		kind := write
		switch rng.IntN(5) {
		case 0: // the answer is lost, perhaps long before the write takes effect
			kind, start = maybe, now-rng.Float64()*20
			end = start + 0.1
		case 1: // it never takes effect
			ops = append(ops, at(maybe, value, start, end))
			continue
		}
		effects = append(effects, effect{now, value})
		ops = append(ops, at(kind, value, start, end))
	}
	current := func(t float64) string {
		v := ""
		for _, e := range effects {
			if e.at <= t {
				v = e.value
			}
		}
		return v
	}
	for range 400 {
		start := rng.Float64() * (now + 10)
		end := start + rng.Float64()
		seen := start - 4 + rng.Float64()*(4+end-start)
		if forget > 0 && rng.IntN(4) == 0 {
			seen = start - 4 - forget*(1+rng.Float64())
		}
		ops = append(ops, at(read, current(seen), start, end))
	}
	return ops
}
