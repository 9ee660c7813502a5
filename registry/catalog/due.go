package catalog

import (
	"context"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Due reports whether a repository shows a blob, or has a manifest if manifest is set,
// and returns when the collector will check whether something needs it. The time is zero
// if the content is not in the collector's queue. A content that is queued later is due a
// grace period after that.
func (c *Garbage) Due(ctx context.Context, repo string, d oci.Digest, manifest bool) (here bool, due time.Time, err error) {
	table, kinds := "links", []any{GCBlob, GCBlob}
	if manifest {
		table, kinds = "manifests", []any{GCManifest, gcPart}
	}
	var at int64
	err = c.DB.Row(ctx, `SELECT COALESCE((SELECT MIN(q.due_at) FROM gc_queue q WHERE q.kind IN (?, ?) AND q.repo_id = r.id AND q.blob_id = b.id), 0)
		FROM repositories r
		JOIN blobs b ON b.digest = ? AND b.state = 1
		JOIN `+table+` x ON x.repo_id = r.id AND x.blob_id = b.id
		WHERE r.name = ?`, append(kinds, string(d), repo), &at)
	if err == ErrNotFound {
		return false, time.Time{}, nil
	}
	return err == nil, engine.FromMillis(at), err
}
