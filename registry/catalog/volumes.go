package catalog

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.org/slipway/oci"
)

// ErrVolumeRemoving: a volume of this name is being removed; it may be made again
// once that is done.
var ErrVolumeRemoving = newVerdict("the volume is being removed")

// VolumeImage is an image of a repository that is to be volumes, or is.
type VolumeImage struct {
	ID       int64
	Repo     string
	Manifest oci.Digest
	FS       string
	// Asked tells that a client asked for it by itself, Dropped that a client wants
	// it no more.
	Asked, Dropped bool
	// Due is when it is to be built; zero: nothing is to be done.
	Due time.Time
	// Attempts that failed since it was asked for, and why the last one did.
	Attempts int
	Failure  string
	// Place and Record of what was built, empty before; the catalogue does not know
	// their meaning. Referrer is the manifest that holds the record, if there is one.
	Place    string
	Record   []byte
	Referrer oci.Digest
	// Updated is when the row changed last.
	Updated time.Time
}

// NewVolume is a volume that an image needs.
type NewVolume struct {
	Name string
	// Parent is the volume of the same place that it is a clone of; may be empty.
	Parent string
}

// VolumeRecord is what was built of an image.
type VolumeRecord struct {
	Place    string
	Record   []byte
	Referrer oci.Digest
	// Volumes that the image needs from now on, and no others.
	Volumes []NewVolume
}

const volumeImageQuery = `SELECT id, repo, manifest, fs, asked, dropped, due_at, attempts, failure, place, record, referrer, updated_at FROM volume_images v `

// volumeImageHere is the condition that the image's repository shows its manifest.
const volumeImageHere = `EXISTS (SELECT 1 FROM repositories r JOIN blobs b ON b.digest = v.manifest AND b.state = 1
	JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id WHERE r.name = v.repo)`

func (c *Catalog) volumeImages(ctx context.Context, where string, args ...any) ([]VolumeImage, error) {
	var out []VolumeImage
	err := c.db.rows(ctx, volumeImageQuery+where, args, func(r *sql.Rows) error {
		var v VolumeImage
		var due, updated int64
		err := r.Scan(&v.ID, &v.Repo, &v.Manifest, &v.FS, &v.Asked, &v.Dropped, &due, &v.Attempts, &v.Failure, &v.Place, &v.Record, &v.Referrer, &updated)
		v.Due, v.Updated = fromMillis(due), fromMillis(updated)
		out = append(out, v)
		return err
	})
	return out, err
}

// QueueVolumes asks for an image of a repository as volumes in file systems. One
// that is built, or asked for already, is passed over unless a client asks for it
// or it was dropped; so is one that the repository does not show. It survives the
// end of the process, but perhaps not a power cut: a push should not wait for it.
func (c *Catalog) QueueVolumes(ctx context.Context, repo string, manifest oci.Digest, asked bool, fs ...string) error {
	return c.db.writeLazy(ctx, func(t *tx) error {
		for _, name := range fs {
			_, err := t.exec(`INSERT INTO volume_images (repo, manifest, fs, asked, dropped, due_at, attempts, failure, place, record, referrer, updated_at)
				SELECT r.name, b.digest, ?, ?, 0, ?, 0, '', '', ?, '', ? FROM repositories r JOIN blobs b ON b.digest = ? AND b.state = 1
				JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id WHERE r.name = ?
				ON CONFLICT (repo, manifest, fs) DO UPDATE SET due_at = excluded.due_at, attempts = 0, failure = '', dropped = 0, updated_at = excluded.updated_at,
					asked = CASE WHEN excluded.asked > volume_images.asked THEN excluded.asked ELSE volume_images.asked END
				WHERE excluded.asked = 1 OR volume_images.dropped = 1`, name, asked, t.now(), []byte{}, t.now(), string(manifest), repo)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// VolumeImage returns an image by its id. Errors: ErrNotFound.
func (c *Catalog) VolumeImage(ctx context.Context, id int64) (VolumeImage, error) {
	list, err := c.volumeImages(ctx, `WHERE id = ?`, id)
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return VolumeImage{}, err
	}
	return list[0], nil
}

// VolumeImagesOf returns an image of a repository in all file systems.
func (c *Catalog) VolumeImagesOf(ctx context.Context, repo string, manifest oci.Digest) ([]VolumeImage, error) {
	return c.volumeImages(ctx, `WHERE repo = ? AND manifest = ? ORDER BY fs`, repo, string(manifest))
}

// VolumeImages returns at most n images whose ids are behind after, in order of id;
// of one repository, or with "" of all.
func (c *Catalog) VolumeImages(ctx context.Context, repo string, after int64, n int) ([]VolumeImage, error) {
	if repo == "" {
		return c.volumeImages(ctx, `WHERE id > ? ORDER BY id LIMIT ?`, after, n)
	}
	return c.volumeImages(ctx, `WHERE repo = ? AND id > ? ORDER BY id LIMIT ?`, repo, after, n)
}

// DueVolumes returns at most n images that are to be built now, those that wait
// longest first.
func (c *Catalog) DueVolumes(ctx context.Context, n int) ([]VolumeImage, error) {
	return c.volumeImages(ctx, `WHERE due_at > 0 AND due_at <= ? AND dropped = 0 ORDER BY due_at, id LIMIT ?`, c.now(), n)
}

// FailedVolumes returns at most n images that could not be built.
func (c *Catalog) FailedVolumes(ctx context.Context, n int) ([]VolumeImage, error) {
	return c.volumeImages(ctx, `WHERE attempts > 0 AND dropped = 0 ORDER BY repo, manifest, fs LIMIT ?`, n)
}

// LostVolumeImages returns at most n images, behind the id after, that were
// dropped, or that their repository does not show any more.
func (c *Catalog) LostVolumeImages(ctx context.Context, after int64, n int) ([]VolumeImage, error) {
	return c.volumeImages(whole(ctx), `WHERE id > ? AND (dropped = 1 OR NOT `+volumeImageHere+`) ORDER BY id LIMIT ?`, after, n)
}

// DeferVolumes puts off the building of an image. With a failure it counts as an
// attempt that failed. What is not to be built any more is left alone.
func (c *Catalog) DeferVolumes(ctx context.Context, id int64, failure string, until time.Time) error {
	return c.db.write(ctx, func(t *tx) error {
		query, args := `UPDATE volume_images SET due_at = ?, updated_at = ? WHERE id = ? AND due_at > 0`, []any{until.UnixMilli(), t.now(), id}
		if failure != "" {
			query, args = `UPDATE volume_images SET due_at = ?, updated_at = ?, attempts = attempts + 1, failure = ? WHERE id = ? AND due_at > 0`,
				[]any{until.UnixMilli(), t.now(), failure, id}
		}
		_, err := t.exec(query, args...)
		return err
	})
}

// IntendVolumes records that the volumes of an image are about to be made at a
// place, so that those that a crash leaves behind are known. Errors: ErrNotFound if
// the image is wanted no more, ErrVolumeRemoving.
func (c *Catalog) IntendVolumes(ctx context.Context, id int64, place string, volumes []NewVolume) error {
	return c.db.write(ctx, func(t *tx) error {
		if err := t.wantsVolumes(id); err != nil {
			return err
		}
		_, err := t.useVolumes(id, place, volumes)
		return err
	})
}

// wantsVolumes tells whether an image is still to be volumes. Errors: ErrNotFound.
func (t *tx) wantsVolumes(id int64) error {
	var one int64
	return t.row(`SELECT 1 FROM volume_images v WHERE id = ? AND dropped = 0 AND `+volumeImageHere, []any{id}, &one)
}

// useVolumes records volumes that an image needs, and returns their ids.
func (t *tx) useVolumes(image int64, place string, volumes []NewVolume) (map[int64]bool, error) {
	ids := make(map[int64]bool, len(volumes))
	for _, v := range volumes {
		if _, err := t.exec(`INSERT INTO volumes (place, name, parent, state, due_at) VALUES (?, ?, ?, 1, 0) ON CONFLICT (place, name) DO NOTHING`,
			place, v.Name, v.Parent); err != nil {
			return nil, err
		}
		var id int64
		var state int
		if err := t.row(`SELECT id, state FROM volumes WHERE place = ? AND name = ?`, []any{place, v.Name}, &id, &state); err != nil {
			return nil, err
		}
		if state != 1 {
			return nil, ErrVolumeRemoving
		}
		if _, err := t.exec(`INSERT INTO volume_uses (volume_id, image_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, id, image); err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, nil
}

// RecordVolumes records what was built of an image. Errors: ErrNotFound if it is
// wanted no more.
func (c *Catalog) RecordVolumes(ctx context.Context, id int64, rec VolumeRecord) error {
	return c.db.write(ctx, func(t *tx) error {
		if err := t.wantsVolumes(id); err != nil {
			return err
		}
		used, err := t.useVolumes(id, rec.Place, rec.Volumes)
		if err != nil {
			return err
		}
		if err := t.releaseVolumes(id, used, t.now()+c.grace.Milliseconds()); err != nil {
			return err
		}
		_, err = t.exec(`UPDATE volume_images SET due_at = 0, attempts = 0, failure = '', place = ?, record = ?, referrer = ?, updated_at = ? WHERE id = ?`,
			rec.Place, append([]byte{}, rec.Record...), string(rec.Referrer), t.now(), id)
		return err
	})
}

// releaseVolumes ends an image's use of all volumes but some. Those that nothing
// uses then may be removed from due on.
func (t *tx) releaseVolumes(image int64, but map[int64]bool, due int64) error {
	ids, err := t.ids(`SELECT volume_id FROM volume_uses WHERE image_id = ?`, image)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if but[id] {
			continue
		}
		if _, err := t.exec(`DELETE FROM volume_uses WHERE volume_id = ? AND image_id = ?`, id, image); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE volumes SET due_at = ? WHERE id = ?`, due, id); err != nil {
			return err
		}
	}
	return nil
}

// DropVolumes says that an image of a repository is not wanted as volumes any more,
// in one file system or with "" in all, and tells how many there were.
func (c *Catalog) DropVolumes(ctx context.Context, repo string, manifest oci.Digest, fs string) (n int64, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		n, err = t.exec(`UPDATE volume_images SET dropped = 1, due_at = 0, updated_at = ? WHERE repo = ? AND manifest = ? AND dropped = 0 AND (? = '' OR fs = ?)`,
			t.now(), repo, string(manifest), fs, fs)
		return err
	})
	return n, err
}

// DropUnasked is DropVolumes of an image that no client has asked for by itself.
func (c *Catalog) DropUnasked(ctx context.Context, id int64) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`UPDATE volume_images SET dropped = 1, due_at = 0, updated_at = ? WHERE id = ? AND asked = 0`, t.now(), id)
		return err
	})
}

// ForgetVolumeImage forgets an image of LostVolumeImages; its volumes may be removed
// a grace period later. One that is wanted again meanwhile is to be built again, as
// what was beside it is gone: false.
func (c *Catalog) ForgetVolumeImage(ctx context.Context, id int64) (gone bool, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		err := t.wantsVolumes(id)
		if gone = errors.Is(err, ErrNotFound); !gone {
			if err == nil {
				_, err = t.exec(`UPDATE volume_images SET due_at = ? WHERE id = ?`, t.now(), id)
			}
			return err
		}
		if err := t.releaseVolumes(id, nil, t.now()+c.grace.Milliseconds()); err != nil {
			return err
		}
		_, err = t.exec(`DELETE FROM volume_images WHERE id = ?`, id)
		return err
	})
	return gone, err
}

// ReferrerUsed tells whether another image than one has a manifest as its referrer.
func (c *Catalog) ReferrerUsed(ctx context.Context, repo string, referrer oci.Digest, but int64) (used bool, err error) {
	err = c.db.row(ctx, `SELECT EXISTS (SELECT 1 FROM volume_images WHERE repo = ? AND referrer = ? AND id <> ?)`, []any{repo, string(referrer), but}, &used)
	return used, err
}

// RemovingVolumes returns at most n volumes of a place that are to be removed now,
// and then given to ForgetVolumes or KeepVolume. None of them is needed by an image
// or is the parent of another. With now those are among them, too, that are not due.
func (c *Catalog) RemovingVolumes(ctx context.Context, place string, now bool, n int) ([]string, error) {
	// A commit that was refused may have had the images still there.
	if err := c.db.settled(ctx); err != nil {
		return nil, err
	}
	const unused = `FROM volumes v WHERE v.place = ? AND v.state = 1 AND v.due_at <= ? AND NOT EXISTS (SELECT 1 FROM volume_uses u WHERE u.volume_id = v.id)
		AND NOT EXISTS (SELECT 1 FROM volumes k WHERE k.place = v.place AND k.parent = v.name)`
	before := c.now()
	if now {
		before = maxMillis
	}
	var due bool
	err := c.db.row(whole(ctx), `SELECT EXISTS (SELECT 1 `+unused+`)`, []any{place, before}, &due)
	if err == nil && due {
		err = c.db.write(ctx, func(t *tx) error {
			ids, err := t.ids(`SELECT v.id `+unused+` ORDER BY v.id LIMIT ?`, place, before, n)
			if err != nil {
				return err
			}
			return t.byIDs(`UPDATE volumes SET state = 2 WHERE id IN (%s)`, nil, ids)
		})
	}
	if err != nil {
		return nil, err
	}
	return c.names(ctx, `SELECT name FROM volumes WHERE place = ? AND state = 2 ORDER BY id LIMIT ?`, place, n)
}

// maxMillis is later than any time: in the year 10889.
const maxMillis = 1 << 48

// ForgetVolumes drops the rows of volumes that are removed.
func (c *Catalog) ForgetVolumes(ctx context.Context, place string, names ...string) error {
	return c.db.write(ctx, func(t *tx) error {
		for _, name := range names {
			if _, err := t.exec(`DELETE FROM volumes WHERE place = ? AND name = ? AND state = 2`, place, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// KeepVolume says that a volume cannot be removed before a time. It may be used
// again meanwhile.
func (c *Catalog) KeepVolume(ctx context.Context, place, name string, until time.Time) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`UPDATE volumes SET state = 1, due_at = ? WHERE place = ? AND name = ? AND state = 2`, until.UnixMilli(), place, name)
		return err
	})
}

// VolumeCounts are sums over the images that are volumes.
type VolumeCounts struct {
	// Built, Waiting for their first attempt, and Failed images.
	Built, Waiting, Failed int64
	// Volumes of the place asked for, of which Unused are needed by no image, and
	// Elsewhere those of other places.
	Volumes, Unused, Elsewhere int64
}

// VolumeCounts counts; a place is that of the volumes.
func (c *Catalog) VolumeCounts(ctx context.Context, place string) (VolumeCounts, error) {
	var n VolumeCounts
	err := c.db.row(whole(ctx), `SELECT COALESCE(SUM(CASE WHEN place <> '' THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN due_at > 0 AND attempts = 0 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN attempts > 0 THEN 1 ELSE 0 END), 0) FROM volume_images WHERE dropped = 0`, nil, &n.Built, &n.Waiting, &n.Failed)
	if err == nil {
		err = c.db.row(whole(ctx), `SELECT COALESCE(SUM(CASE WHEN place = ? THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN place <> ? THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN place = ? AND NOT EXISTS (SELECT 1 FROM volume_uses u WHERE u.volume_id = v.id) THEN 1 ELSE 0 END), 0) FROM volumes v`,
			[]any{place, place, place}, &n.Volumes, &n.Elsewhere, &n.Unused)
	}
	return n, err
}
