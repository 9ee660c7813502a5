// Package warming keeps orders that nodes have images before they start them, tells nodes
// that ask what to fetch, and gets images ready in the registry itself: from an upstream if
// the repository is a mirror, and into the cache.
//
// Orders and the progress of nodes are in the catalogue. So they outlive a restart, and any
// server of a cluster can be asked. Which nodes ask, and with what labels, is in memory.
package warming

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/warmfacts"
)

// Options are the options of New. Resolve and Ready are required.
type Options struct {
	// Resolve returns the digest of an image. Errors: as GetManifest of a registry.
	Resolve func(ctx context.Context, repo, ref string) (oci.Digest, error)
	// Ready gets an image ready in the registry itself, and reports its progress.
	Ready func(ctx context.Context, repo string, d oci.Digest, progress func(warm.Progress)) error
	// Rules are orders that pushes of tags make.
	Rules []Rule
	// Enter is called before the catalogue is changed. If it is nil, changes are always
	// allowed.
	Enter func() (leave func(), err error)
	// Tick is how often regular work is done; default 1 s.
	Tick time.Duration
	// Idle and Busy are the shortest times after which a node asks again, without and with
	// work to do; defaults 5 s and 2 s.
	Idle, Busy time.Duration
	// Clock returns the time; default time.Now.
	Clock func() time.Time
	// Logger; default slog.Default.
	Logger *slog.Logger
}

// Rule orders an image when a tag is pushed.
type Rule struct {
	// Matches reports whether the rule is about a tag of a repository.
	Matches func(repo, tag string) bool
	// Request is what is ordered; its Reference is the tag.
	Request warm.Request
}

const (
	// maxOrders bounds the orders that hold at a time, maxNodes the nodes that ask. One
	// client has at most half of the nodes.
	maxOrders = 1000
	// mostPushed bounds the orders among them that pushes made, and perRepo those of one
	// repository, so that who pushes many tags leaves room for others. Of a repository, the
	// oldest order gives way.
	mostPushed, perRepo = maxOrders / 2, 100
	maxNodes            = 20_000
	maxShare            = 2
	// lifetime is how long a node is remembered after it asked, away after what time it
	// counts as away, and refresh how often a progress that does not change is recorded.
	lifetime = 5 * time.Minute
	away     = 2 * time.Minute
	refresh  = 30 * time.Second
	// stale is how old the orders in memory may be when other servers change them, too.
	stale = time.Second
	// keepEnded is how long orders that have expired can still be looked at.
	keepEnded = 24 * time.Hour
	// nodesPerSecond bounds how many nodes ask per second, by when they are to ask again.
	nodesPerSecond = 50
	mostIdle       = time.Minute
)

// Service keeps orders. All methods may run concurrently.
type Service struct {
	db    *engine.DB
	facts warmfacts.Orders
	o     Options
	owner string // of leases
	log   *slog.Logger

	pushed chan pushedTag

	mu     sync.Mutex
	nodes  map[string]*node
	shares map[string]int // how many nodes each client has
	orders []*order       // the last one first
	loaded time.Time      // when they were read; zero: they have to be read again
	// changes counts the changes of orders. What was read before the last one is not kept.
	changes int
	noted   map[notedKey]noted
	// own are the orders that this server gets ready itself, by id.
	own map[string]*readying
}

// node is a node that asked lately.
type node struct {
	client string
	labels map[string]string
	asked  time.Time
}

// order is an order as it is used.
type order struct {
	warm.Order
	selector  warm.Selector
	cancelled bool
}

type notedKey struct{ order, node string }

// noted is what the catalogue has about a node's progress.
type noted struct {
	state string
	at    time.Time
}

// New returns the orders of a database.
func New(db *engine.DB, o Options) *Service {
	o.Tick, o.Idle, o.Busy = cmp.Or(o.Tick, time.Second), cmp.Or(o.Idle, 5*time.Second), cmp.Or(o.Busy, 2*time.Second)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Enter == nil {
		o.Enter = func() (func(), error) { return func() {}, nil }
	}
	return &Service{db: db, facts: warmfacts.New(db), o: o, owner: rand.Text(), log: o.Logger, pushed: make(chan pushedTag, maxPushed),
		nodes: map[string]*node{}, shares: map[string]int{}, noted: map[notedKey]noted{}, own: map[string]*readying{}}
}

func bad(format string, args ...any) error {
	return &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

func unknown(id string) error {
	return &oci.Error{Code: oci.CodeNameUnknown, Message: fmt.Sprintf("there is no order %.80q, or it has expired long ago", id)}
}

// Begin orders an image for a user. Errors: as Resolve.
func (s *Service) Begin(ctx context.Context, by, repo string, q warm.Request) (warm.Order, error) {
	o, err := s.order(q)
	if err != nil {
		return warm.Order{}, err
	}
	o.By, o.Cause, o.Repository = by, "request", repo
	if o.Digest, err = s.o.Resolve(ctx, repo, o.Reference); err != nil {
		return warm.Order{}, err
	}
	if err := s.add(ctx, o, false); err != nil {
		return warm.Order{}, err
	}
	return s.Get(ctx, o.ID)
}

// order checks a request and returns the order for it, still without an image.
func (s *Service) order(q warm.Request) (*order, error) {
	o := &order{Order: warm.Order{ID: strings.ToLower(rand.Text()[:12]), Reference: cmp.Or(q.Reference, "latest"), Nodes: q.Nodes, All: q.All, Created: s.o.Clock()}}
	held := warm.Lifetime
	if q.Seconds != 0 {
		if held = time.Duration(min(q.Seconds, 1<<31)) * time.Second; held < time.Second || held > warm.MaxLifetime {
			return nil, bad("an order holds for 1 second to %v", warm.MaxLifetime)
		}
	}
	o.Expires = o.Created.Add(held)
	check := oci.CheckTag
	if oci.IsDigest(o.Reference) {
		check = func(s string) error { return oci.CheckDigest(oci.Digest(s)) }
	}
	if err := check(o.Reference); err != nil {
		return nil, err
	}
	if o.Nodes != nil {
		var err error
		if o.selector, err = warm.ParseSelector(*o.Nodes); err != nil {
			return nil, bad("%v", err)
		}
	}
	return o, nil
}

// add records an order. instead says that it takes the place of earlier ones of the same
// cause for the same name and nodes.
func (s *Service) add(ctx context.Context, o *order, instead bool) error {
	leave, err := s.o.Enter()
	if err != nil {
		return err
	}
	defer leave()
	spec, err := json.Marshal(o.Order)
	if err != nil {
		return err
	}
	active, err := s.active(ctx)
	if err != nil {
		return err
	}
	var gone []*order
	pushed := 0
	if instead {
		gone, pushed = replacedBy(o, active)
	}
	if n := len(active) - len(gone); n >= maxOrders || pushed-len(gone) >= mostPushed {
		return &oci.Error{Code: oci.CodeTooManyRequests, Message: fmt.Sprintf("%d orders hold already; cancel some, or let them expire", n)}
	}
	defer s.reload()
	for _, old := range gone {
		if err := s.facts.Cancel(ctx, old.ID); err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
	}
	return s.facts.Add(ctx, warmfacts.Order{ID: o.ID, Spec: string(spec), Created: o.Created, Expires: o.Expires})
}

// replacedBy returns the orders whose place the order of a push takes, and how many orders
// of pushes hold. The last order comes first.
func replacedBy(o *order, active []*order) (gone []*order, pushed int) {
	kept := 0
	for _, old := range active {
		if old.Cause != o.Cause {
			continue
		}
		pushed++
		if old.Repository != o.Repository {
			continue
		}
		if kept++; kept >= perRepo || old.Reference == o.Reference && same(old.Nodes, o.Nodes) {
			gone = append(gone, old)
			kept--
		}
	}
	return gone, pushed
}

func same(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// reload makes the next reader read the orders again.
func (s *Service) reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = time.Time{}
	s.changes++
}

// known returns all orders.
func (s *Service) known(ctx context.Context) ([]*order, error) {
	s.mu.Lock()
	orders, loaded, changes := s.orders, s.loaded, s.changes
	s.mu.Unlock()
	if now := s.o.Clock(); !loaded.IsZero() && (!s.db.Shared() || now.Sub(loaded) < stale && !now.Before(loaded)) {
		return orders, nil
	}
	at := s.o.Clock()
	rows, err := s.facts.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the orders: %w", err)
	}
	list := make([]*order, 0, len(rows))
	for _, r := range rows {
		o := &order{}
		if err := json.Unmarshal([]byte(r.Spec), &o.Order); err != nil {
			s.log.Error("an order in the catalogue cannot be read", "order", r.ID, "err", err)
			continue
		}
		o.ID, o.Created, o.Expires, o.cancelled = r.ID, r.Created, r.Expires, r.Cancelled
		if o.Nodes != nil {
			o.selector, _ = warm.ParseSelector(*o.Nodes) // it was checked when it was made
		}
		list = append(list, o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes == changes {
		s.orders, s.loaded = list, at
	}
	return list, nil
}

// active returns the orders that hold now.
func (s *Service) active(ctx context.Context) ([]*order, error) {
	all, err := s.known(ctx)
	now := s.o.Clock()
	return slices.DeleteFunc(slices.Clone(all), func(o *order) bool { return o.cancelled || !now.Before(o.Expires) }), err
}

// Cancel ends an order.
func (s *Service) Cancel(ctx context.Context, id string) (warm.Order, error) {
	leave, err := s.o.Enter()
	if err != nil {
		return warm.Order{}, err
	}
	defer leave()
	if err := s.facts.Cancel(ctx, id); errors.Is(err, engine.ErrNotFound) {
		return warm.Order{}, unknown(id)
	} else if err != nil {
		return warm.Order{}, err
	}
	s.reload()
	s.stop(id)
	return s.Get(ctx, id)
}
