// Package browse lists and measures what the catalogue has, for people: repositories, tags
// and images with their sizes and the times of their use.
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

// Store lists what a catalogue has. All methods may run concurrently.
type Store struct{ db *engine.DB }

// New returns the Store of a database.
func New(db *engine.DB) Store { return Store{db} }

// SearchRepositories lists at most n repository names behind last that hold a text, in
// whichever case, in byte order. An empty text is in all.
func (c Store) SearchRepositories(ctx context.Context, text, last string, n int) ([]string, error) {
	if text == "" {
		return c.db.Names(ctx, `SELECT name FROM repositories WHERE name > ? ORDER BY name LIMIT ?`, last, n)
	}
	return c.db.Names(ctx, `SELECT name FROM repositories WHERE name > ? AND name LIKE ? ESCAPE '!' ORDER BY name LIMIT ?`, last, holding(text), n)
}

// holding is the pattern of LIKE, with the escape character "!", for what holds a text
// when in lower case.
func holding(text string) string {
	return "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(strings.ToLower(text)) + "%"
}

// RepositoryInfo is what lists of repositories show of one.
type RepositoryInfo struct {
	Tags int64
	// Bytes of the contents it shows, each once, whoever else shows them too.
	Bytes int64
	// Partial says that there is more than was looked at, so all are lower bounds.
	Partial bool
	// Pushed is when a tag was last set or a manifest came, LastPull when one was last
	// pulled; zero: never.
	Pushed, LastPull time.Time
}

// RepositoryInfo describes a repository by at most so many of its tags, of its manifests
// and of its blobs, which bounds the time. Errors: ErrNoRepository.
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
	// Text that the tag holds, in whichever case; empty for all.
	Text string
	// ByName orders by name; else the tag that was set last is the first.
	ByName bool
	// From is how many to leave out, Limit how many to list.
	From, Limit int
}

// maxListedManifest is how many bytes a manifest may have to be listed with a tag.
const maxListedManifest = 256 << 10

// TagEntry is a tag with what it points at.
type TagEntry struct {
	Name                    string
	Digest                  oci.Digest
	MediaType, ArtifactType string
	// Content of the manifest; nil where it has more than 256 KiB.
	Content []byte
	// Size in bytes of all that belongs to it and is here, each content once; Missing
	// contents are not here.
	Size, Missing    int64
	Pushed, LastPull time.Time
}

// ListTags lists tags of a repository. It looks at all of them. Errors: ErrNoRepository.
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

// ManifestUse is what is known of a manifest beside its content.
type ManifestUse struct {
	// Size and Missing are as those of TagEntry.
	Size, Missing int64
	// Pushed is when it came, LastPull when it was pulled, by a tag or without.
	Pushed, LastPull time.Time
	// Tags that point at it, and Indexes that name it; MoreTags and MoreIndexes tell that
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
