package catalog

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.org/slipway/oci"
)

// GearRepositories returns the repositories that show a layer.
func (c *Catalog) GearRepositories(ctx context.Context, d oci.Digest) ([]string, error) {
	return c.names(ctx, `SELECT r.name FROM blobs b JOIN links k ON k.blob_id = b.id JOIN repositories r ON r.id = k.repo_id
		WHERE b.digest = ? ORDER BY r.name`, string(d))
}

// GrantGear lets a repository that shows the layer of a Gear image use it.
func (c *Catalog) GrantGear(ctx context.Context, repo string, d oci.Digest) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO gear_grants (layer_id, repo_id)
			SELECT l.id, k.repo_id FROM gear_layers l JOIN links k ON k.blob_id = l.blob_id JOIN repositories r ON r.id = k.repo_id
			WHERE l.digest = ? AND r.name = ? ON CONFLICT DO NOTHING`, string(d), repo)
		return err
	})
}

// CopyGearGrant lets a repository use the layer of a Gear image, if another one,
// from which it was mounted, may. Of other layers it changes nothing.
func (c *Catalog) CopyGearGrant(ctx context.Context, from, to string, d oci.Digest) error {
	granted, err := c.GearGranted(ctx, from, d)
	if err != nil || !granted {
		return err
	}
	return c.GrantGear(ctx, to, d)
}

// GearGranted tells whether a repository may use the layer of a Gear image.
func (c *Catalog) GearGranted(ctx context.Context, repo string, d oci.Digest) (bool, error) {
	var granted bool
	err := c.db.row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_layers l JOIN gear_grants g ON g.layer_id = l.id JOIN repositories r ON r.id = g.repo_id
		JOIN links k ON k.repo_id = g.repo_id AND k.blob_id = l.blob_id
		WHERE l.digest = ? AND r.name = ?)`, []any{string(d), repo}, &granted)
	return granted, err
}

// revokeGear ends what GrantGear allowed, when a repository does not show the
// blob any more: whoever pushes it again has to have the right to its files anew.
func (t *tx) revokeGear(repoID, blobID int64) error {
	_, err := t.exec(`DELETE FROM gear_grants WHERE repo_id = ? AND layer_id IN (SELECT id FROM gear_layers WHERE blob_id = ?)`, repoID, blobID)
	return err
}

// GearJob returns what is known of the conversion of a layer that is queued or
// has failed. Errors: ErrNotFound.
func (c *Catalog) GearJob(ctx context.Context, d oci.Digest) (GearJob, error) {
	j := GearJob{Digest: d}
	var due int64
	err := c.db.row(ctx, `SELECT attempts, failure, due_at FROM gear_jobs WHERE digest = ?`, []any{string(d)}, &j.Attempts, &j.Failure, &due)
	j.Due = fromMillis(due)
	return j, err
}

// FailedGear returns at most n conversions that failed, behind the digest last.
func (c *Catalog) FailedGear(ctx context.Context, last oci.Digest, n int) ([]GearJob, error) {
	var out []GearJob
	err := c.db.rows(ctx, `SELECT digest, attempts, failure, due_at FROM gear_jobs WHERE attempts > 0 AND digest > ? ORDER BY digest LIMIT ?`,
		[]any{string(last), n}, func(r *sql.Rows) error {
			j, err := scanGearJob(r)
			out = append(out, j)
			return err
		})
	return out, err
}

// GearQueue counts the conversions that wait for their first attempt, and those
// that have failed.
func (c *Catalog) GearQueue(ctx context.Context) (waiting, failed int64, err error) {
	err = c.db.row(ctx, `SELECT COALESCE(SUM(CASE WHEN attempts = 0 THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN attempts > 0 THEN 1 ELSE 0 END), 0) FROM gear_jobs`,
		nil, &waiting, &failed)
	return waiting, failed, err
}

// RequeueGear asks for the conversion of layers now, also of those that are
// converted or have failed. Layers that are not here are passed over.
func (c *Catalog) RequeueGear(ctx context.Context, layers ...oci.Digest) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, d := range layers {
			_, err := t.exec(`INSERT INTO gear_jobs (digest, due_at, attempts, failure) SELECT digest, ?, 0, '' FROM blobs WHERE digest = ? AND state = 1
				ON CONFLICT (digest) DO UPDATE SET due_at = excluded.due_at, attempts = 0, failure = ''`, t.now(), string(d))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// GearAwaited returns the last layer of a repository that was queued before the layer d
// and was not tried yet. Errors: ErrNotFound.
func (c *Catalog) GearAwaited(ctx context.Context, repo string, d oci.Digest) (layer oci.Digest, err error) {
	err = c.db.row(ctx, `SELECT j.digest FROM gear_jobs j JOIN blobs b ON b.digest = j.digest AND b.state = 1
		JOIN links k ON k.blob_id = b.id JOIN repositories r ON r.id = k.repo_id
		WHERE j.attempts = 0 AND r.name = ? AND NOT EXISTS (SELECT 1 FROM gear_jobs own WHERE own.digest = ? AND own.id <= j.id)
		ORDER BY j.id DESC LIMIT 1`, []any{repo, string(d)}, &layer)
	return layer, err
}

// PostponeGear changes when layers are converted that were not tried yet.
func (c *Catalog) PostponeGear(ctx context.Context, until time.Time, layers ...oci.Digest) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, d := range layers {
			if _, err := t.exec(`UPDATE gear_jobs SET due_at = ? WHERE digest = ? AND attempts = 0`, until.UnixMilli(), string(d)); err != nil {
				return err
			}
		}
		return nil
	})
}

// QueueLostGear asks for the conversion of the layers that hold contents whose
// bytes were found damaged, unless it was asked for already.
func (c *Catalog) QueueLostGear(ctx context.Context) error {
	const lost = `FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id JOIN gear_layers l ON l.id = lf.layer_id
		JOIN blobs b ON b.id = l.blob_id AND b.state = 1 WHERE f.pack_id = 0 AND l.digest IS NOT NULL AND NOT EXISTS (SELECT 1 FROM gear_jobs j WHERE j.digest = l.digest)`
	var any bool
	if err := c.db.row(ctx, `SELECT EXISTS (SELECT 1 `+lost+`)`, nil, &any); err != nil || !any {
		return err
	}
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO gear_jobs (digest, due_at, attempts, failure) SELECT DISTINCT l.digest, CAST(? AS BIGINT), 0, '' `+lost, t.now())
		return err
	})
}

// GearLayerLost tells whether a content of a layer was found damaged.
func (c *Catalog) GearLayerLost(ctx context.Context, d oci.Digest) (bool, error) {
	var lost bool
	err := c.db.row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_layers l JOIN gear_layer_files lf ON lf.layer_id = l.id JOIN gear_files f ON f.id = lf.file_id
		WHERE l.digest = ? AND f.pack_id = 0)`, []any{string(d)}, &lost)
	return lost, err
}

// GearProfile returns the profile of an image, or nil.
func (c *Catalog) GearProfile(ctx context.Context, manifest oci.Digest) ([]byte, error) {
	var data []byte
	err := c.db.row(ctx, `SELECT data FROM gear_profiles WHERE digest = ?`, []any{string(manifest)}, &data)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return data, err
}

// ChangeGearProfile replaces the profile of an image by what change makes of it.
// It does nothing when the image is gone, with which profiles go.
// change gets nil for none, may be called twice and must have no other effect.
// The change survives the end of the process, but perhaps not a power cut: what
// is lost is learnt again.
func (c *Catalog) ChangeGearProfile(ctx context.Context, manifest oci.Digest, change func(old []byte) ([]byte, error)) error {
	return c.db.writeLazy(ctx, func(t *tx) error {
		var old []byte
		if err := t.row(`SELECT data FROM gear_profiles WHERE digest = ?`, []any{string(manifest)}, &old); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		data, err := change(old)
		if err != nil {
			return err
		}
		_, err = t.exec(`INSERT INTO gear_profiles (digest, data, updated_at) SELECT digest, ?, ? FROM blobs WHERE digest = ? AND state = 1
			ON CONFLICT (digest) DO UPDATE SET data = excluded.data, updated_at = excluded.updated_at`, data, t.now(), string(manifest))
		return err
	})
}
