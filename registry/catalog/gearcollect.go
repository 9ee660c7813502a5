package catalog

import (
	"context"
	"database/sql"
	"errors"

	"example.org/slipway/oci"
)

// dropGearLayer takes away with a blob what Gear knows of it: the index and the recipe of a
// layer, whose contents are released by CollectGear, or the profile of an image.
func (t *tx) dropGearLayer(d oci.Digest) error {
	for _, query := range []string{`DELETE FROM gear_recipes WHERE digest = ?`, `UPDATE gear_layers SET digest = NULL, blob_id = 0 WHERE digest = ?`,
		`DELETE FROM gear_jobs WHERE digest = ?`, `DELETE FROM gear_profiles WHERE digest = ?`} {
		if _, err := t.exec(query, string(d)); err != nil {
			return err
		}
	}
	return nil
}

// CollectGear releases at most n contents of layers whose blobs are gone, and of
// clients that never sent an index. It returns how many it looked at; 0: there
// is nothing to do.
func (c *Catalog) CollectGear(ctx context.Context, n int) (examined int, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		examined = 0
		var layer int64
		err := t.row(`SELECT id FROM gear_layers WHERE digest IS NULL ORDER BY id LIMIT 1`, nil, &layer)
		if errors.Is(err, ErrNotFound) {
			return t.expireGear(t.now(), n, &examined)
		}
		if err != nil {
			return err
		}
		ids, err := t.ids(`SELECT file_id FROM gear_layer_files WHERE layer_id = ? LIMIT ?`, layer, n)
		if err != nil {
			return err
		}
		examined = max(len(ids), 1)
		if len(ids) < n {
			for _, query := range []string{`DELETE FROM gear_grants WHERE layer_id = ?`, `DELETE FROM gear_layers WHERE id = ?`} {
				if _, err := t.exec(query, layer); err != nil {
					return err
				}
			}
		}
		if err := t.byIDs(`DELETE FROM gear_layer_files WHERE layer_id = ? AND file_id IN (%s)`, []any{layer}, ids); err != nil {
			return err
		}
		return t.releaseGear(ids)
	})
	return examined, err
}

// expireGear ends the uploads of clients that never sent an index.
func (t *tx) expireGear(now int64, n int, examined *int) error {
	var ids, repos []int64
	err := t.rows(`SELECT file_id, repo_id FROM gear_staged WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`, []any{now, n}, func(r *sql.Rows) error {
		var id, repo int64
		err := r.Scan(&id, &repo)
		ids, repos = append(ids, id), append(repos, repo)
		return err
	})
	if err != nil || len(ids) == 0 {
		return err
	}
	*examined = len(ids)
	for i, id := range ids {
		if _, err := t.exec(`DELETE FROM gear_staged WHERE file_id = ? AND repo_id = ?`, id, repos[i]); err != nil {
			return err
		}
		if err := t.dropRepository(repos[i]); err != nil {
			return err
		}
	}
	return t.releaseGear(ids)
}

func (t *tx) ids(query string, args ...any) ([]int64, error) {
	var out []int64
	err := t.rows(query, args, func(r *sql.Rows) error {
		var id int64
		err := r.Scan(&id)
		out = append(out, id)
		return err
	})
	return out, err
}

// releaseGear makes contents dead that nothing needs any more.
func (t *tx) releaseGear(ids []int64) error {
	var dead []int64
	packs := map[int64]*gearDelta{}
	for _, id := range ids {
		var pack, stored int64
		err := t.row(`SELECT pack_id, stored FROM gear_files f WHERE id = ? AND live = 1
			AND NOT EXISTS (SELECT 1 FROM gear_layer_files lf WHERE lf.file_id = f.id) AND NOT EXISTS (SELECT 1 FROM gear_staged s WHERE s.file_id = f.id)`,
			[]any{id}, &pack, &stored)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if pack == 0 {
			if _, err := t.exec(`DELETE FROM gear_files WHERE id = ?`, id); err != nil {
				return err
			}
			continue
		}
		dead = append(dead, id)
		addGear(packs, pack, -1, -stored)
	}
	return t.setGearLive(dead, 0, packs)
}

// DeletingGear returns at most n packs whose objects are to be deleted now, and
// then given to ForgetGear. None of them has a content or a writer.
func (c *Catalog) DeletingGear(ctx context.Context, n int) ([]GearName, error) {
	var out []GearName
	// A commit that was refused may have had the contents still there.
	if err := c.db.settled(ctx); err != nil {
		return nil, err
	}
	var due bool
	err := c.db.row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE state = 2 AND due_at <= ?)`, []any{c.now()}, &due)
	if err == nil && due {
		err = c.db.write(ctx, func(t *tx) error {
			_, err := t.exec(`UPDATE gear_packs SET state = 3 WHERE state = 2 AND due_at <= ?
				AND NOT EXISTS (SELECT 1 FROM gear_intents i WHERE i.pack = gear_packs.digest)`, t.now())
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	err = c.db.rows(ctx, `SELECT digest FROM gear_packs WHERE state = 3 ORDER BY id LIMIT ?`, []any{n}, func(r *sql.Rows) error {
		var digest GearName
		var raw sql.RawBytes
		err := r.Scan(&raw)
		copy(digest[:], raw)
		out = append(out, digest)
		return err
	})
	return out, err
}

// ForgetGear drops the rows of packs whose objects are deleted.
func (c *Catalog) ForgetGear(ctx context.Context, packs ...GearName) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, p := range packs {
			if _, err := t.exec(`DELETE FROM gear_packs WHERE digest = ? AND state = 3`, p[:]); err != nil {
				return err
			}
		}
		return nil
	})
}
