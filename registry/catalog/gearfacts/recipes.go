package gearfacts

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Recipes gives access to the facts about layers that are rebuilt from their files. All
// methods may run concurrently.
type Recipes struct{ db *engine.DB }

// NewRecipes returns the Recipes of a database.
func NewRecipes(db *engine.DB) Recipes { return Recipes{db} }

// RecipeState says what a registry keeps of a layer that has a recipe or was refused one.
type RecipeState int

// These are the states of a layer on its way from an object to a recipe. From
// RecipeStands on, the layer is dropped: only its recipe and its files must be kept.
const (
	// RecipeRefused says that the layer stays as it is. Reason says why.
	RecipeRefused RecipeState = iota
	// RecipeMade: the recipe is stored.
	RecipeMade
	// RecipeProven says that the recipe and the layer's archive were read from what is
	// stored. The object is kept until Due.
	RecipeProven
	// RecipeStands says that the recipe replaces the layer, and that the object must be
	// deleted.
	RecipeStands
	// RecipeAlone: the object is deleted.
	RecipeAlone
)

// dropsReader is the version of the schema from which programs know dropped layers. An
// older program would consider them lost.
const dropsReader = "6"

// ErrNeeded is returned if the place of a content must not be forgotten, because nothing
// else is left of a layer.
var ErrNeeded = engine.NewVerdict("a dropped layer consists of the content")

// LayerRecipe is what is known about the recipe of a layer.
type LayerRecipe struct {
	Digest oci.Digest
	State  RecipeState
	// Index is the name of the content that is the layer's Gear index. Recipe is the name
	// of the content that is its recipe.
	Index, Recipe Name
	// Size is the size of the layer, and RecipeSize is the size of the recipe, in bytes.
	Size, RecipeSize int64
	// Rate is how many bytes of the layer one processor rebuilt per second; 0: not known.
	Rate int64
	// Due is when a proven layer must be rebuilt from what is stored.
	Due time.Time
	// Changed is when the state last changed.
	Changed time.Time
	// Reason says why a layer was refused a recipe.
	Reason string
}

// Dropped reports whether the recipe replaces the layer.
func (l *LayerRecipe) Dropped() bool { return l.State >= RecipeStands }

const recipeQuery = `SELECT r.digest, r.state, l.index_name, r.recipe_name, r.size, r.recipe_size, r.rate, r.due_at, r.changed_at, r.reason
	FROM gear_recipes r JOIN gear_layers l ON l.id = r.layer_id `

func (c Recipes) recipes(ctx context.Context, query string, args ...any) ([]LayerRecipe, error) {
	var out []LayerRecipe
	err := c.db.Rows(ctx, recipeQuery+query, args, func(r *sql.Rows) error {
		var l LayerRecipe
		var index, recipe sql.RawBytes
		var due, changed int64
		err := r.Scan(&l.Digest, &l.State, &index, &recipe, &l.Size, &l.RecipeSize, &l.Rate, &due, &changed, &l.Reason)
		copy(l.Index[:], index)
		copy(l.Recipe[:], recipe)
		l.Due, l.Changed = engine.FromMillis(due), engine.FromMillis(changed)
		out = append(out, l)
		return err
	})
	return out, err
}

// LayerRecipe returns what is known about the recipe of a layer. Errors:
// engine.ErrNotFound.
func (c Recipes) LayerRecipe(ctx context.Context, d oci.Digest) (LayerRecipe, error) {
	list, err := c.recipes(ctx, `WHERE r.digest = ?`, string(d))
	if err != nil || len(list) == 0 {
		if err == nil {
			err = engine.ErrNotFound
		}
		return LayerRecipe{}, err
	}
	return list[0], nil
}

// LayerRecipes returns at most n layers whose states lie between the states from and to,
// inclusive, with digests greater than after. They are ordered by digest.
func (c Recipes) LayerRecipes(ctx context.Context, from, to RecipeState, after oci.Digest, n int) ([]LayerRecipe, error) {
	return c.recipes(ctx, `WHERE r.state BETWEEN ? AND ? AND r.digest > ? ORDER BY r.digest LIMIT ?`, int(from), int(to), string(after), n)
}

// DueLayers returns at most n layers that are on their way to be dropped and must be
// rebuilt by the time until. The one that waits longest comes first. Layers whose recipe
// was never proven wait since the epoch. after, if not nil, is the last layer of the
// previous call.
func (c Recipes) DueLayers(ctx context.Context, until time.Time, after *LayerRecipe, n int) ([]LayerRecipe, error) {
	due, digest := int64(-1), oci.Digest("")
	if after != nil {
		due, digest = after.Due.UnixMilli(), after.Digest
	}
	return c.recipes(ctx, `WHERE r.state BETWEEN 1 AND 2 AND r.due_at <= ? AND (r.due_at > ? OR r.due_at = ? AND r.digest > ?) ORDER BY r.due_at, r.digest LIMIT ?`,
		until.UnixMilli(), due, due, string(digest), n)
}

// ColdLayer is a layer that nobody has pulled for a while.
type ColdLayer struct {
	// ID increases in the order in which layers were converted.
	ID     int64
	Digest oci.Digest
	// Size is the size of the layer in bytes.
	Size int64
	// Repositories that show it.
	Repositories []string
}

// cold is a condition on a layer l with the blob b. It says that the layer arrived, was
// shown and was last pulled before a time. It has five placeholders for that time.
const cold = `l.digest IS NOT NULL AND l.embedded = 0 AND b.state = 1 AND b.suspect = 0 AND b.content IS NULL AND l.created_at < ?
	AND NOT EXISTS (SELECT 1 FROM links k WHERE k.blob_id = b.id AND k.created_at >= ?)
	AND NOT EXISTS (SELECT 1 FROM refs x JOIN manifests m ON m.id = x.manifest_id WHERE x.blob_id = b.id AND (m.created_at >= ? OR m.pulled_at >= ?
		OR EXISTS (SELECT 1 FROM tags g WHERE g.manifest_id = m.id AND g.pulled_at >= ?)))`

// settledLayer is a condition on a layer l. It says that all contents of the layer are in
// settled packs.
const settledLayer = `NOT EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_files f ON f.id = lf.file_id LEFT JOIN gear_packs p ON p.id = f.pack_id
	WHERE lf.layer_id = l.id AND (p.id IS NULL OR p.dense = 0))`

// ColdLayers returns at most n converted layers, with ids greater than after, ordered by
// id. Each layer has no fewer bytes than least, nobody has pulled it since the time
// before, its files are in settled packs, and nothing is known about a recipe for it.
func (c Recipes) ColdLayers(ctx context.Context, before time.Time, least, after int64, n int) ([]ColdLayer, error) {
	var out []ColdLayer
	at := before.UnixMilli()
	err := c.db.Rows(engine.Whole(ctx), `SELECT l.id, l.digest, b.size FROM gear_layers l JOIN blobs b ON b.id = l.blob_id
		WHERE l.id > ? AND `+cold+` AND b.size >= ? AND l.digest LIKE 'sha256:%' AND NOT EXISTS (SELECT 1 FROM gear_recipes r WHERE r.layer_id = l.id)
		AND `+settledLayer+` ORDER BY l.id LIMIT ?`, []any{after, at, at, at, at, at, least, n}, func(r *sql.Rows) error {
		var l ColdLayer
		err := r.Scan(&l.ID, &l.Digest, &l.Size)
		out = append(out, l)
		return err
	})
	for i := range out {
		if err == nil {
			out[i].Repositories, err = c.showing(ctx, out[i].Digest)
		}
	}
	return out, err
}

// showing returns the repositories that show a blob.
func (c Recipes) showing(ctx context.Context, d oci.Digest) ([]string, error) {
	return c.db.Names(ctx, `SELECT r.name FROM blobs b JOIN links k ON k.blob_id = b.id JOIN repositories r ON r.id = k.repo_id WHERE b.digest = ?`, string(d))
}

// IsCold reports whether nobody has pulled a layer since the time before. It also returns
// which repositories show the layer.
func (c Recipes) IsCold(ctx context.Context, d oci.Digest, before time.Time) (is bool, repos []string, err error) {
	at := before.UnixMilli()
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_layers l JOIN blobs b ON b.id = l.blob_id WHERE l.digest = ? AND `+cold+`)`,
		[]any{string(d), at, at, at, at, at}, &is)
	if err == nil {
		repos, err = c.showing(ctx, d)
	}
	return is, repos, err
}

// RefuseRecipe records that a layer stays as it is. It does nothing if the layer is gone
// or dropped.
func (c Recipes) RefuseRecipe(ctx context.Context, d oci.Digest, reason string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if err := endRecipe(t, d, RecipeProven); err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
		_, err := t.Exec(`INSERT INTO gear_recipes (layer_id, digest, recipe_name, size, recipe_size, state, due_at, rate, reason, changed_at)
			SELECT l.id, l.digest, ?, b.size, 0, 0, 0, 0, ?, ? FROM gear_layers l JOIN blobs b ON b.id = l.blob_id WHERE l.digest = ?
			ON CONFLICT DO NOTHING`, []byte{}, reason, t.Now(), string(d))
		return err
	})
}

// putRecipe records a recipe as one of the layer's contents. The recipe's own content
// must be stored already. Errors: ErrStale if the layer is no longer the one that the
// recipe was made from.
func putRecipe(t *engine.Tx, l *LayerRecipe) error {
	var layer int64
	err := t.Row(`SELECT l.id FROM gear_layers l JOIN blobs b ON b.id = l.blob_id WHERE l.digest = ? AND l.index_name = ? AND b.state = 1 AND b.size = ?
		AND NOT EXISTS (SELECT 1 FROM gear_recipes r WHERE r.layer_id = l.id)`, []any{string(l.Digest), l.Index[:], l.Size}, &layer)
	if errors.Is(err, engine.ErrNotFound) {
		return ErrStale
	}
	if err != nil {
		return err
	}
	ids, err := reviveGear(t, []Name{l.Recipe})
	if err != nil {
		return err
	}
	if _, err := t.Exec(`INSERT INTO gear_layer_files (file_id, layer_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, ids[0], layer); err != nil {
		return err
	}
	_, err = t.Exec(`INSERT INTO gear_recipes (layer_id, digest, recipe_name, size, recipe_size, state, due_at, rate, reason, changed_at)
		VALUES (?, ?, ?, ?, ?, 1, 0, 0, '', ?)`, layer, string(l.Digest), l.Recipe[:], l.Size, l.RecipeSize, t.Now())
	return err
}

// ProveRecipe records that a recipe and its archive were read from what is stored, and when
// the layer must be rebuilt from that. The caller has seen the layer's object. Errors:
// engine.ErrNotFound if the layer has no recipe.
func (c Recipes) ProveRecipe(ctx context.Context, d oci.Digest, rate int64, due time.Time) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		n, err := t.Exec(`UPDATE gear_recipes SET state = 2, rate = ?, due_at = ?, changed_at = ? WHERE digest = ? AND state > 0`,
			rate, due.UnixMilli(), t.Now(), string(d))
		if err == nil && n == 0 {
			err = engine.ErrNotFound
		}
		return err
	})
}

// DropLayer makes the recipe of a proven layer replace the layer. It may be repeated. The
// layer's object may be deleted once DropLayer has returned nil. Errors: ErrStale if the
// layer is gone, is being deleted or has become suspect, or if one of its contents is
// lost. If parity is set, also ErrUnprotected if one of the layer's packs has no parity.
func (c Recipes) DropLayer(ctx context.Context, d oci.Digest, parity bool) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if parity {
			if err := protects(t, d); err != nil {
				return err
			}
		}
		n, err := t.Exec(`UPDATE gear_recipes SET state = 3, changed_at = ? WHERE digest = ? AND state >= 2 AND EXISTS (SELECT 1 FROM gear_layers l
			JOIN blobs b ON b.id = l.blob_id WHERE l.id = gear_recipes.layer_id AND l.digest = gear_recipes.digest AND b.state = 1 AND (b.suspect = 0 OR gear_recipes.state >= 3)
			AND b.content IS NULL AND b.size = gear_recipes.size) AND NOT EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_files f ON f.id = lf.file_id
			WHERE lf.layer_id = gear_recipes.layer_id AND f.pack_id = 0)`, t.Now(), string(d))
		if err == nil && n == 0 {
			err = ErrStale
		}
		if err != nil {
			return err
		}
		_, err = t.Exec(`UPDATE settings SET value = ? WHERE name = ? AND CAST(value AS BIGINT) < CAST(? AS BIGINT)`, dropsReader, engine.MinReader, dropsReader)
		return err
	})
}

// LayerAlone records that the object of a dropped layer is deleted.
func (c Recipes) LayerAlone(ctx context.Context, d oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE gear_recipes SET state = 4, changed_at = ? WHERE digest = ? AND state = 3`, t.Now(), string(d))
		return err
	})
}

// EndRecipe forgets the recipe of a layer whose object was seen and verified. It does
// nothing if there is no recipe.
func (c Recipes) EndRecipe(ctx context.Context, d oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		err := endRecipe(t, d, RecipeAlone)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = t.Exec(`UPDATE settings SET value = '3' WHERE name = ? AND value = ? AND NOT EXISTS (SELECT 1 FROM gear_recipes WHERE state >= 3)`, engine.MinReader, dropsReader)
		return err
	})
}

// endRecipe forgets a recipe whose state is at most the given one. Errors:
// engine.ErrNotFound.
func endRecipe(t *engine.Tx, d oci.Digest, most RecipeState) error {
	var layer int64
	var recipe []byte
	if err := t.Row(`SELECT layer_id, recipe_name FROM gear_recipes WHERE digest = ? AND state <= ?`, []any{string(d), int(most)}, &layer, &recipe); err != nil {
		return err
	}
	if _, err := t.Exec(`DELETE FROM gear_recipes WHERE layer_id = ?`, layer); err != nil {
		return err
	}
	ids, err := t.IDs(`SELECT f.id FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id WHERE f.name = ? AND lf.layer_id = ?`, recipe, layer)
	if err != nil || len(ids) == 0 {
		return err
	}
	if err := t.ByIDs(`DELETE FROM gear_layer_files WHERE layer_id = ? AND file_id IN (%s)`, []any{layer}, ids); err != nil {
		return err
	}
	return releaseGear(t, ids)
}

// loseRecipes forgets recipes whose own content was damaged in a pack, if the layers
// still have their objects.
func loseRecipes(t *engine.Tx, name, pack Name) error {
	var list []oci.Digest
	err := t.Rows(`SELECT r.digest FROM gear_files f JOIN gear_packs p ON p.id = f.pack_id JOIN gear_layer_files lf ON lf.file_id = f.id
		JOIN gear_recipes r ON r.layer_id = lf.layer_id AND r.recipe_name = f.name WHERE f.name = ? AND p.digest = ? AND NOT `+standsIn, []any{name[:], pack[:]}, func(r *sql.Rows) error {
		var d oci.Digest
		err := r.Scan(&d)
		list = append(list, d)
		return err
	})
	for _, d := range list {
		if err == nil {
			err = endRecipe(t, d, RecipeProven)
		}
	}
	return err
}

// standsIn is a condition on a recipe r. It says that the recipe is all that is left of its
// layer, as far as is known: the layer is dropped, or its object is damaged or missing.
const standsIn = `(r.state >= 3 OR r.state > 0 AND NOT EXISTS (SELECT 1 FROM blobs rb WHERE rb.digest = r.digest AND rb.state = 1 AND rb.suspect = 0))`

// neededPlace is a condition on a content f. It says that a dropped layer, or a layer
// whose object is damaged, needs the content. It also says that the content could not be
// made again, because no layer that holds it has an object that is sound, as far as is
// known.
const neededPlace = `EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_recipes r ON r.layer_id = lf.layer_id WHERE lf.file_id = f.id AND ` + standsIn + `)
	AND NOT EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_layers l ON l.id = lf.layer_id JOIN blobs b ON b.id = l.blob_id AND b.state = 1 AND b.suspect = 0
		WHERE lf.file_id = f.id AND l.digest IS NOT NULL AND l.embedded = 0 AND NOT EXISTS (SELECT 1 FROM gear_recipes r WHERE r.layer_id = l.id AND r.state >= 3))`

// PackNeeded reports whether a pack is in use and holds contents of dropped layers.
func (c Recipes) PackNeeded(ctx context.Context, pack Name) (needed bool, err error) {
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs p JOIN gear_files f ON f.pack_id = p.id JOIN gear_layer_files lf ON lf.file_id = f.id
		JOIN gear_recipes r ON r.layer_id = lf.layer_id WHERE p.digest = ? AND p.state = 1 AND r.state >= 3)`, []any{pack[:]}, &needed)
	return needed, err
}

// Broken returns the packs that hold contents of a dropped layer and were found damaged.
// It also reports whether a content of the layer is lost and was not made again yet.
func (c Recipes) Broken(ctx context.Context, d oci.Digest) (packs []Name, lost bool, err error) {
	var bad bool // almost always nothing is damaged, and that is known at once
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_pack_checks WHERE damage <> '') OR EXISTS (SELECT 1 FROM gear_files WHERE pack_id = 0)`, nil, &bad)
	if err != nil || !bad {
		return nil, false, err
	}
	const contents = ` FROM gear_recipes r JOIN gear_layer_files lf ON lf.layer_id = r.layer_id JOIN gear_files f ON f.id = lf.file_id `
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1`+contents+`WHERE r.digest = ? AND r.state >= 3 AND f.pack_id = 0)`, []any{string(d)}, &lost)
	if err == nil {
		err = c.db.Rows(ctx, `SELECT DISTINCT p.digest`+contents+`JOIN gear_packs p ON p.id = f.pack_id JOIN gear_pack_checks k ON k.pack_id = p.id
			WHERE r.digest = ? AND r.state >= 3 AND k.damage <> ''`, []any{string(d)}, func(r *sql.Rows) error {
			var raw sql.RawBytes
			var pack Name
			err := r.Scan(&raw)
			copy(pack[:], raw)
			packs = append(packs, pack)
			return err
		})
	}
	return packs, lost, err
}

// AnyRecipe reports whether any layer is in the state from or in a later one.
func (c Recipes) AnyRecipe(ctx context.Context, from RecipeState) (is bool, err error) {
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_recipes WHERE state >= ?)`, []any{int(from)}, &is)
	return is, err
}

// RecipeCount is the number of layers in a state, their size, and the size of their
// recipes.
type RecipeCount struct {
	Layers, Bytes, RecipeBytes int64
}

// RecipeCounts counts the layers of each state.
func (c Recipes) RecipeCounts(ctx context.Context) (n [RecipeAlone + 1]RecipeCount, err error) {
	err = c.db.Rows(ctx, `SELECT state, COUNT(*), COALESCE(SUM(size), 0), COALESCE(SUM(recipe_size), 0) FROM gear_recipes GROUP BY state`, nil, func(r *sql.Rows) error {
		var state RecipeState
		var one RecipeCount
		err := r.Scan(&state, &one.Layers, &one.Bytes, &one.RecipeBytes)
		if err == nil && state >= 0 && int(state) < len(n) {
			n[state] = one
		}
		return err
	})
	return n, err
}
