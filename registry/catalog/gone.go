package catalog

import (
	"time"

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

// heldFor is how long after a grace period the collector looks again at a layer that
// heldForLost holds. It must be longer than a collection takes, because a collection may
// examine at once what it queues.
const heldFor = time.Hour

// heldForLost reports whether a layer must stay although nothing needs it. It must if one
// of its contents was found damaged and a dropped layer needs that content: the blob may
// be the only source from which the content can be made again.
func heldForLost(t *engine.Tx, d oci.Digest) (held bool, err error) {
	// Almost always nothing is lost, and that is known at once.
	err = t.Row(`SELECT EXISTS (SELECT 1 FROM gear_files WHERE pack_id = 0)`, nil, &held)
	if err != nil || !held {
		return false, err
	}
	err = t.Row(`SELECT EXISTS (SELECT 1 FROM gear_layers l JOIN gear_layer_files lf ON lf.layer_id = l.id JOIN gear_files f ON f.id = lf.file_id
		WHERE l.digest = ? AND l.embedded = 0 AND f.pack_id = 0 AND NOT EXISTS (SELECT 1 FROM gear_recipes r WHERE r.layer_id = l.id AND r.state >= 3)
		AND EXISTS (SELECT 1 FROM gear_layer_files o JOIN gear_recipes r ON r.layer_id = o.layer_id WHERE o.file_id = f.id AND r.state >= 3))`,
		[]any{string(d)}, &held)
	return held, err
}
