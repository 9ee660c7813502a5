package catalog

import (
	"context"
	"database/sql"
)

// QueueItem is an entry of a durable queue.
type QueueItem struct {
	ID      int64
	Payload []byte
}

// QueueAppend adds a payload at the end of a named queue.
func (c *Catalog) QueueAppend(ctx context.Context, name string, payload []byte) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO queue (name, payload) VALUES (?, ?)`, name, payload)
		return err
	})
}

// QueueNext returns at most n entries from the front of a queue, which stay in
// it until they are deleted.
func (c *Catalog) QueueNext(ctx context.Context, name string, n int) ([]QueueItem, error) {
	var out []QueueItem
	err := c.db.rows(ctx, `SELECT id, payload FROM queue WHERE name = ? ORDER BY id LIMIT ?`, []any{name, n}, func(r *sql.Rows) error {
		var it QueueItem
		err := r.Scan(&it.ID, &it.Payload)
		out = append(out, it)
		return err
	})
	return out, err
}

// QueueDelete removes entries.
func (c *Catalog) QueueDelete(ctx context.Context, ids ...int64) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, id := range ids {
			if _, err := t.exec(`DELETE FROM queue WHERE id = ?`, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// QueueLen returns how many entries a queue holds.
func (c *Catalog) QueueLen(ctx context.Context, name string) (int, error) {
	var n int
	err := c.db.row(ctx, `SELECT COUNT(*) FROM queue WHERE name = ?`, []any{name}, &n)
	return n, err
}
