// Package notify tells webhooks what happens in a registry.
//
// An [Event] is published once and delivered to every endpoint that wants it, in the form of
// Distribution's notifications or of CloudEvents. Events that change the registry (push, mount,
// tag, delete) go through a durable [Queue] and are delivered at least once. A receiver
// recognises a repetition by the event's id. Pulls go through a bounded queue in RAM, because
// there are many and nobody has to act on them. They are dropped and counted if the queue is
// full or the process ends.
//
// Each endpoint gets its events one after the other in the order in which they were
// published. An endpoint that is down or slow delays neither Publish nor the other
// endpoints.
//
// Endpoints come from the configuration, and do not change. A [Webhook] is managed while
// the registry runs. Its URL is chosen by an administrator and not by who configures the
// machine, so it is asked only at public addresses and in Options.Networks.
//
// The package does not decide where events come from or how the durable queue and the
// webhooks are stored.
package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/internal/reach"
	"example.org/slipway/oci"
)

// Action says what happened.
type Action string

// The actions.
const (
	ActionPush   Action = "push"
	ActionPull   Action = "pull"
	ActionMount  Action = "mount"
	ActionDelete Action = "delete"
	// ActionTag says that a tag was pointed at a manifest that was already there.
	// Distribution's format has no such action and calls it a push.
	ActionTag Action = "tag"
)

// Event is something that happened to a manifest, a blob or a tag.
type Event struct {
	// ID is unique. Publish makes an ID if it is empty.
	ID string `json:"id"`
	// Time defaults to the time of Publish.
	Time   time.Time `json:"time"`
	Action Action    `json:"action"`
	// Repo is the repository; FromRepo is where a mounted blob came from.
	Repo     string `json:"repo"`
	FromRepo string `json:"fromRepo,omitempty"`
	// Tag is the tag that was used, if any.
	Tag string `json:"tag,omitempty"`
	// Blob says that Digest is the digest of a blob and not of a manifest.
	Blob bool `json:"blob,omitempty"`
	// Digest is empty if only a tag was deleted.
	Digest    oci.Digest `json:"digest,omitempty"`
	MediaType string     `json:"mediaType,omitempty"`
	// Size is the size in bytes.
	Size int64 `json:"size,omitempty"`
	// References are what a manifest refers to. They are delivered only with
	// Options.IncludeReferences.
	References []oci.Descriptor `json:"references,omitempty"`
	// Actor defaults to the actor in the context of Publish.
	Actor *oci.Actor `json:"actor,omitempty"`
}

// Options configure a Notifier. The zero value works.
type Options struct {
	// ExternalURL is the registry's URL for clients, such as
	// "https://registry.example.com". If it is set, events contain links.
	ExternalURL string
	// Addr and InstanceID identify this registry process in events.
	Addr, InstanceID string
	// IncludeReferences delivers Event.References.
	IncludeReferences bool
	// PullQueue is how many pulls wait for each endpoint; 0 means 1000.
	PullQueue int
	// MaxBackoff bounds the wait before a delivery is retried; 0 means 5 min. A longer
	// Retry-After is honoured up to 1 h.
	MaxBackoff time.Duration
	// Turn is for several processes that share the durable queue. It reports whether it
	// is this process's turn to deliver the queued events of an endpoint. It is called
	// before each delivery, and from time to time while there is none. If Turn is nil, it
	// is always this process's turn.
	Turn func(ctx context.Context, endpoint string) (bool, error)
	// Transport sends requests; nil makes a new one.
	Transport http.RoundTripper
	// Logger gets a line if an endpoint goes down or comes back, and for each lost event;
	// nil discards the lines.
	Logger *slog.Logger
	// Store has the webhooks that are managed while the registry runs. nil means that
	// there are none, and that none can be added.
	Store Store
	// Networks are the networks in which managed webhooks may be, besides public addresses.
	Networks []netip.Prefix
	// RefreshEvery is how often Run reads the managed webhooks again. 0 means never, if no
	// other process changes them.
	RefreshEvery time.Duration
	// Now is the clock for Event.Time; nil means time.Now.
	Now func() time.Time
}

const (
	defaultPullQueue  = 1000
	defaultMaxBackoff = 5 * time.Minute
	maxRetryAfter     = time.Hour
)

// Notifier delivers events. It is safe for concurrent use.
type Notifier struct {
	o     Options
	queue Queue
	pulls *MemQueue
	// endpoints are those of the configuration, fixed in number, and then the managed
	// ones, ordered by name. The list is replaced as a whole.
	endpoints atomic.Pointer[[]*endpoint]
	fixed     int
	names     map[string]bool // of the configuration, with the disabled ones
	metrics   *metrics
	own       *http.Transport // nil if the caller's transport is used
	// guard and guarded are for managed webhooks.
	guard   *reach.Guard
	guarded *guardedTransport
	running atomic.Bool
	// staffed holds a value when endpoints has changed.
	staffed chan struct{}
	// changing is held while the stored webhooks or endpoints are changed.
	changing sync.Mutex
}

// New returns a notifier for the endpoints that are not disabled. queue holds the events
// that must not be lost. Nothing is delivered before Run, and managed webhooks are not
// known before Refresh.
func New(endpoints []Endpoint, queue Queue, o *Options) (*Notifier, error) {
	n := &Notifier{queue: queue, metrics: newMetrics(), names: map[string]bool{}, staffed: make(chan struct{}, 1)}
	if o != nil {
		n.o = *o
	}
	if n.o.PullQueue <= 0 {
		n.o.PullQueue = defaultPullQueue
	}
	if n.o.MaxBackoff <= 0 {
		n.o.MaxBackoff = defaultMaxBackoff
	}
	if n.o.Logger == nil {
		n.o.Logger = slog.New(slog.DiscardHandler)
	}
	if n.o.Now == nil {
		n.o.Now = time.Now
	}
	n.pulls = NewMemQueue(n.o.PullQueue)
	transport := n.o.Transport
	if transport == nil {
		n.own = newTransport(nil)
		transport = n.own
	}
	n.guard = &reach.Guard{Allow: n.o.Networks, Rule: guardRule}
	n.guarded = newGuardedTransport(n.guard)
	var list []*endpoint
	for i, cfg := range endpoints {
		if err := cfg.check(); err != nil {
			return nil, fmt.Errorf("notification endpoint %d %q: %w", i, cfg.Name, err)
		}
		if n.names[cfg.Name] {
			return nil, fmt.Errorf("notification endpoint %d: the name %q is taken", i, cfg.Name)
		}
		n.names[cfg.Name] = true
		if cfg.Disabled {
			continue
		}
		list = append(list, newEndpoint(cfg, transport))
	}
	n.fixed = len(list)
	n.endpoints.Store(&list)
	n.metrics.pending = newPending(n)
	return n, nil
}

// current returns the endpoints. The caller must not change the list.
func (n *Notifier) current() []*endpoint { return *n.endpoints.Load() }

// Active reports whether there is anybody to tell. Events need not be published while
// there is not.
func (n *Notifier) Active() bool { return len(n.current()) > 0 }

// Publish queues an event for every endpoint that wants it. It returns an error if a
// durable queue could not take the event. A pull is dropped and counted if its queue is
// full.
func (n *Notifier) Publish(ctx context.Context, e Event) error {
	if err := n.complete(ctx, &e); err != nil {
		return err
	}
	var payload []byte
	var errs []error
	for _, ep := range n.current() {
		if !ep.wants(e) {
			continue
		}
		if payload == nil {
			var err error
			if payload, err = e.marshal(); err != nil {
				return fmt.Errorf("publish event: %w", err)
			}
		}
		n.metrics.event(typeEvents, ep.cfg.Name)
		if e.Action == ActionPull {
			if err := n.pulls.Append(ctx, ep.queue, payload); err != nil {
				n.metrics.event(typeDropped, ep.cfg.Name)
			}
		} else if err := n.queue.Append(ctx, ep.queue, payload); err != nil {
			n.metrics.event(typeErrors, ep.cfg.Name)
			errs = append(errs, fmt.Errorf("publish event to %s: %w", ep.cfg.Name, err))
		}
		ep.nudge()
	}
	return errors.Join(errs...)
}

// complete fills in what the publisher left out.
func (n *Notifier) complete(ctx context.Context, e *Event) error {
	switch e.Action {
	case ActionPush, ActionPull, ActionMount, ActionDelete, ActionTag:
	default:
		return fmt.Errorf("publish event: unknown action %q", e.Action)
	}
	if e.ID == "" {
		e.ID = newID()
	}
	if e.Time.IsZero() {
		e.Time = n.o.Now()
	}
	e.Time = e.Time.UTC()
	if e.Actor == nil {
		e.Actor = oci.ActorFrom(ctx)
	}
	if !n.o.IncludeReferences {
		e.References = nil
	}
	return nil
}

// newID returns a random UUID (RFC 9562, version 4), the form that receivers know from
// Distribution.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, according to its documentation
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Run delivers events until ctx ends. Then it finishes a delivery in progress, which
// takes at most the endpoint's timeout. What the durable queue holds stays there for the
// next Run.
func (n *Notifier) Run(ctx context.Context) error {
	if !n.running.CompareAndSwap(false, true) {
		return errors.New("the notifier is running already")
	}
	defer n.running.Store(false)
	var refresh <-chan time.Time
	if n.o.RefreshEvery > 0 {
		t := time.NewTicker(n.o.RefreshEvery)
		defer t.Stop()
		refresh = t.C
	}
	var wg sync.WaitGroup
	workers := map[string]*running{}
	for ctx.Err() == nil {
		n.staff(ctx, workers, &wg)
		select {
		case <-n.staffed:
		case <-refresh:
			if err := n.Refresh(ctx); err != nil && ctx.Err() == nil {
				n.o.Logger.WarnContext(ctx, "webhooks cannot be read again; it is tried again", "err", err)
			}
		case <-ctx.Done():
		}
	}
	wg.Wait()
	for _, t := range []*http.Transport{n.own, n.guarded.direct, n.guarded.proxied} {
		if t != nil {
			t.CloseIdleConnections()
		}
	}
	return nil
}

// running is a worker that was started.
type running struct {
	ep     *endpoint
	cancel context.CancelFunc
	done   chan struct{} // closed at its end
}

// staff ends the workers of endpoints that are gone, paused or changed, and starts those
// that are missing. workers are by queue. A queue never has two workers at once, because
// its events are delivered in order.
func (n *Notifier) staff(ctx context.Context, workers map[string]*running, wg *sync.WaitGroup) {
	wanted := map[string]*endpoint{}
	for _, ep := range n.current() {
		if ep.hook == nil || !ep.hook.Paused {
			wanted[ep.queue] = ep
		}
	}
	for key, r := range workers {
		if wanted[key] != r.ep {
			r.cancel()
		}
	}
	for key, ep := range wanted {
		before := workers[key]
		if before != nil && before.ep == ep && before.running() {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		r := &running{ep, cancel, make(chan struct{})}
		workers[key] = r
		wg.Go(func() {
			defer close(r.done)
			defer cancel()
			if before != nil {
				<-before.done
			}
			(&worker{n: n, ep: ep}).run(own)
		})
	}
	for key, r := range workers {
		if wanted[key] == nil && !r.running() {
			delete(workers, key)
		}
	}
}

func (r *running) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// Metrics returns the notifier's collectors.
func (n *Notifier) Metrics() []prometheus.Collector { return n.metrics.all() }
