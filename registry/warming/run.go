package warming

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/warmfacts"
)

const (
	// maxPushed bounds the pushed tags for which no order is made yet. The orders of
	// further tags are lost.
	maxPushed = 1000
	// readyAtOnce bounds the images that a server gets ready at a time.
	readyAtOnce = 4
	// leaseFor is how long another server waits before it takes over from one that died.
	leaseFor = 30 * time.Second
	// firstPause is the pause before an image that could not be got ready is tried again,
	// lastPause the longest.
	firstPause, lastPause = 5 * time.Second, 5 * time.Minute
	noteEvery             = 2 * time.Second
)

// pushedTag is a tag that was pushed.
type pushedTag struct{ repo, tag, by string }

// readying is an order that this server gets ready itself.
type readying struct {
	progress warm.Progress
	cancel   context.CancelFunc
	// over says that it has ended, and again when it is tried again.
	over  bool
	pause time.Duration
	again time.Time
}

// Pushed notes that a tag was pushed. It does not wait for anything.
func (s *Service) Pushed(ctx context.Context, repo, tag string) {
	for i := range s.o.Rules {
		if !s.o.Rules[i].Matches(repo, tag) {
			continue
		}
		by := ""
		if a := oci.ActorFrom(ctx); a != nil {
			by = a.Name
		}
		select {
		case s.pushed <- pushedTag{repo, tag, by}:
		default:
			s.log.Warn("a pushed image is not ordered for nodes, as too many tags were pushed at once", "repo", repo, "tag", tag)
		}
		return
	}
}

// orderPushed makes the orders that the rules want for a tag.
func (s *Service) orderPushed(ctx context.Context, p pushedTag) error {
	var errs []error
	for i := range s.o.Rules {
		r := &s.o.Rules[i]
		if !r.Matches(p.repo, p.tag) {
			continue
		}
		q := r.Request
		q.Reference = p.tag
		o, err := s.order(q)
		if err == nil {
			o.By, o.Cause, o.Repository = p.by, "push", p.repo
			if o.Digest, err = s.o.Resolve(ctx, p.repo, p.tag); err == nil {
				err = s.add(ctx, o, true)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Run does the regular work until ctx ends: it makes the orders of pushed tags, gets images
// ready in the registry itself, and forgets old orders.
func (s *Service) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	tick := time.NewTicker(s.o.Tick)
	defer tick.Stop()
	var swept time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-s.pushed:
			if err := s.orderPushed(ctx, p); err != nil && ctx.Err() == nil {
				s.log.Warn("a pushed image is not ordered for nodes", "repo", p.repo, "tag", p.tag, "err", err)
			}
		case <-tick.C:
		}
		if err := s.begin(ctx, &work); err != nil && ctx.Err() == nil {
			s.log.Debug("orders for nodes", "err", err)
		}
		if now := s.o.Clock(); now.Sub(swept) > time.Minute || now.Before(swept) {
			swept = now
			s.sweep(ctx, now)
		}
	}
}

// begin begins to get ready what is not ready yet, and stops what no order wants.
func (s *Service) begin(ctx context.Context, work *sync.WaitGroup) error {
	active, err := s.active(ctx)
	if err != nil {
		return err
	}
	holds, now := map[string]bool{}, s.o.Clock()
	var todo []*order
	s.mu.Lock()
	under := 0
	for _, o := range active {
		holds[o.ID] = true
		r := s.own[o.ID]
		if r != nil && r.cancel != nil {
			under++
		}
		if r == nil || r.cancel == nil && !r.over && !now.Before(r.again) {
			todo = append(todo, o)
		}
	}
	for id, r := range s.own {
		if !holds[id] {
			if r.cancel != nil {
				r.cancel()
			} else {
				delete(s.own, id)
			}
		}
	}
	s.mu.Unlock()
	for _, o := range todo {
		if under++; under > readyAtOnce {
			break
		}
		s.mu.Lock()
		r := s.own[o.ID]
		if r == nil {
			r = &readying{progress: warm.Progress{State: warm.Running}, pause: firstPause}
			s.own[o.ID] = r
		}
		var held context.Context
		held, r.cancel = context.WithCancel(ctx)
		s.mu.Unlock()
		work.Go(func() { s.ready(held, o, r) })
	}
	return nil
}

// stop ends what this server does for an order.
func (s *Service) stop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.own[id]; r != nil && r.cancel != nil {
		r.cancel()
	}
}

// readying returns how far this server is with an order that it gets ready.
func (s *Service) readying(id string) (warm.Progress, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.own[id]; r != nil && !r.over {
		return r.progress, true
	}
	return warm.Progress{}, false
}

// ready gets the image of an order ready, unless that was done, or another server does it.
func (s *Service) ready(ctx context.Context, o *order, r *readying) {
	p, err := s.readyOnce(ctx, o, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	cancelled := ctx.Err() != nil // or the server ends
	r.cancel()
	r.cancel = nil
	switch {
	case cancelled:
	case errors.Is(err, engine.ErrLeased):
		delete(s.own, o.ID) // the catalogue has its progress
	case p.State.Ended():
		r.progress, r.over = p, true
	default:
		r.progress = p
		r.again, r.pause = s.o.Clock().Add(r.pause), min(2*r.pause, lastPause)
	}
}

func (s *Service) readyOnce(ctx context.Context, o *order, r *readying) (p warm.Progress, err error) {
	if p, err = s.recorded(ctx, o.ID); err != nil || p.State.Ended() {
		return p, err
	}
	held, release, err := s.db.Hold(ctx, "warm "+o.ID, s.owner, leaseFor)
	if err != nil {
		return warm.Progress{State: warm.Running, Reason: warm.Reason(err)}, err
	}
	defer release()
	var told time.Time
	err = s.o.Ready(held, o.Repository, o.Digest, func(now warm.Progress) {
		now.State = warm.Running
		s.mu.Lock()
		p, r.progress = now, now
		due := time.Since(told) >= noteEvery
		if due {
			told = time.Now()
		}
		s.mu.Unlock()
		if due {
			s.noteOwn(ctx, o.ID, now)
		}
	})
	s.mu.Lock()
	p.State, p.Reason = warm.Done, ""
	if err != nil {
		p.State, p.Reason = warm.Running, warm.Reason(err)
		if final(err) {
			p.State = warm.Failed
		}
	}
	out := p
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.noteOwn(ctx, o.ID, out)
	}
	return out, err
}

// final reports whether an error is the registry's statement about the image, so that
// another try has the same result.
func final(err error) bool {
	var said *oci.Error
	return errors.As(err, &said) && said.HTTPStatus() < http.StatusInternalServerError && said.HTTPStatus() != http.StatusTooManyRequests
}

// recorded returns the registry's own progress in the catalogue.
func (s *Service) recorded(ctx context.Context, id string) (p warm.Progress, err error) {
	p.State = warm.Waiting
	rows, err := s.facts.Progress(ctx, id)
	for _, r := range rows {
		if r.Node == "" && json.Unmarshal([]byte(r.State), &p) != nil {
			p = warm.Progress{State: warm.Waiting}
		}
	}
	return p, err
}

func (s *Service) noteOwn(ctx context.Context, id string, p warm.Progress) {
	state, err := json.Marshal(p)
	if err != nil {
		return
	}
	s.note(ctx, []warmfacts.Progress{{Order: id, State: string(state), Seen: s.o.Clock()}})
}

// sweep forgets orders that expired long ago, and nodes that have not asked for long.
func (s *Service) sweep(ctx context.Context, now time.Time) {
	leave, err := s.o.Enter()
	if err != nil {
		return
	}
	err = s.facts.Forget(ctx, now.Add(-keepEnded))
	leave()
	if err != nil && ctx.Err() == nil {
		s.log.Debug("old orders stay for now", "err", err)
	}
	all, err := s.known(ctx)
	if err != nil {
		return
	}
	there := map[string]bool{}
	for _, o := range all {
		there[o.ID] = !o.cancelled && now.Before(o.Expires)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = time.Time{}
	s.forget(now)
	for k := range s.noted {
		if !there[k.order] {
			delete(s.noted, k)
		}
	}
}
