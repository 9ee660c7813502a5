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
	// Manifest says that it was a manifest.
	Manifest bool
}

// Collected is the outcome of one collection step.
type Collected struct {
	// Examined is how many queued candidates were examined. It is 0 if none is due.
	Examined int
	// Unlinked lists the blobs and manifests that were removed from repositories.
	Unlinked []Unlinked
	// Dropped lists contents that no repository shows any more and whose rows this step
	// removed, because the contents were inline or absent.
	Dropped []Blob
	// Objects lists contents whose objects must now be deleted from the store. Then the
	// contents must be passed to Forget.
	Objects []Blob
	// Freed is set in a dry run. It lists what nothing will need any more after a real run, and
	// what will therefore become due a grace period after that. Cut says that not everything
	// was examined, so that Freed may be incomplete.
	Freed *Collected
	Cut   bool
}

// CollectOptions says what a collection step may remove.
type CollectOptions struct {
	// Max is the maximum number of candidates in this step; default 256.
	Max int
	// Before restricts the step to candidates that are due before this time.
	Before time.Time
	// Untagged says to remove manifests that have no tag, that no index names, and whose
	// subject, if any, is gone. Without Untagged, the step only removes such a manifest
	// if it was part of an index that was removed, or if its subject was removed.
	Untagged bool
	// KeepUntagged reports whether a repository keeps its untagged manifests. nil means
	// that none does.
	KeepUntagged func(repo string) bool
	// Keep vetoes the removal of a blob from a repository, because a client was just told
	// that the content is there. The collector examines the content again at the returned
	// time.
	Keep func(repo string, d oci.Digest) (until time.Time, keep bool)
	// DryRun reports what would be removed, and what that would free, and changes
	// nothing. With Untagged the first step also looks for manifests, as QueueUntagged
	// does. After is the last candidate of the previous step. The dry run continues with
	// the next one. It does not find what only several steps together free.
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

// Garbage holds what may have become garbage, and removes it. All methods may run
// concurrently.
type Garbage struct {
	DB *engine.DB

	mu sync.Mutex
	// deleters are the names under which BeginDeleting was called.
	deleters map[string]bool
}

var errDryRun = engine.NewVerdict("dry run")

// Collect examines the candidates that are due and removes those that nothing needs. Its
// cost depends on the number of candidates, not on the size of the catalogue. last is the
// last candidate that was examined, for dry runs.
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
		if !o.DryRun {
			if err := forgetTags(t); err != nil {
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

// dueFreed is the due time that a change gives to what it frees, in a dry run and in
// DropImages. It is earlier than all other due times, which distinguishes these
// candidates from the others.
const dueFreed = -1

// follow examines what a dry run has freed, and what that frees in turn. It stops after
// as much work as other changes may wait for.
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

// minFollow is how many freed candidates a dry run examines at least, if there are so
// many.
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
	case d.digest == "": // its content was removed through another repository
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
	// If this was a manifest, its time to be restored is over.
	if err := untrash(t, d.repoID, d.digest); err != nil {
		return err
	}
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

// unlink removes a blob from a repository.
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

// blobNeeded reports whether a manifest of the repository names the blob or has its
// digest, and whether the repository shows the blob.
func blobNeeded(t *engine.Tx, d *Candidate) (needed, linked bool, err error) {
	err = t.Row(`SELECT EXISTS (SELECT 1 FROM refs WHERE repo_id = ? AND blob_id = ?) OR EXISTS (SELECT 1 FROM manifests WHERE repo_id = ? AND blob_id = ?),
		EXISTS (SELECT 1 FROM links WHERE repo_id = ? AND blob_id = ?)`,
		[]any{d.repoID, d.blobID, d.repoID, d.blobID, d.repoID, d.blobID}, &needed, &linked)
	return needed, linked, err
}

// dropContent removes a content that no repository shows any more. If some manifests
// still name the content, as a foreign layer or a platform that may be absent, its row
// stays and says that the content is not here. A manifest that only names a digest must
// not keep a content of another repository.
func dropContent(t *engine.Tx, d *Candidate, out *Collected) error {
	var shown, named bool
	err := t.Row(`SELECT EXISTS (SELECT 1 FROM links WHERE blob_id = ?) OR EXISTS (SELECT 1 FROM manifests WHERE blob_id = ?),
		EXISTS (SELECT 1 FROM refs WHERE blob_id = ?)`, []any{d.blobID, d.blobID, d.blobID}, &shown, &named)
	if err != nil || shown || named && !d.present {
		return err
	}
	if d.present {
		if held, err := heldForLost(t, d.digest); err != nil || held {
			if err == nil {
				err = Enqueue(t, GCBlob, 0, d.blobID, t.Due()+heldFor.Milliseconds())
			}
			return err
		}
	}
	if err := dropGearLayer(t, d.digest); err != nil {
		return err
	}
	b := Blob{Digest: d.digest, Size: d.size}
	// A manifest that exceeds InlineMax may have been pushed as a blob, too. Then an
	// object must be deleted as well.
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
	n, err := t.Exec(`DELETE FROM repositories WHERE id = ? AND NOT EXISTS (SELECT 1 FROM links WHERE repo_id = ?)
		AND NOT EXISTS (SELECT 1 FROM manifests WHERE repo_id = ?) AND NOT EXISTS (SELECT 1 FROM gc_queue WHERE kind IN (0, 1, 2) AND repo_id = ?)
		AND NOT EXISTS (SELECT 1 FROM gear_staged WHERE repo_id = ?)`,
		repoID, repoID, repoID, repoID, repoID)
	if err != nil {
		return err
	}
	if _, err = t.Exec(`DELETE FROM gear_donors WHERE repo_id = ? AND NOT EXISTS (SELECT 1 FROM repositories WHERE id = ?)`, repoID, repoID); err != nil || n == 0 {
		return err
	}
	for _, query := range []string{`DELETE FROM tag_history WHERE repo_id = ?`, `DELETE FROM trash WHERE repo_id = ?`} {
		if _, err := t.Exec(query, repoID); err != nil {
			return err
		}
	}
	return nil
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
	return RemoveManifest(t, d.repoID, id, d.blobID, due, Origin{Cause: oci.CauseCollection})
}

// QueueUntagged queues every manifest without a tag. It is for the first collection after
// the removal of untagged manifests was enabled. It reads all manifests.
func (c *Garbage) QueueUntagged(ctx context.Context) error {
	return c.DB.Write(engine.Whole(ctx), queueUntagged)
}

func queueUntagged(t *engine.Tx) error {
	_, err := t.Exec(`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at)
		SELECT 1, m.repo_id, m.blob_id, m.created_at + ? FROM manifests m WHERE NOT EXISTS (SELECT 1 FROM tags WHERE manifest_id = m.id)
		ON CONFLICT DO NOTHING`, t.Grace())
	return err
}

// Deleting returns contents whose objects must be deleted. The collector has dropped
// them, or somebody began to delete them and did not finish by the deadline.
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

// IsDeleting reports whether a content's object must still be deleted. A push may have
// brought the content back since. The answer is final, like that of Known.
func (c *Garbage) IsDeleting(ctx context.Context, d oci.Digest) (bool, error) {
	if err := c.DB.Settled(ctx); err != nil {
		return false, err
	}
	var n int
	err := c.DB.Row(ctx, `SELECT COUNT(*) FROM blobs WHERE digest = ? AND state IN (2, 3)`, []any{string(d)}, &n)
	return n > 0, err
}
