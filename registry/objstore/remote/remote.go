// Package remote makes an object store behind a network usable, although the store is
// sometimes slow, says that it is busy, breaks connections or stalls.
//
// [Wrap] adds these to any [objstore.Store], so that no driver needs them itself:
//
//   - Retries with exponential pauses and jitter. Only operations that may be repeated
//     are retried, and only after errors that may pass ([Passing]). A pause is at least
//     as long as the store asked for (Retry-After), within a bound. If a store is down, a
//     budget limits retries to a tenth of the requests, because more might keep it down.
//   - A Get whose body breaks off continues with a range from its position. It is given
//     up if the size or the time of the object has changed.
//   - Hedged reads: if the first byte has not come within the time in which 95 % of the
//     reads got theirs, a second request is sent. The first request with an answer wins,
//     and the other is cancelled. At most one read in twenty is hedged.
//   - Limits of the number of simultaneous operations, of the time of a small operation,
//     and of the time for which a stream may stall.
//   - Metrics by Distribution's names, registry_storage_*.
//
// # What is repeated
//
// Get, Stat, Delete, Put, List (from the last key on), Abandon, NewUpload, Resume, Move,
// URL and ReadAt. A conditional Put that is repeated may find the object of its own first
// try, whose answer was lost. It then returns ErrExist, as if another caller had written
// the object. Callers of a conditional Put must handle this, as they must after a crash
// of their own.
//
// The methods of an Upload are not repeated, because this package does not know which of
// Write's bytes arrived. A driver that sends parts holds them in RAM until they are
// stored, so it can repeat the requests inside an upload. It gets [Retry.Do] for that, so
// that these retries use the same budget:
//
//	retry := remote.NewRetry(nil)
//	s3, err := s3store.New(ctx, s3store.Options{Repeat: retry.Do})
//	store := remote.Wrap(s3, &remote.Options{Driver: "s3", Retry: retry})
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/registry/objstore"
)

const (
	defaultConcurrent = 512
	defaultWait       = 10 * time.Second
	defaultTimeout    = 30 * time.Second
	defaultStall      = 30 * time.Second
	defaultCommit     = 15 * time.Minute
	defaultHedge      = 50 * time.Millisecond
	// resumes is how often in a row the body of one Get is continued while each
	// continuation brings less than resumeStep bytes. A connection reset discards
	// received bytes that were not read yet, so a stream that breaks often may still
	// reach its end.
	resumes    = 8
	resumeStep = 64 << 10
)

// Options are the options of a Store. The zero value works.
type Options struct {
	// Driver is the label "driver" of the metrics. Default "remote".
	Driver string
	// Retry is shared with the driver. Default: a new one.
	Retry *Retry
	// Concurrent is how many operations may run at once. A Get counts until its first
	// byte. An upload counts while it is begun and while it is committed. Default 512.
	Concurrent int
	// Wait is how long an operation waits for others to end before it fails with a
	// BusyError. Default 10 s.
	Wait time.Duration
	// Timeout bounds each try of a small operation and the time to the first byte
	// of a large one. Default 30 s.
	Timeout time.Duration
	// CommitTimeout bounds Commit, Move, AdoptFile and Suspend, which may copy an object.
	// Default 15 min.
	CommitTimeout time.Duration
	// Stall is how long a Get may bring no byte while a reader waits for one. Default 30
	// s.
	Stall time.Duration
	// HedgeAfter is the shortest time after which a Get is sent a second time. Default 50
	// ms; negative means never.
	HedgeAfter time.Duration
}

// Store is a store behind a network, wrapped. Its optional abilities are those of
// the inner store and are found by [objstore.As].
type Store struct {
	inner   objstore.Store
	o       Options
	retry   *Retry
	slots   chan struct{}
	first   latencies // of Get's first bytes
	hedges  bucket
	metrics metrics
	reads   sync.WaitGroup // races of reads; Close waits for the losers
}

var (
	_ objstore.Store   = (*Store)(nil)
	_ objstore.Wrapper = (*Store)(nil)
	_ objstore.Adapter = (*Store)(nil)
)

// Wrap returns inner with retries, hedged reads, limits and metrics. o may be nil.
// Closing it closes inner.
func Wrap(inner objstore.Store, o *Options) *Store {
	s := &Store{inner: inner}
	if o != nil {
		s.o = *o
	}
	s.o.Driver = cmp.Or(s.o.Driver, "remote")
	s.o.Concurrent = cmp.Or(max(s.o.Concurrent, 0), defaultConcurrent)
	s.o.Wait = cmp.Or(s.o.Wait, defaultWait)
	s.o.Timeout = cmp.Or(s.o.Timeout, defaultTimeout)
	s.o.CommitTimeout = cmp.Or(s.o.CommitTimeout, defaultCommit)
	s.o.Stall = cmp.Or(s.o.Stall, defaultStall)
	s.o.HedgeAfter = cmp.Or(s.o.HedgeAfter, defaultHedge)
	if s.retry = s.o.Retry; s.retry == nil {
		s.retry = NewRetry(nil)
	}
	s.slots = make(chan struct{}, s.o.Concurrent)
	s.hedges = bucket{rate: hedgeShare, most: hedgeBurst, tokens: hedgeBurst}
	s.metrics = newMetrics(s.o.Driver, s.retry, s.slots)
	return s
}

// Unwrap returns the store inside. See [objstore.Wrapper].
func (s *Store) Unwrap() objstore.Store { return s.inner }

// Metrics returns the Prometheus collectors of the store.
func (s *Store) Metrics() []prometheus.Collector { return s.metrics.collectors() }

// Close waits for reads that lost a race and closes the store inside.
func (s *Store) Close() error {
	s.reads.Wait()
	return s.inner.Close()
}

// enter waits for a place among the running operations. leave must be called afterwards
// unless there was an error.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	default:
	}
	t := time.NewTimer(s.o.Wait)
	defer t.Stop()
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		s.metrics.failed(actionWait, kindBusy)
		return &objstore.BusyError{RetryAfter: s.o.Wait, Err: fmt.Errorf("%d operations are under way", cap(s.slots))}
	}
}

func (s *Store) leave() { <-s.slots }

// errTimeout is the cause of the end of a try that took too long.
var errTimeout = errors.New("the object store did not answer in time")

// bounded runs f for at most d. If the time runs out, it returns a BusyError, which
// distinguishes that from the end of ctx.
func bounded(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	tctx, cancel := context.WithTimeoutCause(ctx, d, errTimeout)
	defer cancel()
	err := f(tctx)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(tctx), errTimeout) {
		return &objstore.BusyError{Err: fmt.Errorf("%w (%v): %v", errTimeout, d, err)}
	}
	return err
}

// do runs a whole operation with a place, retries and a bound for each try.
func (s *Store) do(ctx context.Context, action string, d time.Duration, f func(context.Context) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	begin := time.Now()
	err := s.retry.run(ctx, s.metrics.retried(action), func(ctx context.Context) error {
		return bounded(ctx, d, f)
	})
	s.metrics.done(action, begin, err)
	return err
}

// Distant implements [objstore.Distant].
func (s *Store) Distant() {}

// Stat describes an object. See [objstore.Store].
func (s *Store) Stat(ctx context.Context, key string) (info objstore.Info, err error) {
	err = s.do(ctx, actionStat, s.o.Timeout, func(ctx context.Context) (err error) {
		info, err = s.inner.Stat(ctx, key)
		return err
	})
	return info, err
}

// Put writes a small object. See [objstore.Store], and the package for ifAbsent.
func (s *Store) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	err := s.do(ctx, actionPut, s.o.Timeout, func(ctx context.Context) error {
		return s.inner.Put(ctx, key, data, ifAbsent)
	})
	if err == nil {
		s.metrics.sent(len(data))
	}
	return err
}

// Delete removes an object. See [objstore.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.do(ctx, actionDelete, s.o.Timeout, func(ctx context.Context) error { return s.inner.Delete(ctx, key) })
}

// Abandon drops a suspended upload. See [objstore.Store].
func (s *Store) Abandon(ctx context.Context, state string) error {
	return s.do(ctx, actionAbandon, s.o.Timeout, func(ctx context.Context) error { return s.inner.Abandon(ctx, state) })
}

// List walks objects. See [objstore.Store]. If the walk breaks off or stalls, it
// continues after the last key.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		begin := time.Now()
		err := s.walk(ctx, prefix, after, yield)
		s.metrics.done(actionList, begin, err)
		if err != nil {
			yield(objstore.Info{}, err)
		}
	}
}

// walk yields objects and returns the error that ended the walk.
func (s *Store) walk(ctx context.Context, prefix, after string, yield func(objstore.Info, error) bool) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		progress, stopped := false, false
		err := s.retry.run(ctx, s.metrics.retried(actionList), func(ctx context.Context) error {
			lctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			timer := time.AfterFunc(s.o.Timeout, func() { cancel(errTimeout) })
			defer timer.Stop()
			for info, err := range s.inner.List(lctx, prefix, after) {
				if err != nil && ctx.Err() == nil && errors.Is(context.Cause(lctx), errTimeout) {
					err = &objstore.BusyError{Err: fmt.Errorf("%w: %v", errTimeout, err)}
				}
				if err != nil {
					if progress && Passing(err) {
						return nil // a new beginning with all its tries
					}
					return err
				}
				timer.Stop()
				after, progress = info.Key, true
				if stopped = !yield(info, nil); stopped {
					return nil
				}
				timer.Reset(s.o.Timeout)
			}
			stopped = true
			return nil
		})
		if err != nil || stopped {
			return err
		}
	}
}
