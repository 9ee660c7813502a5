package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Usage is what a set of repositories holds.
type Usage struct {
	// Bytes counts each content once, however many of the repositories show it: blobs,
	// manifests, files of which only the index is a blob, and what uploads have sent so far.
	Bytes int64
	Tags  int64
}

// Usage returns what each of n sets of repositories holds. The function named in returns
// the sets that contain a repository, as numbers below n. It reads the whole catalogue
// once, in the order of contents, and needs memory only for the names of the
// repositories.
func (c *Catalog) Usage(ctx context.Context, n int, in func(repo string) []int) ([]Usage, error) {
	ctx = engine.Whole(ctx)
	out := make([]Usage, n)
	sets := map[int64][]int{}
	err := c.DB.Rows(ctx, `SELECT id, name FROM repositories`, nil, func(r *sql.Rows) error {
		var id int64
		var name string
		err := r.Scan(&id, &name)
		if list := in(name); len(list) > 0 {
			sets[id] = list
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, query := range []string{
		`SELECT x.repo_id, x.blob_id, b.size FROM (SELECT repo_id, blob_id FROM links UNION ALL SELECT repo_id, blob_id FROM manifests) x
			JOIN blobs b ON b.id = x.blob_id ORDER BY x.blob_id`,
		// Files of converted layers do not count, because the layers are blobs.
		`SELECT x.repo_id, x.file_id, f.stored FROM (SELECT repo_id, file_id FROM gear_staged UNION ALL SELECT g.repo_id, lf.file_id FROM gear_layers l
			JOIN gear_grants g ON g.layer_id = l.id JOIN gear_layer_files lf ON lf.layer_id = l.id WHERE l.embedded = 1) x
			JOIN gear_files f ON f.id = x.file_id WHERE NOT EXISTS (SELECT 1 FROM gear_layer_files o JOIN gear_layers c ON c.id = o.layer_id
			WHERE o.file_id = x.file_id AND c.embedded = 0 AND c.digest IS NOT NULL) ORDER BY x.file_id`,
	} {
		last := make([]int64, n) // the content that was counted last in each set
		err = c.DB.Rows(ctx, query, nil, func(r *sql.Rows) error {
			var repo, content, size int64
			err := r.Scan(&repo, &content, &size)
			for _, i := range sets[repo] {
				if last[i] != content {
					last[i] = content
					out[i].Bytes += size
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	err = c.DB.Rows(ctx, `SELECT repo_id, COUNT(*) FROM tags GROUP BY repo_id`, nil, func(r *sql.Rows) error {
		var repo, tags int64
		err := r.Scan(&repo, &tags)
		for _, i := range sets[repo] {
			out[i].Tags += tags
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = c.DB.Rows(ctx, `SELECT repo, size FROM uploads`, nil, func(r *sql.Rows) error {
		var repo string
		var size int64
		err := r.Scan(&repo, &size)
		for _, i := range in(repo) {
			out[i].Bytes += size
		}
		return err
	})
	return out, err
}

// Holders calls the function each with the names of the repositories that show a content,
// as a blob or as a manifest.
func (c *Catalog) Holders(ctx context.Context, d oci.Digest, each func(repo string)) error {
	names, err := c.DB.Names(ctx, `SELECT r.name FROM repositories r WHERE r.id IN (
		SELECT l.repo_id FROM links l JOIN blobs b ON b.id = l.blob_id WHERE b.digest = ?1
		UNION SELECT m.repo_id FROM manifests m JOIN blobs b ON b.id = m.blob_id WHERE b.digest = ?1)`, string(d))
	for _, name := range names {
		each(name)
	}
	return err
}

// HasTag reports whether a repository has a tag, even if what the tag points at is lost.
func (c *Catalog) HasTag(ctx context.Context, repo, tag string) (has bool, err error) {
	err = c.DB.Row(ctx, `SELECT EXISTS (SELECT 1 FROM repositories r JOIN tags t ON t.repo_id = r.id WHERE r.name = ? AND t.name = ?)`, []any{repo, tag}, &has)
	return has, err
}
