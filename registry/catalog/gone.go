package catalog

import (
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// revokeGear ends what GrantGear allowed, when a repository does not show the
// blob any more: whoever pushes it again has to have the right to its files anew.
func revokeGear(t *engine.Tx, repoID, blobID int64) error {
	_, err := t.Exec(`DELETE FROM gear_grants WHERE repo_id = ? AND layer_id IN (SELECT id FROM gear_layers WHERE blob_id = ?)`, repoID, blobID)
	return err
}

// dropGearLayer takes away with a blob what Gear knows of it: the index and the recipe of a
// layer, whose contents are released by CollectGear, or the profile of an image.
func dropGearLayer(t *engine.Tx, d oci.Digest) error {
	for _, query := range []string{`DELETE FROM gear_recipes WHERE digest = ?`, `UPDATE gear_layers SET digest = NULL, blob_id = 0 WHERE digest = ?`,
		`DELETE FROM gear_jobs WHERE digest = ?`, `DELETE FROM gear_profiles WHERE digest = ?`} {
		if _, err := t.Exec(query, string(d)); err != nil {
			return err
		}
	}
	return nil
}
