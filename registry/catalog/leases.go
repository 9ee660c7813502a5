package catalog

import (
	"context"
	"database/sql"
	"unicode/utf8"
)

// Leases returns the leases that run now whose name begins with prefix: name to owner.
func (c *Catalog) Leases(ctx context.Context, prefix string) (map[string]string, error) {
	now, err := c.Now(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	err = c.db.rows(ctx, `SELECT name, owner FROM leases WHERE substr(name, 1, ?) = ? AND until > ?`,
		[]any{utf8.RuneCountInString(prefix), prefix, now.UnixMilli()}, func(r *sql.Rows) error {
			var name, owner string
			if err := r.Scan(&name, &owner); err != nil {
				return err
			}
			found[name] = owner
			return nil
		})
	if err != nil {
		return nil, err
	}
	return found, nil
}
