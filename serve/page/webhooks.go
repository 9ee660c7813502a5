package page

import (
	"context"

	"example.org/slipway/registry/notify"
	"example.org/slipway/serve/gate"
	"example.org/slipway/web/manage"
)

// webhooks is how the web page manages webhooks.
type webhooks struct{ o *Options }

var _ manage.Webhooks = webhooks{}

// Webhooks implements manage.Webhooks.
func (w webhooks) Webhooks(ctx context.Context) ([]notify.EndpointStatus, error) {
	return w.o.Root.Webhooks(ctx)
}

// TestWebhook implements manage.Webhooks.
func (w webhooks) TestWebhook(ctx context.Context, name string) (notify.TestResult, error) {
	return w.o.Root.TestWebhook(ctx, name)
}

// AddWebhook implements manage.Webhooks.
func (w webhooks) AddWebhook(ctx context.Context, c notify.Change) error {
	_, err := gate.Do(w.o.Writes, func() (notify.EndpointStatus, error) { return w.o.Root.AddWebhook(ctx, c) })
	return err
}

// ChangeWebhook implements manage.Webhooks.
func (w webhooks) ChangeWebhook(ctx context.Context, c notify.Change) error {
	_, err := gate.Do(w.o.Writes, func() (notify.EndpointStatus, error) { return w.o.Root.ChangeWebhook(ctx, c) })
	return err
}

// RemoveWebhook implements manage.Webhooks.
func (w webhooks) RemoveWebhook(ctx context.Context, name string) error {
	_, err := gate.Do(w.o.Writes, func() (struct{}, error) { return struct{}{}, w.o.Root.RemoveWebhook(ctx, name) })
	return err
}
