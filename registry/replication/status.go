package replication

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Status is the state of a rule.
type Status struct {
	Rule      string `json:"rule"`
	Direction string `json:"direction"`
	Remote    string `json:"remote"`
	OnPush    bool   `json:"on_push"`
	Delete    bool   `json:"delete"`
	// State is "idle", "running", or "failing" if the last work failed or Held is not 0.
	State string `json:"state"`
	// Run is the run under way at this server.
	Run *Report `json:"run,omitempty"`
	// Last is what the last run did, which took from Started to Ended.
	Last      Counts     `json:"last"`
	Started   *time.Time `json:"started,omitempty"`
	Ended     *time.Time `json:"ended,omitempty"`
	Succeeded *time.Time `json:"succeeded,omitempty"`
	// Next is when the next run is due. It is nil without regular runs.
	Next *time.Time `json:"next,omitempty"`
	// Waiting is how many pushes and deletions wait. Held is how many of them have failed,
	// so that each waits for its next try while others pass. If very many wait, Held
	// counts the first.
	Waiting int `json:"waiting"`
	Held    int `json:"held"`
	// Failures is how often the work failed in a row, RetryAt is when it is tried again,
	// and Errors are some of the last failures and of those of what is held.
	Failures int        `json:"failures"`
	RetryAt  *time.Time `json:"retry_at,omitempty"`
	Errors   []string   `json:"errors,omitempty"`
}

// Status returns the state of each rule.
func (r *Replicator) Status(ctx context.Context) ([]Status, error) {
	list := []Status{}
	for _, w := range r.workers() {
		s, err := w.status(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func (w *worker) status(ctx context.Context) (Status, error) {
	s := Status{Rule: w.rule.Name, Direction: w.rule.direction(), Remote: w.rule.URL, OnPush: w.rule.OnPush, Delete: w.rule.Delete, State: "idle"}
	st, err := w.load(ctx)
	if err != nil {
		return s, err
	}
	if s.Waiting, err = w.r.o.Store.Len(ctx, w.rule.Name); err != nil {
		return s, err
	}
	s.Last, s.Failures = st.Counts, st.Failures
	s.Started, s.Ended, s.Succeeded, s.RetryAt = known(st.Started), known(st.Ended), known(st.Succeeded), known(st.RetryAt)
	if w.rule.Every > 0 {
		next := st.Started.Add(w.rule.Every)
		if st.Started.IsZero() {
			next = w.r.o.Clock()
		}
		s.Next = &next
	}
	var failures []string
	if s.Waiting > 0 {
		if s.Held, failures, err = w.held(ctx); err != nil {
			return s, err
		}
	}
	if st.Failures > 0 {
		s.Errors = st.Errors
	}
	for _, f := range failures {
		if !slices.Contains(s.Errors, f) {
			s.Errors = append(s.Errors, f)
		}
	}
	if st.Failures > 0 || s.Held > 0 {
		s.State = "failing"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		now := *w.now
		s.State, s.Run = "running", &now
	}
	return s, nil
}

// known returns a time, or nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Replicate does a run of a rule now, or finds out what it would do.
func (r *Replicator) Replicate(ctx context.Context, args Args, progress func(Report)) (rep Report, err error) {
	w, err := r.worker(args.Rule)
	if err != nil {
		return Report{Rule: args.Rule, DryRun: args.DryRun}, err
	}
	if args.DryRun {
		return newRun(r, w.rule, args, progress).do(ctx)
	}
	defer w.nudge() // for what was queued meanwhile
	err = w.patiently(ctx, func(ctx context.Context) error {
		st, err := w.load(ctx)
		if err != nil {
			return err
		}
		rep, err = w.replicate(ctx, st, args, progress)
		return err
	})
	return rep, err
}

const (
	// maxLook is how long a run waits for a rule that is at work. Mostly it only looks at
	// its queue, and is done at once.
	maxLook = 5 * time.Second
	// lookPause is the pause between two tries.
	lookPause = 20 * time.Millisecond
)

// patiently is alone, but waits a little for a rule that is at work.
func (w *worker) patiently(ctx context.Context, f func(context.Context) error) error {
	for began := time.Now(); ; {
		err := w.alone(ctx, f)
		if !errors.Is(err, errBusy) || time.Since(began) > maxLook {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookPause):
		}
	}
}

// Rules returns the names of the rules.
func (r *Replicator) Rules() (names []string) {
	for _, w := range r.workers() {
		names = append(names, w.rule.Name)
	}
	return names
}
