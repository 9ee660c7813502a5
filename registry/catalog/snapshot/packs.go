package snapshot

import (
	"context"
	"database/sql"
)

// PackObject is a pack of Gear files in the object store.
type PackObject struct {
	ID     int64
	Digest [32]byte
	// Size is the size of the object in bytes.
	Size int64
}

// hasGear reports whether the snapshot has the Gear part. Snapshots of the first version
// do not have it.
func (s *Snapshot) hasGear(ctx context.Context) (has bool, err error) {
	err = s.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'gear_packs')`, nil, &has)
	return has, err
}

// Packs returns at most n packs in use with ids greater than after, ordered by id.
func (s *Snapshot) Packs(ctx context.Context, after int64, n int) ([]PackObject, error) {
	if has, err := s.hasGear(ctx); err != nil || !has {
		return nil, err
	}
	var out []PackObject
	err := s.db.Rows(ctx, `SELECT id, digest, size FROM gear_packs WHERE state = 1 AND id > ? ORDER BY id LIMIT ?`, []any{after, n}, func(r *sql.Rows) error {
		var p PackObject
		var digest sql.RawBytes
		err := r.Scan(&p.ID, &digest, &p.Size)
		copy(p.Digest[:], digest)
		out = append(out, p)
		return err
	})
	return out, err
}

// PackTotals counts the packs in use and their bytes.
func (s *Snapshot) PackTotals(ctx context.Context) (packs, bytes int64, err error) {
	if has, err := s.hasGear(ctx); err != nil || !has {
		return 0, 0, err
	}
	err = s.db.Row(ctx, `SELECT COUNT(*), COALESCE(SUM(size), 0) FROM gear_packs WHERE state = 1`, nil, &packs, &bytes)
	return packs, bytes, err
}

// HasPack reports whether a pack is in use.
func (s *Snapshot) HasPack(ctx context.Context, digest [32]byte) (has bool, err error) {
	if ok, err := s.hasGear(ctx); err != nil || !ok {
		return false, err
	}
	err = s.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE state = 1 AND digest = ?)`, []any{digest[:]}, &has)
	return has, err
}
