package replication

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// errNoRules says that there is nothing to do.
var errNoRules = errors.New("nothing is replicated here; the section replication of the configuration has the rules")

// errBusy says that a rule is already at work.
var errBusy = errors.New("the rule is at work already, here or at another server; slipway replicate --status shows how far it is")

// errReplaced says that work was broken off because its rule is not as it was.
var errReplaced = errors.New("the rule was changed or removed meanwhile; what was copied stays")

// state is what is kept of a rule.
type state struct {
	// Started and Ended are the times of the last run, and Succeeded is the end of the
	// last run without a failure.
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended"`
	Succeeded time.Time `json:"succeeded"`
	Counts    Counts    `json:"counts"`
	Errors    []string  `json:"errors,omitempty"`
	// Failed says that the last run failed and has to be repeated. Failures is how often
	// the rule's work failed in a row, and RetryAt is when it is tried again. Away says
	// that the other registry did not answer, so the queue has to wait as well.
	Failed   bool      `json:"failed,omitempty"`
	Away     bool      `json:"away,omitempty"`
	Failures int       `json:"failures,omitempty"`
	RetryAt  time.Time `json:"retry_at"`
}

// change is a push or a deletion that is to be repeated at the remote registry.
type change struct {
	Repo    string     `json:"repo"`
	Tag     string     `json:"tag,omitempty"`
	Digest  oci.Digest `json:"digest,omitempty"`
	Deleted bool       `json:"deleted,omitempty"`
	Via     []string   `json:"via,omitempty"`
	// Attempts is how often it failed, Error is why it did the last time, and Due is when
	// it is tried again.
	Attempts int       `json:"attempts,omitempty"`
	Error    string    `json:"error,omitempty"`
	Due      time.Time `json:"due"`
}

func (c *change) String() string {
	switch {
	case c.Tag != "":
		return c.Repo + ":" + c.Tag
	default:
		return c.Repo + "@" + string(c.Digest)
	}
}

// failure says what failed, and why.
func (c *change) failure() string {
	if strings.Contains(c.Error, c.String()) {
		return c.Error
	}
	return c.String() + ": " + c.Error
}

// worker does the work of a rule.
type worker struct {
	r      *Replicator
	rule   *Rule
	owner  string
	nudges chan struct{}
	// busy is held while the rule is at work. A rule that replaces another one shares it.
	busy *sync.Mutex
	// eager says that pauses after failures do not count, because the rule has changed
	// since. It is used while busy is held.
	eager bool
	// replaced is closed when the rule is not in use any more.
	replaced chan struct{}

	mu sync.Mutex
	// now is the report of the run under way, or nil.
	now *Report
}

func newWorker(r *Replicator, rule *Rule) *worker {
	r.metrics.begin(rule.Name)
	return &worker{r: r, rule: rule, owner: rand.Text(), nudges: make(chan struct{}, 1), busy: &sync.Mutex{}, replaced: make(chan struct{})}
}

// nudge makes the worker look at its queue.
func (w *worker) nudge() {
	select {
	case w.nudges <- struct{}{}:
	default:
	}
}

// takes reports whether the rule acts on a push that named a tag. What has no tag may be a
// referrer.
func (w *worker) takes(tag string) bool {
	return tag == "" || w.rule.picked(tag) || w.rule.Referrers && subjectOf(tag) != ""
}

func (w *worker) enqueue(ctx context.Context, c change) error {
	payload, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return w.r.o.Store.Append(ctx, w.rule.Name, payload)
}

// lookAgain is the longest pause between two looks at the queue. Another server may have
// added to it.
const lookAgain = 30 * time.Second

func (w *worker) run(ctx context.Context) {
	w.busy.Lock()
	//lint:ignore SA2001 The rule that this one replaces may still be ending. Wait for it.
	w.busy.Unlock()
	for {
		wait, err := w.step(ctx)
		if ctx.Err() != nil || errors.Is(err, errReplaced) {
			return
		}
		if err != nil {
			w.r.o.Logger.Error("replication cannot go on; it is tried again", "rule", w.rule.Name, "err", err)
			wait = lookAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-w.replaced:
			return
		case <-w.nudges:
		case <-time.After(min(max(wait, time.Millisecond), lookAgain)):
		}
	}
}

// step does what is due, and returns when to look again.
func (w *worker) step(ctx context.Context) (wait time.Duration, err error) {
	err = w.alone(ctx, func(ctx context.Context) error {
		st, err := w.load(ctx)
		if err != nil {
			return err
		}
		if w.eager {
			st.Away, st.RetryAt = false, time.Time{}
		}
		pause := w.r.left(st.RetryAt, w.r.o.RetryMaxWait)
		if st.Away && pause > 0 {
			wait = pause
			return w.show(ctx, st)
		}
		wait = w.untilRun(st, pause)
		if wait == 0 {
			_, err := w.replicate(ctx, st, Args{}, nil)
			return err
		}
		// The queue does not wait for a run that fails again and again.
		more, err := w.drain(ctx, st)
		wait = min(wait, more)
		w.eager = false
		return err
	})
	var failed *failedError
	switch {
	case errors.Is(err, errBusy):
		return lookAgain, nil
	case errors.As(err, &failed):
		return 0, nil // it is in the log already
	}
	return wait, err
}

// untilRun returns how long it is until the next run. pause is what is left of the pause
// after a failure.
func (w *worker) untilRun(st *state, pause time.Duration) time.Duration {
	switch {
	case st.Failed || pause > 0:
		return pause
	case w.rule.Every > 0:
		return w.r.left(st.Started.Add(w.rule.Every), w.rule.Every)
	}
	return lookAgain
}

// left returns how long it is until t. It returns 0 if that is longer than any wait that
// can have been meant, as it is after the clock was wrong.
func (r *Replicator) left(t time.Time, most time.Duration) time.Duration {
	d := t.Sub(r.o.Clock())
	if d > most {
		return 0
	}
	return max(d, 0)
}

const leaseTime = 30 * time.Second

// alone calls f unless the rule is at work already, here or at another server.
func (w *worker) alone(ctx context.Context, f func(context.Context) error) error {
	if !w.busy.TryLock() {
		return errBusy
	}
	defer w.busy.Unlock()
	select {
	case <-w.replaced:
		return errReplaced
	default:
	}
	if w.r.o.Enter != nil {
		leave, err := w.r.o.Enter()
		if err != nil {
			return errors.Join(errBusy, err)
		}
		defer leave()
	}
	ctx, cancel := w.untilStopped(ctx)
	defer cancel()
	if w.r.o.Lease != nil {
		err := w.leased(ctx, f)
		return because(ctx, err)
	}
	return because(ctx, f(ctx))
}

// because returns errReplaced instead of an error that comes of the rule's replacement.
func because(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errReplaced) {
		return errReplaced
	}
	return err
}

// untilStopped returns a context that also ends when changes are to stop, or the rule is
// replaced.
func (w *worker) untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var stopping <-chan struct{}
	if w.r.o.Stopping != nil {
		stopping = w.r.o.Stopping()
	}
	go func() {
		select {
		case <-stopping:
			cancel(nil)
		case <-w.replaced:
			cancel(errReplaced)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// leased calls f unless another server does the work of the rule.
func (w *worker) leased(ctx context.Context, f func(context.Context) error) error {
	name := "replication/" + w.rule.Name
	ok, err := w.r.o.Lease(ctx, name, w.owner, leaseTime)
	if err != nil {
		return err
	}
	if !ok {
		return errBusy
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.keepLease(ctx, name, cancel) })
	err = f(ctx)
	cancel()
	wg.Wait()
	ended, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	_ = w.r.o.Unlease(ended, name, w.owner) // it ends by itself
	return err
}

// keepLease prolongs a lease until ctx ends. If the lease is lost, the work is cancelled.
func (w *worker) keepLease(ctx context.Context, name string, cancel func()) {
	tick := time.NewTicker(leaseTime / 3)
	defer tick.Stop()
	until := time.Now().Add(leaseTime)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		ok, err := w.r.o.Lease(ctx, name, w.owner, leaseTime)
		switch {
		case ok:
			until = began.Add(leaseTime)
		case err == nil || time.Until(until) < leaseTime/3:
			cancel()
			return
		}
	}
}

func (w *worker) load(ctx context.Context) (*state, error) {
	b, err := w.r.o.Store.Load(ctx, w.rule.Name)
	st := &state{}
	if err != nil || len(b) == 0 {
		return st, err
	}
	if err := json.Unmarshal(b, st); err != nil {
		return nil, fmt.Errorf("read the state of the replication rule %s: %w", w.rule.Name, err)
	}
	return st, nil
}

// save keeps a state, also if ctx has ended meanwhile.
func (w *worker) save(ctx context.Context, st *state) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	kept, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := w.r.o.Store.Save(kept, w.rule.Name, b); err != nil {
		return fmt.Errorf("keep the state of the replication rule %s: %w", w.rule.Name, err)
	}
	return w.show(kept, st)
}

// show sets the metrics.
func (w *worker) show(ctx context.Context, st *state) error {
	n, err := w.r.o.Store.Len(ctx, w.rule.Name)
	if err == nil {
		w.r.metrics.show(w.rule.Name, st, n)
	}
	return err
}

// pause returns how long to wait after a number of failures in a row.
func (r *Replicator) pause(failures int) time.Duration {
	d := r.o.RetryWait
	for range failures - 1 {
		if d *= 2; d >= r.o.RetryMaxWait {
			return r.o.RetryMaxWait
		}
	}
	return min(d, r.o.RetryMaxWait)
}

// away reports whether an error says that the other registry cannot be reached, and not
// that it refuses something.
func away(err error) bool {
	var answer *oci.Error
	switch {
	case errors.Is(err, errIncomplete):
		return false
	case errors.Is(err, errAway) || !errors.As(err, &answer):
		return true
	}
	return answer.Code == oci.CodeUnavailable || answer.Code == oci.CodeTooManyRequests
}

// failed notes a failure of the rule's work.
func (w *worker) failed(st *state, err error) {
	st.Away = away(err)
	st.Failures++
	st.RetryAt = w.r.o.Clock().Add(w.r.pause(st.Failures))
	w.r.o.Logger.Warn("replication failed", "rule", w.rule.Name, "remote", w.rule.URL, "failures", st.Failures, "retry_at", st.RetryAt, "err", err)
}

// replicate does a run and keeps its result.
func (w *worker) replicate(ctx context.Context, st *state, args Args, progress func(Report)) (Report, error) {
	st.Started = w.r.o.Clock()
	defer w.watch(nil)
	w.watch(&Report{Rule: w.rule.Name})
	rep, err := newRun(w.r, w.rule, args, func(rep Report) {
		w.watch(&rep)
		if progress != nil {
			progress(rep)
		}
	}).do(ctx)
	w.r.metrics.counted(w.rule.Name, rep.Counts)
	if ctx.Err() != nil {
		return rep, ctx.Err() // the server stops, and does the run again when it starts
	}
	st.Ended, st.Counts, st.Errors, st.Failed = w.r.o.Clock(), rep.Counts, rep.Errors, err != nil
	if err != nil {
		w.r.metrics.runs.WithLabelValues(w.rule.Name, "error").Inc()
		if len(st.Errors) == 0 {
			st.Errors = []string{err.Error()}
		}
		rep.Errors = st.Errors
		w.failed(st, err)
		return rep, errors.Join(w.save(ctx, st), &failedError{err})
	}
	w.r.metrics.runs.WithLabelValues(w.rule.Name, "ok").Inc()
	st.Succeeded, st.Away, st.Failures, st.RetryAt = st.Ended, false, 0, time.Time{}
	if rep.Images+rep.Deleted > 0 {
		w.r.o.Logger.Info("replicated", "rule", w.rule.Name, "remote", w.rule.URL, "images", rep.Images, "bytes", rep.Bytes, "deleted", rep.Deleted)
	}
	return rep, w.save(ctx, st)
}

// failedError is a failure of a run that is in the log and in the state already.
type failedError struct{ err error }

func (e *failedError) Error() string { return e.err.Error() }
func (e *failedError) Unwrap() error { return e.err }

// watch notes what the run under way reports.
func (w *worker) watch(rep *Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = rep
}
