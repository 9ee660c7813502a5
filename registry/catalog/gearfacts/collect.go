package gearfacts

import (
	"context"
	"database/sql"
	"errors"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// Collect releases at most n contents of layers whose blobs are gone, and of clients that
// never sent an index. It returns how many contents it examined. 0 means that there is
// nothing to do.
func (c Files) Collect(ctx context.Context, n int) (examined int, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		examined = 0
		var layer int64
		err := t.Row(`SELECT id FROM gear_layers WHERE digest IS NULL ORDER BY id LIMIT 1`, nil, &layer)
		if errors.Is(err, engine.ErrNotFound) {
			return expireGear(t, t.Now(), n, &examined)
		}
		if err != nil {
			return err
		}
		ids, err := t.IDs(`SELECT file_id FROM gear_layer_files WHERE layer_id = ? LIMIT ?`, layer, n)
		if err != nil {
			return err
		}
		examined = max(len(ids), 1)
		if len(ids) < n {
			for _, query := range []string{`DELETE FROM gear_grants WHERE layer_id = ?`, `DELETE FROM gear_layers WHERE id = ?`} {
				if _, err := t.Exec(query, layer); err != nil {
					return err
				}
			}
		}
		if err := t.ByIDs(`DELETE FROM gear_layer_files WHERE layer_id = ? AND file_id IN (%s)`, []any{layer}, ids); err != nil {
			return err
		}
		return releaseGear(t, ids)
	})
	return examined, err
}

// expireGear ends the uploads of clients that never sent an index.
func expireGear(t *engine.Tx, now int64, n int, examined *int) error {
	var ids, repos []int64
	err := t.Rows(`SELECT file_id, repo_id FROM gear_staged WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`, []any{now, n}, func(r *sql.Rows) error {
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
		if _, err := t.Exec(`DELETE FROM gear_staged WHERE file_id = ? AND repo_id = ?`, id, repos[i]); err != nil {
			return err
		}
		if err := catalog.DropRepository(t, repos[i]); err != nil {
			return err
		}
	}
	return releaseGear(t, ids)
}

// releaseGear marks contents as dead if nothing needs them any more.
func releaseGear(t *engine.Tx, ids []int64) error {
	var dead []int64
	packs := map[int64]*gearDelta{}
	for _, id := range ids {
		var pack, stored int64
		err := t.Row(`SELECT pack_id, stored FROM gear_files f WHERE id = ? AND live = 1
			AND NOT EXISTS (SELECT 1 FROM gear_layer_files lf WHERE lf.file_id = f.id) AND NOT EXISTS (SELECT 1 FROM gear_staged s WHERE s.file_id = f.id)`,
			[]any{id}, &pack, &stored)
		if errors.Is(err, engine.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if pack == 0 {
			if _, err := t.Exec(`DELETE FROM gear_files WHERE id = ?`, id); err != nil {
				return err
			}
			continue
		}
		dead = append(dead, id)
		addGear(packs, pack, -1, -stored)
	}
	return setGearLive(t, dead, 0, packs)
}

// Deleting returns at most n packs whose objects must be deleted now. Then the packs must
// be passed to Forget. None of them has a content or a writer.
func (c Files) Deleting(ctx context.Context, n int) ([]Name, error) {
	var out []Name
	// A commit that was refused may have left the contents there.
	if err := c.db.Settled(ctx); err != nil {
		return nil, err
	}
	var due bool
	err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE state = 2 AND due_at <= ?)`, []any{c.db.Millis()}, &due)
	if err == nil && due {
		err = c.db.Write(ctx, func(t *engine.Tx) error {
			// The other packs of a group may need this one to be made again.
			_, err := t.Exec(`UPDATE gear_packs SET state = 3 WHERE state = 2 AND due_at <= ?
				AND NOT EXISTS (SELECT 1 FROM gear_intents i WHERE i.pack = gear_packs.digest)
				AND NOT EXISTS (SELECT 1 FROM gear_parity_packs m WHERE m.pack_id = gear_packs.id)`, t.Now())
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	err = c.db.Rows(ctx, `SELECT digest FROM gear_packs WHERE state = 3 ORDER BY id LIMIT ?`, []any{n}, func(r *sql.Rows) error {
		var digest Name
		var raw sql.RawBytes
		err := r.Scan(&raw)
		copy(digest[:], raw)
		out = append(out, digest)
		return err
	})
	return out, err
}

// Forget drops the rows of packs whose objects are deleted.
func (c Files) Forget(ctx context.Context, packs ...Name) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		for _, p := range packs {
			if _, err := t.Exec(`DELETE FROM gear_pack_checks WHERE pack_id IN (SELECT id FROM gear_packs WHERE digest = ? AND state = 3)`, p[:]); err != nil {
				return err
			}
			if _, err := t.Exec(`DELETE FROM gear_packs WHERE digest = ? AND state = 3`, p[:]); err != nil {
				return err
			}
		}
		return nil
	})
}
