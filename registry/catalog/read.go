package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// States of a blob row; see the schema.
const (
	StateAbsent   = 0
	StateLive     = 1
	StateDropped  = 2 // to be deleted from the store
	StateDeleting = 3 // being deleted right now; see BeginDeleting
)

// Blob returns a blob that is visible in a repository. It does not return manifests,
// which are not served as blobs. Errors: ErrNotFound.
func (c *Catalog) Blob(ctx context.Context, repo string, d oci.Digest) (Blob, error) {
	b := Blob{Digest: d}
	err := c.DB.Row(ctx, `SELECT b.size, b.content, b.suspect <> 0 FROM repositories r
		JOIN blobs b ON b.digest = ? AND b.state = 1
		JOIN links l ON l.repo_id = r.id AND l.blob_id = b.id
		WHERE r.name = ?`, []any{string(d), repo}, &b.Size, &b.Content, &b.Suspect)
	return b.filled(), err
}

// filled gives an empty blob its content, because databases do not distinguish an empty
// value from none.
func (b Blob) filled() Blob {
	if b.Size == 0 && b.Content == nil {
		b.Content = []byte{}
	}
	return b
}

// StoredBlob returns a content that is stored, in whichever repository. Errors:
// ErrNotFound.
func (c *Catalog) StoredBlob(ctx context.Context, d oci.Digest) (Blob, error) {
	b := Blob{Digest: d}
	err := c.DB.Row(ctx, `SELECT size, content, suspect <> 0 FROM blobs WHERE digest = ? AND state = 1`,
		[]any{string(d)}, &b.Size, &b.Content, &b.Suspect)
	return b.filled(), err
}

const manifestColumns = `b.digest, m.media_type, m.artifact_type, COALESCE(m.subject, ''), COALESCE(m.annotations, ''), b.content`

func scanManifest(scan func(...any) error) (Manifest, error) {
	var m Manifest
	var annotations string
	if err := scan(&m.Digest, &m.MediaType, &m.ArtifactType, &m.Subject, &annotations, &m.Content); err != nil {
		return m, err
	}
	if annotations != "" {
		if err := json.Unmarshal([]byte(annotations), &m.Annotations); err != nil {
			return m, fmt.Errorf("annotations of manifest %s: %w", m.Digest, err)
		}
	}
	return m, nil
}

// Manifest returns a manifest of a repository by digest. Errors: ErrNotFound.
func (c *Catalog) Manifest(ctx context.Context, repo string, d oci.Digest) (Manifest, error) {
	return scanManifest(func(dest ...any) error {
		return c.DB.Row(ctx, `SELECT `+manifestColumns+` FROM repositories r
			JOIN blobs b ON b.digest = ? AND b.state = 1
			JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id
			WHERE r.name = ?`, []any{string(d), repo}, dest...)
	})
}

// Tag returns the manifest that a tag points at. Errors: ErrNotFound.
func (c *Catalog) Tag(ctx context.Context, repo, tag string) (Manifest, error) {
	return scanManifest(func(dest ...any) error {
		return c.DB.Row(ctx, `SELECT `+manifestColumns+` FROM repositories r
			JOIN tags t ON t.repo_id = r.id AND t.name = ?
			JOIN manifests m ON m.id = t.manifest_id
			JOIN blobs b ON b.id = m.blob_id AND b.state = 1
			WHERE r.name = ?`, []any{tag, repo}, dest...)
	})
}

// Repositories lists, in byte order, at most n names of repositories that come after the
// name last.
func (c *Catalog) Repositories(ctx context.Context, last string, n int) ([]string, error) {
	return c.DB.Names(ctx, `SELECT name FROM repositories WHERE name > ? ORDER BY name LIMIT ?`, last, n)
}

// Listed lists names as Repositories does, but only of repositories with a manifest. A
// repository that was deleted, or whose first push has not ended, has none.
func (c *Catalog) Listed(ctx context.Context, last string, n int) ([]string, error) {
	return c.DB.Names(ctx, `SELECT name FROM repositories r WHERE name > ? AND EXISTS (SELECT 1 FROM manifests WHERE repo_id = r.id)
		ORDER BY name LIMIT ?`, last, n)
}

// RepositoryID returns the id of a repository's row. Errors: ErrNoRepository.
func RepositoryID(ctx context.Context, db *engine.DB, repo string) (id int64, err error) {
	err = db.Row(ctx, `SELECT id FROM repositories WHERE name = ?`, []any{repo}, &id)
	if err == ErrNotFound {
		err = ErrNoRepository
	}
	return id, err
}

// Tags lists, in byte order, at most n tags of a repository that come after the tag last.
// Errors: ErrNoRepository.
func (c *Catalog) Tags(ctx context.Context, repo, last string, n int) ([]string, error) {
	id, err := RepositoryID(ctx, c.DB, repo)
	if err != nil {
		return nil, err
	}
	return c.DB.Names(ctx, `SELECT name FROM tags WHERE repo_id = ? AND name > ? ORDER BY name LIMIT ?`, id, last, n)
}

// Limits of what Referrers returns.
const (
	// MaxReferrersBytes is roughly the maximum number of bytes of artifact types and
	// annotations in a page. A single manifest may exceed it.
	MaxReferrersBytes = 4 << 20
	// MaxListedAnnotations is the maximum number of bytes of JSON of a manifest's
	// annotations that are listed. Larger annotations are left out.
	MaxListedAnnotations = 64 << 10
)

// Referrers lists manifests of a repository whose subject is d, ordered by digest. It
// lists at most n of them, with digests greater than the digest last. If artifactType is
// not "", it lists only manifests of that type. more reports whether some remain. A page
// ends early at MaxReferrersBytes. The list does not include the manifests' content.
func (c *Catalog) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) (list []oci.Descriptor, more bool, err error) {
	// This query reads only small columns, because SQLite would carry the annotations
	// through the sort. CROSS JOIN keeps SQLite from walking all blobs in the order of
	// their digests.
	var total int64
	err = c.DB.Rows(ctx, `SELECT b.digest, b.size, m.media_type, octet_length(m.artifact_type),
		CASE WHEN octet_length(m.annotations) <= ? THEN octet_length(m.annotations) ELSE 0 END
		FROM repositories r
		CROSS JOIN manifests m ON m.repo_id = r.id AND m.subject = ?
		CROSS JOIN blobs b ON b.id = m.blob_id AND b.state = 1
		WHERE r.name = ? AND (? = '' OR m.artifact_type = ?) AND b.digest > ? ORDER BY b.digest LIMIT ?`,
		[]any{MaxListedAnnotations, string(d), repo, artifactType, artifactType, last, n + 1}, func(r *sql.Rows) error {
			var e oci.Descriptor
			var typeBytes, annotationBytes int64
			if err := r.Scan(&e.Digest, &e.Size, &e.MediaType, &typeBytes, &annotationBytes); err != nil {
				return err
			}
			total += typeBytes + annotationBytes
			if more = more || len(list) == n || (len(list) > 0 && total > MaxReferrersBytes); !more {
				list = append(list, e)
			}
			return nil
		})
	if err != nil || len(list) == 0 {
		return nil, false, err
	}
	return list, more, c.describe(ctx, repo, d, artifactType, last, list)
}

// describe fills in the artifact types and annotations of a page of referrers, which
// begins after the digest last.
func (c *Catalog) describe(ctx context.Context, repo string, d oci.Digest, artifactType, last string, list []oci.Descriptor) error {
	at := make(map[oci.Digest]*oci.Descriptor, len(list))
	for i := range list {
		at[list[i].Digest] = &list[i]
	}
	return c.DB.Rows(ctx, `SELECT b.digest, m.artifact_type,
		CASE WHEN octet_length(m.annotations) <= ? THEN m.annotations ELSE '' END
		FROM repositories r
		CROSS JOIN manifests m ON m.repo_id = r.id AND m.subject = ?
		CROSS JOIN blobs b ON b.id = m.blob_id
		WHERE r.name = ? AND (? = '' OR m.artifact_type = ?) AND b.digest > ? AND b.digest <= ?`,
		[]any{MaxListedAnnotations, string(d), repo, artifactType, artifactType, last, string(list[len(list)-1].Digest)}, func(r *sql.Rows) error {
			var digest oci.Digest
			var artifactType, annotations string
			if err := r.Scan(&digest, &artifactType, &annotations); err != nil {
				return err
			}
			e := at[digest]
			if e == nil { // pushed since
				return nil
			}
			e.ArtifactType = artifactType
			if annotations == "" {
				return nil
			}
			if err := json.Unmarshal([]byte(annotations), &e.Annotations); err != nil {
				return fmt.Errorf("annotations of manifest %s: %w", digest, err)
			}
			return nil
		})
}

// TagInfo is a tag with the facts that retention rules need.
type TagInfo struct {
	Name     string
	Digest   oci.Digest
	Updated  time.Time
	LastPull time.Time // zero: never
}

// Counts holds the sizes of the catalogue's tables, for metrics and reports.
type Counts struct {
	Repositories, Blobs, Manifests, Tags, Links, Uploads, GCQueue int64
	// Bytes is the sum of the sizes of all stored contents.
	Bytes int64
}

// Counts counts everything. It reads whole tables, which takes seconds for millions of
// rows.
func (c *Catalog) Counts(ctx context.Context) (Counts, error) {
	var n Counts
	err := c.DB.Row(engine.Whole(ctx), `SELECT (SELECT COUNT(*) FROM repositories), (SELECT COUNT(*) FROM blobs WHERE state = 1),
		(SELECT COUNT(*) FROM manifests), (SELECT COUNT(*) FROM tags), (SELECT COUNT(*) FROM links),
		(SELECT COUNT(*) FROM uploads), (SELECT COUNT(*) FROM gc_queue), (SELECT COALESCE(SUM(size), 0) FROM blobs WHERE state = 1)`,
		nil, &n.Repositories, &n.Blobs, &n.Manifests, &n.Tags, &n.Links, &n.Uploads, &n.GCQueue, &n.Bytes)
	return n, err
}

// Ping returns an error if the catalogue cannot be read.
func (c *Catalog) Ping(ctx context.Context) error {
	var n int
	return c.DB.Row(ctx, `SELECT COUNT(*) FROM (SELECT id FROM repositories LIMIT 1) AS one`, nil, &n)
}

// Stored returns those of the digests that are stored, each once. If the bytes of a
// content are in the catalogue, it returns the bytes too.
func (c *Catalog) Stored(ctx context.Context, digests []oci.Digest) ([]Blob, error) {
	known := make(map[oci.Digest]bool, len(digests)) // InParts repeats the last element of a part
	var list []Blob
	err := engine.InParts(digests, func(part []oci.Digest) error {
		args := make([]any, len(part))
		for i, d := range part {
			args[i] = string(d)
		}
		query := `SELECT digest, size, content, suspect <> 0 FROM blobs WHERE digest IN (` + engine.Marks("?", len(part)) + `) AND state = 1`
		return c.DB.Rows(ctx, query, args, func(r *sql.Rows) error {
			var b Blob
			if err := r.Scan(&b.Digest, &b.Size, &b.Content, &b.Suspect); err != nil {
				return err
			}
			if !known[b.Digest] {
				known[b.Digest] = true
				list = append(list, b.filled())
			}
			return nil
		})
	})
	return list, err
}
