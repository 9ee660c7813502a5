package serve

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/catalog"
	"example.org/slipway/config"
	"example.org/slipway/registry"
)

type notifier struct{}

func newNotifier(cfg *config.Config, log *slog.Logger) (*notifier, error) { return &notifier{}, nil }
func (n *notifier) hook() func(context.Context, registry.Event) error     { return nil }
func (n *notifier) start(cat *catalog.Catalog) error                      { return nil }
func (n *notifier) run(ctx context.Context) error                         { <-ctx.Done(); return nil }
func (n *notifier) metrics() []prometheus.Collector                       { return nil }
func (n *notifier) close()                                                {}
func wantsPulls(cfg *config.Config) bool                                  { return false }
