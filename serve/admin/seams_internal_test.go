package admin

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
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

// seamStep is an operation of a sequence. If crash is set, the operation is killed at that durable
// step, or runs to its end if it has fewer.
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

// parseSequence parses the output of sequence.
func parseSequence(text string) ([]seamStep, error) {
	byName := map[string]seamOp{}
	for _, op := range append(seamOps(), seamLossOps()...) {
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

// seamResult is the result of a sequence.
type seamResult struct {
	// steps led to the judged world.
	steps []seamStep
	// nothing is set if the last operation had nothing to work on. The sequence is then the same as
	// the one without it.
	nothing bool
	// moments are the states that a process leaves behind when it is killed in the last operation.
	moments []*seamMoment
	// errs are the broken promises.
	errs []error
	log  []string
}

// runSeams runs a sequence on its own world, in which time passes only where the sequence says so.
func runSeams(t *testing.T, base *seamBase, dir string, m *seamMoment, steps []seamStep, watch bool) (res seamResult) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(m.now))
		w := &world{seamBase: base, ctx: t.Context(), dir: dir, o: m.oracle.clone(), watch: watch}
		res = w.sequence(m, steps)
	})
	return res
}

var errKilled = errors.New("killed")

// sequence runs a sequence from a moment and checks every promise after the last operation.
func (w *world) sequence(m *seamMoment, steps []seamStep) (res seamResult) {
	res.steps = slices.Concat(m.steps, steps)
	w.said = slices.Clone(m.said)
	defer func() {
		if p := recover(); p != nil {
			res.errs = append(res.errs, &violation{"nothing panics", fmt.Errorf("%v\n%s", p, debug.Stack())})
		}
		res.log = w.said
		_ = w.close() // its error is checked where it matters
		_ = os.RemoveAll(w.dir)
		_ = os.RemoveAll(w.image())
	}()
	opErr, watch := errKilled, w.watch
	err := copyTree(m.dir, w.dir, nil)
	if err == nil {
		if err = w.open(); w.mayRefuse() {
			err = nil
		}
	}
	w.had = m.had
	for i := 0; i < len(steps) && err == nil; i++ {
		if i == len(steps)-1 {
			if w.had = nil; !steps[i].harms {
				w.had = w.ownCopies()
			}
		}
		w.watch = watch && i == len(steps)-1
		opErr, err = w.do(steps[i])
	}
	for _, killed := range w.moments {
		killed.steps = append(slices.Clip(res.steps[:len(res.steps)-1]), seamStep{steps[len(steps)-1].seamOp, killed.steps[0].crash})
		killed.said = w.said
	}
	res.moments = w.moments
	switch {
	case err != nil:
		res.errs = []error{err}
	case len(steps) > 0 && errors.Is(opErr, errNothing):
		res.nothing = true
	default:
		w.keeps(w.had)
		res.errs = append(w.check(res.steps[len(res.steps)-1], opErr), w.faults...)
	}
	return res
}

// do runs one operation. opErr is the error that its caller got.
func (w *world) do(s seamStep) (opErr, err error) {
	if w.a == nil {
		if err := w.open(); err != nil && !w.mayRefuse() {
			return nil, &violation{"the registry opens", err}
		} else if err != nil && s.name != "back" && s.name != "restore" {
			w.say("%s: cannot open: %v", s.name, err)
			return err, nil
		}
	}
	if w.remote == nil {
		time.Sleep(time.Minute)
		synctest.Wait()
	}
	w.mu.Lock()
	w.steps, w.crash, w.armed, w.then, w.broken = 0, s.crash, true, nil, nil
	w.mu.Unlock()
	opErr = s.run(w)
	w.mu.Lock()
	w.armed = false
	w.mu.Unlock()
	w.say("%s: %v", s, opErr)
	if w.then != nil && s.name != "kill" {
		if err := w.become(); err != nil {
			return nil, err
		}
		if err := w.open(); err != nil && !w.mayRefuse() {
			return nil, err
		}
		return errKilled, nil
	}
	return opErr, w.broken
}

// mayRefuse reports whether a registry need not open: its store is away or its catalogue lost.
func (w *world) mayRefuse() bool { return w.o.away.Load() || w.o.lost.Load() }

// check checks the world against every promise.
func (w *world) check(last seamStep, opErr error) (broken []error) {
	promise := func(what string, err error) {
		if err != nil {
			broken = append(broken, &violation{what, err})
		}
	}
	if w.a == nil {
		if err := w.open(); err != nil && !w.mayRefuse() {
			promise("the registry opens", err)
			return broken
		}
	}
	if w.a != nil {
		promise("a tag keeps the time of its push", w.tagTimes())
		if opErr == nil && last.verdict != nil && !w.o.away.Load() {
			promise("a command that reports success has done its work: "+last.name, last.verdict(w))
		}
		promise("no wrong byte is served", w.served())
		if !w.o.harmed.Load() && !w.o.away.Load() {
			err := w.allReadable()
			promise("without damage from outside everything can be read", err)
			if err == nil && !errors.Is(opErr, errKilled) && !w.o.full.Load() {
				return broken // other sequences test a repair or a restore of such a world
			}
		}
	}
	if err := w.recover(); err != nil {
		broken = append(broken, err)
	}
	return broken
}

// seamWalk runs sequences on several worlds at once and collects what fails.
type seamWalk struct {
	base  *seamBase
	dir   string
	began time.Time
	mu    sync.Mutex
	runs  int
	// failed lists the failed sequences by the promise that they break.
	failed map[string][]string
	// shard is the part of shards that is run. The parts divide the sequences that begin with the
	// same operation.
	shard, shards int
}

func newSeamWalk(t *testing.T, remote *seamRemote) *seamWalk {
	t.Helper()
	debug.SetGCPercent(400) // a world is short-lived, and collecting it took a tenth of the time
	return &seamWalk{base: newSeamBase(t, remote), dir: worldsDir(t), failed: map[string][]string{}, shards: 1, began: time.Now()}
}

// place returns a directory and a name for the next world.
func (k *seamWalk) place() (dir, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runs++
	name = fmt.Sprint("world", k.runs)
	return filepath.Join(k.dir, name), name
}

func (k *seamWalk) run(t *testing.T, m *seamMoment, steps []seamStep, watch bool) seamResult {
	dir, _ := k.place()
	res := runSeams(t, k.base, dir, m, steps, watch)
	k.judge(t, res)
	return res
}

// judge records the promises that a sequence broke and logs the first few failures of each.
func (k *seamWalk) judge(t *testing.T, res seamResult) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, err := range res.errs {
		promise := "the model itself works"
		var v *violation
		if errors.As(err, &v) {
			promise = v.promise
		}
		k.failed[promise] = append(k.failed[promise], sequence(res.steps))
		if len(k.failed[promise]) <= 3 {
			t.Errorf("%s: %v\n\t%s\nrun it again with -seams %s", sequence(res.steps), err, strings.Join(res.log, "\n\t"), sequence(res.steps))
		}
	}
}

// summary counts the failures and lists the shortest sequences first.
func (k *seamWalk) summary(t *testing.T) {
	t.Logf("%d sequences in %s", k.runs, time.Since(k.began).Round(time.Millisecond))
	for promise, list := range k.failed {
		slices.SortStableFunc(list, func(a, b string) int {
			return cmp.Or(strings.Count(a, ",")-strings.Count(b, ","), strings.Compare(a, b))
		})
		t.Errorf("%d sequences break the promise %q, the first are %q", len(list), promise, list[:min(len(list), 12)])
	}
}

// extend runs the sequences that begin with begin and have at most depth operations more. If kill
// is set, the last operation is also killed at each of its durable steps, and the first one with
// another operation after that.
func (k *seamWalk) extend(t *testing.T, m *seamMoment, begin []seamStep, depth int, kill bool) {
	for i, op := range seamOps() {
		if len(m.steps)+len(begin) == 1 && i%k.shards != k.shard {
			continue
		}
		k.step(t, m, append(slices.Clip(begin), seamStep{seamOp: op}), depth, kill)
	}
}

// step does the work of extend for one operation.
func (k *seamWalk) step(t *testing.T, m *seamMoment, steps []seamStep, depth int, kill bool) {
	res := k.run(t, m, steps, kill)
	for _, killed := range res.moments {
		k.run(t, killed, nil, false)
		if depth > 1 && len(steps) == 1 {
			k.extend(t, killed, nil, 1, false)
		}
		if err := os.RemoveAll(killed.dir); err != nil {
			t.Error(err)
		}
	}
	if depth > 1 && !res.nothing {
		k.extend(t, m, steps, depth-1, kill)
	}
}

// walk runs all sequences of at most depth operations.
func (k *seamWalk) walk(t *testing.T, depth int) {
	t.Run("walk", func(t *testing.T) {
		for _, op := range seamOps() {
			t.Run(op.name, func(t *testing.T) {
				t.Parallel()
				k.step(t, &k.base.seamMoment, []seamStep{{seamOp: op}}, depth, true)
			})
		}
	})
}

// random runs sequences of 2 to 8 operations, chosen by a seed, and shortens those that fail.
func (k *seamWalk) random(t *testing.T, seed uint64, n int) {
	ops := seamOps()
	t.Run("random", func(t *testing.T) {
		const at = 2 // workers
		for worker := range at {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				for i := worker; i < n; i += at {
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					steps := make([]seamStep, 2+rng.IntN(7))
					for j := range steps {
						steps[j].seamOp = ops[rng.IntN(len(ops))]
						if rng.IntN(4) == 0 {
							steps[j].crash = 1 + rng.IntN(8)
						}
					}
					k.run(t, &k.base.seamMoment, steps, false)
				}
			})
		}
	})
}

// worldsDir returns the directory for worlds. It is in memory if there is room.
func worldsDir(t *testing.T) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "seams"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

// readShard reads which part of the sequences to run.
func (k *seamWalk) readShard(t *testing.T) {
	t.Helper()
	v := os.Getenv("SLIPWAY_SEAMS_SHARD")
	if v == "" {
		return
	}
	if _, err := fmt.Sscanf(v, "%d/%d", &k.shard, &k.shards); err != nil || k.shards < 1 || k.shard >= k.shards {
		t.Fatalf("SLIPWAY_SEAMS_SHARD=%s is not of the form 0/4", v)
	}
}

// fewer returns how many of n rounds a short run makes.
func fewer(n int) int {
	if testing.Short() {
		return max(1, n/8)
	}
	return n
}

// seamNumber returns the number in an environment variable.
func seamNumber(t *testing.T, name string, def int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestSeams runs sequences of operations against a model that knows what clients
// were told, and every copy of every byte. By default it runs a fixed slice of them.
//
//	-seams push,away!2,repair  one sequence
//	SLIPWAY_SEAMS=3            all of at most three operations
//	SLIPWAY_SEAMS_SHARD=0/4    of these the first of four parts
//	SLIPWAY_SEAMS_RANDOM=5000  so many longer ones, which SLIPWAY_SEAMS_SEED decides
func TestSeams(t *testing.T) {
	t.Parallel()
	k := newSeamWalk(t, nil)
	if *seamsFlag != "" {
		steps, err := parseSequence(*seamsFlag)
		if err != nil {
			t.Fatal(err)
		}
		k.run(t, &k.base.seamMoment, steps, false)
		return
	}
	k.readShard(t)
	longer := seamNumber(t, "SLIPWAY_SEAMS_RANDOM", 0)
	depth := seamNumber(t, "SLIPWAY_SEAMS", 0)
	if depth == 0 && longer == 0 {
		depth, longer = 1, fewer(80)
	}
	if depth > 0 {
		k.walk(t, depth)
	}
	k.random(t, uint64(seamNumber(t, "SLIPWAY_SEAMS_SEED", 1)), longer)
	k.summary(t)
}
