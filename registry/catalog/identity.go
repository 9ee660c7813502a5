package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

const (
	// IdentitySetting holds the registry's id, once the object store has the id too.
	IdentitySetting = "registry_id"
	// proposedIDSetting holds an id that the object store may not have yet.
	proposedIDSetting = "registry_id_proposed"
	// ContinuesSetting holds the id of the registry that this one continues: this
	// registry was empty, and then received all images of a backup of the other registry.
	ContinuesSetting = "continues_registry"
)

// RegistryID returns the id of the registry that the catalogue belongs to. settled
// reports whether the object store has the id too. id is empty if the catalogue has none.
func (c *Settings) RegistryID(ctx context.Context) (id string, settled bool, err error) {
	return registryID(ctx, c.DB)
}

func registryID(ctx context.Context, db *engine.DB) (id string, settled bool, err error) {
	err = db.Rows(ctx, `SELECT name, value FROM settings WHERE name IN (?, ?)`, []any{IdentitySetting, proposedIDSetting}, func(r *sql.Rows) error {
		var name, value string
		err := r.Scan(&name, &value)
		if name == IdentitySetting {
			id, settled = value, true
		} else if !settled {
			id = value
		}
		return err
	})
	return id, settled, err
}

// ProposeRegistryID records an id that is about to be written to the object store, unless
// the catalogue already has an id. It returns the valid id, which is the same for all
// processes that share the catalogue.
func (c *Settings) ProposeRegistryID(ctx context.Context, id string) (agreed string, err error) {
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		agreed = ""
		for _, name := range []string{IdentitySetting, proposedIDSetting} {
			err := t.Row(`SELECT value FROM settings WHERE name = ?`, []any{name}, &agreed)
			if err != ErrNotFound {
				return err
			}
		}
		if _, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING`, proposedIDSetting, id); err != nil {
			return err
		}
		return t.Row(`SELECT value FROM settings WHERE name = ?`, []any{proposedIDSetting}, &agreed)
	})
	return agreed, err
}

// SettleRegistryID records that the object store has the id.
func (c *Settings) SettleRegistryID(ctx context.Context, id string) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		if _, err := t.Exec(`DELETE FROM settings WHERE name = ?`, proposedIDSetting); err != nil {
			return err
		}
		_, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, IdentitySetting, id)
		return err
	})
}

// SampleObjects returns at most n contents that are objects in the store. Half of them
// are the oldest, and half are the newest.
func (c *Catalog) SampleObjects(ctx context.Context, n int) ([]oci.Digest, error) {
	var out []oci.Digest
	seen := map[oci.Digest]bool{}
	for _, order := range []string{"ASC", "DESC"} {
		err := c.DB.Rows(ctx, `SELECT digest FROM blobs WHERE state = 1 AND content IS NULL ORDER BY id `+order+` LIMIT ?`, []any{n / 2}, func(r *sql.Rows) error {
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

// Continue records that this registry was empty and has received all images of a backup
// of the registry with the given id. This registry may therefore replace that backup.
func (c *Settings) Continue(ctx context.Context, id string) error {
	return c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, ContinuesSetting, id)
		return err
	})
}
