// Package webhookfacts keeps the webhooks that administrators manage while the registry
// runs in the catalogue.
package webhookfacts

import (
	"context"
	"database/sql"
	"time"

	"example.org/slipway/registry/catalog/engine"
)

// Webhooks holds the webhooks. All methods may run concurrently.
type Webhooks struct{ db *engine.DB }

// New returns the Webhooks of a database.
func New(db *engine.DB) Webhooks { return Webhooks{db} }

// Webhook is a webhook. Times have milliseconds.
type Webhook struct {
	// ID is never used again.
	ID string
	// Name is unique.
	Name string
	// Spec is what it is, in a form that the catalogue does not know. It has credentials.
	Spec    string
	Paused  bool
	Creator string
	Created time.Time
}

// List returns all webhooks, ordered by name.
func (c Webhooks) List(ctx context.Context) (out []Webhook, err error) {
	err = c.db.Rows(ctx, `SELECT webhook_id, name, spec, paused, creator, created_at FROM webhooks ORDER BY name`, nil, func(r *sql.Rows) error {
		var w Webhook
		var created int64
		if err := r.Scan(&w.ID, &w.Name, &w.Spec, &w.Paused, &w.Creator, &created); err != nil {
			return err
		}
		w.Created = engine.FromMillis(created)
		out = append(out, w)
		return nil
	})
	return out, err
}

// Add records a webhook. It returns an error if the id or the name is taken.
func (c Webhooks) Add(ctx context.Context, w Webhook) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO webhooks (webhook_id, name, spec, paused, creator, created_at) VALUES (?, ?, ?, ?, ?, ?)`,
			w.ID, w.Name, w.Spec, number(w.Paused), w.Creator, engine.ToMillis(w.Created))
		return err
	})
}

// Set replaces Spec and Paused of the webhook with an id, or returns ErrNotFound.
func (c Webhooks) Set(ctx context.Context, w Webhook) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		n, err := t.Exec(`UPDATE webhooks SET spec = ?, paused = ? WHERE webhook_id = ?`, w.Spec, number(w.Paused), w.ID)
		if err == nil && n == 0 {
			err = engine.ErrNotFound
		}
		return err
	})
}

// Remove removes the webhook with an id, or returns ErrNotFound. The queues of webhooks are
// called queues and their id. Those of webhooks that are gone are removed, too: other
// servers may have queued events for a webhook that was being removed.
func (c Webhooks) Remove(ctx context.Context, id, queues string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		n, err := t.Exec(`DELETE FROM webhooks WHERE webhook_id = ?`, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return engine.ErrNotFound
		}
		_, err = t.Exec(`DELETE FROM queue WHERE substr(name, 1, ?) = ? AND substr(name, ?) NOT IN (SELECT webhook_id FROM webhooks)`, len(queues), queues, len(queues)+1)
		return err
	})
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
