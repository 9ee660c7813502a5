package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
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
	if !o.At.IsZero() {
		if err := checkLate(t, o.time(t), d, which, args); err != nil {
			return err
		}
	}
	_, err := t.Exec(`INSERT INTO tag_history (repo_id, tag, digest, cause, actor, at)
		SELECT t.repo_id, t.name, ?, ?, ?, ? FROM tags t WHERE `+which, append([]any{string(d), o.Cause, o.By, o.time(t)}, args...)...)
	return err
}

// recordNewTag records what a new tag points at.
func recordNewTag(t *engine.Tx, o Origin, repoID int64, tag string, d oci.Digest) error {
	if o.Cause == "" {
		return nil
	}
	_, err := t.Exec(`INSERT INTO tag_history (repo_id, tag, digest, cause, actor, at) VALUES (?, ?, ?, ?, ?, ?)`, repoID, tag, string(d), o.Cause, o.By, o.time(t))
	return err
}

// checkLate returns TAG_NEWER if one of the tags, selected as in recordTags, was changed
// here after the time at, when another registry made the change to d. Of changes at the
// same time, all registries keep the one to the greater digest. A tag that was deleted here
// comes back, whenever that was: so a copy that someone deleted by mistake can be replaced.
func checkLate(t *engine.Tx, at int64, d oci.Digest, which string, args []any) error {
	var tag string
	err := t.Row(`SELECT t.name FROM tags t JOIN tag_history h ON h.id = (SELECT MAX(id) FROM tag_history WHERE repo_id = t.repo_id AND tag = t.name)
		WHERE `+which+` AND (h.at > ? OR h.at = ? AND h.digest > ?) LIMIT 1`, append(slices.Clone(args), at, at, string(d)), &tag)
	if err == ErrNotFound {
		return nil
	}
	if err == nil {
		err = oci.Errorf(oci.CodeTagNewer, "the tag %s was changed here later than there", tag)
	}
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
	if tags == nil {
		tags = []string{}
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return err
	}
	_, err = t.Exec(`INSERT INTO trash (repo_id, digest, media_type, tags, cause, actor, deleted_at, until)
		SELECT m.repo_id, b.digest, m.media_type, ?, ?, ?, ?, ? FROM manifests m JOIN blobs b ON b.id = m.blob_id WHERE m.id = ? AND b.state = 1
		ON CONFLICT (repo_id, digest) DO UPDATE SET media_type = excluded.media_type, tags = excluded.tags, cause = excluded.cause, actor = excluded.actor,
			deleted_at = excluded.deleted_at, until = excluded.until`,
		string(text), o.Cause, o.By, t.Now(), due, id)
	return err
}

// untrash forgets that a manifest was removed, because it is back or because its content
// goes.
func untrash(t *engine.Tx, repoID int64, d oci.Digest) error {
	_, err := t.Exec(`DELETE FROM trash WHERE repo_id = ? AND digest = ?`, repoID, string(d))
	return err
}
