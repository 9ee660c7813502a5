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

// RemoveWebhookArgs name a webhook.
type RemoveWebhookArgs struct {
	Name string `json:"name"`
}

// webhookTasks are changes of webhooks, which a data root's own process does, too.
type webhookTasks struct {
	root  *dataroot.Root
	audit *auth.AuditLog
}

func (s webhookTasks) add(ctx context.Context, c notify.Change) (notify.EndpointStatus, error) {
	c.By = callerOf(ctx)
	st, err := s.root.AddWebhook(ctx, c)
	record(ctx, s.audit, "add webhook", c.Name, err)
	return st, err
}

func (s webhookTasks) change(ctx context.Context, c notify.Change) (notify.EndpointStatus, error) {
	c.By = callerOf(ctx)
	st, err := s.root.ChangeWebhook(ctx, c)
	record(ctx, s.audit, c.Verb()+" webhook", c.Name, err)
	return st, err
}

func (s webhookTasks) remove(ctx context.Context, a RemoveWebhookArgs) (struct{}, error) {
	err := s.root.RemoveWebhook(ctx, a.Name)
	record(ctx, s.audit, "remove webhook", a.Name, err)
	return struct{}{}, err
}

// handleWebhooks adds the tasks of webhooks.
func (s *tasks) handleWebhooks(mux *http.ServeMux) {
	mux.Handle("POST /admin/webhooks", task(func(ctx context.Context, _ struct{}, _ func(WebhooksReport)) (WebhooksReport, error) {
		return webhooks(ctx, s.root)
	}))
	mux.Handle("POST /admin/webhook-test", task(func(ctx context.Context, a TestWebhookArgs, _ func(notify.TestResult)) (notify.TestResult, error) {
		return testWebhook(ctx, s.root, s.o.Audit, a)
	}))
	t := webhookTasks{s.root, s.o.Audit}
	mux.Handle("POST /admin/webhook-add", task(whileWritable(s.writes, func(ctx context.Context, c notify.Change, _ func(notify.EndpointStatus)) (notify.EndpointStatus, error) {
		return t.add(ctx, c)
	})))
	mux.Handle("POST /admin/webhook-change", task(whileWritable(s.writes, func(ctx context.Context, c notify.Change, _ func(notify.EndpointStatus)) (notify.EndpointStatus, error) {
		return t.change(ctx, c)
	})))
	mux.Handle("POST /admin/webhook-remove", task(whileWritable(s.writes, func(ctx context.Context, a RemoveWebhookArgs, _ func(struct{})) (struct{}, error) {
		return t.remove(ctx, a)
	})))
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

// AddWebhook adds a webhook.
func (a *Admin) AddWebhook(ctx context.Context, c notify.Change) (st notify.EndpointStatus, err error) {
	if a.local == nil {
		return askServer[notify.Change, notify.EndpointStatus](ctx, a, "webhook-add", c, nil)
	}
	err = a.audited(func(audit *auth.AuditLog) error {
		st, err = webhookTasks{a.local, audit}.add(ctx, c)
		return err
	})
	return st, err
}

// ChangeWebhook changes, pauses or resumes a webhook that was added.
func (a *Admin) ChangeWebhook(ctx context.Context, c notify.Change) (st notify.EndpointStatus, err error) {
	if a.local == nil {
		return askServer[notify.Change, notify.EndpointStatus](ctx, a, "webhook-change", c, nil)
	}
	err = a.audited(func(audit *auth.AuditLog) error {
		st, err = webhookTasks{a.local, audit}.change(ctx, c)
		return err
	})
	return st, err
}

// RemoveWebhook removes a webhook that was added, with the events that wait for it.
func (a *Admin) RemoveWebhook(ctx context.Context, name string) error {
	args := RemoveWebhookArgs{Name: name}
	if a.local == nil {
		_, err := askServer[RemoveWebhookArgs, struct{}](ctx, a, "webhook-remove", args, nil)
		return err
	}
	return a.audited(func(audit *auth.AuditLog) error {
		_, err := webhookTasks{a.local, audit}.remove(ctx, args)
		return err
	})
}
