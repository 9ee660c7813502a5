package gearfacts

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Parity gives access to the groups in which packs protect each other. A pack may be in
// several groups. All methods may run concurrently.
type Parity struct{ db *engine.DB }

// NewParity returns the Parity of a database.
func NewParity(db *engine.DB) Parity { return Parity{db} }

// Object is an object of the object store: a pack or a parity file.
type Object struct {
	// Digest is the SHA-256 of its bytes, and Size is their number.
	Digest Name
	Size   int64
}

// Group is a group of packs to record, with its parity files, which are durable. The
// order of both is their order in the code.
type Group struct {
	Packs, Files []Object
}

// ParityGroup is a recorded group.
type ParityGroup struct {
	ID int64
	Group
	// InUse says for each pack whether it is in use. Other packs were replaced, and their
	// objects are kept for the sake of the group.
	InUse []bool
	// Broken says that one of the parity files is damaged or missing.
	Broken bool
	// Checked is when the parity files were last read whole.
	Checked time.Time
}

// Groups returns all groups, or the groups of one pack if it is not zero.
func (c Parity) Groups(ctx context.Context, pack Name) ([]ParityGroup, error) {
	where, args := ``, []any(nil)
	if pack != (Name{}) {
		where = ` WHERE g.id IN (SELECT m.group_id FROM gear_parity_packs m JOIN gear_packs p ON p.id = m.pack_id WHERE p.digest = ?)`
		args = []any{pack[:]}
	}
	var out []ParityGroup
	at := map[int64]*ParityGroup{}
	err := c.db.Rows(ctx, `SELECT g.id, g.broken, g.checked_at FROM gear_parity_groups g`+where+` ORDER BY g.id`, args, func(r *sql.Rows) error {
		var g ParityGroup
		var checked int64
		err := r.Scan(&g.ID, &g.Broken, &checked)
		g.Checked = engine.FromMillis(checked)
		out = append(out, g)
		return err
	})
	for i := range out {
		at[out[i].ID] = &out[i]
	}
	if err == nil {
		err = c.db.Rows(ctx, `SELECT f.group_id, f.digest, f.size, 0 FROM gear_parity_files f JOIN gear_parity_groups g ON g.id = f.group_id`+where+
			` ORDER BY f.group_id, f.pos`, args, scanMember(at, func(g *ParityGroup, o Object, _ int) { g.Files = append(g.Files, o) }))
	}
	if err == nil {
		err = c.db.Rows(ctx, `SELECT m.group_id, p.digest, COALESCE(p.size, 0), COALESCE(p.state, 0) FROM gear_parity_packs m JOIN gear_parity_groups g ON g.id = m.group_id
			LEFT JOIN gear_packs p ON p.id = m.pack_id`+where+` ORDER BY m.group_id, m.pos`, args, scanMember(at, func(g *ParityGroup, o Object, state int) {
			g.Packs, g.InUse = append(g.Packs, o), append(g.InUse, state == 1)
		}))
	}
	return out, err
}

// scanMember scans a pack or a file of a group. It ignores groups that were made since
// the groups were read.
func scanMember(at map[int64]*ParityGroup, add func(g *ParityGroup, o Object, state int)) func(*sql.Rows) error {
	return func(r *sql.Rows) error {
		var id int64
		var o Object
		var digest sql.RawBytes
		var state int
		if err := r.Scan(&id, &digest, &o.Size, &state); err != nil {
			return err
		}
		copy(o.Digest[:], digest)
		if g := at[id]; g != nil {
			add(g, o, state)
		}
		return nil
	}
}

// ToProtect returns the packs that hold contents of dropped layers, or of layers that may
// be dropped at the time due. The largest pack comes first. ToProtect leaves out packs
// that were found damaged.
func (c Parity) ToProtect(ctx context.Context, due time.Time) ([]Object, error) {
	var out []Object
	err := c.db.Rows(engine.Whole(ctx), `SELECT p.digest, p.size FROM gear_packs p LEFT JOIN gear_pack_checks k ON k.pack_id = p.id
		WHERE p.state = 1 AND (k.damage IS NULL OR k.damage = '') AND EXISTS (SELECT 1 FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id
		JOIN gear_recipes r ON r.layer_id = lf.layer_id WHERE f.pack_id = p.id AND (r.state >= 3 OR r.state = 2 AND r.due_at <= ?))
		ORDER BY p.size DESC, p.id`, []any{due.UnixMilli()}, func(r *sql.Rows) error {
		var o Object
		var digest sql.RawBytes
		err := r.Scan(&digest, &o.Size)
		copy(o.Digest[:], digest)
		out = append(out, o)
		return err
	})
	return out, err
}

// Put records a group. Errors: ErrStale if one of its packs is no longer in use.
func (c Parity) Put(ctx context.Context, g Group) error {
	return c.db.Write(ctx, func(t *engine.Tx) error { return putGroup(t, &g) })
}

func putGroup(t *engine.Tx, g *Group) error {
	id, err := t.Insert(`INSERT INTO gear_parity_groups (broken, checked_at) VALUES (0, ?) RETURNING id`, t.Now())
	if err != nil {
		return err
	}
	for pos, p := range g.Packs {
		n, err := t.Exec(`INSERT INTO gear_parity_packs (group_id, pos, pack_id) SELECT ?, ?, id FROM gear_packs WHERE digest = ? AND state = 1`, id, pos, p.Digest[:])
		if err == nil && n == 0 {
			err = ErrStale
		}
		if err != nil {
			return err
		}
	}
	for pos, f := range g.Files {
		if _, err := t.Exec(`INSERT INTO gear_parity_files (group_id, pos, digest, size) VALUES (?, ?, ?, ?)`, id, pos, f.Digest[:], f.Size); err != nil {
			return err
		}
	}
	return nil
}

// otherGroup is a condition on a pack p. It says that the pack is in a sound group other
// than a given one.
const otherGroup = `EXISTS (SELECT 1 FROM gear_parity_packs o JOIN gear_parity_groups g ON g.id = o.group_id
	WHERE o.pack_id = p.id AND g.broken = 0 AND g.id <> ?)`

// unprotected is a condition on gear_recipes. It says that a content of its layer is in a
// pack that is in no sound group.
const unprotected = `EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_files f ON f.id = lf.file_id WHERE lf.layer_id = gear_recipes.layer_id
	AND NOT EXISTS (SELECT 1 FROM gear_parity_packs m JOIN gear_parity_groups g ON g.id = m.group_id WHERE m.pack_id = f.pack_id AND g.broken = 0))`

// Drop forgets a group and reports whether it did. Unless last is set, it keeps the group
// if one of the group's packs holds contents of a dropped layer and is in no other sound
// group.
func (c Parity) Drop(ctx context.Context, group int64, last bool) (dropped bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		dropped = false
		var needed bool
		err := t.Row(`SELECT EXISTS (SELECT 1 FROM gear_parity_packs m JOIN gear_packs p ON p.id = m.pack_id WHERE m.group_id = ? AND `+neededPack+` AND NOT `+otherGroup+`)`,
			[]any{group, group}, &needed)
		if err != nil || needed && !last {
			return err
		}
		for _, query := range []string{`DELETE FROM gear_parity_packs WHERE group_id = ?`, `DELETE FROM gear_parity_files WHERE group_id = ?`,
			`DELETE FROM gear_parity_groups WHERE id = ?`} {
			if _, err := t.Exec(query, group); err != nil {
				return err
			}
		}
		dropped = true
		return nil
	})
	return dropped, err
}

// Checked records that the parity files of a group were read whole, and whether one of
// them is damaged or missing.
func (c Parity) Checked(ctx context.Context, group int64, broken bool) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE gear_parity_groups SET broken = ?, checked_at = ? WHERE id = ?`, broken, t.Now(), group)
		return err
	})
}

// FileKnown reports whether a group has a parity file. A negative answer is final.
func (c Parity) FileKnown(ctx context.Context, file Name) (known bool, err error) {
	if err := c.db.Settled(ctx); err != nil {
		return false, err
	}
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_parity_files WHERE digest = ?)`, []any{file[:]}, &known)
	return known, err
}

// ErrUnprotected says that a layer is not dropped because there is no parity for one of
// its packs.
var ErrUnprotected = engine.NewVerdict("a pack of the layer has no parity")

// protects returns ErrUnprotected if a proven layer lacks parity.
func protects(t *engine.Tx, d oci.Digest) error {
	var lacks bool
	err := t.Row(`SELECT `+unprotected+` FROM gear_recipes WHERE digest = ? AND state < 3`, []any{string(d)}, &lacks)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err == nil && lacks {
		err = ErrUnprotected
	}
	return err
}
