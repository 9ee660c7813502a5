package gearfacts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// Record is one change of the Gear part.
type Record struct {
	// Writer is the writer whose intents for Packs end with this change.
	Writer string
	// Packs whose objects are durable.
	Packs []NewPack
	// Layer is a converted layer, or nil.
	Layer *NewLayer
	// Recipe is the recipe of a layer, or nil. Its state, rate and times are ignored.
	Recipe *LayerRecipe
	// Staged lists contents that a client uploaded into the repository Repo. They are
	// kept until the time Until, unless an index that holds them arrives.
	Repo   string
	Staged []Name
	Until  time.Time
}

// Intend records that a writer is about to create the object of a pack. Errors:
// ErrDeleting.
func (c Files) Intend(ctx context.Context, writer string, pack Name) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		var deleting bool
		err := t.Row(`SELECT EXISTS (SELECT 1 FROM gear_packs WHERE digest = ? AND state = 3)`, []any{pack[:]}, &deleting)
		if err == nil && deleting {
			return ErrDeleting
		}
		if err == nil {
			_, err = t.Exec(`INSERT INTO gear_intents (pack, writer, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, pack[:], writer, t.Now())
		}
		return err
	})
}

// Writers returns the writers that have intents.
func (c Files) Writers(ctx context.Context) ([]string, error) {
	return c.db.Names(ctx, `SELECT DISTINCT writer FROM gear_intents`)
}

// EndIntents ends all intents of a writer that will not record what it created. Deleting
// then returns the packs that nobody else has recorded or intends.
func (c Files) EndIntents(ctx context.Context, writer string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if _, err := t.Exec(`INSERT INTO gear_packs (digest, size, bytes, dense, state, live_files, live_bytes, created_at, due_at)
			SELECT i.pack, 0, 0, 0, 3, 0, 0, ?, 0 FROM gear_intents i WHERE i.writer = ?
			AND NOT EXISTS (SELECT 1 FROM gear_intents o WHERE o.pack = i.pack AND o.writer <> i.writer)
			ON CONFLICT (digest) DO NOTHING`, t.Now(), writer); err != nil {
			return err
		}
		_, err := t.Exec(`DELETE FROM gear_intents WHERE writer = ?`, writer)
		return err
	})
}

// Record records packs, together with the layers and uploads that need their contents, in
// one change. A content that is already in another pack keeps its place. The repository
// is created if it does not exist, as by PutBlob. Errors: catalog.ErrNotStored if the
// layer's blob is not here, ErrStale if a name of the layer no longer has a content.
func (c Files) Record(ctx context.Context, rec Record) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		var repoID int64
		var add *layerAdd // nil: no layer, or a known one
		if rec.Layer != nil {
			var err error
			if add, err = beginGearLayer(t, rec.Layer); err != nil {
				return err
			}
		}
		if len(rec.Staged) > 0 {
			var err error // a push to a new repository may begin with its files
			if repoID, err = catalog.Repository(t, rec.Repo, t.Now()); err != nil {
				return err
			}
		}
		for _, p := range rec.Packs {
			if _, err := putGearPack(t, t.Now(), rec.Writer, p, add); err != nil {
				return err
			}
		}
		if add != nil {
			if err := putGearLayer(t, t.Now(), rec.Layer, add); err != nil {
				return err
			}
		}
		if rec.Recipe != nil {
			if err := putRecipe(t, rec.Recipe); err != nil {
				return err
			}
		}
		return stageGear(t, repoID, rec.Staged, rec.Until.UnixMilli())
	})
}

// layerAdd is a layer that is being recorded. Most of its contents are in packs that are
// recorded with it, and need not be looked up one by one.
type layerAdd struct {
	blobID int64
	// names holds the contents that must still be looked up.
	names map[Name]bool
	// packs holds the ids of the packs that contain the other contents and nothing else.
	packs []int64
}

// beginGearLayer checks whether a layer can be recorded. It returns nil if the layer is
// recorded already, by an earlier conversion or by another process, which always have the
// same contents. Errors: catalog.ErrNotStored.
func beginGearLayer(t *engine.Tx, l *NewLayer) (*layerAdd, error) {
	add := &layerAdd{}
	err := t.Row(`SELECT id FROM blobs WHERE digest = ? AND state = 1`, []any{string(l.Digest)}, &add.blobID)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, catalog.ErrNotStored
	}
	if err != nil {
		return nil, err
	}
	var known bool
	if err := t.Row(`SELECT EXISTS (SELECT 1 FROM gear_layers WHERE digest = ?)`, []any{string(l.Digest)}, &known); err != nil || known {
		return nil, err
	}
	add.names = make(map[Name]bool, len(l.Names))
	for _, n := range l.Names {
		add.names[n] = true
	}
	return add, nil
}

// took notes that a pack consists of files that were all put into it, if the layer needs
// all of them.
func (a *layerAdd) took(packID int64, files []File) {
	for i := range files {
		if !a.names[files[i].Name] {
			return
		}
	}
	for i := range files {
		delete(a.names, files[i].Name)
	}
	a.packs = append(a.packs, packID)
}

// putGearPack records a pack. Contents that the layer being recorded needs are live. All
// others are dead until something needs them.
func putGearPack(t *engine.Tx, now int64, writer string, p NewPack, add *layerAdd) (id int64, err error) {
	var state int
	switch err := t.Row(`SELECT id, state FROM gear_packs WHERE digest = ?`, []any{p.Digest[:]}, &id, &state); {
	case errors.Is(err, engine.ErrNotFound):
		if err := intends(t, writer, p.Digest); err != nil {
			return 0, err
		}
		id, err = t.Insert(`INSERT INTO gear_packs (digest, size, bytes, dense, state, live_files, live_bytes, created_at, due_at)
			VALUES (?, ?, ?, ?, 1, 0, 0, ?, ?) RETURNING id`, p.Digest[:], p.Size, p.Bytes, p.Dense, now, engine.ToMillis(p.NotBefore))
		if err != nil {
			return 0, err
		}
	case err != nil:
		return 0, err
	case state == 3: // being deleted, so its writer had no intent
		return 0, ErrDeleting
	case state == 2:
		if _, err := t.Exec(`UPDATE gear_packs SET state = 1, due_at = 0, dense = ? WHERE id = ?`, p.Dense, id); err != nil {
			return 0, err
		}
	}
	put, err := putGearFiles(t, id, p.Files, add)
	if err != nil {
		return 0, err
	}
	if add != nil && state == 0 && put == int64(len(p.Files)) {
		add.took(id, p.Files)
	}
	if _, err := t.Exec(`DELETE FROM gear_intents WHERE pack = ? AND writer = ?`, p.Digest[:], writer); err != nil {
		return 0, err
	}
	return id, countGear(t, id)
}

// intends returns an error if a writer's intent is no longer valid. It matters if other
// processes share the catalogue: a process that considered the writer dead may have had
// the object deleted. Errors: ErrStale.
func intends(t *engine.Tx, writer string, pack Name) error {
	if !t.Shared() || writer == "" {
		return nil
	}
	var holds bool
	err := t.Row(`SELECT EXISTS (SELECT 1 FROM gear_intents WHERE pack = ? AND writer = ?)`, []any{pack[:], writer}, &holds)
	if err == nil && !holds {
		err = fmt.Errorf("the intent of writer %s for pack %x does not hold any more: %w", writer, pack, ErrStale)
	}
	return err
}

// putGearFiles puts contents into a pack, except those that are in another pack. It
// returns how many it put there.
func putGearFiles(t *engine.Tx, packID int64, files []File, add *layerAdd) (put int64, err error) {
	for len(files) > 0 {
		n := min(len(files), 16)
		if n < 16 {
			n = 1
		}
		args := make([]any, 0, 7*n)
		for i := range files[:n] {
			f := &files[i]
			args = append(args, f.Name[:], f.Size, packID, f.Off, f.Stored, f.Encoding, add != nil && add.names[f.Name])
		}
		files = files[n:]
		k, err := t.Exec(`INSERT INTO gear_files (name, size, pack_id, off, stored, encoding, live) VALUES `+engine.Marks("(?, ?, ?, ?, ?, ?, ?)", n)+`
			ON CONFLICT (name) DO UPDATE SET size = excluded.size, pack_id = excluded.pack_id, off = excluded.off, stored = excluded.stored, encoding = excluded.encoding
			WHERE gear_files.pack_id = 0`, args...)
		if err != nil {
			return 0, err
		}
		put += k
	}
	return put, nil
}

// countGear counts the live contents of a pack.
func countGear(t *engine.Tx, packID int64) error {
	_, err := t.Exec(`UPDATE gear_packs SET live_files = (SELECT COUNT(*) FROM gear_files WHERE pack_id = ? AND live = 1),
		live_bytes = (SELECT COALESCE(SUM(stored), 0) FROM gear_files WHERE pack_id = ? AND live = 1) WHERE id = ?`, packID, packID, packID)
	return err
}

func putGearLayer(t *engine.Tx, now int64, l *NewLayer, add *layerAdd) error {
	names := make([]Name, 0, len(add.names))
	for _, n := range l.Names {
		if add.names[n] {
			names = append(names, n)
		}
	}
	ids, err := reviveGear(t, names)
	if err != nil {
		return err
	}
	id, err := t.Insert(`INSERT INTO gear_layers (digest, blob_id, index_name, files, bytes, diff_id, embedded, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		string(l.Digest), add.blobID, l.Index[:], l.Files, l.Bytes, l.DiffID[:], l.Embedded, now)
	if err != nil {
		return err
	}
	for _, pack := range add.packs {
		if _, err := t.Exec(`INSERT INTO gear_layer_files (file_id, layer_id) SELECT id, ? FROM gear_files WHERE pack_id = ?`, id, pack); err != nil {
			return err
		}
	}
	for len(ids) > 0 {
		n := min(len(ids), engine.MaxIDs)
		if n < engine.MaxIDs {
			n = 1
		}
		args := make([]any, 0, 2*n)
		for _, f := range ids[:n] {
			args = append(args, f, id)
		}
		ids = ids[n:]
		if _, err := t.Exec(`INSERT INTO gear_layer_files (file_id, layer_id) VALUES `+engine.Marks("(?, ?)", n)+` ON CONFLICT DO NOTHING`, args...); err != nil {
			return err
		}
	}
	return nil
}

func stageGear(t *engine.Tx, repoID int64, names []Name, until int64) error {
	if len(names) == 0 {
		return nil
	}
	ids, err := reviveGear(t, names)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := t.Exec(`INSERT INTO gear_staged (file_id, repo_id, expires_at) VALUES (?, ?, ?)
			ON CONFLICT (file_id, repo_id) DO UPDATE SET expires_at = excluded.expires_at`, id, repoID, until); err != nil {
			return err
		}
	}
	return nil
}

// reviveGear makes contents live and returns their ids.
func reviveGear(t *engine.Tx, names []Name) ([]int64, error) {
	ids := make([]int64, 0, len(names))
	var dead []int64
	packs := map[int64]*gearDelta{}
	err := byNames(names, `SELECT id, pack_id, stored, live FROM gear_files WHERE name IN (%s) AND pack_id <> 0`, nil, func(query string, args []any) error {
		return t.Rows(query, args, func(r *sql.Rows) error {
			var id, pack, stored int64
			var live bool
			if err := r.Scan(&id, &pack, &stored, &live); err != nil {
				return err
			}
			ids = append(ids, id)
			if !live {
				dead = append(dead, id)
				addGear(packs, pack, 1, stored)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if len(ids) != len(names) {
		return nil, fmt.Errorf("%d of %d contents are not there: %w", len(names)-len(ids), len(names), ErrStale)
	}
	return ids, setGearLive(t, dead, 1, packs)
}

// gearDelta is the change of a pack's counts.
type gearDelta struct{ files, bytes int64 }

func addGear(packs map[int64]*gearDelta, pack, files, bytes int64) {
	d := packs[pack]
	if d == nil {
		d = &gearDelta{}
		packs[pack] = d
	}
	d.files += files
	d.bytes += bytes
}

func setGearLive(t *engine.Tx, ids []int64, live int, packs map[int64]*gearDelta) error {
	if err := t.ByIDs(`UPDATE gear_files SET live = ? WHERE id IN (%s)`, []any{live}, ids); err != nil {
		return err
	}
	for id, d := range packs {
		if _, err := t.Exec(`UPDATE gear_packs SET live_files = live_files + ?, live_bytes = live_bytes + ? WHERE id = ?`, d.files, d.bytes, id); err != nil {
			return err
		}
	}
	return nil
}

// Replacement says which packs take the place of others.
type Replacement struct {
	// Writer is the writer whose intents for Packs end with this change.
	Writer string
	// Packs hold the live contents of the packs Old, which are ids.
	Packs []NewPack
	Old   []int64
	// Due is when the objects of the old packs may be deleted.
	Due time.Time
	// Group, if not nil, is recorded as the group of the new packs. If Parity is set and
	// the old packs hold contents of dropped layers, Group must not be nil.
	Group  *Group
	Parity bool
}

// Move replaces old packs by new packs that hold their live contents. It forgets dead
// contents that were not moved. Errors: ErrStale if a live content was left out, or if the
// packs must have a group by now.
func (c Files) Move(ctx context.Context, r Replacement) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if r.Parity && r.Group == nil {
			if err := unneeded(t, r.Old); err != nil {
				return err
			}
		}
		isOld := map[int64]bool{}
		for _, id := range r.Old {
			isOld[id] = true
		}
		for _, p := range r.Packs {
			files := p.Files
			p.Files = nil
			id, err := putGearPack(t, t.Now(), r.Writer, p, nil)
			if err != nil {
				return err
			}
			if isOld[id] { // nothing could be saved
				delete(isOld, id)
				if _, err := t.Exec(`UPDATE gear_packs SET dense = ? WHERE id = ?`, p.Dense, id); err != nil {
					return err
				}
			}
			for i := range files {
				if err := moveGearFile(t, id, &files[i], isOld); err != nil {
					return err
				}
			}
			if err := countGear(t, id); err != nil {
				return err
			}
		}
		for id := range isOld {
			if err := emptyGearPack(t, id, r.Due.UnixMilli()); err != nil {
				return err
			}
		}
		if r.Group != nil {
			return putGroup(t, r.Group)
		}
		return nil
	})
}

// unneeded returns ErrStale if one of the packs holds contents of a dropped layer.
func unneeded(t *engine.Tx, packs []int64) error {
	for _, id := range packs {
		var needed bool
		if err := t.Row(`SELECT EXISTS (SELECT 1 FROM gear_packs p WHERE p.id = ? AND `+neededPack+`)`, []any{id}, &needed); err != nil {
			return err
		}
		if needed {
			return ErrStale
		}
	}
	return nil
}

// moveGearFile gives a content its new place, unless it has been put elsewhere meanwhile.
func moveGearFile(t *engine.Tx, pack int64, f *File, old map[int64]bool) error {
	var id, at int64
	err := t.Row(`SELECT id, pack_id FROM gear_files WHERE name = ?`, []any{f.Name[:]}, &id, &at)
	if errors.Is(err, engine.ErrNotFound) || (err == nil && at != 0 && !old[at]) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = t.Exec(`UPDATE gear_files SET pack_id = ?, off = ?, stored = ?, encoding = ? WHERE id = ?`, pack, f.Off, f.Stored, f.Encoding, id)
	return err
}

// emptyGearPack takes a pack out of use.
func emptyGearPack(t *engine.Tx, id, due int64) error {
	var live bool
	if err := t.Row(`SELECT EXISTS (SELECT 1 FROM gear_files WHERE pack_id = ? AND live = 1)`, []any{id}, &live); err != nil {
		return err
	}
	if live {
		return ErrStale
	}
	if _, err := t.Exec(`DELETE FROM gear_files WHERE pack_id = ?`, id); err != nil {
		return err
	}
	_, err := t.Exec(`UPDATE gear_packs SET state = 2, due_at = ?, live_files = 0, live_bytes = 0 WHERE id = ? AND state = 1`, due, id)
	return err
}

// Lose records that a content's bytes in a pack are damaged. The content counts as absent
// until a pack that has it is recorded. Lose does nothing if the content is elsewhere by
// now. If the content is the recipe of a layer that still has its object, the recipe is
// forgotten, and will be made again. Errors: ErrNeeded if nothing else is left of a
// layer, because the pack may come back.
func (c Files) Lose(ctx context.Context, name, pack Name) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if err := loseRecipes(t, name, pack); err != nil {
			return err
		}
		var id, packID, stored int64
		var live, needed bool
		err := t.Row(`SELECT f.id, f.pack_id, f.stored, f.live, `+neededPlace+` FROM gear_files f JOIN gear_packs p ON p.id = f.pack_id WHERE f.name = ? AND p.digest = ?`,
			[]any{name[:], pack[:]}, &id, &packID, &stored, &live, &needed)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if needed {
			return ErrNeeded
		}
		if !live {
			_, err := t.Exec(`DELETE FROM gear_files WHERE id = ?`, id)
			return err
		}
		if _, err := t.Exec(`UPDATE gear_files SET pack_id = 0, off = 0, stored = 0 WHERE id = ?`, id); err != nil {
			return err
		}
		_, err = t.Exec(`UPDATE gear_packs SET live_files = live_files - 1, live_bytes = live_bytes - ? WHERE id = ?`, stored, packID)
		return err
	})
}
