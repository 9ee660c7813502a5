// Package quota bounds what clients may store, by patterns of repositories.
//
// A quota is for all repositories that one of its patterns matches, taken together. It
// counts each content once, however many of them show it; a mount within a quota costs
// nothing. Contents count until the collector has freed them, and uploads count while they
// arrive. A tag that moves is no new tag.
//
// What clients send is counted before it is read. So on one server, a quota is never
// exceeded, however many push at once. What is stored is counted anew every few seconds, or
// less often if that takes long. So with several servers, a quota can be exceeded by what
// the other servers took since then. A push is refused only after a new count.
//
// A refusal loses nothing: the bytes of an upload that arrived before it stay, and the
// upload can be continued when there is room.
package quota

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

// Quota is one limit. A zero limit is none.
type Quota struct {
	// Repositories are the patterns, for messages, and Match is their meaning.
	Repositories []string
	Match        func(repo string) bool
	Bytes, Tags  int64
	// Warn is the share of a limit from which on a warning is logged, such as 0.8.
	Warn float64
}

// Name returns the patterns in one text.
func (q *Quota) Name() string {
	if len(q.Repositories) == 0 {
		return "**"
	}
	return strings.Join(q.Repositories, " ")
}

// Source counts what is stored. *catalog.Catalog is one.
type Source interface {
	Usage(ctx context.Context, n int, in func(repo string) []int) ([]catalog.Usage, error)
	Holders(ctx context.Context, d oci.Digest, each func(repo string)) error
	HasTag(ctx context.Context, repo, tag string) (bool, error)
}

var _ Source = (*catalog.Catalog)(nil)

const (
	// countEvery is the time after which a count is not relied on any more.
	countEvery = 5 * time.Second
	// countShare bounds the time that counting takes: after each count there is a pause
	// of countShare times as long as the count took.
	countShare = 20
	// lookEvery is how often a server counts for its metrics and warnings.
	lookEvery = time.Minute
)

// Limits are the quotas of a registry. A nil Limits has none.
type Limits struct {
	quotas []Quota
	source Source
	log    *slog.Logger

	counting sync.Mutex // held while the source counts; before mu

	mu     sync.Mutex
	counts []count
	began  time.Time     // when the last count began
	took   time.Duration // how long it took

	used, limit *prometheus.GaugeVec
	refused     *prometheus.CounterVec
}

// count is what is known of one quota.
type count struct {
	stored catalog.Usage // by the last count
	// coming is what requests under way may still store. done is what was stored by
	// requests that ended after the last count began.
	coming, done catalog.Usage
	warned       bool
}

func (c *count) total() catalog.Usage {
	return catalog.Usage{Bytes: c.stored.Bytes + c.coming.Bytes + c.done.Bytes, Tags: c.stored.Tags + c.coming.Tags + c.done.Tags}
}

// New returns the limits, or nil if there are no quotas.
func New(quotas []Quota, source Source, log *slog.Logger) *Limits {
	if len(quotas) == 0 {
		return nil
	}
	l := &Limits{quotas: quotas, source: source, log: log, counts: make([]count, len(quotas)),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_quota_used",
			Help: "What the repositories of a quota hold, in bytes or tags, by the last count."}, []string{"quota", "unit"}),
		limit: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_quota_limit",
			Help: "The limit of a quota, in bytes or tags."}, []string{"quota", "unit"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_quota_refused_total",
			Help: "Requests that were refused because of a quota."}, []string{"quota"})}
	for i := range quotas {
		q := &quotas[i]
		l.refused.WithLabelValues(q.Name())
		for unit, limit := range map[string]int64{"bytes": q.Bytes, "tags": q.Tags} {
			if limit > 0 {
				l.limit.WithLabelValues(q.Name(), unit).Set(float64(limit))
			}
		}
	}
	return l
}

// Metrics returns the collectors.
func (l *Limits) Metrics() []prometheus.Collector {
	if l == nil {
		return nil
	}
	return []prometheus.Collector{l.used, l.limit, l.refused}
}

// of returns the numbers of the quotas of a repository.
func (l *Limits) of(repo string) (list []int) {
	for i := range l.quotas {
		if l.quotas[i].Match(repo) {
			list = append(list, i)
		}
	}
	return list
}

// recount counts what is stored, unless a count has begun after the time since.
func (l *Limits) recount(ctx context.Context, since time.Time) error {
	l.counting.Lock()
	defer l.counting.Unlock()
	return l.recountLocked(ctx, since)
}

// freshen counts what is stored if the last count is too old. Requests do not wait for a
// count that another one has begun, unless nothing is known yet.
func (l *Limits) freshen(ctx context.Context) error {
	since := l.stale()
	l.mu.Lock()
	began := l.began
	l.mu.Unlock()
	switch {
	case began.IsZero():
		return l.recount(ctx, since)
	case began.After(since) || !l.counting.TryLock():
		return nil
	}
	defer l.counting.Unlock()
	return l.recountLocked(ctx, since)
}

func (l *Limits) recountLocked(ctx context.Context, since time.Time) error {
	l.mu.Lock()
	if l.began.After(since) {
		l.mu.Unlock()
		return nil
	}
	began, before := time.Now(), make([]catalog.Usage, len(l.counts))
	for i := range l.counts {
		before[i] = l.counts[i].done
	}
	l.mu.Unlock()
	stored, err := l.source.Usage(ctx, len(l.quotas), l.of)
	if err != nil {
		return fmt.Errorf("count what is stored for quotas: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.took = began, time.Since(began)
	for i := range l.counts {
		c := &l.counts[i]
		c.stored = stored[i]
		c.done.Bytes -= before[i].Bytes
		c.done.Tags -= before[i].Tags
		l.show(i)
	}
	return nil
}

// show sets the metrics of a quota, and logs once when it is nearly reached.
func (l *Limits) show(i int) {
	q, c := &l.quotas[i], &l.counts[i]
	l.used.WithLabelValues(q.Name(), "bytes").Set(float64(c.stored.Bytes))
	l.used.WithLabelValues(q.Name(), "tags").Set(float64(c.stored.Tags))
	near := q.state(c.stored) != "ok"
	if near && !c.warned {
		l.log.Warn("a quota is nearly reached", "quota", q.Name(), "bytes", c.stored.Bytes, "bytes_limit", q.Bytes, "tags", c.stored.Tags, "tags_limit", q.Tags)
	}
	c.warned = near
}

// state returns "ok", "warning" or "reached".
func (q *Quota) state(u catalog.Usage) string {
	over := func(share float64) bool {
		return q.Bytes > 0 && float64(u.Bytes) >= share*float64(q.Bytes) || q.Tags > 0 && float64(u.Tags) >= share*float64(q.Tags)
	}
	switch {
	case over(1):
		return "reached"
	case q.Warn > 0 && over(q.Warn):
		return "warning"
	}
	return "ok"
}

// stale returns a time. A count that began before that time is not relied on.
func (l *Limits) stale() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(-max(countEvery, countShare*l.took))
}

// take counts what a request is about to store in a repository, or refuses it. The caller
// calls done when the request has ended. d is the content, if it is known.
func (l *Limits) take(ctx context.Context, repo string, u catalog.Usage, d oci.Digest) (done func(unread int64), err error) {
	list := l.of(repo)
	if len(list) == 0 {
		return func(int64) {}, nil
	}
	came := time.Now()
	if err := l.freshen(ctx); err != nil {
		return nil, storage.ClientError("look at quotas", err)
	}
	if over := l.reserve(list, u); over < 0 {
		return l.release(list, u), nil
	}
	if err := l.recount(ctx, came); err != nil {
		return nil, storage.ClientError("look at quotas", err)
	}
	if list, err = l.uncounted(ctx, list, d); err != nil {
		return nil, storage.ClientError("look at quotas", err)
	}
	over := l.reserve(list, u)
	if over < 0 {
		return l.release(list, u), nil
	}
	return nil, l.refusal(over, u)
}

// uncounted returns the quotas that do not count a content yet.
func (l *Limits) uncounted(ctx context.Context, list []int, d oci.Digest) ([]int, error) {
	if d == "" {
		return list, nil
	}
	holds := map[int]bool{}
	err := l.source.Holders(ctx, d, func(repo string) {
		for _, i := range l.of(repo) {
			holds[i] = true
		}
	})
	return slices.DeleteFunc(slices.Clone(list), func(i int) bool { return holds[i] }), err
}

// reserve counts u in the quotas if it fits into all. Otherwise it returns one that it
// does not fit into.
func (l *Limits) reserve(list []int, u catalog.Usage) (over int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range list {
		q, now := &l.quotas[i], l.counts[i].total()
		if q.Bytes > 0 && u.Bytes > 0 && now.Bytes+u.Bytes > q.Bytes || q.Tags > 0 && u.Tags > 0 && now.Tags+u.Tags > q.Tags {
			return i
		}
	}
	for _, i := range list {
		l.counts[i].coming.Bytes += u.Bytes
		l.counts[i].coming.Tags += u.Tags
	}
	return -1
}

// room returns how many bytes of a body of unknown size are counted at once: a step, or
// what is left before a quota of the repository is reached, and at least one.
func (l *Limits) room(repo string) int64 {
	room := int64(step)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range l.of(repo) {
		if q := &l.quotas[i]; q.Bytes > 0 {
			room = min(room, q.Bytes-l.counts[i].total().Bytes)
		}
	}
	return max(room, 1)
}

// release returns a function that ends a reservation. unread is how many of the reserved
// bytes never came.
func (l *Limits) release(list []int, u catalog.Usage) func(unread int64) {
	return func(unread int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, i := range list {
			c := &l.counts[i]
			c.coming.Bytes -= u.Bytes
			c.coming.Tags -= u.Tags
			c.done.Bytes += u.Bytes - unread
			c.done.Tags += u.Tags
		}
	}
}

// refusal returns the error for a client.
func (l *Limits) refusal(i int, u catalog.Usage) error {
	l.mu.Lock()
	q, now := &l.quotas[i], l.counts[i].total()
	l.mu.Unlock()
	l.refused.WithLabelValues(q.Name()).Inc()
	what := fmt.Sprintf("%s of %s are used, and this needs %s", size(now.Bytes), size(q.Bytes), size(u.Bytes))
	if q.Tags > 0 && u.Tags > 0 && now.Tags+u.Tags > q.Tags {
		what = fmt.Sprintf("%d of %d tags are used, and this needs %d", now.Tags, q.Tags, u.Tags)
	}
	return &oci.Error{Code: oci.CodeDenied, Message: fmt.Sprintf("the quota of %s is reached: %s; delete images that nobody needs (their bytes count until they are "+
		"collected), or ask the administrator to raise storage.quotas", q.Name(), what)}
}

// size writes a number of bytes.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/unit, "KMGTPE"
	for v >= unit && len(units) > 1 {
		v, units = v/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, units[0])
}

// Status is the state of a quota.
type Status struct {
	Repositories []string `json:"repositories"`
	Bytes        int64    `json:"bytes"`
	BytesLimit   int64    `json:"bytes_limit,omitempty"`
	Tags         int64    `json:"tags"`
	TagsLimit    int64    `json:"tags_limit,omitempty"`
	// State is ok, warning or reached.
	State string `json:"state"`
}

// Status counts, and returns the state of each quota.
func (l *Limits) Status(ctx context.Context) ([]Status, error) {
	if l == nil {
		return nil, nil
	}
	if err := l.recount(ctx, l.stale()); err != nil {
		return nil, err
	}
	return l.Known(""), nil
}

// Known returns the state of each quota or, with a repository, of the quotas that bound
// it. It counts nothing: it knows what the last count found and what clients have stored
// through this server since. Before the first count it returns nothing.
func (l *Limits) Known(repo string) (out []Status) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.quotas {
		q, u := &l.quotas[i], l.counts[i].total()
		if !l.began.IsZero() && (repo == "" || q.Match(repo)) {
			out = append(out, Status{q.Repositories, u.Bytes, q.Bytes, u.Tags, q.Tags, q.state(u)})
		}
	}
	return out
}

// Run counts for metrics and warnings until ctx ends.
func (l *Limits) Run(ctx context.Context) {
	if l == nil {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := l.recount(ctx, l.stale()); err != nil && ctx.Err() == nil {
			l.log.Warn("what is stored cannot be counted for quotas", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
