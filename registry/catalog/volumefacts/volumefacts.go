// Package volumefacts holds what the catalogue knows about images as block volumes: which
// images should become volumes, what was built from them, and which volumes are needed.
package volumefacts

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Store gives access to what the catalogue knows about volumes. All methods may run
// concurrently.
type Store struct{ db *engine.DB }

// New returns the Store of a database.
func New(db *engine.DB) Store { return Store{db} }

// ErrRemoving says that a volume of this name is being removed. It may be created again
// once that is done.
var ErrRemoving = engine.NewVerdict("the volume is being removed")

// Image is an image of a repository that should become volumes, or has become volumes.
type Image struct {
	ID       int64
	Repo     string
	Manifest oci.Digest
	FS       string
	// Asked says that a client itself asked for the volumes. Dropped says that a client
	// does not want them any more.
	Asked, Dropped bool
	// Due is when the image must be built. It is zero if there is nothing to do.
	Due time.Time
	// Attempts is the number of failed attempts since the image was last queued. Failure
	// says why the last one failed.
	Attempts int
	Failure  string
	// Place and Record describe what was built, and are empty before. The catalogue does
	// not know their meaning. Referrer is the manifest that holds the record, if there is
	// one.
	Place    string
	Record   []byte
	Referrer oci.Digest
	// Updated is when the row last changed.
	Updated time.Time
}

// Volume is a volume that an image needs.
type Volume struct {
	Name string
	// Parent is the volume in the same place from which this one was cloned. It may be
	// empty.
	Parent string
}

// Record is what was built from an image.
type Record struct {
	Place    string
	Record   []byte
	Referrer oci.Digest
	// Volumes are all volumes that the image needs from now on.
	Volumes []Volume
}

const volumeImageQuery = `SELECT id, repo, manifest, fs, asked, dropped, due_at, attempts, failure, place, record, referrer, updated_at FROM volume_images v `

// volumeImageHere is a condition that says that the image's repository has its manifest.
const volumeImageHere = `EXISTS (SELECT 1 FROM repositories r JOIN blobs b ON b.digest = v.manifest AND b.state = 1
	JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id WHERE r.name = v.repo)`

func (c Store) volumeImages(ctx context.Context, where string, args ...any) ([]Image, error) {
	var out []Image
	err := c.db.Rows(ctx, volumeImageQuery+where, args, func(r *sql.Rows) error {
		var v Image
		var due, updated int64
		err := r.Scan(&v.ID, &v.Repo, &v.Manifest, &v.FS, &v.Asked, &v.Dropped, &due, &v.Attempts, &v.Failure, &v.Place, &v.Record, &v.Referrer, &updated)
		v.Due, v.Updated = engine.FromMillis(due), engine.FromMillis(updated)
		out = append(out, v)
		return err
	})
	return out, err
}

// Queue asks for volumes of an image of a repository in the given file systems. An image
// that is already built or queued is skipped, unless a client asked for it or it was
// dropped. An image that the repository does not have is skipped too. The change survives
// the end of the process, but perhaps not a power cut, because a push should not wait for
// it.
func (c Store) Queue(ctx context.Context, repo string, manifest oci.Digest, asked bool, fs ...string) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		for _, name := range fs {
			_, err := t.Exec(`INSERT INTO volume_images (repo, manifest, fs, asked, dropped, due_at, attempts, failure, place, record, referrer, updated_at)
				SELECT r.name, b.digest, ?, ?, 0, ?, 0, '', '', ?, '', ? FROM repositories r JOIN blobs b ON b.digest = ? AND b.state = 1
				JOIN manifests m ON m.repo_id = r.id AND m.blob_id = b.id WHERE r.name = ?
				ON CONFLICT (repo, manifest, fs) DO UPDATE SET due_at = excluded.due_at, attempts = 0, failure = '', dropped = 0, updated_at = excluded.updated_at,
					asked = CASE WHEN excluded.asked > volume_images.asked THEN excluded.asked ELSE volume_images.asked END
				WHERE excluded.asked = 1 OR volume_images.dropped = 1`, name, asked, t.Now(), []byte{}, t.Now(), string(manifest), repo)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Image returns an image by its id. Errors: engine.ErrNotFound.
func (c Store) Image(ctx context.Context, id int64) (Image, error) {
	list, err := c.volumeImages(ctx, `WHERE id = ?`, id)
	if err == nil && len(list) == 0 {
		err = engine.ErrNotFound
	}
	if err != nil {
		return Image{}, err
	}
	return list[0], nil
}

// ImagesOf returns an image of a repository, once for each file system.
func (c Store) ImagesOf(ctx context.Context, repo string, manifest oci.Digest) ([]Image, error) {
	return c.volumeImages(ctx, `WHERE repo = ? AND manifest = ? ORDER BY fs`, repo, string(manifest))
}

// Images returns at most n images with ids greater than after, ordered by id. They are
// images of repo, or of all repositories if repo is "".
func (c Store) Images(ctx context.Context, repo string, after int64, n int) ([]Image, error) {
	if repo == "" {
		return c.volumeImages(ctx, `WHERE id > ? ORDER BY id LIMIT ?`, after, n)
	}
	return c.volumeImages(ctx, `WHERE repo = ? AND id > ? ORDER BY id LIMIT ?`, repo, after, n)
}

// Due returns at most n images that must be built now. The image that has waited longest
// comes first.
func (c Store) Due(ctx context.Context, n int) ([]Image, error) {
	return c.volumeImages(ctx, `WHERE due_at > 0 AND due_at <= ? AND dropped = 0 ORDER BY due_at, id LIMIT ?`, c.db.Millis(), n)
}

// Failed returns at most n images that could not be built.
func (c Store) Failed(ctx context.Context, n int) ([]Image, error) {
	return c.volumeImages(ctx, `WHERE attempts > 0 AND dropped = 0 ORDER BY repo, manifest, fs LIMIT ?`, n)
}

// LostImages returns at most n images with ids greater than after. They were dropped, or
// their repositories do not have the manifests any more.
func (c Store) LostImages(ctx context.Context, after int64, n int) ([]Image, error) {
	return c.volumeImages(engine.Whole(ctx), `WHERE id > ? AND (dropped = 1 OR NOT `+volumeImageHere+`) ORDER BY id LIMIT ?`, after, n)
}

// Defer postpones the building of an image. If failure is set, that counts as a failed
// attempt. Defer does nothing if the image need not be built any more.
func (c Store) Defer(ctx context.Context, id int64, failure string, until time.Time) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		query, args := `UPDATE volume_images SET due_at = ?, updated_at = ? WHERE id = ? AND due_at > 0`, []any{until.UnixMilli(), t.Now(), id}
		if failure != "" {
			query, args = `UPDATE volume_images SET due_at = ?, updated_at = ?, attempts = attempts + 1, failure = ? WHERE id = ? AND due_at > 0`,
				[]any{until.UnixMilli(), t.Now(), failure, id}
		}
		_, err := t.Exec(query, args...)
		return err
	})
}

// Intend records that the volumes of an image are about to be created in a place. So the
// volumes that a crash leaves behind are known. Errors: engine.ErrNotFound if the image
// is no longer wanted, ErrRemoving.
func (c Store) Intend(ctx context.Context, id int64, place string, volumes []Volume) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if err := wantsVolumes(t, id); err != nil {
			return err
		}
		_, err := useVolumes(t, id, place, volumes)
		return err
	})
}

// wantsVolumes returns engine.ErrNotFound if an image should no longer become volumes.
func wantsVolumes(t *engine.Tx, id int64) error {
	var one int64
	return t.Row(`SELECT 1 FROM volume_images v WHERE id = ? AND dropped = 0 AND `+volumeImageHere, []any{id}, &one)
}

// useVolumes records that an image needs volumes, and returns the ids of the volumes.
func useVolumes(t *engine.Tx, image int64, place string, volumes []Volume) (map[int64]bool, error) {
	ids := make(map[int64]bool, len(volumes))
	for _, v := range volumes {
		if _, err := t.Exec(`INSERT INTO volumes (place, name, parent, state, due_at) VALUES (?, ?, ?, 1, 0) ON CONFLICT (place, name) DO NOTHING`,
			place, v.Name, v.Parent); err != nil {
			return nil, err
		}
		var id int64
		var state int
		if err := t.Row(`SELECT id, state FROM volumes WHERE place = ? AND name = ?`, []any{place, v.Name}, &id, &state); err != nil {
			return nil, err
		}
		if state != 1 {
			return nil, ErrRemoving
		}
		if _, err := t.Exec(`INSERT INTO volume_uses (volume_id, image_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, id, image); err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, nil
}

// Record records what was built from an image. Errors: engine.ErrNotFound if the image is
// no longer wanted.
func (c Store) Record(ctx context.Context, id int64, rec Record) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		if err := wantsVolumes(t, id); err != nil {
			return err
		}
		used, err := useVolumes(t, id, rec.Place, rec.Volumes)
		if err != nil {
			return err
		}
		if err := releaseVolumes(t, id, used, t.Due()); err != nil {
			return err
		}
		_, err = t.Exec(`UPDATE volume_images SET due_at = 0, attempts = 0, failure = '', place = ?, record = ?, referrer = ?, updated_at = ? WHERE id = ?`,
			rec.Place, append([]byte{}, rec.Record...), string(rec.Referrer), t.Now(), id)
		return err
	})
}

// releaseVolumes ends an image's use of all volumes, except the volumes whose ids are in
// but. If no image uses a volume then, it may be removed once the time due has come.
func releaseVolumes(t *engine.Tx, image int64, but map[int64]bool, due int64) error {
	ids, err := t.IDs(`SELECT volume_id FROM volume_uses WHERE image_id = ?`, image)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if but[id] {
			continue
		}
		if _, err := t.Exec(`DELETE FROM volume_uses WHERE volume_id = ? AND image_id = ?`, id, image); err != nil {
			return err
		}
		if _, err := t.Exec(`UPDATE volumes SET due_at = ? WHERE id = ?`, due, id); err != nil {
			return err
		}
	}
	return nil
}

// Drop records that an image of a repository is no longer wanted as volumes, in one file
// system or in all if fs is "". It returns how many entries it dropped.
func (c Store) Drop(ctx context.Context, repo string, manifest oci.Digest, fs string) (n int64, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		n, err = t.Exec(`UPDATE volume_images SET dropped = 1, due_at = 0, updated_at = ? WHERE repo = ? AND manifest = ? AND dropped = 0 AND (? = '' OR fs = ?)`,
			t.Now(), repo, string(manifest), fs, fs)
		return err
	})
	return n, err
}

// DropUnasked is like Drop, for an image that no client itself asked for.
func (c Store) DropUnasked(ctx context.Context, id int64) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE volume_images SET dropped = 1, due_at = 0, updated_at = ? WHERE id = ? AND asked = 0`, t.Now(), id)
		return err
	})
}

// ForgetImage forgets an image that LostImages returned. Its volumes may be removed a
// grace period later. If the image is wanted again meanwhile, ForgetImage returns false,
// and the image must be built again, because what was stored beside it is gone.
func (c Store) ForgetImage(ctx context.Context, id int64) (gone bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		err := wantsVolumes(t, id)
		if gone = errors.Is(err, engine.ErrNotFound); !gone {
			if err == nil {
				_, err = t.Exec(`UPDATE volume_images SET due_at = ? WHERE id = ?`, t.Now(), id)
			}
			return err
		}
		if err := releaseVolumes(t, id, nil, t.Due()); err != nil {
			return err
		}
		_, err = t.Exec(`DELETE FROM volume_images WHERE id = ?`, id)
		return err
	})
	return gone, err
}

// ReferrerUsed reports whether an image has a manifest as its referrer. but is the id of
// an image that does not count.
func (c Store) ReferrerUsed(ctx context.Context, repo string, referrer oci.Digest, but int64) (used bool, err error) {
	err = c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM volume_images WHERE repo = ? AND referrer = ? AND id <> ?)`, []any{repo, string(referrer), but}, &used)
	return used, err
}

// Removing returns at most n volumes of a place that must be removed now. Then they must
// be passed to Forget or Keep. No image needs them, and none is the parent of another
// volume. If now is set, the result includes volumes that are not due yet.
func (c Store) Removing(ctx context.Context, place string, now bool, n int) ([]string, error) {
	// A commit that was refused may have left the images there.
	if err := c.db.Settled(ctx); err != nil {
		return nil, err
	}
	const unused = `FROM volumes v WHERE v.place = ? AND v.state = 1 AND v.due_at <= ? AND NOT EXISTS (SELECT 1 FROM volume_uses u WHERE u.volume_id = v.id)
		AND NOT EXISTS (SELECT 1 FROM volumes k WHERE k.place = v.place AND k.parent = v.name)`
	before := c.db.Millis()
	if now {
		before = maxMillis
	}
	var due bool
	err := c.db.Row(engine.Whole(ctx), `SELECT EXISTS (SELECT 1 `+unused+`)`, []any{place, before}, &due)
	if err == nil && due {
		err = c.db.Write(ctx, func(t *engine.Tx) error {
			ids, err := t.IDs(`SELECT v.id `+unused+` ORDER BY v.id LIMIT ?`, place, before, n)
			if err != nil {
				return err
			}
			return t.ByIDs(`UPDATE volumes SET state = 2 WHERE id IN (%s)`, nil, ids)
		})
	}
	if err != nil {
		return nil, err
	}
	return c.db.Names(ctx, `SELECT name FROM volumes WHERE place = ? AND state = 2 ORDER BY id LIMIT ?`, place, n)
}

// maxMillis is later than any real time. It is in the year 10889.
const maxMillis = 1 << 48

// Forget drops the rows of removed volumes.
func (c Store) Forget(ctx context.Context, place string, names ...string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		for _, name := range names {
			if _, err := t.Exec(`DELETE FROM volumes WHERE place = ? AND name = ? AND state = 2`, place, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// Keep records that a volume cannot be removed before a time. The volume may be used
// again meanwhile.
func (c Store) Keep(ctx context.Context, place, name string, until time.Time) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE volumes SET state = 1, due_at = ? WHERE place = ? AND name = ? AND state = 2`, until.UnixMilli(), place, name)
		return err
	})
}

// Counts counts the images that should be volumes, and the volumes.
type Counts struct {
	// Built counts the built images, Waiting counts the images that wait for their first
	// attempt, and Failed counts the images that have failed.
	Built, Waiting, Failed int64
	// Volumes counts the volumes of the given place. Unused counts the ones among them
	// that no image needs. Elsewhere counts the volumes of other places.
	Volumes, Unused, Elsewhere int64
}

// Counts counts images and volumes. place is the place of the volumes.
func (c Store) Counts(ctx context.Context, place string) (Counts, error) {
	var n Counts
	err := c.db.Row(engine.Whole(ctx), `SELECT COALESCE(SUM(CASE WHEN place <> '' THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN due_at > 0 AND attempts = 0 THEN 1 ELSE 0 END), 0),
		COALESCE(SUM(CASE WHEN attempts > 0 THEN 1 ELSE 0 END), 0) FROM volume_images WHERE dropped = 0`, nil, &n.Built, &n.Waiting, &n.Failed)
	if err == nil {
		err = c.db.Row(engine.Whole(ctx), `SELECT COALESCE(SUM(CASE WHEN place = ? THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN place <> ? THEN 1 ELSE 0 END), 0),
			COALESCE(SUM(CASE WHEN place = ? AND NOT EXISTS (SELECT 1 FROM volume_uses u WHERE u.volume_id = v.id) THEN 1 ELSE 0 END), 0) FROM volumes v`,
			[]any{place, place, place}, &n.Volumes, &n.Elsewhere, &n.Unused)
	}
	return n, err
}
