package gearfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/flow"
)

// source is what is known about a source. The scheduler's mu guards all fields but ref.
type source struct {
	ref SourceRef
	src Source // nil until the first use
	// lies counts contents that did not match their names. failures counts the latest
	// requests in a row that brought nothing. The source gets no request before until.
	lies, failures int
	until          time.Time
	pause          *backoff.ExponentialBackOff
	ok             time.Time // when the last successful request began
	err            error     // the last one
	files, bytes   int64
}

// failed notes that a request brought nothing.
func (src *source) failed(now time.Time, err error) {
	src.failures++
	src.err = err
	src.until = now.Add(src.pause.NextBackOff())
}

// delivered notes that a request brought something.
func (src *source) delivered(began time.Time) {
	src.failures = 0
	src.until = time.Time{}
	if began.After(src.ok) {
		src.ok = began
	}
	src.pause.Reset()
}

// fault records how one source failed with one file.
type fault struct {
	src   *source
	n     int // failures of all kinds
	lies  int // wrong contents
	first time.Time
	after time.Time // not to be used again before
	out   bool      // not to be used again at all
}

const (
	// lieTries bounds how often a file is requested from a source that sends wrong bytes
	// for it. It is two because a broken proxy or memory may spoil one answer.
	lieTries = 2
	// faultTries bounds how often a source that delivers other files may fail with the
	// same file.
	faultTries = 3
)

type priorityKey struct{}

func withPriority(ctx context.Context, p priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// Wanted reports whether a request to a Source is for files that containers have opened, or that
// a profile says they will open.
func Wanted(ctx context.Context) (opened, predicted bool) {
	p, ok := ctx.Value(priorityKey{}).(priority)
	return ok && p == onDemand, ok && p == fromProfile
}

// tries records the attempts to fetch a file or range. It is guarded by the scheduler's
// mu.
type tries struct {
	faults []fault
	err    error // the last one
}

// blame notes that a source failed with the file or range.
func (t *tries) blame(src *source, now time.Time, pause time.Duration, err error) {
	t.err = err
	i := slices.IndexFunc(t.faults, func(f fault) bool { return f.src == src })
	if i < 0 {
		i = len(t.faults)
		t.faults = append(t.faults, fault{src: src, first: now})
	}
	f := &t.faults[i]
	f.n++
	f.after = now.Add(pause << min(f.n-1, 6))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.out = true
	case errors.Is(err, gear.ErrContent):
		src.lies++
		f.lies++
		f.out = f.lies >= lieTries
	case src.ok.After(f.first):
		f.out = f.n >= faultTries
	}
}

// usable reports whether a source may be used, and if so from when on.
func (t *tries) usable(src *source) (time.Time, bool) {
	for i := range t.faults {
		if f := &t.faults[i]; f.src == src {
			if f.after.After(src.until) {
				return f.after, !f.out
			}
			return src.until, !f.out
		}
	}
	return src.until, true
}

// choose returns the best source of an image. If none is usable now, it returns the time
// when one may be. If none is left, it returns an error. mu is held.
func (c *scheduler) choose(img *image, name gear.Name, t *tries, now time.Time) (*source, time.Time, error) {
	var best *source
	var wake time.Time
	any := false
	for _, src := range c.sourcesOf(img, name) {
		at, ok := t.usable(src)
		switch {
		case !ok:
			continue
		case at.After(now):
			if wake.IsZero() || at.Before(wake) {
				wake = at
			}
		case best == nil || src.lies < best.lies:
			best = src
		}
		any = true
	}
	if any {
		return best, wake, nil
	}
	if t.err != nil {
		return nil, wake, fmt.Errorf("no source can deliver it: %w", t.err)
	}
	return nil, wake, fmt.Errorf("there is no source for it: %w", fs.ErrNotExist)
}

// sourcesOf returns the sources of an image, and after them the sources of other images
// of its domain that have the file.
func (c *scheduler) sourcesOf(img *image, name gear.Name) []*source {
	var out []*source
	add := func(img *image) {
		for _, ref := range img.rec.Sources {
			if src := c.source(ref); !slices.Contains(out, src) {
				out = append(out, src)
			}
		}
	}
	c.s.imagesMu.RLock()
	defer c.s.imagesMu.RUnlock()
	if c.s.images[img.chain] == img {
		add(img)
	}
	for _, o := range c.s.images {
		if o != img && o.view == img.view && o.Has(name) {
			add(o)
		}
	}
	return out
}

// source returns the record of a source, and creates it if necessary. mu is held.
func (c *scheduler) source(ref SourceRef) *source {
	src := c.sources[ref]
	if src == nil {
		b := backoff.NewExponentialBackOff()
		b.InitialInterval, b.MaxInterval = c.s.opts.RetryWait, c.s.opts.RetryMaxWait
		src = &source{ref: ref, pause: b}
		c.sources[ref] = src
	}
	return src
}

// dialled returns the Source of a source, and dials it if necessary.
func (c *scheduler) dialled(src *source) (Source, error) {
	c.mu.Lock()
	have := src.src
	c.mu.Unlock()
	if have != nil {
		return have, nil
	}
	made, err := c.s.dial(src.ref)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", src.ref, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if src.src == nil {
		src.src = made
	}
	return src.src, nil
}

// ObserveLink adds a measurement of the connection to a registry that was made elsewhere,
// for example when an index was pulled: the time to the first byte, and how long the
// given number of bytes took after it. A zero means that a value is unknown.
func (s *Service) ObserveLink(registry string, rtt time.Duration, bytes int64, took time.Duration) {
	s.sched.mu.Lock()
	defer s.sched.mu.Unlock()
	s.sched.link(registry).Observe(rtt, bytes, took)
}

// link returns what is known about the connection to a registry. mu is held.
func (c *scheduler) link(registry string) *flow.Link {
	l := c.links[registry]
	if l == nil {
		l = &flow.Link{}
		c.links[registry] = l
	}
	return l
}

// Reconnector is a Source whose following requests can be made over new connections.
type Reconnector interface {
	Source
	// Reconnect keeps later requests away from the existing connections. It does not
	// disturb the requests that use them, and must not wait.
	Reconnect()
}

// Steerer is a Reconnector that at times replaces slow connections itself. While Steers
// returns true, its requests are not watched.
type Steerer interface {
	Reconnector
	Steers() bool
}

// errSlow ends a request whose work is to continue over another connection.
var errSlow = errors.New("the connection is much slower than others")

// reconnects reports whether later requests to a source can use other connections. mu is
// held.
func (src *source) reconnects() bool {
	if st, ok := src.src.(Steerer); ok && st.Steers() {
		return false
	}
	_, ok := src.src.(Reconnector)
	return ok
}

// reconnect keeps later requests to a source away from its connections. mu is held.
func (c *scheduler) reconnect(src *source) {
	if r, ok := src.src.(Reconnector); ok {
		r.Reconnect()
	}
}

// givesUp logs that a request ends because its connection is slow, and keeps later requests
// away from the connection. mu is held.
func (c *scheduler) givesUp(src *source, rescues int) {
	c.reconnect(src)
	c.s.log.Info("a connection is given up because it is slow", "source", src.ref.String(), "times", rescues+1)
}

// divided notes that a part of a request continues over another connection. mu is held.
func (c *scheduler) divided(p priority, slow *bool) {
	if !*slow {
		*slow = true
		c.slow[p]++
	}
}

// ended notes that a request is over. mu is held.
func (c *scheduler) ended(p priority, f *flow.Flow, slow bool) {
	c.flows.End(f)
	c.running[p]--
	if slow {
		c.slow[p]--
	}
	c.wake()
}

// roomToMove reports whether there is room for a request that relieves another one. mu is
// held.
func (c *scheduler) roomToMove() bool {
	return c.running[onDemand]+c.running[fromProfile]+c.running[inBackground] < c.s.opts.Streams
}
