package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"example.org/slipway/oci"
)

const (
	// firstBackOff and longestBackOff bound the pauses after answers of 429 that do not
	// say how long. Each pause is twice the one before.
	firstBackOff   = time.Second
	longestBackOff = time.Minute
	// mostTold is the longest pause that an upstream can demand. A header that was
	// misread must not keep an upstream away for days.
	mostTold = time.Hour
	// firstPenalty and longestPenalty bound how long an endpoint that failed is tried
	// after the others.
	firstPenalty   = time.Second
	longestPenalty = 30 * time.Second
	// blame is how long an endpoint that delivered wrong content is tried after the
	// others.
	blame = 30 * time.Second
	// slowFails is the number of consecutive timeouts after which requests to an endpoint
	// fail at once, except one at a time.
	slowFails = 2
	// downFails is the number of consecutive failures after which asking again at once is
	// useless. Simultaneous failures count once.
	downFails = 3
)

// quota is what an upstream counts together. If it limits one quota, it has said nothing
// about the others. Docker Hub counts manifests, and not the blobs of an image whose
// manifest was fetched.
type quota uint8

const (
	ofManifests quota = iota
	ofBlobs
	ofLists
	ofTokens
	quotas // how many there are
)

// quotaOf returns what a request counts for.
func quotaOf(k oci.Kind) quota {
	switch k {
	case oci.KindManifest:
		return ofManifests
	case oci.KindBlob:
		return ofBlobs
	}
	return ofLists
}

// health is what is known of an endpoint from the requests made to it.
type health struct {
	clock func() time.Time
	log   *slog.Logger // with the endpoint's name

	mu sync.Mutex // guards what follows

	fails   int       // in a row, those at the same time counted once
	slow    int       // of them timeouts
	penalty time.Time // end of the time in which others are tried first
	blamed  time.Time // the same, for wrong content
	probing bool      // a request finds out whether a slow endpoint is back

	backOffs [quotas]int       // recent back-offs whose length the upstream did not give
	until    [quotas]time.Time // ends of the back-offs

	last               State // the outcome of the last request
	lastErr            string
	lastErrTime        time.Time
	requests, failures int64
	latency            time.Duration // smoothed
	limit              Limit
}

// shut returns for how long no request may be made, and whether the endpoint asked for
// that. h.mu is held.
func (h *health) shut(now time.Time, q quota) (after time.Duration, busy bool) {
	if d := h.until[q].Sub(now); d > 0 {
		return d, true
	}
	if h.slow < slowFails {
		return 0, false
	}
	if d := h.penalty.Sub(now); d > 0 {
		return d, false
	}
	if h.probing {
		return firstPenalty, false
	}
	return 0, false
}

// look reports whether a request may be made now. enter does the same and counts the
// request, which must end in failed, good, backOff or unknown.
func (h *health) look(q quota) (after time.Duration, busy bool) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shut(now, q)
}

func (h *health) enter(q quota) (after time.Duration, busy bool) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if after, busy = h.shut(now, q); after == 0 {
		h.probing = h.slow >= slowFails
		h.requests++
	}
	return after, busy
}

// busy returns what is left of the back-off that ends last.
func (h *health) busy(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, h.lastUntil().Sub(now))
}

// lastUntil returns the end of the back-off that ends last. h.mu is held.
func (h *health) lastUntil() time.Time {
	return slices.MaxFunc(h.until[:], time.Time.Compare)
}

// after reports whether the endpoint is tried after the others for requests of a quota.
func (h *health) after(now time.Time, q quota) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.penalty) || now.Before(h.blamed) || now.Before(h.until[q])
}

// failed notes a failure. Failures of requests that were under way together count once.
func (h *health) failed(err error, slow bool) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing = false
	h.failures++
	h.last, h.lastErr, h.lastErrTime = Failing, err.Error(), now
	if now.Before(h.penalty) {
		return
	}
	h.fails++
	if slow {
		h.slow++
	} else {
		h.slow = 0
	}
	d := doubled(firstPenalty, longestPenalty, h.fails)
	h.penalty = now.Add(d)
	if h.fails == 1 {
		h.log.Warn("upstream endpoint failed", "err", err)
	}
}

// doubled returns the duration first after doubling it n-1 times, but no more than
// longest.
func doubled(first, longest time.Duration, n int) time.Duration {
	for ; n > 1 && first < longest; n-- {
		first *= 2
	}
	return min(first, longest)
}

// answered notes how long an endpoint took to answer.
func (h *health) answered(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow = 0
	if h.latency == 0 {
		h.latency = d
		return
	}
	h.latency += (d - h.latency) / 8 // as TCP smooths round trips, RFC 6298
}

// good notes an answer that was right to its end.
func (h *health) good() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails > 0 {
		h.log.Info("upstream endpoint answers again", "failures", h.fails)
	}
	h.fails, h.slow, h.probing, h.penalty = 0, 0, false, time.Time{}
	h.last = Healthy
}

// began notes that an answer with a body has begun. A large body takes its time.
func (h *health) began() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = Healthy
}

// unknown notes the end of a request that says nothing about the endpoint.
func (h *health) unknown() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing = false
}

// backOff notes that the endpoint wants fewer requests of some quotas. told is for how
// long; 0 means that it did not say.
func (h *health) backOff(told time.Duration, status int, of ...quota) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing, h.slow = false, 0
	h.failures++
	h.last, h.lastErr, h.lastErrTime = LeftAlone, "it answered "+strconv.Itoa(status), now
	told = min(told, mostTold)
	pause := time.Duration(0)
	for _, q := range of {
		if now.Before(h.until[q]) { // an answer to a request that was under way
			if told > 0 && now.Add(told).After(h.until[q]) {
				h.until[q] = now.Add(told)
			}
			continue
		}
		// Successes do not reset this, because some upstreams answer HEAD and refuse GET.
		if now.Sub(h.until[q]) > longestBackOff {
			h.backOffs[q] = 0
		}
		d := told
		if d <= 0 {
			h.backOffs[q]++
			d = doubled(firstBackOff, longestBackOff, h.backOffs[q])
		}
		h.until[q] = now.Add(d)
		pause = max(pause, d)
	}
	if pause > 0 {
		h.log.Warn("upstream endpoint wants fewer requests; it is left alone", "status", status, "pause", pause)
	}
}

// wrong notes that the endpoint delivered something other than it said.
func (h *health) wrong(err error) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.last, h.lastErr, h.lastErrTime = Failing, err.Error(), now
	h.blamed = now.Add(blame)
	h.log.Warn("upstream endpoint delivered wrong content", "err", err)
}

func (h *health) limited(l Limit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limit = l
}

// down reports whether the endpoint has been failing for a while.
func (h *health) down() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fails >= downFails
}

// why returns the last failure.
func (h *health) why() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.New(h.lastErr)
}

// admit waits until a request to an endpoint may be made, and returns the function that
// gives its turn back. Blobs have turns of their own. Nobody waits for a back-off.
func (e *endpoint) admit(ctx context.Context, a ask) (release func(), err error) {
	u, q := e.up, quotaOf(a.Kind)
	if err := e.closed(e.health.look(q)); err != nil {
		return nil, err
	}
	turns := u.others
	if q == ofBlobs && a.method == http.MethodGet {
		turns = u.blobs
	}
	if turns != nil {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return nil, e.explain(ctx, subject{}, ctx.Err())
		}
	}
	u.active.Add(1)
	release = func() {
		u.active.Add(-1)
		if turns != nil {
			<-turns
		}
	}
	if u.rate != nil {
		if err := u.rate.Wait(ctx); err != nil {
			release()
			if gone(ctx) {
				return nil, e.explain(ctx, subject{}, err)
			}
			return nil, e.error(Busy, 0, subject{}, errors.New("the configured rate of requests leaves no room before the deadline"))
		}
	}
	if err := e.closed(e.health.enter(q)); err != nil { // while we waited
		release()
		return nil, err
	}
	return release, nil
}

// closed turns the answer of health into an error.
func (e *endpoint) closed(after time.Duration, busy bool) error {
	if after == 0 {
		return nil
	}
	k := Unavailable
	if busy {
		k = Busy
	}
	err := e.error(k, 0, subject{}, fmt.Errorf("it is left alone for %v: %w", after.Round(time.Millisecond), e.health.why()))
	err.RetryAfter = after
	return err
}
