package catalog

import (
	"context"
	"database/sql"

	"example.org/slipway/oci"
)

// MarkSuspect records that a read of a stored content failed, or gave other bytes than
// its digest's. Repositories go on showing it, since the next read may succeed, but to
// whoever pushes it, mounts it or names it in a manifest it counts as missing. Pushing
// it or ClearSuspect ends that. marked reports whether the row was changed: it is not
// if the content is suspect already or not stored. What the caller remembers of the
// content is out of date in any case: whoever marked it first may not have dropped it
// yet.
func (c *Catalog) MarkSuspect(ctx context.Context, d oci.Digest) (s Shown, marked bool, err error) {
	err = c.db.write(ctx, func(t *tx) error {
		s, marked = Shown{}, false
		var id int64
		var before bool
		err := t.row(`SELECT id, suspect <> 0 FROM blobs WHERE digest = ? AND state = 1`, []any{string(d)}, &id, &before)
		if err == ErrNotFound {
			return nil
		}
		if err == nil && !before {
			_, err = t.exec(`UPDATE blobs SET suspect = 1 WHERE id = ?`, id)
			marked = true
		}
		if err == nil {
			s, err = t.shown(d, id)
		}
		return err
	})
	return s, marked && err == nil, err
}

// ClearSuspect records that the bytes of a content were read and have its digest.
func (c *Catalog) ClearSuspect(ctx context.Context, d oci.Digest) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`UPDATE blobs SET suspect = 0 WHERE digest = ? AND suspect <> 0`, string(d))
		return err
	})
}

// ObjectTag returns the tag of the object of a content, "" if none is known.
func (c *Catalog) ObjectTag(ctx context.Context, d oci.Digest) (tag string, err error) {
	err = c.db.row(ctx, `SELECT tag FROM blobs WHERE digest = ? AND state = 1`, []any{string(d)}, &tag)
	if err == ErrNotFound {
		err = nil
	}
	return tag, err
}

// SetObjectTag records the tag of the object of a content, whose bytes were just read and
// are right.
func (c *Catalog) SetObjectTag(ctx context.Context, d oci.Digest, tag string) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`UPDATE blobs SET tag = ? WHERE digest = ? AND state = 1 AND content IS NULL`, tag, string(d))
		return err
	})
}

// Stored returns those of the digests that are stored, each once, with the bytes of those
// that are in the catalogue.
func (c *Catalog) Stored(ctx context.Context, digests []oci.Digest) ([]Blob, error) {
	known := make(map[oci.Digest]bool, len(digests)) // parts are filled up with what is in them already
	var list []Blob
	err := inParts(digests, func(part []oci.Digest) error {
		args := make([]any, len(part))
		for i, d := range part {
			args[i] = string(d)
		}
		query := `SELECT digest, size, content, suspect <> 0 FROM blobs WHERE digest IN (` + marks("?", len(part)) + `) AND state = 1`
		return c.db.rows(ctx, query, args, func(r *sql.Rows) error {
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
