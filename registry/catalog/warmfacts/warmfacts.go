// Package warmfacts keeps in the catalogue which images nodes shall have before they start
// them, and how far each node is.
package warmfacts

import (
	"context"
	"database/sql"
	"time"

	"example.org/slipway/registry/catalog/engine"
)

// Orders holds the orders. All methods may run concurrently.
type Orders struct{ db *engine.DB }

// New returns the Orders of a database.
func New(db *engine.DB) Orders { return Orders{db} }

// Order is an order. Times have milliseconds.
type Order struct {
	ID string
	// Spec is what was ordered, in a form that the catalogue does not know.
	Spec      string
	Cancelled bool
	Created   time.Time
	Expires   time.Time
}

// Progress is how far a node is with an order. The node "" is the registry itself.
type Progress struct {
	Order, Node string
	// State is in a form that the catalogue does not know.
	State string
	Seen  time.Time
}

// Add records an order.
func (c Orders) Add(ctx context.Context, o Order) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO warm_orders (order_id, spec, cancelled, created_at, expires_at) VALUES (?, ?, 0, ?, ?)`,
			o.ID, o.Spec, engine.ToMillis(o.Created), engine.ToMillis(o.Expires))
		return err
	})
}

// List returns all orders, the last one first.
func (c Orders) List(ctx context.Context) (out []Order, err error) {
	err = c.db.Rows(ctx, `SELECT order_id, spec, cancelled, created_at, expires_at FROM warm_orders ORDER BY created_at DESC, order_id`, nil, func(r *sql.Rows) error {
		var o Order
		var created, expires int64
		if err := r.Scan(&o.ID, &o.Spec, &o.Cancelled, &created, &expires); err != nil {
			return err
		}
		o.Created, o.Expires = engine.FromMillis(created), engine.FromMillis(expires)
		out = append(out, o)
		return nil
	})
	return out, err
}

// Cancel cancels an order. It returns ErrNotFound if there is none.
func (c Orders) Cancel(ctx context.Context, id string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		n, err := t.Exec(`UPDATE warm_orders SET cancelled = 1 WHERE order_id = ?`, id)
		if err == nil && n == 0 {
			err = engine.ErrNotFound
		}
		return err
	})
}

// Forget removes the orders that expired before a time.
func (c Orders) Forget(ctx context.Context, before time.Time) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		if _, err := t.Exec(`DELETE FROM warm_orders WHERE expires_at < ?`, engine.ToMillis(before)); err != nil {
			return err
		}
		_, err := t.Exec(`DELETE FROM warm_progress WHERE order_id NOT IN (SELECT order_id FROM warm_orders)`)
		return err
	})
}

// Note records how far nodes are. The change survives the end of the process, but perhaps
// not a power cut: nodes report again.
func (c Orders) Note(ctx context.Context, list []Progress) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		for _, p := range list {
			if _, err := t.Exec(`INSERT INTO warm_progress (order_id, node, state, seen_at) VALUES (?, ?, ?, ?)
				ON CONFLICT (order_id, node) DO UPDATE SET state = excluded.state, seen_at = excluded.seen_at`,
				p.Order, p.Node, p.State, engine.ToMillis(p.Seen)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Progress returns how far the nodes are with an order, or with all orders if id is empty,
// sorted by order and node.
func (c Orders) Progress(ctx context.Context, id string) (out []Progress, err error) {
	err = c.db.Rows(ctx, `SELECT order_id, node, state, seen_at FROM warm_progress WHERE order_id = ?1 OR ?1 = '' ORDER BY order_id, node`, []any{id}, func(r *sql.Rows) error {
		var p Progress
		var seen int64
		if err := r.Scan(&p.Order, &p.Node, &p.State, &seen); err != nil {
			return err
		}
		p.Seen = engine.FromMillis(seen)
		out = append(out, p)
		return nil
	})
	return out, err
}
