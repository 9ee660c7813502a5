package dataroot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/webhookfacts"
	"example.org/slipway/registry/notify"
)

// webhookStore keeps webhooks in the catalogue.
type webhookStore struct{ facts webhookfacts.Webhooks }

var _ notify.Store = webhookStore{}

// webhookSpec is what a webhook is, as the catalogue has it.
type webhookSpec struct {
	URL          string          `json:"url"`
	Format       notify.Format   `json:"format"`
	Events       []notify.Action `json:"events"`
	Repositories []string        `json:"repositories,omitempty"`
	Secret       string          `json:"secret,omitempty"`
}

func webhookRow(h notify.Webhook) (webhookfacts.Webhook, error) {
	spec, err := json.Marshal(webhookSpec{h.URL, h.Format, h.Events, h.Repositories, h.Secret})
	return webhookfacts.Webhook{ID: h.ID, Name: h.Name, Spec: string(spec), Paused: h.Paused, Creator: h.Creator, Created: h.Created}, err
}

// Webhooks implements notify.Store.
func (s webhookStore) Webhooks(ctx context.Context) ([]notify.Webhook, error) {
	rows, err := s.facts.List(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]notify.Webhook, 0, len(rows))
	for _, row := range rows {
		var spec webhookSpec
		if err := json.Unmarshal([]byte(row.Spec), &spec); err != nil {
			return nil, fmt.Errorf("webhook %s in the catalogue: %w", row.Name, err)
		}
		list = append(list, notify.Webhook{ID: row.ID, Name: row.Name, URL: spec.URL, Format: spec.Format, Events: spec.Events, Repositories: spec.Repositories,
			Secret: spec.Secret, Paused: row.Paused, Creator: row.Creator, Created: row.Created.UTC()})
	}
	return list, nil
}

// AddWebhook implements notify.Store.
func (s webhookStore) AddWebhook(ctx context.Context, h notify.Webhook) error {
	row, err := webhookRow(h)
	if err != nil {
		return err
	}
	return s.facts.Add(ctx, row)
}

// SetWebhook implements notify.Store.
func (s webhookStore) SetWebhook(ctx context.Context, h notify.Webhook) error {
	row, err := webhookRow(h)
	if err != nil {
		return err
	}
	return noWebhook(s.facts.Set(ctx, row))
}

// RemoveWebhook implements notify.Store.
func (s webhookStore) RemoveWebhook(ctx context.Context, id string) error {
	return noWebhook(s.facts.Remove(ctx, id, queueName(notify.ManagedQueue)))
}

func noWebhook(err error) error {
	if errors.Is(err, catalog.ErrNotFound) {
		return notify.ErrNoWebhook
	}
	return err
}

// Notifies reports whether there are webhooks.
func (r *Root) Notifies() bool { return r.notifier.n.Active() }

// Webhooks returns the state of the webhooks, without those that the configuration
// disables.
func (r *Root) Webhooks(ctx context.Context) ([]notify.EndpointStatus, error) {
	return r.notifier.n.Status(ctx)
}

// TestWebhook sends a webhook an event of a push that did not happen. An error says that
// there is no such webhook; the result says what the webhook answered.
func (r *Root) TestWebhook(ctx context.Context, name string) (notify.TestResult, error) {
	if res, ok := r.notifier.n.Test(ctx, name); ok {
		return res, nil
	}
	return notify.TestResult{}, fmt.Errorf("%w: %.80q; slipway webhook ls lists them", notify.ErrNoWebhook, name)
}

// AddWebhook adds a webhook. The error wraps notify.ErrInvalid if there cannot be such a
// webhook.
func (r *Root) AddWebhook(ctx context.Context, c notify.Change) (notify.EndpointStatus, error) {
	return r.notifier.n.AddWebhook(ctx, c)
}

// ChangeWebhook changes a webhook that was added. The error wraps notify.ErrNoWebhook or
// notify.ErrInvalid.
func (r *Root) ChangeWebhook(ctx context.Context, c notify.Change) (notify.EndpointStatus, error) {
	return r.notifier.n.ChangeWebhook(ctx, c)
}

// RemoveWebhook removes a webhook that was added, with what waits for it. The error wraps
// notify.ErrNoWebhook.
func (r *Root) RemoveWebhook(ctx context.Context, name string) error {
	return r.notifier.n.RemoveWebhook(ctx, name)
}
