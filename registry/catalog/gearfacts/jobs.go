package gearfacts

import (
	"context"
	"database/sql"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Job is a layer that waits for its conversion.
type Job struct {
	Digest oci.Digest
	// Attempts is the number of failed attempts so far, and Failure says why the last one
	// failed.
	Attempts int
	Failure  string
	// Due is when the next attempt is.
	Due time.Time
	// Size is the size of the layer in bytes. Repo is the id of a repository that shows
	// the layer, or 0. Only Jobs sets these two.
	Size int64
	Repo int64
}

func scanGearJob(r *sql.Rows) (j Job, err error) {
	var due int64
	err = r.Scan(&j.Digest, &j.Attempts, &j.Failure, &due)
	j.Due = engine.FromMillis(due)
	return j, err
}

// Queue asks for the conversion of layers. It skips layers that are already converted or
// queued. The change survives the end of the process, but perhaps not a power cut. A push
// should not wait for it, and whoever misses the index asks again.
func (c Layers) Queue(ctx context.Context, layers ...oci.Digest) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		for _, d := range layers {
			_, err := t.Exec(`INSERT INTO gear_jobs (digest, due_at, attempts, failure)
				SELECT digest, ?, 0, '' FROM blobs WHERE digest = ? AND state = 1 AND NOT EXISTS (SELECT 1 FROM gear_layers l WHERE l.digest = blobs.digest)
				ON CONFLICT (digest) DO NOTHING`, t.Now(), string(d))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// fairJobs is the number of due conversions, the oldest ones, among which repositories
// take turns. It bounds the cost of reading the queue.
const fairJobs = 4096

// Jobs returns at most n conversions that are due. Repositories take turns, each
// beginning with its oldest conversion, so that a repository that pushes much does not
// keep others waiting. A layer that several repositories show counts for the oldest of
// them.
func (c Layers) Jobs(ctx context.Context, n int) ([]Job, error) {
	var out []Job
	err := c.db.Rows(ctx, `WITH due AS (SELECT id, digest, attempts, failure, due_at FROM gear_jobs WHERE due_at <= ? ORDER BY due_at, id LIMIT ?),
		owned AS (SELECT due.*, COALESCE(b.size, 0) AS size, COALESCE((SELECT MIN(l.repo_id) FROM links l WHERE l.blob_id = b.id), 0) AS repo
			FROM due LEFT JOIN blobs b ON b.digest = due.digest),
		turns AS (SELECT owned.*, ROW_NUMBER() OVER (PARTITION BY repo ORDER BY due_at, id) AS turn FROM owned)
		SELECT digest, attempts, failure, due_at, size, repo FROM turns ORDER BY turn, due_at, id LIMIT ?`, []any{c.db.Millis(), fairJobs, n}, func(r *sql.Rows) error {
		var j Job
		var due int64
		err := r.Scan(&j.Digest, &j.Attempts, &j.Failure, &due, &j.Size, &j.Repo)
		j.Due = engine.FromMillis(due)
		out = append(out, j)
		return err
	})
	return out, err
}

// EndJob forgets a conversion that is done or no longer wanted.
func (c Layers) EndJob(ctx context.Context, d oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`DELETE FROM gear_jobs WHERE digest = ?`, string(d))
		return err
	})
}

// DeferJob records that a conversion failed and must be tried again at the time until.
func (c Layers) DeferJob(ctx context.Context, d oci.Digest, failure string, until time.Time) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE gear_jobs SET attempts = attempts + 1, failure = ?, due_at = ? WHERE digest = ?`, failure, until.UnixMilli(), string(d))
		return err
	})
}
