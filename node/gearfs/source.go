package gearfs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"example.org/slipway/gear"
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

// sourcesOf returns the sources of an image, and after them those of other images of its
// domain that have the file.
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

// link is what was measured of the connection to a registry.
type link struct {
	rtt, least time.Duration // on average, and the shortest one
	rate       float64       // bytes of content a second of one request

	// arrived counts the bytes on the wire. now is how many a second all requests together
	// bring, wire how many they can, and most how many they could lately. had bytes had
	// arrived at since, when that was
	// measured last.
	arrived         atomic.Int64
	now, wire, most float64
	since           time.Time
	had             int64
}

// smooth is the weight of a new measurement in the average.
const smooth = 0.3

// ObserveLink adds a measurement of the connection to a registry that was made elsewhere,
// for example when an index was pulled: the time to the first byte, and how long the
// given number of bytes took after it. A zero means that a value is unknown.
func (s *Service) ObserveLink(registry string, rtt time.Duration, bytes int64, took time.Duration) {
	s.sched.mu.Lock()
	defer s.sched.mu.Unlock()
	s.sched.observe(registry, rtt, bytes, took)
}

// minSample is the fewest bytes from which a rate is computed. Fewer bytes may have come
// from a shaper's bucket or a socket's buffer.
const minSample = 512 << 10

// link returns what is known about the connection to a registry. mu is held.
func (c *scheduler) link(registry string) *link {
	l := c.links[registry]
	if l == nil {
		l = &link{}
		c.links[registry] = l
	}
	return l
}

func (c *scheduler) observe(registry string, rtt time.Duration, bytes int64, took time.Duration) {
	l := c.link(registry)
	if rtt > 0 && (l.least == 0 || rtt < l.least) {
		l.least = rtt
	}
	switch {
	case rtt > 0 && l.rtt == 0:
		l.rtt = rtt
	case rtt > 0:
		l.rtt += time.Duration(smooth * float64(rtt-l.rtt))
	}
	if bytes < minSample || took <= 0 {
		return
	}
	r := float64(bytes) / took.Seconds()
	if l.rate == 0 {
		l.rate = r
	} else {
		l.rate += smooth * (r - l.rate)
	}
}
