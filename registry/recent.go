package registry

import (
	"context"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
)

// seenKey names content that a client was told is there.
type seenKey struct {
	repo   string
	digest oci.Digest
}

// maxSeen bounds each generation of seen, which takes about 15 MB.
const maxSeen = 100_000

// seen remembers for at least a grace period what clients were told is there, because
// they now skip its upload and name it in a manifest a moment later. The collector
// consults seen before it removes anything. Keeping it in RAM saves a write per HEAD.
// Once a minute, and at the end, what is still known goes to the collector's queue in one
// write. After a crash the collector waits for a grace period.
type seen struct {
	mu        sync.Mutex
	now, past map[seenKey]time.Time
	// unsaved is what is new since the last write to the queue.
	unsaved map[seenKey]time.Time
	// full is the time since which a generation has been too small to remember
	// everything. Then everything is kept.
	full time.Time
	// rotated is when now became empty, on a clock that nobody sets.
	rotated time.Duration
	// condemned is what the current step of a collection removes. RAM may still have it until
	// settled is closed.
	condemned map[seenKey]bool
	settled   chan struct{}
}

// add notes what a client is about to be told. If the collector has just decided to
// remove the content, add returns a channel that is closed when that is done. The caller
// must then look again.
func (s *seen) add(k seenKey, at time.Time) (wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.condemned[k] {
		return s.settled
	}
	s.note(k, at)
	return nil
}

func (s *seen) note(k seenKey, at time.Time) {
	if s.now == nil {
		s.now = map[seenKey]time.Time{}
	}
	if s.unsaved == nil {
		s.unsaved = map[seenKey]time.Time{}
	}
	if _, known := s.now[k]; !known && len(s.now) >= maxSeen {
		s.full = at
		return
	}
	s.now[k], s.unsaved[k] = at, at
}

// flushSeen writes to the collector's queue what clients were told since the last flush.
func (r *Registry) flushSeen(ctx context.Context) error {
	r.seen.mu.Lock()
	unsaved := r.seen.unsaved
	r.seen.unsaved = nil
	r.seen.mu.Unlock()
	const step = 200
	list := make([]catalog.Postponed, 0, min(step, len(unsaved)))
	var err error
	for k, at := range unsaved {
		list = append(list, catalog.Postponed{Repo: k.repo, Digest: k.digest, Until: at.Add(r.opts.Grace)})
		if len(list) == step && err == nil {
			err = r.cat.Garbage.Postpone(ctx, list)
			list = list[:0]
		}
	}
	if err == nil && len(list) > 0 {
		err = r.cat.Garbage.Postpone(ctx, list)
	}
	if err != nil { // it is tried again the next time
		r.seen.mu.Lock()
		defer r.seen.mu.Unlock()
		if r.seen.unsaved == nil {
			r.seen.unsaved = map[seenKey]time.Time{}
		}
		for k, at := range unsaved {
			if r.seen.unsaved[k].Before(at) {
				r.seen.unsaved[k] = at
			}
		}
	}
	return err
}

// complete reports whether everything that clients were told within a grace period is
// known, so that it can be passed on to the next process.
func (s *seen) complete(at time.Time, grace time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.full.Add(grace).After(at)
}

// rotate forgets what is older than two grace periods.
func (s *seen) rotate(steady, grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if steady-s.rotated >= grace {
		s.past, s.now, s.rotated = s.now, nil, steady
	}
}

// until returns the time up to which content must be kept. keep is false if no client was
// told of it recently.
func (s *seen) until(k seenKey, at time.Time, grace time.Duration) (t time.Time, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last(k, at, grace)
}

// untilOrCondemn is like until, for a collector that removes the content unless keep is true.
// The collector calls settle when RAM no longer has it.
func (s *seen) untilOrCondemn(k seenKey, at time.Time, grace time.Duration) (t time.Time, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, keep = s.last(k, at, grace); keep {
		return t, true
	}
	if s.settled == nil {
		s.condemned, s.settled = map[seenKey]bool{}, make(chan struct{})
	}
	s.condemned[k] = true
	return t, false
}

// forget takes a note back because the content turned out not to be there.
func (s *seen) forget(k seenKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.now, k)
	delete(s.unsaved, k)
}

// settle ends a step of the collector.
func (s *seen) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled != nil {
		close(s.settled)
		s.condemned, s.settled = nil, nil
	}
}

func (s *seen) last(k seenKey, at time.Time, grace time.Duration) (t time.Time, keep bool) {
	last, ok := s.now[k]
	if !ok {
		last, ok = s.past[k]
	}
	if s.full.After(last) {
		last, ok = s.full, true
	}
	t = last.Add(grace)
	return t, ok && t.After(at)
}

// pullKey is a tag or digest of a repository.
type pullKey struct{ repo, ref string }

// maxPulls is how many times of pulls wait in RAM before they are written early. They
// take about 2 MB.
const maxPulls = 20_000

// pulls collects the times of last pulls, which are written once a minute, because a read
// must never cost a write.
type pulls struct {
	// full receives requests for an early flush.
	full chan struct{}
	// flushing is held while times are written. Callers that need the times written must
	// not find them removed from RAM before the write is done.
	flushing sync.Mutex
	mu       sync.Mutex
	pending  map[pullKey]int64 // Unix milliseconds
}

func (p *pulls) note(repo, ref string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := pullKey{repo, ref}
	p.pending[k] = at.UnixMilli()
	if len(p.pending) >= maxPulls {
		select {
		case p.full <- struct{}{}:
		default: // already requested
		}
	}
}

// takeAll removes the pending times and returns them.
func (p *pulls) takeAll() map[pullKey]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	pending := p.pending
	p.pending = map[pullKey]int64{}
	return pending
}

// putBack adds times that could not be written, unless there is a later time for the same
// key.
func (p *pulls) putBack(left map[pullKey]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, at := range left {
		if len(p.pending) >= 2*maxPulls {
			return
		}
		p.pending[k] = max(p.pending[k], at)
	}
}

// flushPulls writes the pending times, in steps that do not delay pushes for long. If it
// returns an error, the times that it could not write are written the next time.
func (r *Registry) flushPulls(ctx context.Context) error {
	r.pulls.flushing.Lock()
	defer r.pulls.flushing.Unlock()
	pending := r.pulls.takeAll()
	const step = 200
	batch := make([]catalog.Pull, 0, step)
	write := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := r.cat.RecordPulls(ctx, batch); err != nil {
			r.pulls.putBack(pending)
			return err
		}
		for _, p := range batch {
			delete(pending, pullKey{p.Repo, p.Ref})
		}
		batch = batch[:0]
		return nil
	}
	for k, at := range pending {
		batch = append(batch, catalog.Pull{Repo: k.repo, Ref: k.ref, At: at})
		if len(batch) == step {
			if err := write(); err != nil {
				return err
			}
		}
	}
	return write()
}
