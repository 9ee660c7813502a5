package gearfacts

import (
	"context"
	"database/sql"
	"time"

	"example.org/slipway/registry/catalog/engine"
)

// Checks gives access to what is known about the state of packs. All methods may run
// concurrently.
type Checks struct{ db *engine.DB }

// NewChecks returns the Checks of a database.
func NewChecks(db *engine.DB) Checks { return Checks{db} }

// neededPack is a condition on a pack p. It says that p holds contents of dropped layers.
const neededPack = `p.state = 1 AND EXISTS (SELECT 1 FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id
	JOIN gear_recipes r ON r.layer_id = lf.layer_id WHERE f.pack_id = p.id AND r.state >= 3)`

// scrubbedPack is a condition on a pack p. It says that p holds contents of dropped
// layers, or that p may be needed to make such a pack again.
const scrubbedPack = `(` + neededPack + ` OR p.state = 1 AND EXISTS (SELECT 1 FROM gear_parity_packs m JOIN gear_parity_packs o ON o.group_id = m.group_id
	JOIN gear_files f ON f.pack_id = o.pack_id JOIN gear_layer_files lf ON lf.file_id = f.id JOIN gear_recipes r ON r.layer_id = lf.layer_id
	WHERE m.pack_id = p.id AND r.state >= 3))`

// DamagedPack is a pack that was found damaged, unreadable or missing.
type DamagedPack struct {
	Digest Name
	// Damage says what is wrong.
	Damage string
}

// Found records that a pack in use is damaged, until Checked records that it is not. What
// was found first stays recorded.
func (c Checks) Found(ctx context.Context, pack Name, damage string) error {
	var known bool
	err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs p JOIN gear_pack_checks k ON k.pack_id = p.id WHERE p.digest = ? AND k.damage <> '')`, []any{pack[:]}, &known)
	if err != nil || known { // many readers may find the same damage
		return err
	}
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO gear_pack_checks (pack_id, checked_at, damage) SELECT p.id, 0, ? FROM gear_packs p WHERE p.digest = ? AND p.state = 1
			ON CONFLICT (pack_id) DO UPDATE SET checked_at = 0, damage = excluded.damage WHERE gear_pack_checks.damage = ''`, damage, pack[:])
		return err
	})
}

// Checked records that a pack was read whole, and what is wrong with it. Damage is empty
// if nothing is.
func (c Checks) Checked(ctx context.Context, pack Name, damage string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO gear_pack_checks (pack_id, checked_at, damage) SELECT p.id, ?, ? FROM gear_packs p WHERE p.digest = ? AND p.state = 1
			ON CONFLICT (pack_id) DO UPDATE SET checked_at = excluded.checked_at, damage = excluded.damage`, t.Now(), damage, pack[:])
		return err
	})
}

// InUse reports whether a pack is in use.
func (c Checks) InUse(ctx context.Context, pack Name) (used bool, err error) {
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE digest = ? AND state = 1)`, []any{pack[:]}, &used)
	return used, err
}

// Damaged returns at most n packs that were found damaged and hold contents of dropped
// layers.
func (c Checks) Damaged(ctx context.Context, n int) ([]DamagedPack, error) {
	var out []DamagedPack
	err := c.db.Rows(ctx, `SELECT p.digest, k.damage FROM gear_pack_checks k JOIN gear_packs p ON p.id = k.pack_id
		WHERE k.damage <> '' AND `+neededPack+` ORDER BY k.pack_id LIMIT ?`, []any{n}, func(r *sql.Rows) error {
		var d DamagedPack
		var digest sql.RawBytes
		err := r.Scan(&digest, &d.Damage)
		copy(d.Digest[:], digest)
		out = append(out, d)
		return err
	})
	return out, err
}

// CountDamaged counts what Damaged returns.
func (c Checks) CountDamaged(ctx context.Context) (n int64, err error) {
	err = c.db.Row(ctx, `SELECT COUNT(*) FROM gear_pack_checks k JOIN gear_packs p ON p.id = k.pack_id WHERE k.damage <> '' AND `+neededPack, nil, &n)
	return n, err
}

// Lost returns at most n contents that dropped layers need, whose bytes were found
// damaged, and that were not made again yet.
func (c Checks) Lost(ctx context.Context, n int) ([]Name, error) {
	var out []Name
	err := c.db.Rows(ctx, `SELECT f.name FROM gear_files f WHERE f.pack_id = 0 AND EXISTS (SELECT 1 FROM gear_layer_files lf
		JOIN gear_recipes r ON r.layer_id = lf.layer_id WHERE lf.file_id = f.id AND r.state >= 3) ORDER BY f.id LIMIT ?`, []any{n}, func(r *sql.Rows) error {
		var name Name
		var raw sql.RawBytes
		err := r.Scan(&raw)
		copy(name[:], raw)
		out = append(out, name)
		return err
	})
	return out, err
}

// Due returns at most n packs that hold contents of dropped layers, or that are in a
// group with such a pack. It returns a pack if the pack was last read whole before the
// time before or, if it was found damaged, before the time again. The packs that were not
// read for the longest time come first.
func (c Checks) Due(ctx context.Context, before, again time.Time, n int) ([]Pack, error) {
	var out []Pack
	err := c.db.Rows(engine.Whole(ctx), `SELECT p.id, p.digest, p.size FROM gear_packs p LEFT JOIN gear_pack_checks k ON k.pack_id = p.id
		WHERE (k.pack_id IS NULL OR k.checked_at < ? OR k.damage <> '' AND k.checked_at < ?) AND `+scrubbedPack+`
		ORDER BY COALESCE(k.checked_at, 0), p.id LIMIT ?`, []any{before.UnixMilli(), again.UnixMilli(), n}, func(r *sql.Rows) error {
		var p Pack
		var digest sql.RawBytes
		err := r.Scan(&p.ID, &digest, &p.Size)
		copy(p.Digest[:], digest)
		out = append(out, p)
		return err
	})
	return out, err
}

// CheckCounts says how far the checks of packs have come.
type CheckCounts struct {
	// Packs is the number of packs that Due may return, and Bytes is their size.
	Packs, Bytes int64
	// Checked is how many of them were read whole since a time, and CheckedBytes is their
	// size.
	Checked, CheckedBytes int64
}

// Counts counts the packs that Due may return.
func (c Checks) Counts(ctx context.Context, since time.Time) (n CheckCounts, err error) {
	err = c.db.Row(engine.Whole(ctx), `SELECT COUNT(*), COALESCE(SUM(p.size), 0), COALESCE(SUM(CASE WHEN k.checked_at >= ? THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN k.checked_at >= ? THEN p.size ELSE 0 END), 0)
		FROM gear_packs p LEFT JOIN gear_pack_checks k ON k.pack_id = p.id WHERE `+scrubbedPack, []any{since.UnixMilli(), since.UnixMilli()},
		&n.Packs, &n.Bytes, &n.Checked, &n.CheckedBytes)
	return n, err
}
