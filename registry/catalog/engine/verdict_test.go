package engine

import (
	"errors"
	"sync"
	"testing"

	"example.org/slipway/registry/catalog/catalogtest"
)

// verdictValues returns the errors of this package that are answers to a change.
func verdictValues() map[string]error {
	return map[string]error{"ErrNotFound": ErrNotFound, "ErrLeased": ErrLeased, "sentinel": &sentinel{"of a test"}}
}

// TestVerdictsAreTyped checks that each error of this package is listed as a verdict or as a
// failure, and that its type agrees.
func TestVerdictsAreTyped(t *testing.T) {
	catalogtest.Verdicts(t, verdictValues(), "errClosed", "ErrEnough", "ErrFull", "ErrLeaseLost", "ErrUnavailable", "errGivenUp",
		"errNotCommitted", "errWarned", "undecidedError", "LogDamagedError")
	for _, err := range []error{errClosed, ErrLeaseLost, ErrUnavailable, errNotCommitted, errWarned, &undecidedError{errors.New("x")}} {
		if isVerdict(err) {
			t.Errorf("the failure %q counts as a verdict", err)
		}
	}
}

// counting counts the commits of an engine.
type counting struct {
	engine
	commits int
}

func (c *counting) commit(t *Tx) error {
	c.commits++
	return c.engine.commit(t)
}

// TestVerdictSharesCommit checks a batch in which one change is refused or fails after it wrote.
// The others must not be committed one by one.
func TestVerdictSharesCommit(t *testing.T) { servers.OnBoth(t, testVerdictSharesCommit) }

func testVerdictSharesCommit(t *testing.T, base *catalogtest.Bed) {
	c := open(t, base, nil)
	failure := errors.New("a failure")
	type refusal struct {
		name  string
		err   error
		wrote bool
		most  int // commits
	}
	list := []refusal{{"failure", failure, false, 2}, {"failure after it wrote", failure, true, 2}}
	for name, err := range verdictValues() {
		list = append(list, refusal{name, err, false, 1}, refusal{name + " after it wrote", err, true, 2})
	}
	counted := &counting{engine: c.engine}
	release := c.HoldWriter(t)
	c.engine = counted // while the writer is busy with the change that holds it
	release()
	rows := 0
	for i, r := range list {
		release := c.HoldWriter(t)
		before := counted.commits
		var wg sync.WaitGroup
		for k := range maxBatch {
			wg.Go(func() {
				bad := k == 100
				err := c.Write(t.Context(), func(t *Tx) error {
					if bad && !r.wrote {
						return r.err
					}
					if err := put(t, i*maxBatch+k); err != nil || !bad {
						return err
					}
					return r.err
				})
				if bad != errors.Is(err, r.err) || !bad && err != nil {
					t.Errorf("%s: change %d got %v", r.name, k, err)
				}
			})
		}
		c.Queued(maxBatch)
		release()
		wg.Wait()
		// One commit is that of the change that held the writer.
		if got := counted.commits - before - 1; got > r.most {
			t.Errorf("%s: a batch of %d took %d commits, want at most %d", r.name, maxBatch, got, r.most)
		}
		rows += maxBatch - 1
		if got := len(c.testRows(t)); got != min(rows, 10_000) {
			t.Errorf("%s: %d changes are there, want %d", r.name, got, rows)
		}
	}
}
