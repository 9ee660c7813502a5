package admin

import (
	"context"
	"errors"
	"net/http"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/notify"
	"example.org/slipway/serve/dataroot"
)

// WebhooksReport lists webhooks.
type WebhooksReport struct {
	Webhooks []notify.EndpointStatus `json:"webhooks"`
}

// TestWebhookArgs name a webhook.
type TestWebhookArgs struct {
	Name string `json:"name"`
}

func webhooks(ctx context.Context, r *dataroot.Root) (WebhooksReport, error) {
	list, err := r.Webhooks(ctx)
	return WebhooksReport{list}, err
}

func testWebhook(ctx context.Context, r *dataroot.Root, audit *auth.AuditLog, a TestWebhookArgs) (notify.TestResult, error) {
	res, err := r.TestWebhook(ctx, a.Name)
	failure := err
	if err == nil && res.Error != "" {
		failure = errors.New(res.Error)
	}
	record(ctx, audit, "test webhook", a.Name, failure)
	return res, err
}

// handleWebhooks adds the tasks of webhooks.
func (s *tasks) handleWebhooks(mux *http.ServeMux) {
	mux.Handle("POST /admin/webhooks", task(func(ctx context.Context, _ struct{}, _ func(WebhooksReport)) (WebhooksReport, error) {
		return webhooks(ctx, s.root)
	}))
	mux.Handle("POST /admin/webhook-test", task(func(ctx context.Context, a TestWebhookArgs, _ func(notify.TestResult)) (notify.TestResult, error) {
		return testWebhook(ctx, s.root, s.o.Audit, a)
	}))
}

// Webhooks returns the state of the webhooks. Without a server, it has no outcomes of
// deliveries.
func (a *Admin) Webhooks(ctx context.Context) (WebhooksReport, error) {
	if a.local == nil {
		return askServer[struct{}, WebhooksReport](ctx, a, "webhooks", struct{}{}, nil)
	}
	return webhooks(ctx, a.local)
}

// TestWebhook sends a webhook an event of a push that did not happen.
func (a *Admin) TestWebhook(ctx context.Context, name string) (notify.TestResult, error) {
	if a.local == nil {
		return askServer[TestWebhookArgs, notify.TestResult](ctx, a, "webhook-test", TestWebhookArgs{name}, nil)
	}
	return testWebhook(ctx, a.local, nil, TestWebhookArgs{name})
}
