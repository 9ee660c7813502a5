package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
)

const (
	// identitySetting is the registry's id, once the object store has it too.
	identitySetting = "registry_id"
	// proposedIDSetting is an id that may not have reached the object store yet.
	proposedIDSetting = "registry_id_proposed"
)

// RegistryID returns the id of the registry that the catalogue belongs to. settled
// reports whether the object store has it too; id is empty where the catalogue has
// none.
func (c *Catalog) RegistryID(ctx context.Context) (id string, settled bool, err error) {
	return c.db.registryID(ctx)
}

func (db *database) registryID(ctx context.Context) (id string, settled bool, err error) {
	err = db.rows(ctx, `SELECT name, value FROM settings WHERE name IN (?, ?)`, []any{identitySetting, proposedIDSetting}, func(r *sql.Rows) error {
		var name, value string
		err := r.Scan(&name, &value)
		if name == identitySetting {
			id, settled = value, true
		} else if !settled {
			id = value
		}
		return err
	})
	return id, settled, err
}

// ProposeRegistryID records an id that is about to be written to the object store,
// unless the catalogue has one. It returns the id that counts, which is the same for
// all processes that share the catalogue.
func (c *Catalog) ProposeRegistryID(ctx context.Context, id string) (agreed string, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		agreed = ""
		for _, name := range []string{identitySetting, proposedIDSetting} {
			err := t.row(`SELECT value FROM settings WHERE name = ?`, []any{name}, &agreed)
			if err != ErrNotFound {
				return err
			}
		}
		if _, err := t.exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING`, proposedIDSetting, id); err != nil {
			return err
		}
		return t.row(`SELECT value FROM settings WHERE name = ?`, []any{proposedIDSetting}, &agreed)
	})
	return agreed, err
}

// SettleRegistryID records that the object store has the id.
func (c *Catalog) SettleRegistryID(ctx context.Context, id string) error {
	return c.db.write(ctx, func(t *tx) error {
		if _, err := t.exec(`DELETE FROM settings WHERE name = ?`, proposedIDSetting); err != nil {
			return err
		}
		_, err := t.exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, identitySetting, id)
		return err
	})
}

// SampleObjects returns at most n contents that are objects in the store: half of them
// the oldest, half the newest.
func (c *Catalog) SampleObjects(ctx context.Context, n int) ([]oci.Digest, error) {
	var out []oci.Digest
	seen := map[oci.Digest]bool{}
	for _, order := range []string{"ASC", "DESC"} {
		err := c.db.rows(ctx, `SELECT digest FROM blobs WHERE state = 1 AND content IS NULL ORDER BY id `+order+` LIMIT ?`, []any{n / 2}, func(r *sql.Rows) error {
			var d oci.Digest
			err := r.Scan(&d)
			if !seen[d] && oci.ValidDigest(d) {
				seen[d], out = true, append(out, d)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
