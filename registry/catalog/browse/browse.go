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

// Orders of repositories.
const (
	ByName   = "name"
	ByPushed = "pushed" // the one with the newest tag first
	ByPulled = "pulled" // the one that was pulled last first
	ByTags   = "tags"   // the one with the most tags first
)

// SearchRepositories lists at most n names of repositories that contain a text, in the
// given order, and by name among equals. It ignores case. Every name contains the empty
// text. Orders other than ByName read all tags.
func (c Store) SearchRepositories(ctx context.Context, text, order string, n int) ([]string, error) {
	by := map[string]string{ByPushed: "COALESCE(t.pushed, 0)", ByPulled: "COALESCE(t.pulled, 0)", ByTags: "COALESCE(t.n, 0)"}[order]
	if by == "" {
		return c.db.Names(ctx, `SELECT name FROM repositories WHERE name LIKE ? ESCAPE '!' ORDER BY name LIMIT ?`, holding(text), n)
	}
	return c.db.Names(ctx, `SELECT r.name FROM repositories r
		LEFT JOIN (SELECT repo_id, COUNT(*) AS n, MAX(updated_at) AS pushed, MAX(pulled_at) AS pulled FROM tags GROUP BY repo_id) t ON t.repo_id = r.id
		WHERE r.name LIKE ? ESCAPE '!' ORDER BY `+by+` DESC, r.name LIMIT ?`, holding(text), n)
}

// Found is a manifest that a search found.
type Found struct {
	Repo string
	// Tag is the tag that was found, or "" if it was the digest or an annotation.
	Tag    string
	Digest oci.Digest
	// Annotation says that an annotation of the manifest was found.
	Annotation bool
}

const (
	// maxSearchedTags and maxSearchedManifests bound what a search reads. A tag takes
	// some 0.5 us, and a manifest with annotations takes 1 us.
	maxSearchedTags, maxSearchedManifests = 200_000, 100_000
	// minDigest is how many hexadecimal digits of a digest are searched for.
	minDigest = 6
)

// Find lists at most n manifests for which visible reports true: those whose tags or
// annotations contain a text, or whose digests begin with it. It ignores case. In a large
// registry it does not look at everything.
func (c Store) Find(ctx context.Context, text string, n int, visible func(repo string) bool) ([]Found, error) {
	var out []Found
	collect := func(annotation bool) func(*sql.Rows) error {
		return func(r *sql.Rows) error {
			f := Found{Annotation: annotation}
			if err := r.Scan(&f.Repo, &f.Tag, &f.Digest); err != nil {
				return err
			}
			if visible(f.Repo) {
				out = append(out, f)
			}
			if len(out) >= n {
				return engine.ErrEnough
			}
			return nil
		}
	}
	if digits, ok := digestDigits(text); ok {
		err := c.db.Rows(ctx, `SELECT r.name, '', b.digest FROM blobs b JOIN manifests m ON m.blob_id = b.id JOIN repositories r ON r.id = m.repo_id
			WHERE b.digest >= ? AND b.digest < ? ORDER BY b.digest, r.name`, []any{"sha256:" + digits, "sha256:" + digits + "g"}, collect(false))
		return out, err
	}
	err := c.db.Rows(ctx, `SELECT r.name, t.name, b.digest FROM (SELECT repo_id, name, manifest_id FROM tags LIMIT ?) t JOIN repositories r ON r.id = t.repo_id
		JOIN manifests m ON m.id = t.manifest_id JOIN blobs b ON b.id = m.blob_id
		WHERE lower(t.name) LIKE ? ESCAPE '!'`, []any{maxSearchedTags, holding(text)}, collect(false))
	if err != nil || len(out) >= n {
		return out, err
	}
	err = c.db.Rows(ctx, `SELECT r.name, '', b.digest FROM (SELECT repo_id, blob_id, annotations FROM manifests WHERE annotations IS NOT NULL LIMIT ?) m
		JOIN repositories r ON r.id = m.repo_id JOIN blobs b ON b.id = m.blob_id
		WHERE lower(m.annotations) LIKE ? ESCAPE '!'`, []any{maxSearchedManifests, holding(text)}, collect(true))
	return out, err
}

// digestDigits returns the hexadecimal digits with which a digest begins, if a text is the
// beginning of a SHA-256 digest, with or without "sha256:".
func digestDigits(text string) (string, bool) {
	digits, named := strings.CutPrefix(strings.ToLower(text), "sha256:")
	if len(digits) > 64 || !named && len(digits) < 2*minDigest || named && len(digits) < minDigest {
		return "", false
	}
	return digits, strings.Trim(digits, "0123456789abcdef") == ""
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

// RepositoryInfo describes a repository. To bound the time, it examines only a part of
// the repository: the given number of tags, of manifests and of blobs. Errors:
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
	// Images leaves out the tags under which signing tools keep what belongs to an image,
	// such as sha256-….sig.
	Images bool
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
	// Attached are the artifact types of what refers to the manifest, and Hung are the
	// tags that hang on it, see catalog.HungOn. Both may be incomplete.
	Attached, Hung []string
}

// maxAttached is how many types and tags that belong to an image are listed with it.
const maxAttached = 20

// hung is a LIKE pattern for the tags of signing tools: a SHA-256 and what follows it.
var hung = "%sha256-" + strings.Repeat("_", 64) + "%"

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
	but := ""
	args := []any{maxListedManifest, id, holding(q.Text)}
	if q.Images {
		but = ` AND name NOT LIKE ?`
		args = append(args, hung)
	}
	var out []TagEntry
	var images []Image
	err = c.db.Rows(ctx, `SELECT t.name, t.updated_at, t.pulled_at, m.id, b.digest, m.media_type, m.artifact_type,
			CASE WHEN b.size <= ? THEN b.content END
		FROM (SELECT name, updated_at, pulled_at, manifest_id FROM tags t WHERE repo_id = ? AND lower(name) LIKE ? ESCAPE '!'`+but+` ORDER BY `+order+` LIMIT ? OFFSET ?) t
		JOIN manifests m ON m.id = t.manifest_id
		JOIN blobs b ON b.id = m.blob_id ORDER BY `+order, append(args, q.Limit, q.From), func(r *sql.Rows) error {
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
		if err := c.belongings(ctx, id, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// belongings finds what belongs to a manifest.
func (c Store) belongings(ctx context.Context, repoID int64, t *TagEntry) (err error) {
	if t.Attached, err = c.db.Names(ctx, `SELECT DISTINCT CASE WHEN artifact_type = '' THEN media_type ELSE artifact_type END FROM manifests
		WHERE repo_id = ? AND subject = ? LIMIT ?`, repoID, string(t.Digest), maxAttached); err != nil {
		return err
	}
	at := strings.Replace(string(t.Digest), ":", "-", 1)
	t.Hung, err = c.db.Names(ctx, `SELECT name FROM tags WHERE repo_id = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?`, repoID, at, at+"~", maxAttached)
	return err
}

// Untagged is a manifest that no tag and no index names, and that belongs to no other
// manifest.
type Untagged struct {
	Digest                  oci.Digest
	MediaType, ArtifactType string
	// Size is the size of the manifest itself, in bytes.
	Size             int64
	Pushed, LastPull time.Time
}

// ListUntagged lists at most n untagged manifests of a repository, the last one first.
// from is the number of manifests to skip. Errors: ErrNoRepository.
func (c Store) ListUntagged(ctx context.Context, repo string, from, n int) ([]Untagged, error) {
	id, err := catalog.RepositoryID(ctx, c.db, repo)
	if err != nil {
		return nil, err
	}
	var out []Untagged
	err = c.db.Rows(ctx, `SELECT b.digest, m.media_type, m.artifact_type, b.size, m.created_at, m.pulled_at FROM manifests m CROSS JOIN blobs b ON b.id = m.blob_id
		WHERE m.repo_id = ? AND NOT EXISTS (SELECT 1 FROM tags t WHERE t.manifest_id = m.id)
			AND NOT EXISTS (SELECT 1 FROM refs f WHERE f.repo_id = m.repo_id AND f.blob_id = m.blob_id)
			AND NOT EXISTS (SELECT 1 FROM blobs s JOIN manifests o ON o.repo_id = m.repo_id AND o.blob_id = s.id WHERE s.digest = m.subject)
		ORDER BY m.id DESC LIMIT ? OFFSET ?`, []any{id, n, from}, func(r *sql.Rows) error {
		var u Untagged
		var pushed, pulled int64
		err := r.Scan(&u.Digest, &u.MediaType, &u.ArtifactType, &u.Size, &pushed, &pulled)
		u.Pushed, u.LastPull = engine.FromMillis(pushed), engine.FromMillis(pulled)
		out = append(out, u)
		return err
	})
	return out, err
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
