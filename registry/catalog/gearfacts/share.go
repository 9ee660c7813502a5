package gearfacts

import (
	"context"
	"database/sql"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// Share says how much of an image's contents only that image holds.
type Share struct {
	// Files is the number of distinct contents, including the indexes of the layers.
	// Bytes is the sum of their sizes, and Stored is the number of bytes that they take
	// in packs.
	Files, Bytes, Stored int64
	// OwnFiles, OwnBytes and OwnStored count the contents that no other image holds.
	OwnFiles, OwnBytes, OwnStored int64
}

// MaxShareLayers is the maximum number of layers that Share accepts. They are the layers
// of one image.
const MaxShareLayers = 512

// Share reports what an image with the given layers shares with other images. These are
// the images that repo shows, or all images if repo is "". Share examines every content
// of the layers. If repo is set, it also examines every layer of the repository that
// holds one of them. The caller must bound the time.
func (c Layers) Share(ctx context.Context, image oci.Digest, layers []oci.Digest, repo string) (Share, error) {
	var n Share
	if len(layers) == 0 {
		return n, nil
	}
	if len(layers) > MaxShareLayers {
		return n, fmt.Errorf("%d layers are more than the %d that can be compared with others", len(layers), MaxShareLayers)
	}
	var args []any
	for _, d := range layers {
		args = append(args, string(d))
	}
	for len(args)&(len(args)-1) != 0 { // padded, so that there are few different queries to prepare
		args = append(args, args[len(layers)-1])
	}
	in := engine.Marks("?", len(args))
	args = append(args, string(image))
	// The image's own layers are those that no other manifest names.
	named, near, others := "", "", `o.layer_id NOT IN (SELECT id FROM own_layers)`
	if repo != "" {
		named = ` AND x.repo_id = (SELECT id FROM repositories WHERE name = ?)`
		// The other layers of the repository are looked up once. Otherwise they would be
		// looked up for each content, which thousands of layers elsewhere may hold. The
		// plus keeps SQLite from seeking each of these layers for each content, because
		// no other layer holds most of the contents.
		near = ` near AS (SELECT ol.id FROM links k JOIN gear_layers ol ON ol.blob_id = k.blob_id
			WHERE k.repo_id = (SELECT id FROM repositories WHERE name = ?) AND ol.id NOT IN (SELECT id FROM own_layers)),`
		others = `+o.layer_id IN (SELECT id FROM near)`
		args = append(args, repo, repo)
	}
	err := c.db.Row(engine.Whole(ctx), `WITH mine AS (SELECT id FROM gear_layers WHERE digest IN (`+in+`)),
		own_layers AS (SELECT l.id FROM gear_layers l WHERE l.id IN (SELECT id FROM mine) AND NOT EXISTS (SELECT 1 FROM refs x JOIN manifests m ON m.id = x.manifest_id JOIN blobs b ON b.id = m.blob_id
			WHERE x.blob_id = l.blob_id AND b.digest <> ?`+named+`)),`+near+`
		held AS (SELECT f.size AS size, f.stored AS stored, CASE WHEN EXISTS (SELECT 1 FROM gear_layer_files o WHERE o.file_id = f.id AND `+others+`) THEN 0 ELSE 1 END AS own
			FROM (SELECT DISTINCT lf.file_id AS id FROM gear_layer_files lf WHERE lf.layer_id IN (SELECT id FROM mine)) d JOIN gear_files f ON f.id = d.id)
		SELECT COUNT(*), COALESCE(SUM(size), 0), COALESCE(SUM(stored), 0), COALESCE(SUM(own), 0), COALESCE(SUM(own * size), 0), COALESCE(SUM(own * stored), 0) FROM held`,
		args, &n.Files, &n.Bytes, &n.Stored, &n.OwnFiles, &n.OwnBytes, &n.OwnStored)
	return n, err
}

// holderLayers is the maximum number of layers that Holders examines for a content.
const holderLayers = 256

// Holders lists repositories that show a content. More says that there may be others.
type Holders struct {
	Repositories []string
	More         bool
}

// Holders returns, for each content, at most n repositories that show it. If very many
// layers hold a content, Holders examines only some of them.
func (c Layers) Holders(ctx context.Context, names []Name, n int) ([]Holders, error) {
	out := make([]Holders, len(names))
	for i := range names {
		h, layers := &out[i], 0
		err := c.db.Rows(ctx, `WITH h AS (SELECT lf.layer_id AS id FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id WHERE f.name = ? LIMIT ?)
			SELECT DISTINCT r.name, (SELECT COUNT(*) FROM h) FROM h JOIN gear_layers l ON l.id = h.id JOIN links k ON k.blob_id = l.blob_id JOIN repositories r ON r.id = k.repo_id LIMIT ?`,
			[]any{names[i][:], holderLayers, n}, func(r *sql.Rows) error {
				var repo string
				err := r.Scan(&repo, &layers)
				h.Repositories = append(h.Repositories, repo)
				return err
			})
		if err != nil {
			return nil, err
		}
		h.More = len(h.Repositories) == n || layers == holderLayers
	}
	return out, nil
}

// IndexedBytes returns the total size of the layers that have a Gear index.
func (c Layers) IndexedBytes(ctx context.Context) (n int64, err error) {
	err = c.db.Row(engine.Whole(ctx), `SELECT COALESCE(SUM(b.size), 0) FROM gear_layers g CROSS JOIN blobs b ON b.id = g.blob_id WHERE g.digest IS NOT NULL AND b.state = 1`, nil, &n)
	return n, err
}
