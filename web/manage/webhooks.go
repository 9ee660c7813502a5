package manage

import (
	"context"

	"example.org/slipway/registry/notify"
)

// Webhooks knows the webhooks of a server, and tests them.
type Webhooks interface {
	Webhooks(ctx context.Context) ([]notify.EndpointStatus, error)
	// TestWebhook returns an error if there is no such webhook.
	TestWebhook(ctx context.Context, name string) (notify.TestResult, error)
}

// WebhooksPage is what the page of webhooks shows.
type WebhooksPage struct {
	Webhooks []notify.EndpointStatus
	// Tested is the webhook that was tested, and Result what it answered.
	Tested string
	Result *notify.TestResult
}
