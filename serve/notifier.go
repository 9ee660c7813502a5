package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/catalog"
	"example.org/slipway/config"
	"example.org/slipway/notify"
	"example.org/slipway/registry"
)

// notifier hands the registry's events to the configured webhooks. Without any
// it does nothing.
type notifier struct {
	cfg *config.Config
	log *slog.Logger
	n   *notify.Notifier
}

func newNotifier(cfg *config.Config, log *slog.Logger) *notifier {
	return &notifier{cfg: cfg, log: log}
}

// enabled tells whether any endpoint wants events.
func (n *notifier) enabled() bool {
	for _, e := range n.cfg.Notifications.Endpoints {
		if !e.Disabled {
			return true
		}
	}
	return false
}

// hook is what the registry calls for each event, or nil.
func (n *notifier) hook() func(context.Context, registry.Event) error {
	if !n.enabled() {
		return nil
	}
	return n.publish
}

// start makes the notifier over the catalogue's queue, before the first request.
func (n *notifier) start(cat *catalog.Catalog) (err error) {
	if !n.enabled() {
		return nil
	}
	host, _ := os.Hostname() // only a label in events
	external := noSlash(n.cfg.HTTP.Host)
	if external != "" {
		external += noSlash(n.cfg.HTTP.Prefix)
	}
	n.n, err = notify.New(n.cfg.Notifications.Endpoints, queue{cat}, &notify.Options{
		ExternalURL: external, Addr: host, Logger: n.log,
		IncludeReferences: n.cfg.Notifications.Events.IncludeReferences,
	})
	if err != nil {
		return fmt.Errorf("notifications: %w", err)
	}
	return nil
}

func (n *notifier) run(ctx context.Context) error {
	if n.n == nil {
		<-ctx.Done()
		return nil
	}
	return n.n.Run(ctx)
}

func (n *notifier) metrics() []prometheus.Collector {
	if n.n == nil {
		return nil
	}
	return n.n.Metrics()
}

func (n *notifier) publish(ctx context.Context, e registry.Event) error {
	return n.n.Publish(ctx, notify.Event{
		Time: e.Time, Action: notify.Action(e.Action), Repo: e.Repo, FromRepo: e.FromRepo, Tag: e.Tag,
		Blob: e.Blob, Digest: e.Descriptor.Digest, MediaType: e.Descriptor.MediaType,
		Size: e.Descriptor.Size, References: e.References,
	})
}

// queue is the notifier's durable queue in the catalogue.
type queue struct{ cat *catalog.Catalog }

func queueName(endpoint string) string { return "notify/" + endpoint }

func (q queue) Append(ctx context.Context, endpoint string, payload []byte) error {
	return q.cat.QueueAppend(ctx, queueName(endpoint), payload)
}

func (q queue) Next(ctx context.Context, endpoint string, n int) ([]notify.Item, error) {
	rows, err := q.cat.QueueNext(ctx, queueName(endpoint), n)
	items := make([]notify.Item, len(rows))
	for i, r := range rows {
		items[i] = notify.Item{ID: r.ID, Payload: r.Payload}
	}
	return items, err
}

func (q queue) Delete(ctx context.Context, endpoint string, ids ...int64) error {
	return q.cat.QueueDelete(ctx, ids...)
}

func (q queue) Len(ctx context.Context, endpoint string) (int, error) {
	return q.cat.QueueLen(ctx, queueName(endpoint))
}
