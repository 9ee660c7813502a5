package web

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"example.org/slipway/web/manage"
)

// work is what a job does. It reports its progress as a phrase.
type work func(ctx context.Context, progress func(string)) (*manage.Outcome, error)

// Job is work that a user began on a page. It continues when the user leaves. The last
// job of each name is remembered.
type Job struct {
	Name, Title string
	// By is the user who began the job.
	By           string
	Began, Ended time.Time
	Progress     string
	Outcome      *manage.Outcome
	Failure      string

	cancel context.CancelFunc
}

// Running reports whether the job has not ended.
func (j *Job) Running() bool { return j.Ended.IsZero() }

// Took returns how long the job took.
func (j *Job) Took() time.Duration { return j.Ended.Sub(j.Began) }

// errBusy says that another job is running.
type errBusy struct{ title string }

func (e *errBusy) Error() string {
	return "“" + e.title + "” is still running, and one thing is done at a time. Wait until it has ended, or stop it."
}

// jobs runs one job at a time.
type jobs struct {
	clock  func() time.Time
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	closed  bool
	running *Job
	last    map[string]*Job
}

func newJobs(clock func() time.Time) *jobs {
	j := &jobs{clock: clock, last: map[string]*Job{}}
	j.ctx, j.cancel = context.WithCancel(context.Background()) // jobs outlive requests
	return j
}

// get returns a copy of the last job of a name, or nil.
func (s *jobs) get(name string) *Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[name].copy()
}

// current returns a copy of the running job, or nil.
func (s *jobs) current() *Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running.copy()
}

func (j *Job) copy() *Job {
	if j == nil {
		return nil
	}
	c := *j
	return &c
}

// begin starts a job. When the job ends, done is called with the job's error. begin
// returns *errBusy if another job is running.
func (s *jobs) begin(name, title, by string, do work, done func(error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errors.New("the server is stopping")
	case s.running != nil:
		return &errBusy{s.running.Title}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	j := &Job{Name: name, Title: title, By: by, Began: s.clock(), cancel: cancel}
	s.running, s.last[name] = j, j
	s.wg.Go(func() {
		defer cancel()
		out, err := do(ctx, func(text string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			j.Progress = text
		})
		if err != nil && ctx.Err() != nil {
			err = errors.New("stopped before it had ended; it may be begun again")
		}
		done(err)
		s.mu.Lock()
		defer s.mu.Unlock()
		j.Outcome, j.Ended, s.running = out, s.clock(), nil
		if err != nil {
			j.Failure = err.Error()
		}
	})
	return nil
}

// end stops the job of a name if it is running.
func (s *jobs) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil && s.running.Name == name {
		s.running.cancel()
	}
}

// close stops the running job and waits for it.
func (s *jobs) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// beginJob starts a job for the user, and records the job and its outcome in the audit
// log.
func (q *request) beginJob(name, title, action, reference string, do work) error {
	e := q.event("admin", action, reference)
	by := cmp.Or(q.user(), "somebody at "+q.r.RemoteAddr)
	h := q.h
	return h.jobs.begin(name, title, by, do, func(err error) {
		if h.opts.Audit == nil {
			return
		}
		e.Outcome = "success"
		if err != nil {
			e.Outcome, e.Reason = "failure", err.Error()
		}
		h.opts.Audit.Record(e)
	})
}
