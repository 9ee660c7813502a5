package browse

import (
	"context"
	"database/sql"

	"example.org/slipway/registry/catalog/engine"
)

// RepositorySize is what one repository contains.
type RepositorySize struct {
	Name      string
	Manifests int64
	// Bytes is the size of the contents that the repository shows, each counted once.
	// OnlyBytes is the size of those that no other repository shows. NamedBytes counts a
	// content for each manifest that names it. It is what the repository would take if
	// images shared nothing.
	Bytes, OnlyBytes, NamedBytes int64
}

// RepositorySizes measures, in the order of their names, at most n repositories whose
// names come after the name last. It reads all links of these repositories, which takes
// about a second for 100,000 links.
func (c Store) RepositorySizes(ctx context.Context, last string, n int) ([]RepositorySize, error) {
	var out []RepositorySize
	err := c.db.Rows(engine.Whole(ctx), `WITH chosen(id, name) AS (SELECT id, name FROM repositories WHERE name > ? ORDER BY name LIMIT ?),
		shown(repo_id, blob_id) AS (SELECT l.repo_id, l.blob_id FROM chosen r CROSS JOIN links l ON l.repo_id = r.id
			UNION SELECT m.repo_id, m.blob_id FROM chosen r CROSS JOIN manifests m ON m.repo_id = r.id),
		held(repo_id, bytes, own) AS (SELECT s.repo_id, SUM(b.size), SUM(CASE
				WHEN EXISTS (SELECT 1 FROM links l WHERE l.blob_id = b.id AND l.repo_id <> s.repo_id)
				OR EXISTS (SELECT 1 FROM manifests m WHERE m.blob_id = b.id AND m.repo_id <> s.repo_id) THEN 0 ELSE b.size END)
			FROM shown s CROSS JOIN blobs b ON b.id = s.blob_id WHERE b.state = 1 GROUP BY s.repo_id),
		named(repo_id, bytes) AS (SELECT m.repo_id, SUM(b.size) FROM chosen r CROSS JOIN manifests m ON m.repo_id = r.id
			CROSS JOIN refs f ON f.manifest_id = m.id CROSS JOIN blobs b ON b.id = f.blob_id WHERE b.state = 1 GROUP BY m.repo_id)
		SELECT c.name, (SELECT COUNT(*) FROM manifests m WHERE m.repo_id = c.id), COALESCE(h.bytes, 0), COALESCE(h.own, 0), COALESCE(n.bytes, 0)
		FROM chosen c LEFT JOIN held h ON h.repo_id = c.id LEFT JOIN named n ON n.repo_id = c.id ORDER BY c.name`, []any{last, n}, func(r *sql.Rows) error {
		var s RepositorySize
		err := r.Scan(&s.Name, &s.Manifests, &s.Bytes, &s.OnlyBytes, &s.NamedBytes)
		out = append(out, s)
		return err
	})
	return out, err
}
