package serve

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var seamsFlag = flag.String("seams", "", "one sequence of operations for TestSeams, such as push,away!2,repair; !2 kills it at its second durable step")

// seamStep is an operation of a sequence. With crash it is killed at that durable
// step, or runs to its end if it has less.
type seamStep struct {
	seamOp
	crash int
}

func (s seamStep) String() string {
	if s.crash == 0 {
		return s.name
	}
	return fmt.Sprintf("%s!%d", s.name, s.crash)
}

func sequence(steps []seamStep) string {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = s.String()
	}
	return strings.Join(names, ",")
}

// parseSequence reads what sequence wrote.
func parseSequence(text string) ([]seamStep, error) {
	byName := map[string]seamOp{}
	for _, op := range seamOps() {
		byName[op.name] = op
	}
	var steps []seamStep
	for _, word := range strings.Split(text, ",") {
		name, at, crashes := strings.Cut(word, "!")
		op, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("no operation is called %q; there are %q", name, slices.Sorted(maps.Keys(byName)))
		}
		s := seamStep{seamOp: op}
		if crashes {
			var err error
			if s.crash, err = strconv.Atoi(at); err != nil {
				return nil, err
			}
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// seamResult is what came of a sequence.
type seamResult struct {
	// steps is how many durable steps the last operation had.
	steps int
	// errs are the promises that were not kept.
	errs []error
	log  []string
}

// runSeams runs a sequence on a world of its own, in which time passes only where the
// sequence says so, and checks every promise after its last operation.
func runSeams(t *testing.T, base *seamBase, dir string, steps []seamStep) (res seamResult) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(base.now))
		w := &world{seamBase: base, ctx: t.Context(), dir: dir, o: base.oracle.clone()}
		defer func() {
			if p := recover(); p != nil {
				res.errs = append(res.errs, &violation{"nothing panics", fmt.Errorf("%v\n%s", p, debug.Stack())})
			}
			res.log = w.said
			_ = w.close() // what it says is checked where it matters
			_ = os.RemoveAll(w.dir)
			_ = os.RemoveAll(w.image())
		}()
		var opErr error
		err := copyTree(base.dir, dir)
		if err == nil {
			err = w.open()
		}
		for i := 0; i < len(steps) && err == nil; i++ {
			opErr, err = w.do(steps[i])
		}
		if err != nil {
			res.errs = []error{err}
			return
		}
		res.steps = w.steps
		res.errs = w.check(steps[len(steps)-1], opErr)
	})
	return res
}

// do runs one operation. opErr is what it said to its caller.
func (w *world) do(s seamStep) (opErr, err error) {
	if w.a == nil {
		if err := w.open(); err != nil && !w.o.away {
			return nil, &violation{"the registry opens", err}
		} else if err != nil && s.name != "back" { // it may refuse a store that is away
			w.say("%s: cannot open: %v", s.name, err)
			return err, nil
		}
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	w.mu.Lock()
	w.steps, w.crash, w.armed, w.then, w.broken = 0, s.crash, true, nil, nil
	w.mu.Unlock()
	opErr = s.run(w)
	w.mu.Lock()
	w.armed = false
	w.mu.Unlock()
	w.say("%s: %v", s, opErr)
	var v *violation
	if errors.As(opErr, &v) {
		return nil, v
	}
	if w.then != nil && s.crash > 0 {
		if err := w.become(); err != nil {
			return nil, err
		}
		opErr = errors.New("killed")
		return opErr, w.open()
	}
	return opErr, nil
}

// check holds the world against every promise.
func (w *world) check(last seamStep, opErr error) (broken []error) {
	promise := func(what string, err error) {
		if err != nil {
			broken = append(broken, &violation{what, err})
		}
	}
	if w.a == nil {
		if err := w.open(); err != nil && !w.o.away {
			promise("the registry opens", err)
			return broken
		}
	}
	if w.a != nil {
		if opErr == nil && last.verdict != nil && !w.o.away {
			promise("who says done has done it: "+last.name, last.verdict(w))
		}
		promise("no wrong byte is served", w.served())
		if !w.o.harmed && !w.o.away {
			promise("without damage from outside everything can be read", w.allReadable())
		}
	}
	if err := w.recover(); err != nil {
		broken = append(broken, err)
	}
	return broken
}

// seamWalk runs sequences on several worlds at once and collects what fails.
type seamWalk struct {
	base *seamBase
	dir  string
	mu   sync.Mutex
	runs int
	// failed are sequences by the promise they break.
	failed map[string][]string
}

func (k *seamWalk) run(t *testing.T, steps []seamStep) seamResult {
	k.mu.Lock()
	k.runs++
	dir := filepath.Join(k.dir, fmt.Sprint("w", k.runs))
	k.mu.Unlock()
	res := runSeams(t, k.base, dir, steps)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, err := range res.errs {
		promise := "the model itself works"
		var v *violation
		if errors.As(err, &v) {
			promise = v.promise
		}
		k.failed[promise] = append(k.failed[promise], sequence(steps))
		if len(k.failed[promise]) <= 3 {
			t.Errorf("%s: %v\n\t%s\nrun it again with -run TestSeams -seams %s", sequence(steps), err, strings.Join(res.log, "\n\t"), sequence(steps))
		}
	}
	return res
}

// extend runs what begins with a sequence and has at most so many operations more.
func (k *seamWalk) extend(t *testing.T, begin []seamStep, depth int, ops []seamOp) {
	for _, op := range ops {
		steps := append(slices.Clip(begin), seamStep{seamOp: op})
		n := k.run(t, steps).steps
		for crash := 0; crash <= n; crash++ {
			steps = append(slices.Clip(begin), seamStep{op, crash})
			if crash > 0 {
				k.run(t, steps)
			}
			if depth > 1 {
				k.extend(t, steps, depth-1, seamOps())
			}
		}
	}
}

// worldsDir is where worlds are made: in memory, where there is room.
func worldsDir(t *testing.T) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "seams"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// TestSeams runs sequences of operations against a model that knows what clients
// were told, and every copy of every byte.
func TestSeams(t *testing.T) {
	k := &seamWalk{base: newSeamBase(t), dir: worldsDir(t), failed: map[string][]string{}}
	if *seamsFlag != "" {
		steps, err := parseSequence(*seamsFlag)
		if err != nil {
			t.Fatal(err)
		}
		k.run(t, steps)
		return
	}
	depth := 1
	if v := os.Getenv("SLIPWAY_SEAMS"); v != "" {
		var err error
		if depth, err = strconv.Atoi(v); err != nil {
			t.Fatalf("SLIPWAY_SEAMS: %v", err)
		}
	}
	began := time.Now()
	k.extend(t, nil, depth, seamOps())
	t.Logf("%d sequences in %s", k.runs, time.Since(began).Round(time.Millisecond))
	for promise, list := range k.failed {
		t.Errorf("%d sequences break the promise %q, the first are %q", len(list), promise, list[:min(len(list), 12)])
	}
}
