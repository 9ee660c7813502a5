package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"example.org/slipway/internal/reach"
	"example.org/slipway/oci/wire"
)

const (
	// batch is how many durable events are read at a time.
	batch = 32
	// queuePause is the pause after a queue could not be read or written.
	queuePause = time.Second
	// maxAnswer is how many bytes of an answer are read so that its connection can be
	// used again.
	maxAnswer = 64 << 10
	userAgent = "slipway"
)

// endpoint is a webhook.
type endpoint struct {
	cfg Endpoint
	// queue is the name of its queues and of its turn.
	queue string
	// hook and match are nil if the endpoint is from the configuration. match reports
	// whether it is told of a repository.
	hook   *Webhook
	match  func(repo string) bool
	client *http.Client
	wake   chan struct{} // holds a value when something may be queued
	// outcomes are of deliveries; tests do not count.
	outcomes *outcomes
}

func newEndpoint(cfg Endpoint, transport http.RoundTripper) *endpoint {
	return &endpoint{
		cfg:      cfg,
		queue:    cfg.Name,
		client:   &http.Client{Transport: transport, CheckRedirect: checkRedirect},
		wake:     make(chan struct{}, 1),
		outcomes: &outcomes{},
	}
}

// wants reports whether an event is to be delivered.
func (e *endpoint) wants(ev Event) bool {
	if e.hook == nil {
		return e.cfg.wants(ev)
	}
	return !e.hook.Paused && !ev.Blob && slices.Contains(e.hook.Events, ev.Action) && e.match(ev.Repo)
}

// newTransport returns a transport. control checks the addresses that it connects to; it
// may be nil.
func newTransport(control func(ctx context.Context, network, address string, c syscall.RawConn) error) *http.Transport {
	d := &net.Dialer{Timeout: 30 * time.Second, ControlContext: control}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         d.DialContext,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
	}
}

// guardedTransport sends requests only to where a guard lets it.
type guardedTransport struct {
	guard *reach.Guard
	// A request that a proxy takes does not connect to its host. The proxy itself may have
	// any address, because the operator has chosen it.
	direct, proxied *http.Transport
}

func newGuardedTransport(g *reach.Guard) *guardedTransport {
	t := &guardedTransport{g, newTransport(g.Control), newTransport(nil)}
	t.direct.Proxy = nil
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *guardedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.guard.CheckURL(req.URL); err != nil {
		return nil, err
	}
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		return t.proxied.RoundTrip(req)
	}
	return t.direct.RoundTrip(req)
}

// checkRedirect follows redirects that keep the method and the host. Other redirects
// count as a failure. They would lose the body, or show headers and events to a host that
// is not in the configuration.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) >= 5 || req.Method != first.Method || req.URL.Scheme != first.URL.Scheme || !strings.EqualFold(req.URL.Host, first.URL.Host) {
		return http.ErrUseLastResponse
	}
	return nil
}

func (e *endpoint) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// worker delivers the events of one endpoint, one at a time.
type worker struct {
	n  *Notifier
	ep *endpoint

	durable, pulls []queued // read ahead, the oldest first
	failures       int      // in a row
	refused        int      // how often the endpoint refused the event with the ID at
	at             int64    // the ID of the current event
	pauses         *backoff.ExponentialBackOff
}

// queued is an item together with its event.
type queued struct {
	item  Item
	from  Queue
	event Event
}

func (w *worker) run(ctx context.Context) {
	w.pauses = backoff.NewExponentialBackOff()
	w.pauses.InitialInterval, w.pauses.MaxInterval, w.pauses.Multiplier = w.ep.cfg.Backoff, w.n.o.MaxBackoff, 2
	for ctx.Err() == nil {
		q, ok, err := w.head(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			w.n.o.Logger.ErrorContext(ctx, "notification queue is not readable", "endpoint", w.ep.cfg.Name, "err", err)
			sleep(ctx, queuePause)
		case err == nil && !ok:
			w.wait(ctx)
		case err == nil:
			w.handle(ctx, q)
		}
	}
	w.leave()
}

// turnPause is the time between two checks for what other processes have queued.
const turnPause = time.Second

// wait waits until there may be something to deliver.
func (w *worker) wait(ctx context.Context) {
	var others <-chan time.Time
	if w.n.o.Turn != nil {
		t := time.NewTimer(turnPause)
		defer t.Stop()
		others = t.C
	}
	select {
	case <-w.ep.wake:
	case <-others:
	case <-ctx.Done():
	}
}

// readDurable reads ahead in the durable queue if it is this process's turn. Otherwise it
// forgets what was read, because another process delivers it.
func (w *worker) readDurable(ctx context.Context) error {
	if turn := w.n.o.Turn; turn != nil {
		mine, err := turn(ctx, w.ep.queue)
		if err != nil || !mine {
			w.durable, w.refused = nil, 0
			return err
		}
	}
	var err error
	w.durable, err = w.refill(ctx, w.durable, w.n.queue)
	return err
}

// leave counts the pulls that are lost when the process ends.
func (w *worker) leave() {
	lost, _ := w.n.pulls.Len(context.Background(), w.ep.queue) // RAM does not fail
	if lost > 0 {
		w.n.o.Logger.Info("pull notifications wait for the next run, or are lost with the process", "endpoint", w.ep.cfg.Name, "events", lost)
	}
}

// head returns the oldest event of both queues.
func (w *worker) head(ctx context.Context) (queued, bool, error) {
	var err error
	if err = w.readDurable(ctx); err != nil {
		return queued{}, false, err
	}
	if w.pulls, err = w.refill(ctx, w.pulls, w.n.pulls); err != nil {
		return queued{}, false, err
	}
	switch {
	case len(w.durable) == 0 && len(w.pulls) == 0:
		return queued{}, false, nil
	case len(w.durable) == 0 || len(w.pulls) > 0 && w.pulls[0].event.Time.Before(w.durable[0].event.Time):
		return w.pulls[0], true, nil
	}
	return w.durable[0], true, nil
}

// refill reads ahead when nothing is left. It removes items that are not events. Only
// another program can have put such an item there.
func (w *worker) refill(ctx context.Context, have []queued, from Queue) ([]queued, error) {
	if len(have) > 0 {
		return have, nil
	}
	for {
		items, err := from.Next(ctx, w.ep.queue, batch)
		if err != nil {
			return nil, err
		}
		for _, it := range items {
			e, err := unmarshalEvent(it.Payload)
			if err == nil {
				have = append(have, queued{item: it, from: from, event: e})
				continue
			}
			w.n.metrics.event(typeDropped, w.ep.cfg.Name)
			w.n.o.Logger.ErrorContext(ctx, "notification is dropped", "endpoint", w.ep.cfg.Name, "err", err)
			if err := from.Delete(ctx, w.ep.queue, it.ID); err != nil {
				return nil, err
			}
		}
		if len(have) > 0 || len(items) == 0 {
			return have, nil
		}
	}
}

// handle tries to deliver an event once. It waits after too many failures.
func (w *worker) handle(ctx context.Context, q queued) {
	status, after, err := w.post(ctx, q.event)
	w.count(status, err)
	w.ep.outcomes.note(w.n.o.Now(), err)
	if err == nil {
		if w.failures >= w.ep.cfg.Threshold {
			w.n.o.Logger.InfoContext(ctx, "notification endpoint is back", "endpoint", w.ep.cfg.Name, "failures", w.failures)
		}
		w.failures = 0
		w.pauses.Reset()
		w.done(ctx, q)
		return
	}
	w.failures++
	if w.at != q.item.ID || !isRefusal(status) {
		w.refused, w.at = 0, q.item.ID
	}
	if isRefusal(status) {
		w.refused++
	}
	if w.refused >= w.ep.cfg.Threshold {
		// The endpoint will never accept the event, which would hold up all others for
		// ever.
		w.n.metrics.event(typeDropped, w.ep.cfg.Name)
		w.n.o.Logger.ErrorContext(ctx, "notification is dropped", "endpoint", w.ep.cfg.Name, "event", q.event.ID, "err", err)
		w.done(ctx, q)
		return
	}
	if w.failures == w.ep.cfg.Threshold {
		w.n.o.Logger.WarnContext(ctx, "notification endpoint is down", "endpoint", w.ep.cfg.Name, "failures", w.failures, "err", err)
	}
	var pause time.Duration
	if w.failures >= w.ep.cfg.Threshold {
		pause = w.pauses.NextBackOff()
	}
	sleep(ctx, max(pause, min(after, maxRetryAfter)))
	if w.n.o.Turn != nil { // other processes may have had their turn meanwhile
		w.durable = nil
	}
}

// isRefusal reports whether a status is about the event and not the endpoint.
func isRefusal(status int) bool {
	return status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity
}

func (w *worker) count(status int, err error) {
	name := w.ep.cfg.Name
	if status != 0 {
		w.n.metrics.answered(status, name)
	}
	switch {
	case err == nil:
		w.n.metrics.event(typeSuccesses, name)
	case status != 0:
		w.n.metrics.event(typeFailures, name)
	default:
		w.n.metrics.event(typeErrors, name)
	}
}

// done removes an event from its queue. Until that works nothing else is delivered,
// because the event would come again out of order.
func (w *worker) done(ctx context.Context, q queued) {
	w.refused = 0
	if q.from == w.n.pulls {
		w.pulls = w.pulls[1:]
	} else {
		w.durable = w.durable[1:]
	}
	for {
		// The event was delivered. That is recorded even if ctx has ended.
		noted, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.ep.cfg.Timeout)
		err := q.from.Delete(noted, w.ep.queue, q.item.ID)
		cancel()
		if err == nil {
			return
		}
		w.n.metrics.event(typeErrors, w.ep.cfg.Name)
		w.n.o.Logger.ErrorContext(ctx, "delivered notification stays queued", "endpoint", w.ep.cfg.Name, "event", q.event.ID, "err", err)
		if ctx.Err() != nil {
			return
		}
		sleep(ctx, queuePause)
	}
}

// post sends an event. status is 0 if there was no answer. after is how long the endpoint
// asked to be left alone.
func (w *worker) post(ctx context.Context, e Event) (status int, after time.Duration, err error) {
	cfg := &w.ep.cfg
	body, contentType, err := w.n.encode(e, cfg.Format)
	if err != nil {
		return 0, 0, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	// A delivery in progress is finished when ctx ends. If it were cut off, it would most
	// likely be made twice.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cfg.URL, bytes.NewReader(body))
	if err != nil {
		return 0, 0, errors.New("post event: malformed URL")
	}
	req.Header.Set("User-Agent", userAgent)
	for k, v := range cfg.Headers {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	req.Header.Set("Content-Type", contentType)
	if cfg.Secret != "" {
		req.Header.Set(SignatureHeader, Sign(cfg.Secret, body))
	}
	resp, err := w.ep.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may contain a token
		}
		return 0, 0, fmt.Errorf("post event: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // only the status matters
	if resp.StatusCode/100 == 2 {
		return resp.StatusCode, 0, nil
	}
	return resp.StatusCode, wire.RetryAfter(resp.Header.Get("Retry-After"), time.Now()), fmt.Errorf("post event: the endpoint answered %d", resp.StatusCode)
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
