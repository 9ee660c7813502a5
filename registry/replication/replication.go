// Package replication copies images to and from other registries by rules: regularly, as
// soon as they are pushed, or both.
//
// A rule has one direction. A rule that pushes copies images of this registry to a remote
// one, and a rule that pulls copies images of a remote registry to this one. What the
// destination has already is not sent again. Signatures, SBOMs and other referrers follow
// their image.
//
// A run compares the tags of both sides, and copies those that differ. Pushes and deletions
// that a rule acts on at once are kept in a durable queue until they are done, so a remote
// that is away for a while gets them later.
//
// Nothing is deleted at the destination unless the rule says so. A rule that pushes then
// deletes what a client deleted here. A rule that pulls deletes those tags that it has set
// itself and the source no longer has.
//
// A tag may change at both sides, as after an outage between registries that replicate to
// one another. A change that is copied keeps the time of the change that it repeats, so the
// last change by the clocks of the registries remains at both, if both keep histories. A
// registry refuses a change that is older than its own.
//
// Two registries may replicate to one another. What a registry sends carries the ids of the
// registries through which it came. A registry whose own id is among them sends it no
// further. A repository whose name contains the prefix of a rule is not sent by that rule,
// so that names do not grow.
package replication

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
)

// Rule says what is copied, and where to.
type Rule struct {
	// Name is unique among the rules.
	Name string
	// Push says that images of this registry are copied to the remote one. Otherwise they
	// are copied from there.
	Push bool
	// Remote is the other registry, and URL its address for people.
	Remote oci.Registry
	URL    string
	// History is that of Remote's tags. It may be nil.
	History HistoryFunc
	// Match reports whether a repository is copied, by its name at the source. Names are
	// the repositories if they are known without asking the source for a list, as some
	// registries have none.
	Match func(repo string) bool
	Names []string
	// Tags reports whether a tag is copied. nil means that all are. Signatures follow
	// their image in any case.
	Tags func(tag string) bool
	// Prefix and a slash come before the names at the destination, unless it is empty.
	Prefix string
	// OnPush copies what is pushed at once. It is for rules that push.
	OnPush bool
	// Every is the time between two runs. 0 means no regular runs.
	Every time.Duration
	// Delete says that deletions are repeated at the destination.
	Delete bool
	// Referrers says that what refers to an image is copied with it.
	Referrers bool
}

// to returns the name at the destination of a repository of the source. ok is false if the
// rule does not copy that repository.
func (r *Rule) to(repo string) (name string, ok bool) {
	if !r.Match(repo) {
		return "", false
	}
	if r.Prefix == "" {
		return repo, true
	}
	return r.Prefix + "/" + repo, !strings.Contains("/"+repo+"/", "/"+r.Prefix+"/")
}

// from returns the name at the source of a repository of the destination. ok is false if no
// repository of the source has that name at the destination.
func (r *Rule) from(repo string) (name string, ok bool) {
	name = repo
	if r.Prefix != "" {
		if name, ok = strings.CutPrefix(repo, r.Prefix+"/"); !ok {
			return "", false
		}
	}
	_, ok = r.to(name)
	return name, ok
}

// actor is the name under which the history of tags has what a rule did here.
func (r *Rule) actor() string { return "replication:" + r.Name }

// direction returns "push" or "pull".
func (r *Rule) direction() string {
	if r.Push {
		return "push"
	}
	return "pull"
}

// Item is an entry of a queue.
type Item struct {
	ID      int64
	Payload []byte
}

// Store keeps the state and the queue of each rule. All methods may run concurrently.
type Store interface {
	// Load returns the state of a rule, or nothing if there is none.
	Load(ctx context.Context, rule string) ([]byte, error)
	Save(ctx context.Context, rule string, state []byte) error
	// Append adds a payload at the end of a rule's queue.
	Append(ctx context.Context, rule string, payload []byte) error
	// Next returns at most n entries from the front of a rule's queue, which stay there.
	Next(ctx context.Context, rule string, n int) ([]Item, error)
	Delete(ctx context.Context, ids ...int64) error
	// Len returns how many entries a rule's queue has.
	Len(ctx context.Context, rule string) (int, error)
}

// Options are the options of New.
type Options struct {
	Rules []Rule
	// Local is this registry.
	Local oci.Registry
	Store Store
	// ID returns the id of this registry, or "" if it has none yet.
	ID func(ctx context.Context) string
	// Mark returns a context for reading from Local, whose requests do not count as pulls.
	Mark func(context.Context) context.Context
	// Mirrored reports whether a repository is a mirror. Mirrors are neither sent nor
	// written. nil means that none is.
	Mirrored func(repo string) bool
	// History is that of Local's tags. A rule deletes only tags that it has set itself.
	History HistoryFunc
	// Lease keeps other servers from doing the work of a rule. It takes or prolongs a
	// lease, and reports whether the owner has it. nil means that there are no others.
	Lease func(ctx context.Context, name, owner string, d time.Duration) (bool, error)
	// Unlease ends a lease. It is nil if Lease is.
	Unlease func(ctx context.Context, name, owner string) error
	// Enter begins work that changes something, and the caller ends it with leave. It
	// returns an error while nothing may be changed. nil means that changes are always
	// allowed. Stopping returns a channel that is closed when work under way is to end. It
	// may be nil.
	Enter    func() (leave func(), err error)
	Stopping func() <-chan struct{}
	// RetryWait is the first pause after a failure, default 5 s. Each further pause is
	// twice as long, up to RetryMaxWait, default 15 min.
	RetryWait, RetryMaxWait time.Duration
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// Clock tells the time; default time.Now.
	Clock func() time.Time
}

const (
	defaultRetryWait    = 5 * time.Second
	defaultRetryMaxWait = 15 * time.Minute
)

// Replicator replicates by rules. A nil Replicator has none. All methods may run
// concurrently.
type Replicator struct {
	o       Options
	metrics *metrics

	// list are the workers of the rules. It is replaced as a whole, while changing is held.
	list     atomic.Pointer[[]*worker]
	changing sync.Mutex
	// changed holds a value when list has changed.
	changed chan struct{}

	mu sync.Mutex
	id string
}

// New returns a Replicator. It connects to nothing yet.
func New(o Options) *Replicator {
	if o.RetryWait <= 0 {
		o.RetryWait = defaultRetryWait
	}
	if o.RetryMaxWait <= 0 {
		o.RetryMaxWait = defaultRetryMaxWait
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Mark == nil {
		o.Mark = func(ctx context.Context) context.Context { return ctx }
	}
	r := &Replicator{o: o, metrics: newMetrics(), changed: make(chan struct{}, 1)}
	r.list.Store(&[]*worker{})
	r.SetRules(o.Rules)
	return r
}

// Metrics returns the collectors.
func (r *Replicator) Metrics() []prometheus.Collector { return r.metrics.all() }

// workers returns the workers of the rules. The caller must not change the list.
func (r *Replicator) workers() []*worker { return *r.list.Load() }

func (r *Replicator) has(rule string) bool {
	return slices.ContainsFunc(r.workers(), func(w *worker) bool { return w.rule.Name == rule })
}

// SetRules replaces the rules, also while Run runs. A rule that has the name and the Remote
// of a rule before is that rule, and goes on. What other rules are doing is broken off, as
// when the server stops: what was copied stays, and a new rule of the same name does the
// rest. It begins when the old one has ended, takes over its queue, and does not wait for
// the end of pauses after failures.
func (r *Replicator) SetRules(rules []Rule) {
	r.changing.Lock()
	defer r.changing.Unlock()
	before := r.workers()
	now := make([]*worker, 0, len(rules))
	for _, rule := range rules {
		i := slices.IndexFunc(before, func(w *worker) bool { return w.rule.Name == rule.Name })
		if i >= 0 && before[i].rule.Remote == rule.Remote {
			now = append(now, before[i])
			continue
		}
		w := newWorker(r, &rule)
		if i >= 0 {
			w.busy, w.eager = before[i].busy, true
		}
		now = append(now, w)
	}
	r.list.Store(&now)
	for _, w := range before {
		if !slices.Contains(now, w) {
			close(w.replaced)
			r.forgetGone(w.rule.Name)
		}
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// forgetGone removes the metrics of a rule unless there is one of that name.
func (r *Replicator) forgetGone(rule string) {
	if !r.has(rule) {
		r.metrics.forget(rule)
	}
}

// Run does what the rules say until ctx ends.
func (r *Replicator) Run(ctx context.Context) {
	var wg sync.WaitGroup
	started := map[*worker]bool{}
	for ctx.Err() == nil {
		now := r.workers()
		for w := range started {
			if !slices.Contains(now, w) {
				delete(started, w)
			}
		}
		for _, w := range now {
			if started[w] {
				continue
			}
			started[w] = true
			wg.Go(func() {
				w.run(ctx)
				r.forgetGone(w.rule.Name)
			})
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
		}
	}
	wg.Wait()
}

// Event is a push or a deletion in this registry.
type Event struct {
	Repo string
	// Tag is set if the request named one. Digest is empty if only a tag was deleted.
	Tag     string
	Digest  oci.Digest
	Deleted bool
}

// OnEvent queues an event for the rules that act on it. It returns an error if an event
// could not be stored.
func (r *Replicator) OnEvent(ctx context.Context, e Event) error {
	if r == nil || r.mirrored(e.Repo) {
		return nil
	}
	via := ViaFrom(ctx)
	for _, w := range r.workers() {
		if !w.rule.Push || !w.rule.OnPush || e.Deleted && !w.rule.Delete || !w.rule.Referrers && e.Tag == "" && !e.Deleted {
			continue
		}
		if _, ok := w.rule.to(e.Repo); !ok || !w.takes(e.Tag) {
			continue
		}
		if len(via) > 0 && slices.Contains(via, r.ownID(ctx)) {
			continue // it has come around
		}
		if err := w.enqueue(ctx, change{Repo: e.Repo, Tag: e.Tag, Digest: e.Digest, Deleted: e.Deleted, Via: via}); err != nil {
			return fmt.Errorf("queue for the replication rule %s: %w", w.rule.Name, err)
		}
		w.nudge()
	}
	return nil
}

func (r *Replicator) mirrored(repo string) bool { return r.o.Mirrored != nil && r.o.Mirrored(repo) }

// ownID returns the id of this registry.
func (r *Replicator) ownID(ctx context.Context) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id == "" && r.o.ID != nil {
		r.id = r.o.ID(ctx)
	}
	return r.id
}

// sending returns a context for requests to a remote registry about content that came
// through some registries.
func (r *Replicator) sending(ctx context.Context, via []string) context.Context {
	if id := r.ownID(ctx); id != "" {
		via = append(slices.Clone(via), id)
	}
	return withVia(ctx, via)
}

// worker returns the worker of a rule.
func (r *Replicator) worker(rule string) (*worker, error) {
	var names []string
	for _, w := range r.workers() {
		if w.rule.Name == rule {
			return w, nil
		}
		names = append(names, w.rule.Name)
	}
	if len(names) == 0 {
		return nil, errNoRules
	}
	return nil, fmt.Errorf("there is no replication rule %q; the configuration has: %s", rule, strings.Join(names, ", "))
}
