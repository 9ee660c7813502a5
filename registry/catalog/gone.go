package catalog

import (
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// revokeGear ends what gearfacts.Layers.Grant allowed, once a repository does not show
// the blob any more. A client that pushes the blob again must acquire the right to its
// files again.
func revokeGear(t *engine.Tx, repoID, blobID int64) error {
	_, err := t.Exec(`DELETE FROM gear_grants WHERE repo_id = ? AND layer_id IN (SELECT id FROM gear_layers WHERE blob_id = ?)`, repoID, blobID)
	return err
}

// dropGearLayer removes what Gear knows of a blob: the index and the recipe of a layer,
// or the profile of an image. gearfacts.Files.Collect releases the contents of the layer.
func dropGearLayer(t *engine.Tx, d oci.Digest) error {
	for _, query := range []string{`DELETE FROM gear_recipes WHERE digest = ?`, `UPDATE gear_layers SET digest = NULL, blob_id = 0 WHERE digest = ?`,
		`DELETE FROM gear_jobs WHERE digest = ?`, `DELETE FROM gear_profiles WHERE digest = ?`} {
		if _, err := t.Exec(query, string(d)); err != nil {
			return err
		}
	}
	return nil
}
