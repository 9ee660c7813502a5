// Package browse lists and measures what the catalogue contains, for people to look at:
// repositories, tags and images with their sizes and when they were used.
package browse

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// Store lists what a catalogue contains. All methods may run concurrently.
type Store struct{ db *engine.DB }

// New returns the Store of a database.
func New(db *engine.DB) Store { return Store{db} }

// SearchRepositories lists, in byte order, at most n names of repositories that contain a
// text and come after the name last. It ignores case. Every name contains the empty text.
func (c Store) SearchRepositories(ctx context.Context, text, last string, n int) ([]string, error) {
	if text == "" {
		return c.db.Names(ctx, `SELECT name FROM repositories WHERE name > ? ORDER BY name LIMIT ?`, last, n)
	}
	return c.db.Names(ctx, `SELECT name FROM repositories WHERE name > ? AND name LIKE ? ESCAPE '!' ORDER BY name LIMIT ?`, last, holding(text), n)
}

// holding returns a LIKE pattern that matches lower-case strings that contain a text. The
// pattern's escape character is "!".
func holding(text string) string {
	return "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(strings.ToLower(text)) + "%"
}

// RepositoryInfo describes a repository in a list of repositories.
type RepositoryInfo struct {
	Tags int64
	// Bytes is the size of the contents that the repository shows, each counted once. It
	// includes contents that other repositories show too.
	Bytes int64
	// Partial says that not everything was examined, so that all counts are lower bounds.
	Partial bool
	// Pushed is when a tag was last set or a manifest last arrived. LastPull is when a
	// tag or manifest was last pulled. A zero time means never.
	Pushed, LastPull time.Time
}

// RepositoryInfo describes a repository. It examines only so many of its tags, of its
// manifests and of its blobs as most says, which bounds the time. Errors:
// ErrNoRepository.
func (c Store) RepositoryInfo(ctx context.Context, repo string, most int) (RepositoryInfo, error) {
	var out RepositoryInfo
	id, err := catalog.RepositoryID(ctx, c.db, repo)
	if err != nil {
		return out, err
	}
	var manifests, blobs, blobBytes, tagged, pushed, pulled, pulledDirectly int64
	err = c.db.Row(ctx, `SELECT t.n, t.pushed, t.pulled, m.n, m.pushed, m.pulled, m.bytes, l.n, l.bytes FROM
		(SELECT COUNT(*) AS n, COALESCE(MAX(updated_at), 0) AS pushed, COALESCE(MAX(pulled_at), 0) AS pulled
			FROM (SELECT updated_at, pulled_at FROM tags WHERE repo_id = ? LIMIT ?) a) t,
		(SELECT COUNT(*) AS n, COALESCE(MAX(created_at), 0) AS pushed, COALESCE(MAX(pulled_at), 0) AS pulled, COALESCE(SUM(size), 0) AS bytes
			FROM (SELECT m.created_at, m.pulled_at, b.size FROM manifests m CROSS JOIN blobs b ON b.id = m.blob_id WHERE m.repo_id = ? LIMIT ?) a) m,
		(SELECT COUNT(*) AS n, COALESCE(SUM(size), 0) AS bytes
			FROM (SELECT b.size FROM links k CROSS JOIN blobs b ON b.id = k.blob_id WHERE b.state = 1 AND k.repo_id = ? LIMIT ?) a) l`,
		[]any{id, most, id, most, id, most}, &out.Tags, &tagged, &pulled, &manifests, &pushed, &pulledDirectly, &out.Bytes, &blobs, &blobBytes)
	out.Bytes += blobBytes
	out.Partial = max(out.Tags, manifests, blobs) >= int64(most)
	out.Pushed, out.LastPull = engine.FromMillis(max(tagged, pushed)), engine.FromMillis(max(pulled, pulledDirectly))
	return out, err
}

// TagQuery says which tags of a repository to list.
type TagQuery struct {
	// Text selects the tags that contain it. It ignores case. The empty text selects all
	// tags.
	Text string
	// ByName orders by name. Otherwise the tag that was set last comes first.
	ByName bool
	// From is the number of tags to skip, and Limit is the maximum number to list.
	From, Limit int
}

// maxListedManifest is the maximum size in bytes of a manifest whose content is listed
// with a tag.
const maxListedManifest = 256 << 10

// TagEntry is a tag with the manifest that it points at.
type TagEntry struct {
	Name                    string
	Digest                  oci.Digest
	MediaType, ArtifactType string
	// Content is the content of the manifest, or nil if it has more than 256 KiB.
	Content []byte
	// Size is the size in bytes of everything that belongs to the manifest and is here,
	// each content counted once. Missing is the number of contents that are not here.
	Size, Missing    int64
	Pushed, LastPull time.Time
}

// ListTags lists tags of a repository. It examines all of the repository's tags. Errors:
// ErrNoRepository.
func (c Store) ListTags(ctx context.Context, repo string, q TagQuery) ([]TagEntry, error) {
	id, err := catalog.RepositoryID(ctx, c.db, repo)
	if err != nil {
		return nil, err
	}
	order := `t.updated_at DESC, t.name DESC`
	if q.ByName {
		order = `t.name`
	}
	var out []TagEntry
	var images []Image
	err = c.db.Rows(ctx, `SELECT t.name, t.updated_at, t.pulled_at, m.id, b.digest, m.media_type, m.artifact_type,
			CASE WHEN b.size <= ? THEN b.content END
		FROM (SELECT name, updated_at, pulled_at, manifest_id FROM tags t WHERE repo_id = ? AND lower(name) LIKE ? ESCAPE '!' ORDER BY `+order+` LIMIT ? OFFSET ?) t
		JOIN manifests m ON m.id = t.manifest_id
		JOIN blobs b ON b.id = m.blob_id ORDER BY `+order, []any{maxListedManifest, id, holding(q.Text), q.Limit, q.From}, func(r *sql.Rows) error {
		var t TagEntry
		var updated, pulled int64
		i := Image{repoID: id}
		err := r.Scan(&t.Name, &updated, &pulled, &i.ID, &t.Digest, &t.MediaType, &t.ArtifactType, &t.Content)
		t.Pushed, t.LastPull = engine.FromMillis(updated), engine.FromMillis(pulled)
		out, images = append(out, t), append(images, i)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range out {
		if err := c.measureImage(ctx, &images[i]); err != nil {
			return nil, err
		}
		out[i].Size, out[i].Missing = images[i].Size, images[i].Missing
	}
	return out, nil
}

// ManifestUse is what is known about a manifest besides its content.
type ManifestUse struct {
	// Size and Missing are as in TagEntry.
	Size, Missing int64
	// Pushed is when the manifest arrived. LastPull is when it was last pulled, by a tag
	// or by digest.
	Pushed, LastPull time.Time
	// Tags point at the manifest, and Indexes name it. MoreTags and MoreIndexes say that
	// there are others.
	Tags                  []string
	Indexes               []oci.Digest
	MoreTags, MoreIndexes bool
}

// ManifestUse describes a manifest of a repository, with at most n tags and indexes.
// Errors: ErrNotFound.
func (c Store) ManifestUse(ctx context.Context, repo string, d oci.Digest, n int) (ManifestUse, error) {
	var u ManifestUse
	var i Image
	var created, pulled, blob int64
	err := c.db.Row(ctx, `SELECT m.id, m.repo_id, m.blob_id, m.created_at, `+catalog.LastPull+` FROM repositories r
		JOIN blobs b ON b.digest = ? AND b.state = 1
		JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id WHERE r.name = ?`, []any{string(d), repo}, &i.ID, &i.repoID, &blob, &created, &pulled)
	if err != nil {
		return u, err
	}
	u.Pushed, u.LastPull = engine.FromMillis(created), engine.FromMillis(pulled)
	if err := c.measureImage(ctx, &i); err != nil {
		return u, err
	}
	u.Size, u.Missing = i.Size, i.Missing
	if u.Tags, err = c.db.Names(ctx, `SELECT name FROM tags WHERE manifest_id = ? ORDER BY name LIMIT ?`, i.ID, n+1); err != nil {
		return u, err
	}
	indexes, err := c.db.Names(ctx, `SELECT b.digest FROM refs f JOIN manifests m ON m.id = f.manifest_id JOIN blobs b ON b.id = m.blob_id
		WHERE f.repo_id = ? AND f.blob_id = ? ORDER BY b.digest LIMIT ?`, i.repoID, blob, n+1)
	if u.MoreTags = len(u.Tags) > n; u.MoreTags {
		u.Tags = u.Tags[:n]
	}
	if u.MoreIndexes = len(indexes) > n; u.MoreIndexes {
		indexes = indexes[:n]
	}
	for _, name := range indexes {
		u.Indexes = append(u.Indexes, oci.Digest(name))
	}
	return u, err
}
