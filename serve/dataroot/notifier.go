package dataroot

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/webhookfacts"
	"example.org/slipway/registry/notify"
)

// notifier passes the registry's events to the webhooks.
type notifier struct {
	n *notify.Notifier
	// turns is nil if no other process delivers from the same queue.
	turns *turns
}

// webhooksEvery is how often a server looks for webhooks that other servers with its
// catalogue have changed.
const webhooksEvery = 2 * time.Second

// openNotifier creates the notifier on the catalogue's queue.
func openNotifier(ctx context.Context, cfg *config.Config, cat *catalog.Catalog, log *slog.Logger) (*notifier, error) {
	host, _ := os.Hostname() // only a label in events
	external := config.NoSlash(cfg.HTTP.Host)
	if external != "" {
		external += config.NoSlash(cfg.HTTP.Prefix)
	}
	o := &notify.Options{
		ExternalURL: external, Addr: host, Logger: log,
		IncludeReferences: cfg.Notifications.Events.IncludeReferences,
		Store:             webhookStore{webhookfacts.New(cat.DB)}, Networks: cfg.Notifications.AllowedNetworks(),
	}
	n := &notifier{}
	if cat.DB.Shared() {
		n.turns = &turns{cat: cat, owner: rand.Text(), until: map[string]time.Time{}, theirs: map[string]time.Time{}}
		o.Turn, o.RefreshEvery = n.turns.mine, webhooksEvery
	}
	var err error
	if n.n, err = notify.New(cfg.Notifications.Endpoints, queue{cat}, o); err == nil {
		err = n.n.Refresh(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("notifications: %w", err)
	}
	return n, nil
}

func (n *notifier) run(ctx context.Context) error {
	err := n.n.Run(ctx)
	if n.turns != nil {
		n.turns.end(context.WithoutCancel(ctx))
	}
	return err
}

func (n *notifier) publish(ctx context.Context, e registry.Event) error {
	if !n.n.Active() {
		return nil
	}
	return n.n.Publish(ctx, notify.Event{
		Time: e.Time, Action: notify.Action(e.Action), Repo: e.Repo, FromRepo: e.FromRepo, Tag: e.Tag,
		Blob: e.Blob, Digest: e.Descriptor.Digest, MediaType: e.Descriptor.MediaType,
		Size: e.Descriptor.Size, References: e.References,
	})
}

// turns decides which of several processes delivers the events of an endpoint, so that
// they arrive in order and once.
type turns struct {
	cat   *catalog.Catalog
	owner string

	mu sync.Mutex
	// until is the time until which this process certainly has an endpoint's turn. theirs
	// is the time before which this process does not ask again for a turn that another
	// process has.
	until, theirs map[string]time.Time
}

// turnLease is for how long a turn is taken. It is extended when half of it has passed,
// so a delivery that began in time has the other half.
const turnLease = 30 * time.Second

// mine takes or keeps the turn for an endpoint, and reports whether this process has it.
func (t *turns) mine(ctx context.Context, endpoint string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	began := time.Now()
	if began.Before(t.until[endpoint]) {
		return true, nil
	}
	if began.Before(t.theirs[endpoint]) {
		return false, nil
	}
	ok, err := t.cat.DB.Lease(ctx, queueName(endpoint), t.owner, turnLease)
	if err != nil || !ok {
		delete(t.until, endpoint)
		t.theirs[endpoint] = began.Add(turnLease / 6)
		return false, err
	}
	t.until[endpoint] = began.Add(turnLease / 2)
	return true, nil
}

// end gives up the turns, so that others need not wait for them to expire.
func (t *turns) end(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for endpoint := range t.until {
		if t.cat.DB.Unlease(ctx, queueName(endpoint), t.owner) != nil {
			return // the turns expire by themselves
		}
	}
	clear(t.until)
}

// queue is the notifier's durable queue in the catalogue.
type queue struct{ cat *catalog.Catalog }

func queueName(endpoint string) string { return "notify/" + endpoint }

func (q queue) Append(ctx context.Context, endpoint string, payload []byte) error {
	return q.cat.Queue.Append(ctx, queueName(endpoint), payload)
}

func (q queue) Next(ctx context.Context, endpoint string, n int) ([]notify.Item, error) {
	rows, err := q.cat.Queue.Next(ctx, queueName(endpoint), n)
	items := make([]notify.Item, len(rows))
	for i, r := range rows {
		items[i] = notify.Item{ID: r.ID, Payload: r.Payload}
	}
	return items, err
}

func (q queue) Delete(ctx context.Context, endpoint string, ids ...int64) error {
	return q.cat.Queue.Delete(ctx, ids...)
}

func (q queue) Len(ctx context.Context, endpoint string) (int, error) {
	return q.cat.Queue.Len(ctx, queueName(endpoint))
}
