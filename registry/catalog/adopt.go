package catalog

import (
	"context"
	"encoding/json"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// AdoptRow is something that another registry stored. Exactly one of Blob, Manifest and
// Tag is set.
type AdoptRow struct {
	Repo string
	// Blob is a layer or config of the repository. Its object is in the store.
	Blob *Blob
	// Manifest is a manifest of the repository. Named lists everything that it names,
	// whether or not it is there.
	Manifest *Manifest
	Named    []oci.Descriptor
	// Tag is a tag that points at the manifest Target.
	Tag    string
	Target oci.Digest
	// At is when the manifest or tag was pushed.
	At time.Time
}

// Adopted counts what a call of Adopt changed.
type Adopted struct{ Blobs, Manifests, Tags int }

// Adopt records many rows with one commit. Unlike a push it accepts manifests whose
// contents are missing. It records such contents as named, so that they are served once
// they arrive. A row that exists already stays as it is. A tag moves only if it was
// pushed later than the existing tag. A tag must come after its manifest. Adopt skips a
// tag whose manifest is not recorded. Everything is queued for the collector as after a
// push.
func (c *Catalog) Adopt(ctx context.Context, rows []AdoptRow) (n Adopted, err error) {
	err = c.DB.Write(ctx, func(t *engine.Tx) error {
		a := adoption{t: t, now: t.Now(), repos: map[string]int64{}}
		a.due = a.t.Due()
		for i := range rows {
			if err := a.row(&rows[i]); err != nil {
				return err
			}
		}
		n = a.n
		return nil
	})
	return n, err
}

// adoption is one transaction of Adopt.
type adoption struct {
	t        *engine.Tx
	now, due int64
	repos    map[string]int64
	n        Adopted
}

func (a *adoption) row(row *AdoptRow) error {
	repoID, ok := a.repos[row.Repo]
	if !ok {
		var err error
		if repoID, err = Repository(a.t, row.Repo, a.now); err != nil {
			return err
		}
		a.repos[row.Repo] = repoID
	}
	switch {
	case row.Blob != nil:
		return a.blob(repoID, *row.Blob)
	case row.Manifest != nil:
		return a.manifest(repoID, row)
	}
	return a.tag(repoID, row)
}

func (a *adoption) blob(repoID int64, b Blob) error {
	// Nobody has compared the bytes with the digest, so an existing row stays as it is.
	var id int64
	err := a.t.Row(`SELECT id FROM blobs WHERE digest = ? AND state = 1`, []any{string(b.Digest)}, &id)
	if err == ErrNotFound {
		id, err = store(a.t, b, a.now)
	}
	if err != nil {
		return err
	}
	var n int
	if err := a.t.Row(`SELECT COUNT(*) FROM links WHERE repo_id = ? AND blob_id = ?`, []any{repoID, id}, &n); err != nil || n > 0 {
		return err
	}
	a.n.Blobs++
	return Link(a.t, repoID, id, a.now, a.due)
}

func (a *adoption) manifest(repoID int64, row *AdoptRow) error {
	var n int
	err := a.t.Row(`SELECT COUNT(*) FROM manifests m JOIN blobs b ON b.id = m.blob_id AND b.state = 1 WHERE m.repo_id = ? AND b.digest = ?`,
		[]any{repoID, string(row.Manifest.Digest)}, &n)
	if err != nil || n > 0 {
		return err
	}
	var annotations any
	if len(row.Manifest.Annotations) > 0 {
		b, err := json.Marshal(row.Manifest.Annotations)
		if err != nil {
			return err
		}
		annotations = string(b)
	}
	id, blobID, err := insertManifest(a.t, repoID, NewManifest{Manifest: *row.Manifest}, annotations, row.At.UnixMilli())
	if err != nil {
		return err
	}
	a.n.Manifests++
	if err := NameOptional(a.t, repoID, id, row.Named, a.now); err != nil {
		return err
	}
	return Enqueue(a.t, GCManifest, repoID, blobID, a.due)
}

func (a *adoption) tag(repoID int64, row *AdoptRow) error {
	var id int64
	err := a.t.Row(`SELECT m.id FROM manifests m JOIN blobs b ON b.id = m.blob_id WHERE m.repo_id = ? AND b.digest = ?`,
		[]any{repoID, string(row.Target)}, &id)
	if err == ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	var newer int
	at := row.At.UnixMilli()
	err = a.t.Row(`SELECT COUNT(*) FROM tags WHERE repo_id = ? AND name = ? AND (updated_at >= ? OR manifest_id = ?)`,
		[]any{repoID, row.Tag, at, id}, &newer)
	if err != nil || newer > 0 {
		return err
	}
	a.n.Tags++
	_, err = setTag(a.t, newTag{repo: row.Repo, repoID: repoID, manifestID: id, name: row.Tag, digest: row.Target}, at, a.due, Origin{})
	return err
}
