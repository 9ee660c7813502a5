package gearfacts

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Layer returns a converted layer whose blob is here. Errors: engine.ErrNotFound.
func (c Layers) Layer(ctx context.Context, d oci.Digest) (Layer, error) {
	l := Layer{Digest: d}
	var index, diffID []byte
	err := c.db.Row(ctx, `SELECT index_name, files, bytes, diff_id, embedded FROM gear_layers WHERE digest = ?`, []any{string(d)},
		&index, &l.Files, &l.Bytes, &diffID, &l.Embedded)
	copy(l.Index[:], index)
	copy(l.DiffID[:], diffID)
	return l, err
}

// LayersOf returns at most n layers that hold a content. Layers that have the bytes come
// first. The layers of Gear images follow, which have only the bytes of their index.
func (c Layers) LayersOf(ctx context.Context, name Name, n int) ([]oci.Digest, error) {
	list, err := c.db.Names(ctx, `SELECT l.digest FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id JOIN gear_layers l ON l.id = lf.layer_id
		WHERE f.name = ? AND l.digest IS NOT NULL
		ORDER BY l.embedded, EXISTS (SELECT 1 FROM gear_recipes r WHERE r.layer_id = l.id AND r.state >= 3), l.id LIMIT ?`, name[:], n)
	out := make([]oci.Digest, len(list))
	for i, d := range list {
		out[i] = oci.Digest(d)
	}
	return out, err
}

// Repositories returns the repositories that show a layer.
func (c Layers) Repositories(ctx context.Context, d oci.Digest) ([]string, error) {
	return c.db.Names(ctx, `SELECT r.name FROM blobs b JOIN links k ON k.blob_id = b.id JOIN repositories r ON r.id = k.repo_id
		WHERE b.digest = ? ORDER BY r.name`, string(d))
}

// Grant allows a repository to use the layer of a Gear image that it shows.
func (c Layers) Grant(ctx context.Context, repo string, d oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO gear_grants (layer_id, repo_id)
			SELECT l.id, k.repo_id FROM gear_layers l JOIN links k ON k.blob_id = l.blob_id JOIN repositories r ON r.id = k.repo_id
			WHERE l.digest = ? AND r.name = ? ON CONFLICT DO NOTHING`, string(d), repo)
		return err
	})
}

// CopyGrant copies the right to use the layer of a Gear image from one repository to
// another, into which the layer was mounted. It does nothing if the first repository does
// not have that right. It changes nothing for other layers.
func (c Layers) CopyGrant(ctx context.Context, from, to string, d oci.Digest) error {
	granted, err := c.Granted(ctx, from, d)
	if err != nil || !granted {
		return err
	}
	return c.Grant(ctx, to, d)
}

// Granted reports whether a repository may use the layer of a Gear image.
func (c Layers) Granted(ctx context.Context, repo string, d oci.Digest) (bool, error) {
	var granted bool
	err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_layers l JOIN gear_grants g ON g.layer_id = l.id JOIN repositories r ON r.id = g.repo_id
		JOIN links k ON k.repo_id = g.repo_id AND k.blob_id = l.blob_id
		WHERE l.digest = ? AND r.name = ?)`, []any{string(d), repo}, &granted)
	return granted, err
}

// Job returns what is known about the conversion of a layer that is queued or has failed.
// Errors: engine.ErrNotFound.
func (c Layers) Job(ctx context.Context, d oci.Digest) (Job, error) {
	j := Job{Digest: d}
	var due int64
	err := c.db.Row(ctx, `SELECT attempts, failure, due_at FROM gear_jobs WHERE digest = ?`, []any{string(d)}, &j.Attempts, &j.Failure, &due)
	j.Due = engine.FromMillis(due)
	return j, err
}

// Failed returns at most n failed conversions of layers, with digests greater than the
// digest last.
func (c Layers) Failed(ctx context.Context, last oci.Digest, n int) ([]Job, error) {
	var out []Job
	err := c.db.Rows(ctx, `SELECT digest, attempts, failure, due_at FROM gear_jobs WHERE attempts > 0 AND digest > ? ORDER BY digest LIMIT ?`,
		[]any{string(last), n}, func(r *sql.Rows) error {
			j, err := scanGearJob(r)
			out = append(out, j)
			return err
		})
	return out, err
}

// QueueCounts counts the conversions that wait for their first attempt, and those that
// have failed.
func (c Layers) QueueCounts(ctx context.Context) (waiting, failed int64, err error) {
	err = c.db.Row(ctx, `SELECT COALESCE(SUM(CASE WHEN attempts = 0 THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN attempts > 0 THEN 1 ELSE 0 END), 0) FROM gear_jobs`,
		nil, &waiting, &failed)
	return waiting, failed, err
}

// Requeue asks for the conversion of layers now, even if they are converted or have
// failed. It skips layers that are not here.
func (c Layers) Requeue(ctx context.Context, layers ...oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		for _, d := range layers {
			_, err := t.Exec(`INSERT INTO gear_jobs (digest, due_at, attempts, failure) SELECT digest, ?, 0, '' FROM blobs WHERE digest = ? AND state = 1
				ON CONFLICT (digest) DO UPDATE SET due_at = excluded.due_at, attempts = 0, failure = ''`, t.Now(), string(d))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Awaited returns a layer of a repository that was queued before the layer d and has not
// been tried yet. Of several such layers it returns the last one. Errors:
// engine.ErrNotFound.
func (c Layers) Awaited(ctx context.Context, repo string, d oci.Digest) (layer oci.Digest, err error) {
	err = c.db.Row(ctx, `SELECT j.digest FROM gear_jobs j JOIN blobs b ON b.digest = j.digest AND b.state = 1
		JOIN links k ON k.blob_id = b.id JOIN repositories r ON r.id = k.repo_id
		WHERE j.attempts = 0 AND r.name = ? AND NOT EXISTS (SELECT 1 FROM gear_jobs own WHERE own.digest = ? AND own.id <= j.id)
		ORDER BY j.id DESC LIMIT 1`, []any{repo, string(d)}, &layer)
	return layer, err
}

// Postpone sets when to convert the layers that have not been tried yet. It does not
// affect others.
func (c Layers) Postpone(ctx context.Context, until time.Time, layers ...oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		for _, d := range layers {
			if _, err := t.Exec(`UPDATE gear_jobs SET due_at = ? WHERE digest = ? AND attempts = 0`, until.UnixMilli(), string(d)); err != nil {
				return err
			}
		}
		return nil
	})
}

// QueueLost asks for the conversion of the layers that hold contents whose bytes were
// found damaged. It skips layers that are queued already.
func (c Layers) QueueLost(ctx context.Context) error {
	const lost = `FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id JOIN gear_layers l ON l.id = lf.layer_id
		JOIN blobs b ON b.id = l.blob_id AND b.state = 1 WHERE f.pack_id = 0 AND l.digest IS NOT NULL AND NOT EXISTS (SELECT 1 FROM gear_jobs j WHERE j.digest = l.digest)`
	var any bool
	if err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 `+lost+`)`, nil, &any); err != nil || !any {
		return err
	}
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO gear_jobs (digest, due_at, attempts, failure) SELECT DISTINCT l.digest, CAST(? AS BIGINT), 0, '' `+lost, t.Now())
		return err
	})
}

// LayerLost reports whether a content of a layer was found damaged.
func (c Layers) LayerLost(ctx context.Context, d oci.Digest) (bool, error) {
	var lost bool
	err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_layers l JOIN gear_layer_files lf ON lf.layer_id = l.id JOIN gear_files f ON f.id = lf.file_id
		WHERE l.digest = ? AND f.pack_id = 0)`, []any{string(d)}, &lost)
	return lost, err
}

// Profile returns the profile of an image, or nil.
func (c Layers) Profile(ctx context.Context, manifest oci.Digest) ([]byte, error) {
	var data []byte
	err := c.db.Row(ctx, `SELECT data FROM gear_profiles WHERE digest = ?`, []any{string(manifest)}, &data)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, nil
	}
	return data, err
}

// ChangeProfile replaces the profile of an image by the result of change. It does nothing
// if the image is gone, because profiles are removed with their images. change gets nil
// if there is no profile. It may be called twice and must have no other effect. The
// change survives the end of the process, but perhaps not a power cut, because what is
// lost is learnt again.
func (c Layers) ChangeProfile(ctx context.Context, manifest oci.Digest, change func(old []byte) ([]byte, error)) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		var old []byte
		if err := t.Row(`SELECT data FROM gear_profiles WHERE digest = ?`, []any{string(manifest)}, &old); err != nil && !errors.Is(err, engine.ErrNotFound) {
			return err
		}
		data, err := change(old)
		if err != nil {
			return err
		}
		_, err = t.Exec(`INSERT INTO gear_profiles (digest, data, updated_at) SELECT digest, ?, ? FROM blobs WHERE digest = ? AND state = 1
			ON CONFLICT (digest) DO UPDATE SET data = excluded.data, updated_at = excluded.updated_at`, data, t.Now(), string(manifest))
		return err
	})
}
