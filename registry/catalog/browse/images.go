package browse

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// ImageQuery says which images to list.
type ImageQuery struct {
	// Prefix is a prefix of the names of the repositories.
	Prefix string
	// Only, if not nil, reports whether to list the images of a repository. A page has
	// only such images.
	Only func(repo string) bool
	// AfterRepo and AfterID identify the last image of the previous page. With LeastUsed,
	// AfterUsed and AfterID identify it.
	AfterRepo string
	AfterID   int64
	AfterUsed time.Time
	// Limit of the page.
	Limit int
	// LeastUsed orders by last use. Otherwise images are ordered by repository, and
	// within a repository by arrival.
	LeastUsed bool
	// UsedBefore, unless zero, selects images that were last used before that time.
	UsedBefore time.Time
}

// Image is a manifest that is not only a part of another image. Either it has a tag, or
// no index of its repository names it and it does not refer to a manifest that is there.
type Image struct {
	ID        int64
	Repo      string
	Digest    oci.Digest
	MediaType string
	// Tags in byte order.
	Tags []string
	// Size is the size in bytes of the manifests, configs and layers that the image's
	// repository has of it, each counted once. Missing is the number of contents that the
	// image names and that are not there.
	Size, Missing int64
	// Created is when the manifest arrived.
	Created time.Time
	// LastPull is when the image was last pulled, or zero if never. Used is the later one
	// of Created and LastPull.
	LastPull, Used time.Time

	repoID int64
}

// Images lists images. With LeastUsed, the cost of a page grows with the number of images
// in repositories with the prefix.
func (c Store) Images(ctx context.Context, q ImageQuery) ([]Image, error) {
	from, to := prefixRange(q.Prefix)
	after, order := `(r.name, m.id) > (?, ?)`, `name, id`
	args := []any{max(from, q.AfterRepo), to, q.AfterRepo, q.AfterID}
	if q.LeastUsed {
		after, order = `(`+catalog.LastUse+`, m.id) > (?, ?)`, `used, id`
		args = []any{from, to, engine.ToMillis(q.AfterUsed), q.AfterID}
		ctx = engine.Whole(ctx)
	}
	if !q.UsedBefore.IsZero() {
		after += ` AND ` + catalog.LastUse + ` < ?`
		args = append(args, q.UsedBefore.UnixMilli())
	}
	limit := int64(q.Limit)
	if q.Only != nil {
		limit, ctx = math.MaxInt64, engine.Whole(ctx) // other repositories may have most of the images that the query finds
	}
	var out []Image
	err := c.db.Rows(ctx, `SELECT m.id AS id, m.repo_id, r.name AS name, b.digest, m.media_type, m.created_at, `+catalog.LastPull+`, `+catalog.LastUse+` AS used
		FROM repositories r
		CROSS JOIN manifests m ON m.repo_id = r.id
		CROSS JOIN blobs b ON b.id = m.blob_id
		WHERE r.name >= ? AND r.name < ? AND `+after+`
			AND (EXISTS (SELECT 1 FROM tags t WHERE t.manifest_id = m.id)
			OR NOT EXISTS (SELECT 1 FROM refs f WHERE f.repo_id = m.repo_id AND f.blob_id = m.blob_id)
			AND NOT EXISTS (SELECT 1 FROM blobs s JOIN manifests o ON o.repo_id = m.repo_id AND o.blob_id = s.id WHERE s.digest = m.subject))
		ORDER BY `+order+` LIMIT ?`, append(args, limit), func(r *sql.Rows) error {
		if len(out) == q.Limit {
			return engine.ErrEnough
		}
		var i Image
		var created, pulled, used int64
		err := r.Scan(&i.ID, &i.repoID, &i.Repo, &i.Digest, &i.MediaType, &created, &pulled, &used)
		if err == nil && q.Only != nil && !q.Only(i.Repo) {
			return nil
		}
		i.Created, i.LastPull, i.Used = engine.FromMillis(created), engine.FromMillis(pulled), engine.FromMillis(used)
		out = append(out, i)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range out {
		if err := c.describeImage(ctx, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// prefixRange returns the bounds of the names of repositories that begin with a prefix.
// Such names contain no byte greater than 'z'.
func prefixRange(prefix string) (from, to string) { return prefix, prefix + "~" }

// describeImage fills in what the image's own row does not contain.
func (c Store) describeImage(ctx context.Context, i *Image) (err error) {
	if i.Tags, err = c.db.Names(ctx, `SELECT name FROM tags WHERE manifest_id = ? ORDER BY name`, i.ID); err != nil {
		return err
	}
	return c.measureImage(ctx, i)
}

// measureImage fills in the sizes of an image whose ids are set. The query needs CROSS
// JOIN, because SQLite does not know that an image has few parts, and would read the
// whole catalogue for them.
func (c Store) measureImage(ctx context.Context, i *Image) error {
	return c.db.Row(ctx, `WITH RECURSIVE parts(id) AS (SELECT m.id FROM manifests m WHERE m.id = ?
			UNION SELECT c.id FROM parts p CROSS JOIN refs f ON f.manifest_id = p.id CROSS JOIN manifests c ON c.repo_id = f.repo_id AND c.blob_id = f.blob_id),
		named(blob_id) AS (SELECT m.blob_id FROM parts p CROSS JOIN manifests m ON m.id = p.id
			UNION SELECT f.blob_id FROM parts p CROSS JOIN refs f ON f.manifest_id = p.id),
		found(size, here) AS (SELECT b.size, CASE WHEN b.state = 1 AND (EXISTS (SELECT 1 FROM links l WHERE l.repo_id = ? AND l.blob_id = b.id)
			OR EXISTS (SELECT 1 FROM manifests o WHERE o.repo_id = ? AND o.blob_id = b.id)) THEN 1 ELSE 0 END
			FROM named n CROSS JOIN blobs b ON b.id = n.blob_id)
		SELECT COALESCE(SUM(size * here), 0), COALESCE(SUM(1 - here), 0) FROM found`, []any{i.ID, i.repoID, i.repoID}, &i.Size, &i.Missing)
}

// RepositoryUsage is what some repositories contain.
type RepositoryUsage struct {
	Repositories, Manifests int64
	// Bytes is the size of the contents that the repositories show, each counted once.
	// OnlyBytes is the size of those that no other repository shows.
	Bytes, OnlyBytes int64
}

// Usage counts what is in the repositories whose names begin with one of the prefixes. It
// reads all links of these repositories, which takes about a second for 100,000 links.
func (c Store) Usage(ctx context.Context, prefixes ...string) (RepositoryUsage, error) {
	var u RepositoryUsage
	if len(prefixes) == 0 {
		return u, nil
	}
	var args []any
	for _, p := range prefixes {
		from, to := prefixRange(p)
		args = append(args, from, to)
	}
	const elsewhere = `repo_id NOT IN (SELECT id FROM chosen)`
	err := c.db.Row(engine.Whole(ctx), `WITH chosen(id) AS (SELECT id FROM repositories WHERE `+strings.Repeat(`name >= ? AND name < ? OR `, len(prefixes)-1)+`name >= ? AND name < ?),
		shown(blob_id) AS (SELECT l.blob_id FROM chosen r CROSS JOIN links l ON l.repo_id = r.id
			UNION SELECT m.blob_id FROM chosen r CROSS JOIN manifests m ON m.repo_id = r.id)
		SELECT (SELECT COUNT(*) FROM chosen), (SELECT COUNT(*) FROM manifests WHERE repo_id IN (SELECT id FROM chosen)),
			COALESCE(SUM(b.size), 0), COALESCE(SUM(CASE WHEN EXISTS (SELECT 1 FROM links WHERE blob_id = b.id AND `+elsewhere+`)
				OR EXISTS (SELECT 1 FROM manifests WHERE blob_id = b.id AND `+elsewhere+`) THEN 0 ELSE b.size END), 0)
		FROM shown s CROSS JOIN blobs b ON b.id = s.blob_id WHERE b.state = 1`, args, &u.Repositories, &u.Manifests, &u.Bytes, &u.OnlyBytes)
	return u, err
}
