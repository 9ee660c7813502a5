package catalog

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Unlinked is a blob or manifest that a collection step removed from a
// repository.
type Unlinked struct {
	Repo   string
	Digest oci.Digest
	// Manifest tells that it was a manifest.
	Manifest bool
}

// Collected is the outcome of one collection step.
type Collected struct {
	// Examined is how many queued candidates were looked at; 0: none is due.
	Examined int
	// Unlinked are the blobs and manifests taken out of repositories.
	Unlinked []Unlinked
	// Dropped are contents that no repository shows any more and whose rows,
	// being inline or absent, are gone with this step.
	Dropped []Blob
	// Objects are contents whose objects must now be deleted from the store,
	// and then given to Forget.
	Objects []Blob
	// Freed, in a dry run, is what nothing needs any more once the rest has gone:
	// it would become due a grace period later. Cut tells that there may be more
	// of it than was looked at.
	Freed *Collected
	Cut   bool
}

// CollectOptions say what a collection step may take.
type CollectOptions struct {
	// Max candidates in this step; default 256.
	Max int
	// Before: candidates due before this time are looked at.
	Before time.Time
	// Untagged also takes manifests without a tag, that no index names, and
	// whose subject, if they have one, is gone. Those that were part of an index,
	// or referred to a manifest, that was removed are taken in any case.
	Untagged bool
	// KeepUntagged excepts repositories from that; nil: none.
	KeepUntagged func(repo string) bool
	// Keep vetoes the removal of a blob from a repository, for contents a
	// client has just been told are there. They are asked for again at the
	// returned time.
	Keep func(repo string, d oci.Digest) (until time.Time, keep bool)
	// DryRun reports what would be taken, and what that would free, and changes
	// nothing. With Untagged its first step also looks for manifests as
	// QueueUntagged does. After continues a dry run behind the candidate of the
	// step before; what only several steps together free is not found.
	DryRun bool
	After  *Candidate
}

// Candidate is a place in the collector's queue.
type Candidate struct {
	kind            int
	repoID, blobID  int64
	due             int64
	repo            string
	digest          oci.Digest
	size            int64
	inline, present bool
}

// Garbage is what may have become garbage, and its way out. All methods may run
// concurrently.
type Garbage struct {
	DB *engine.DB

	mu sync.Mutex
	// deleters are the names under which BeginDeleting was called.
	deleters map[string]bool
}

var errDryRun = engine.NewVerdict("dry run")

// Collect looks at the candidates that are due and removes those that nothing
// needs. Its cost depends on their number and not on the catalogue's size. last
// is the last candidate looked at, for dry runs.
func (c *Garbage) Collect(ctx context.Context, o CollectOptions) (out Collected, last *Candidate, err error) {
	if o.Max <= 0 {
		o.Max = 256
	}
	if o.DryRun && o.Untagged {
		ctx = engine.Whole(ctx)
	}
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		out, last = Collected{}, nil
		if o.DryRun && o.Untagged && o.After == nil {
			if err := queueUntagged(t); err != nil {
				return err
			}
		}
		candidates, err := dueCandidates(t, o)
		if err != nil {
			return err
		}
		out.Examined = len(candidates)
		for i := range candidates {
			last = &candidates[i]
			if err := collectOne(t, last, o, &out); err != nil {
				return err
			}
		}
		if o.DryRun {
			t.MarkDirty()
			if err := follow(t, o, &out); err != nil {
				return err
			}
			return errDryRun // undoes everything
		}
		return nil
	})
	if errors.Is(err, errDryRun) {
		err = nil
	}
	return out, last, err
}

// dueFreed is the due time, within a change, of what the change has freed: in a dry
// run, and in DropImages. It comes before all others, so that it can be told from them.
const dueFreed = -1

// follow looks at what a dry run has freed, and what that frees in turn, for as
// long as other changes may wait for it.
func follow(t *engine.Tx, o CollectOptions, out *Collected) error {
	out.Cut = out.Examined == o.Max
	out.Freed = &Collected{}
	o.Before, o.After = time.UnixMilli(0), &Candidate{due: dueFreed - 1}
	for left := max(o.Max-out.Examined, minFollow); left > 0; {
		o.Max = left
		candidates, err := dueCandidates(t, o)
		if err != nil || len(candidates) == 0 {
			return err
		}
		for i := range candidates {
			if err := collectOne(t, &candidates[i], o, out.Freed); err != nil {
				return err
			}
		}
		out.Freed.Examined += len(candidates)
		left -= len(candidates)
	}
	out.Cut = true
	return nil
}

// minFollow is how many freed candidates a dry run looks at in any case.
const minFollow = 1024

func dueCandidates(t *engine.Tx, o CollectOptions) ([]Candidate, error) {
	after := Candidate{due: dueFreed}
	if o.After != nil {
		after = *o.After
	}
	var out []Candidate
	err := t.Rows(`SELECT q.kind, q.repo_id, q.blob_id, q.due_at, COALESCE(r.name, ''), COALESCE(b.digest, ''), COALESCE(b.size, 0), b.content IS NOT NULL, COALESCE(b.state, 0) <> 0
		FROM gc_queue q LEFT JOIN repositories r ON r.id = q.repo_id LEFT JOIN blobs b ON b.id = q.blob_id
		WHERE q.due_at < ? AND (q.due_at, q.kind, q.repo_id, q.blob_id) > (?, ?, ?, ?)
		ORDER BY q.due_at, q.kind, q.repo_id, q.blob_id LIMIT ?`,
		[]any{o.Before.UnixMilli(), after.due, after.kind, after.repoID, after.blobID, o.Max}, func(r *sql.Rows) error {
			var d Candidate
			err := r.Scan(&d.kind, &d.repoID, &d.blobID, &d.due, &d.repo, &d.digest, &d.size, &d.inline, &d.present)
			out = append(out, d)
			return err
		})
	return out, err
}

func collectOne(t *engine.Tx, d *Candidate, o CollectOptions, out *Collected) error {
	if _, err := t.Exec(`DELETE FROM gc_queue WHERE kind = ? AND repo_id = ? AND blob_id = ?`, d.kind, d.repoID, d.blobID); err != nil {
		return err
	}
	var err error
	switch {
	case d.digest == "": // its content went by way of another repository
	case d.kind == GCBlob:
		err = collectBlob(t, d, o, out)
	case (o.Untagged || d.kind == gcPart) && (o.KeepUntagged == nil || !o.KeepUntagged(d.repo)):
		err = collectManifest(t, d, o, out)
	}
	if err != nil {
		return err
	}
	return DropRepository(t, d.repoID)
}

func collectBlob(t *engine.Tx, d *Candidate, o CollectOptions, out *Collected) error {
	needed, linked, err := blobNeeded(t, d)
	if err != nil || needed {
		return err
	}
	if linked {
		if o.Keep != nil {
			if until, keep := o.Keep(d.repo, d.digest); keep {
				return Enqueue(t, GCBlob, d.repoID, d.blobID, until.UnixMilli())
			}
		}
		err = unlink(t, d, out)
	} else { // it may be absent
		err = revokeGear(t, d.repoID, d.blobID)
	}
	if err != nil {
		return err
	}
	return dropContent(t, d, out)
}

// unlink makes a repository not show a blob any more.
func unlink(t *engine.Tx, d *Candidate, out *Collected) error {
	if _, err := t.Exec(`DELETE FROM links WHERE repo_id = ? AND blob_id = ?`, d.repoID, d.blobID); err != nil {
		return err
	}
	if err := revokeGear(t, d.repoID, d.blobID); err != nil {
		return err
	}
	out.Unlinked = append(out.Unlinked, Unlinked{Repo: d.repo, Digest: d.digest})
	t.Changed(engine.ChangeBlob, d.repo, string(d.digest))
	return nil
}

// blobNeeded reports whether a manifest of the repository names the blob, or is
// it, and whether the repository shows it.
func blobNeeded(t *engine.Tx, d *Candidate) (needed, linked bool, err error) {
	err = t.Row(`SELECT EXISTS (SELECT 1 FROM refs WHERE repo_id = ? AND blob_id = ?) OR EXISTS (SELECT 1 FROM manifests WHERE repo_id = ? AND blob_id = ?),
		EXISTS (SELECT 1 FROM links WHERE repo_id = ? AND blob_id = ?)`,
		[]any{d.repoID, d.blobID, d.repoID, d.blobID, d.repoID, d.blobID}, &needed, &linked)
	return needed, linked, err
}

// dropContent removes a content that no repository shows any more. Where some
// still name it, as a foreign layer or a platform that may be absent, its row
// stays and says that it is not here: to name a digest must not keep what belongs
// to another repository.
func dropContent(t *engine.Tx, d *Candidate, out *Collected) error {
	var shown, named bool
	err := t.Row(`SELECT EXISTS (SELECT 1 FROM links WHERE blob_id = ?) OR EXISTS (SELECT 1 FROM manifests WHERE blob_id = ?),
		EXISTS (SELECT 1 FROM refs WHERE blob_id = ?)`, []any{d.blobID, d.blobID, d.blobID}, &shown, &named)
	if err != nil || shown || named && !d.present {
		return err
	}
	if err := dropGearLayer(t, d.digest); err != nil {
		return err
	}
	b := Blob{Digest: d.digest, Size: d.size}
	// A manifest too large for a blob to be inline may have been pushed as a
	// blob, too: then there is an object that must go with it.
	if (d.inline && d.size <= InlineMax) || !d.present {
		query := `DELETE FROM blobs WHERE id = ? AND state IN (0, 1)`
		if named {
			query = `UPDATE blobs SET state = 0, content = NULL WHERE id = ? AND state = 1`
		}
		n, err := t.Exec(query, d.blobID)
		if err == nil && n > 0 && d.present {
			out.Dropped = append(out.Dropped, b)
		}
		return err
	}
	n, err := t.Exec(`UPDATE blobs SET state = 2 WHERE id = ? AND state = 1`, d.blobID)
	if err == nil && n > 0 {
		out.Objects = append(out.Objects, b)
	}
	return err
}

// DropRepository removes a repository that holds nothing any more.
func DropRepository(t *engine.Tx, repoID int64) error {
	clear(t.Repositories)
	_, err := t.Exec(`DELETE FROM repositories WHERE id = ? AND NOT EXISTS (SELECT 1 FROM links WHERE repo_id = ?)
		AND NOT EXISTS (SELECT 1 FROM manifests WHERE repo_id = ?) AND NOT EXISTS (SELECT 1 FROM gc_queue WHERE kind IN (0, 1, 2) AND repo_id = ?)
		AND NOT EXISTS (SELECT 1 FROM gear_staged WHERE repo_id = ?)`,
		repoID, repoID, repoID, repoID, repoID)
	if err != nil {
		return err
	}
	_, err = t.Exec(`DELETE FROM gear_donors WHERE repo_id = ? AND NOT EXISTS (SELECT 1 FROM repositories WHERE id = ?)`, repoID, repoID)
	return err
}

func collectManifest(t *engine.Tx, d *Candidate, o CollectOptions, out *Collected) error {
	var id int64
	var kept bool
	err := t.Row(`SELECT m.id, EXISTS (SELECT 1 FROM tags WHERE manifest_id = m.id)
		OR EXISTS (SELECT 1 FROM refs WHERE repo_id = m.repo_id AND blob_id = m.blob_id)
		OR EXISTS (SELECT 1 FROM manifests s JOIN blobs b ON b.id = s.blob_id WHERE s.repo_id = m.repo_id AND b.digest = m.subject)
		FROM manifests m WHERE m.repo_id = ? AND m.blob_id = ?`, []any{d.repoID, d.blobID}, &id, &kept)
	if err == ErrNotFound || kept {
		return nil
	}
	if err != nil {
		return err
	}
	if o.Keep != nil {
		if until, keep := o.Keep(d.repo, d.digest); keep {
			return Enqueue(t, d.kind, d.repoID, d.blobID, until.UnixMilli())
		}
	}
	out.Unlinked = append(out.Unlinked, Unlinked{Repo: d.repo, Digest: d.digest, Manifest: true})
	t.Changed(engine.ChangeManifest, d.repo, string(d.digest))
	due := t.Due()
	if o.DryRun {
		due = dueFreed
	}
	return RemoveManifest(t, d.repoID, id, d.blobID, due)
}

// QueueUntagged queues every manifest without a tag, for the first collection
// after the policy was switched on. It reads all manifests.
func (c *Garbage) QueueUntagged(ctx context.Context) error {
	return c.DB.Write(engine.Whole(ctx), queueUntagged)
}

func queueUntagged(t *engine.Tx) error {
	_, err := t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at)
		SELECT 1, m.repo_id, m.blob_id, m.created_at + ? FROM manifests m WHERE NOT EXISTS (SELECT 1 FROM tags WHERE manifest_id = m.id)
		ON CONFLICT DO NOTHING`, t.Grace())
	return err
}

// Deleting returns contents whose objects are to be deleted: those that the
// collector has dropped, and those whose deletion was begun by somebody who has
// not ended it by the deadline.
func (c *Garbage) Deleting(ctx context.Context, n int) ([]Blob, error) {
	now, err := c.DB.Now(ctx)
	if err != nil {
		return nil, err
	}
	var out []Blob
	err = c.DB.Rows(ctx, `SELECT digest, size FROM blobs WHERE state = 2 UNION ALL SELECT digest, size FROM blobs WHERE state = 3 AND deadline <= ? LIMIT ?`,
		[]any{now.UnixMilli(), n}, func(r *sql.Rows) error {
			var b Blob
			err := r.Scan(&b.Digest, &b.Size)
			out = append(out, b)
			return err
		})
	return out, err
}

// IsDeleting reports whether a content's object is still to be deleted: a push
// may have brought the content back since. The answer is final, as that of Known.
func (c *Garbage) IsDeleting(ctx context.Context, d oci.Digest) (bool, error) {
	if err := c.DB.Settled(ctx); err != nil {
		return false, err
	}
	var n int
	err := c.DB.Row(ctx, `SELECT COUNT(*) FROM blobs WHERE digest = ? AND state IN (2, 3)`, []any{string(d)}, &n)
	return n > 0, err
}
