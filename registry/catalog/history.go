package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

const (
	// maxTagHistory is how many changes of a tag are kept.
	maxTagHistory = 100
	// goneTagHistory is how long the changes of a tag are kept once it is deleted.
	goneTagHistory = 90 * 24 * time.Hour
)

// Origin says why tags and manifests change, and who changes them. Changes without a
// Cause are not recorded.
type Origin struct {
	Cause string // see oci.CausePush
	By    string
	At    time.Time // see oci.ChangedAt; zero means now
}

type causeKey struct{}

// WithCause returns a context for changes that have another cause than they seem to have.
func WithCause(ctx context.Context, cause string) context.Context {
	return context.WithValue(ctx, causeKey{}, cause)
}

// OriginOf returns the origin of a change that the client in ctx makes, for the given
// cause unless WithCause gave another.
func OriginOf(ctx context.Context, cause string) Origin {
	if c, ok := ctx.Value(causeKey{}).(string); ok {
		cause = c
	}
	o := Origin{Cause: cause, At: oci.ChangedFrom(ctx)}
	if a := oci.ActorFrom(ctx); a != nil {
		o.By = a.Name
	}
	return o
}

// time returns when a change was made, in milliseconds.
func (o Origin) time(t *engine.Tx) int64 {
	if o.At.IsZero() {
		return t.Now()
	}
	return min(t.Now(), o.At.UnixMilli())
}

// recordTags records that tags come to point at a manifest, or that they are deleted if d
// is "". It is called before the tags change, and first records their present state if
// the history lacks it. A condition on the rows t of tags selects the tags: which is its
// text, and args are its arguments.
func recordTags(t *engine.Tx, o Origin, d oci.Digest, which string, args ...any) error {
	if o.Cause == "" {
		return nil
	}
	// Tags that were adopted, or that an earlier version set, have no history.
	if _, err := t.Exec(`INSERT INTO tag_history (repo_id, tag, digest, cause, actor, at)
		SELECT t.repo_id, t.name, b.digest, '', '', t.updated_at FROM tags t JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id
		WHERE `+which+` AND NOT EXISTS (SELECT 1 FROM tag_history h WHERE h.repo_id = t.repo_id AND h.tag = t.name)`, args...); err != nil {
		return err
	}
	at := o.time(t)
	if !o.At.IsZero() { // of changes at the same time, all registries keep that to the greater digest
		var tag string
		err := t.Row(`SELECT t.name FROM tags t JOIN tag_history h ON h.id = (SELECT MAX(id) FROM tag_history WHERE repo_id = t.repo_id AND tag = t.name)
			WHERE `+which+` AND (h.at > ? OR h.at = ? AND h.digest > ?) LIMIT 1`, append(slices.Clone(args), at, at, string(d)), &tag)
		if err == nil {
			err = oci.Errorf(oci.CodeTagNewer, "the tag %s was changed here later than there", tag)
		}
		if err != ErrNotFound {
			return err
		}
	}
	_, err := t.Exec(`INSERT INTO tag_history (repo_id, tag, digest, cause, actor, at) SELECT t.repo_id, t.name, ?, ?, ?, ? FROM tags t WHERE `+which, append([]any{string(d), o.Cause, o.By, at}, args...)...)
	return err
}

// recordNewTag records what a new tag points at.
func recordNewTag(t *engine.Tx, o Origin, repoID int64, tag string, d oci.Digest) error {
	_, err := t.Exec(`INSERT INTO tag_history (repo_id, tag, digest, cause, actor, at) VALUES (?, ?, ?, ?, ?, ?)`, repoID, tag, string(d), o.Cause, o.By, o.time(t))
	return err
}

// trimTag drops the oldest changes of a tag.
func trimTag(t *engine.Tx, repoID int64, tag string) error {
	_, err := t.Exec(`DELETE FROM tag_history WHERE repo_id = ? AND tag = ?
		AND id <= (SELECT id FROM tag_history WHERE repo_id = ? AND tag = ? ORDER BY id DESC LIMIT 1 OFFSET ?)`, repoID, tag, repoID, tag, maxTagHistory)
	return err
}

// forgetTags drops the history of tags that were deleted long ago. One call does so for a
// bounded number of tags.
func forgetTags(t *engine.Tx) error {
	type gone struct {
		id, repoID int64
		tag        string
	}
	var list []gone
	err := t.Rows(`SELECT id, repo_id, tag FROM tag_history WHERE digest = '' AND at < ? ORDER BY at LIMIT 256`,
		[]any{t.Now() - goneTagHistory.Milliseconds()}, func(r *sql.Rows) error {
			var g gone
			err := r.Scan(&g.id, &g.repoID, &g.tag)
			list = append(list, g)
			return err
		})
	for _, g := range list {
		if err == nil {
			_, err = t.Exec(`DELETE FROM tag_history WHERE repo_id = ? AND tag = ? AND id <= ?`, g.repoID, g.tag, g.id)
		}
	}
	return err
}

// trash remembers a manifest that is about to be removed, until due.
func trash(t *engine.Tx, repoID, id, due int64, o Origin) error {
	if o.Cause == "" || o.Cause == oci.CauseRepair || due <= 0 { // it is lost, or is collected at once
		return nil
	}
	tags, err := tagsOf(t, id)
	if err != nil {
		return err
	}
	text, err := json.Marshal(append([]string{}, tags...))
	if err != nil {
		return err
	}
	_, err = t.Exec(`INSERT INTO trash (repo_id, digest, media_type, tags, cause, actor, deleted_at, until)
		SELECT m.repo_id, b.digest, m.media_type, ?, ?, ?, ?, ? FROM manifests m JOIN blobs b ON b.id = m.blob_id WHERE m.id = ? AND b.state = 1
		ON CONFLICT (repo_id, digest) DO UPDATE SET media_type = excluded.media_type, tags = excluded.tags, cause = excluded.cause, actor = excluded.actor, deleted_at = excluded.deleted_at, until = excluded.until`, string(text), o.Cause, o.By, t.Now(), due, id)
	return err
}

// untrash forgets that a manifest was removed, because it is back or because its content
// goes.
func untrash(t *engine.Tx, repoID int64, d oci.Digest) error {
	_, err := t.Exec(`DELETE FROM trash WHERE repo_id = ? AND digest = ?`, repoID, string(d))
	return err
}

// History reads how tags changed, and what was removed.
type History struct{ DB *engine.DB }

// Tag returns at most n changes of a tag, the last one first. A tag that was set before
// histories were kept has one change, of an unknown cause. Errors: ErrNotFound for a tag
// that never existed, or was deleted long ago.
func (h *History) Tag(ctx context.Context, repo, tag string, n int) ([]oci.TagChange, error) {
	id, err := RepositoryID(ctx, h.DB, repo)
	if err == ErrNoRepository {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	var out []oci.TagChange
	const state = `CASE WHEN h.digest = '' THEN '' WHEN EXISTS (SELECT 1 FROM blobs b JOIN manifests m ON m.blob_id = b.id WHERE b.digest = h.digest AND m.repo_id = h.repo_id) THEN '` + oci.StateHere + `'
		WHEN EXISTS (SELECT 1 FROM trash x WHERE x.repo_id = h.repo_id AND x.digest = h.digest) THEN '` + oci.StateDeleted + `' ELSE '` + oci.StateGone + `' END`
	scan := func(r *sql.Rows) error {
		var c oci.TagChange
		var at int64
		err := r.Scan(&c.Digest, &at, &c.Cause, &c.By, &c.State)
		c.At = engine.FromMillis(at)
		out = append(out, c)
		return err
	}
	// The history lacks tags that an earlier version of the program set while servers
	// were being updated.
	err = h.DB.Rows(ctx, `SELECT h.digest, h.at, '', '', '`+oci.StateHere+`' FROM (SELECT b.digest AS digest, t.updated_at AS at FROM tags t
			JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id WHERE t.repo_id = ? AND t.name = ?) h
		WHERE h.digest <> COALESCE((SELECT digest FROM tag_history WHERE repo_id = ? AND tag = ? ORDER BY id DESC LIMIT 1), '')`, []any{id, tag, id, tag}, scan)
	if err == nil {
		err = h.DB.Rows(ctx, `SELECT h.digest, h.at, h.cause, h.actor, `+state+` FROM tag_history h
			WHERE h.repo_id = ? AND h.tag = ? ORDER BY h.id DESC LIMIT ?`, []any{id, tag, n}, scan)
	}
	if err == nil && len(out) == 0 {
		err = ErrNotFound
	}
	return out[:min(len(out), n)], err
}

// restorable selects what can be restored: the content is still here, and nobody has
// pushed it again.
const restorable = `FROM repositories r JOIN trash x ON x.repo_id = r.id JOIN blobs b ON b.digest = x.digest AND b.state = 1 AND b.content IS NOT NULL WHERE r.name = ? AND NOT EXISTS (SELECT 1 FROM manifests m WHERE m.repo_id = r.id AND m.blob_id = b.id)`

// Manifests returns at most n digests of manifests of a repository, the last one first. So
// an index comes before what it names. Errors: ErrNoRepository.
func (h *History) Manifests(ctx context.Context, repo string, n int) ([]oci.Digest, error) {
	id, err := RepositoryID(ctx, h.DB, repo)
	if err != nil {
		return nil, err
	}
	names, err := h.DB.Names(ctx, `SELECT b.digest FROM manifests m CROSS JOIN blobs b ON b.id = m.blob_id WHERE m.repo_id = ? ORDER BY m.id DESC LIMIT ?`, id, n)
	out := make([]oci.Digest, len(names))
	for i, name := range names {
		out[i] = oci.Digest(name)
	}
	return out, err
}

// Deleted lists at most n manifests of a repository that were removed and can be
// restored, the last one first.
func (h *History) Deleted(ctx context.Context, repo string, n int) ([]oci.DeletedManifest, error) {
	var out []oci.DeletedManifest
	err := h.DB.Rows(ctx, `SELECT x.digest, x.media_type, b.size, x.tags, x.deleted_at, x.cause, x.actor, x.until `+restorable+` ORDER BY x.id DESC LIMIT ?`, []any{repo, n},
		func(r *sql.Rows) error {
			d, err := scanDeleted(func(dest ...any) error { return r.Scan(dest...) })
			out = append(out, d)
			return err
		})
	return out, err
}

// DeletedManifest returns a manifest of a repository that was removed and can be
// restored, with its content. Errors: ErrNotFound.
func (h *History) DeletedManifest(ctx context.Context, repo string, d oci.Digest) (found oci.DeletedManifest, content []byte, err error) {
	found, err = scanDeleted(func(dest ...any) error {
		return h.DB.Row(ctx, `SELECT x.digest, x.media_type, b.size, x.tags, x.deleted_at, x.cause, x.actor, x.until, b.content `+restorable+` AND x.digest = ?`,
			[]any{repo, string(d)}, append(dest, &content)...)
	})
	return found, content, err
}

func scanDeleted(scan func(...any) error) (d oci.DeletedManifest, err error) {
	var tags string
	var at, until int64
	if err := scan(&d.Digest, &d.MediaType, &d.Size, &tags, &at, &d.Cause, &d.By, &until); err != nil {
		return d, err
	}
	d.At, d.Until = engine.FromMillis(at), engine.FromMillis(until)
	if err := json.Unmarshal([]byte(tags), &d.Tags); err != nil {
		return d, fmt.Errorf("tags of the deleted manifest %s: %w", d.Digest, err)
	}
	return d, nil
}
