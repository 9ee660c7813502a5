package repair

import (
	"context"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// MarkSuspect records that a read of a stored content failed, or returned bytes that do
// not have its digest. Repositories continue to show the content, because the next read
// may succeed. But it counts as missing when a client pushes it, mounts it or names it in
// a manifest. A push of the content or ClearSuspect ends that. marked reports whether the
// row was changed. It is false if the content is suspect already or is not stored. In any
// case the caller must drop what it remembers about the content, because whoever marked
// the content first may not have dropped that yet.
func (c Store) MarkSuspect(ctx context.Context, d oci.Digest) (s Shown, marked bool, err error) {
	err = c.db.Write(ctx, func(t *engine.Tx) error {
		s, marked = Shown{}, false
		var id int64
		var before bool
		err := t.Row(`SELECT id, suspect <> 0 FROM blobs WHERE digest = ? AND state = 1`, []any{string(d)}, &id, &before)
		if err == engine.ErrNotFound {
			return nil
		}
		if err == nil && !before {
			_, err = t.Exec(`UPDATE blobs SET suspect = 1 WHERE id = ?`, id)
			marked = true
		}
		if err == nil {
			s, err = shown(t, d, id)
		}
		return err
	})
	return s, marked && err == nil, err
}

// ClearSuspect records that the bytes of a content were read and have its digest.
func (c Store) ClearSuspect(ctx context.Context, d oci.Digest) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE blobs SET suspect = 0 WHERE digest = ? AND suspect <> 0`, string(d))
		return err
	})
}

// ObjectTag returns the tag of a content's object, or "" if none is known.
func (c Store) ObjectTag(ctx context.Context, d oci.Digest) (tag string, err error) {
	err = c.db.Row(ctx, `SELECT tag FROM blobs WHERE digest = ? AND state = 1`, []any{string(d)}, &tag)
	if err == engine.ErrNotFound {
		err = nil
	}
	return tag, err
}

// SetObjectTag records the tag of a content's object, whose bytes were just read and are
// right.
func (c Store) SetObjectTag(ctx context.Context, d oci.Digest, tag string) error {
	return c.db.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`UPDATE blobs SET tag = ? WHERE digest = ? AND state = 1 AND content IS NULL`, tag, string(d))
		return err
	})
}
