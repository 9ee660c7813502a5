package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/registry/catalog/engine"
)

// Queue holds the durable queues of small payloads. All methods may run concurrently.
type Queue struct{ DB *engine.DB }

// QueueItem is an entry of a durable queue.
type QueueItem struct {
	ID      int64
	Payload []byte
}

// Append adds a payload at the end of a named queue.
func (c *Queue) Append(ctx context.Context, name string, payload []byte) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO queue (name, payload) VALUES (?, ?)`, name, payload)
		return err
	})
}

// Next returns at most n entries from the front of a queue. They stay in the queue until
// they are deleted.
func (c *Queue) Next(ctx context.Context, name string, n int) ([]QueueItem, error) {
	var out []QueueItem
	err := c.DB.Rows(ctx, `SELECT id, payload FROM queue WHERE name = ? ORDER BY id LIMIT ?`, []any{name, n}, func(r *sql.Rows) error {
		var it QueueItem
		err := r.Scan(&it.ID, &it.Payload)
		out = append(out, it)
		return err
	})
	return out, err
}

// Delete removes entries.
func (c *Queue) Delete(ctx context.Context, ids ...int64) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		for _, id := range ids {
			if _, err := t.Exec(`DELETE FROM queue WHERE id = ?`, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// Len returns how many entries a queue holds.
func (c *Queue) Len(ctx context.Context, name string) (int, error) {
	var n int
	err := c.DB.Row(ctx, `SELECT COUNT(*) FROM queue WHERE name = ?`, []any{name}, &n)
	return n, err
}
