package gearfacts

import (
	"context"
	"database/sql"
	"errors"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Donor is what is kept about an image that was started, for the benefit of other images.
type Donor struct {
	Repo     string
	Manifest oci.Digest
	Data     []byte
}

// PutDonor keeps what is known about the starts of an image, even after the image itself
// is gone. Of each kind, a repository keeps only the newest entries. Their number is at
// most keep. PutDonor does nothing if the repository is gone. The change survives the end
// of the process, but perhaps not a power cut, because what is lost is learnt again.
func (c Layers) PutDonor(ctx context.Context, d Donor, kind string, keep int) error {
	return c.db.WriteLazy(ctx, func(t *engine.Tx) error {
		var repo int64
		err := t.Row(`SELECT id FROM repositories WHERE name = ?`, []any{d.Repo}, &repo)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := t.Exec(`INSERT INTO gear_donors (repo_id, digest, kind, data, updated_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (repo_id, digest) DO UPDATE SET kind = excluded.kind, data = excluded.data, updated_at = excluded.updated_at`,
			repo, string(d.Manifest), kind, d.Data, t.Now()); err != nil {
			return err
		}
		_, err = t.Exec(`DELETE FROM gear_donors WHERE repo_id = ? AND kind = ? AND digest NOT IN (
			SELECT digest FROM gear_donors WHERE repo_id = ? AND kind = ? ORDER BY updated_at DESC, digest LIMIT ?)`, repo, kind, repo, kind, keep)
		return err
	})
}

// Donors returns the donors of a repository, ordered by digest.
func (c Layers) Donors(ctx context.Context, repo string) ([]Donor, error) {
	return c.donors(ctx, `WHERE r.name = ? ORDER BY d.digest`, repo)
}

// LastDonors returns the n newest donors of all repositories.
func (c Layers) LastDonors(ctx context.Context, n int) ([]Donor, error) {
	return c.donors(ctx, `ORDER BY d.updated_at DESC, d.repo_id, d.digest LIMIT ?`, n)
}

func (c Layers) donors(ctx context.Context, which string, arg any) ([]Donor, error) {
	var out []Donor
	err := c.db.Rows(ctx, `SELECT r.name, d.digest, d.data FROM gear_donors d JOIN repositories r ON r.id = d.repo_id `+which, []any{arg}, func(r *sql.Rows) error {
		var d Donor
		err := r.Scan(&d.Repo, &d.Manifest, &d.Data)
		out = append(out, d)
		return err
	})
	return out, err
}
