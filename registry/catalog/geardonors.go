package catalog

import (
	"context"
	"database/sql"
	"errors"

	"example.org/slipway/oci"
)

// GearDonor is what is kept of an image that was started, for other images.
type GearDonor struct {
	Repo     string
	Manifest oci.Digest
	Data     []byte
}

// PutGearDonor keeps what there is to know of the starts of an image, beyond the image's
// own life. Of the repository's images of one kind the keep last ones are kept. It does
// nothing when the repository is gone. The change survives the end of the process, but
// perhaps not a power cut: what is lost is learnt again.
func (c *Catalog) PutGearDonor(ctx context.Context, d GearDonor, kind string, keep int) error {
	return c.db.writeLazy(ctx, func(t *tx) error {
		var repo int64
		err := t.row(`SELECT id FROM repositories WHERE name = ?`, []any{d.Repo}, &repo)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := t.exec(`INSERT INTO gear_donors (repo_id, digest, kind, data, updated_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (repo_id, digest) DO UPDATE SET kind = excluded.kind, data = excluded.data, updated_at = excluded.updated_at`,
			repo, string(d.Manifest), kind, d.Data, t.now()); err != nil {
			return err
		}
		_, err = t.exec(`DELETE FROM gear_donors WHERE repo_id = ? AND kind = ? AND digest NOT IN (
			SELECT digest FROM gear_donors WHERE repo_id = ? AND kind = ? ORDER BY updated_at DESC, digest LIMIT ?)`, repo, kind, repo, kind, keep)
		return err
	})
}

// GearDonors returns what is kept of the images of a repository, by digest.
func (c *Catalog) GearDonors(ctx context.Context, repo string) ([]GearDonor, error) {
	return c.gearDonors(ctx, `WHERE r.name = ? ORDER BY d.digest`, repo)
}

// LastGearDonors returns the n of all repositories that were kept last.
func (c *Catalog) LastGearDonors(ctx context.Context, n int) ([]GearDonor, error) {
	return c.gearDonors(ctx, `ORDER BY d.updated_at DESC, d.repo_id, d.digest LIMIT ?`, n)
}

func (c *Catalog) gearDonors(ctx context.Context, which string, arg any) ([]GearDonor, error) {
	var out []GearDonor
	err := c.db.rows(ctx, `SELECT r.name, d.digest, d.data FROM gear_donors d JOIN repositories r ON r.id = d.repo_id `+which, []any{arg}, func(r *sql.Rows) error {
		var d GearDonor
		err := r.Scan(&d.Repo, &d.Manifest, &d.Data)
		out = append(out, d)
		return err
	})
	return out, err
}
