// Package gearfacts holds what the catalogue knows about Gear: contents and the packs
// that hold them, the layers that consist of them, which repository may use which layer,
// the queue of conversions, and the profiles of images. Files serves code that stores
// contents, and Layers serves code that converts layers.
package gearfacts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// Files gives access to the facts about contents and packs. All methods may run
// concurrently.
type Files struct{ db *engine.DB }

// NewFiles returns the Files of a database.
func NewFiles(db *engine.DB) Files { return Files{db} }

// Layers gives access to the facts about layers and images. All methods may run
// concurrently.
type Layers struct{ db *engine.DB }

// NewLayers returns the Layers of a database.
func NewLayers(db *engine.DB) Layers { return Layers{db} }

// These are the errors of the Gear part that callers distinguish.
var (
	// ErrDeleting says that the object of a pack with this digest is being deleted. The
	// object may be written again once that is done.
	ErrDeleting = engine.NewVerdict("the pack is being deleted")
	// ErrStale says that something has changed since the caller looked. Repeating the
	// whole operation succeeds.
	ErrStale = engine.NewVerdict("the contents changed meanwhile")
)

// Name is the SHA-256 of a content or of a pack.
type Name = [32]byte

// File is a content and the place of its bytes.
type File struct {
	Name Name
	// Size is the size of the content in bytes.
	Size int64
	// Pack is the digest of the pack that holds the content. It is zero if the content's
	// bytes are lost.
	Pack Name
	// Off is the offset of the content's bytes in the pack, and Stored is their number.
	Off, Stored int64
	// Encoding says how the bytes are stored. The catalogue does not know its meaning.
	Encoding uint8
	// Live says that something needs the content.
	Live bool
}

// Pack is an object that holds many contents.
type Pack struct {
	// ID increases in the order in which packs were recorded.
	ID     int64
	Digest Name
	// Size is the size of the object in bytes.
	Size int64
	// Bytes is the number of stored bytes of all contents that were written into the
	// pack.
	Bytes int64
	// Dense says that the pack is settled.
	Dense bool
	// LiveFiles is the number of contents that something needs, and LiveBytes is the
	// number of their stored bytes.
	LiveFiles, LiveBytes int64
	// NotBefore is the time until which the pack must stay as it is.
	NotBefore time.Time
}

// NewPack is a pack to record, with its contents in order.
type NewPack struct {
	Digest Name
	// Size is the size of the object, and Bytes is the number of stored bytes of its
	// contents.
	Size, Bytes int64
	Dense       bool
	// NotBefore is the time until which the pack must stay as it is. It may be zero.
	NotBefore time.Time
	// Files are the contents. Their Pack and Live are ignored.
	Files []File
}

// Layer is a converted layer.
type Layer struct {
	Digest oci.Digest
	// Index is the name of the content that is the layer's index.
	Index Name
	// Files is the number of distinct contents of the layer, and Bytes is the sum of
	// their sizes.
	Files, Bytes int64
	// DiffID is the SHA-256 of the uncompressed layer.
	DiffID [32]byte
	// Embedded says that the index was in the layer, which is the layer of a Gear image.
	// The files are visible only if Grant has allowed it, because anyone who knows an
	// index can make such a layer.
	Embedded bool
}

// NewLayer is a layer to record. Names lists all its contents, including the index, each
// once.
type NewLayer struct {
	Layer
	Names []Name
}

// byNames runs query for many names, some at a time; see engine.InParts. query has one %s
// for the placeholders.
func byNames(names []Name, query string, more []any, each func(query string, args []any) error) error {
	return engine.InParts(names, func(part []Name) error {
		args := make([]any, len(part), len(part)+len(more))
		for i := range part {
			args[i] = part[i][:]
		}
		return each(fmt.Sprintf(query, engine.Marks("?", len(part))), append(args, more...))
	})
}

const gearFileQuery = `SELECT f.name, f.size, COALESCE(p.digest, ''), f.off, f.stored, f.encoding, f.live
	FROM gear_files f LEFT JOIN gear_packs p ON p.id = f.pack_id `

func scanGearFile(r *sql.Rows) (f File, err error) {
	var name, pack sql.RawBytes
	err = r.Scan(&name, &f.Size, &pack, &f.Off, &f.Stored, &f.Encoding, &f.Live)
	copy(f.Name[:], name)
	copy(f.Pack[:], pack)
	return f, err
}

// Files returns what is known about contents, in no particular order. It omits unknown
// names. Lost contents have no pack.
func (c Files) Files(ctx context.Context, names []Name) ([]File, error) {
	return c.filesThat(ctx, names, gearFileQuery+`WHERE f.name IN (%s)`, nil)
}

// InLayers is like Files, for contents that one of the layers has.
func (c Files) InLayers(ctx context.Context, names []Name, layers []oci.Digest) ([]File, error) {
	if len(layers) == 0 {
		return nil, nil
	}
	of := make([]any, len(layers))
	for i, d := range layers {
		of[i] = string(d)
	}
	return c.filesThat(ctx, names, gearFileQuery+`WHERE f.name IN (%s) AND EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_layers l ON l.id = lf.layer_id
		WHERE lf.file_id = f.id AND l.digest IN (`+engine.Marks("?", len(layers))+`))`, of)
}

// filesThat returns the contents that a query finds.
func (c Files) filesThat(ctx context.Context, names []Name, query string, more []any) ([]File, error) {
	out := make([]File, 0, len(names))
	err := byNames(names, query, more, func(query string, args []any) error {
		return c.db.Rows(ctx, query, args, func(r *sql.Rows) error {
			f, err := scanGearFile(r)
			out = append(out, f)
			return err
		})
	})
	return out, err
}

// File returns what is known about a content. Errors: engine.ErrNotFound.
func (c Files) File(ctx context.Context, name Name) (File, error) {
	f := File{Name: name}
	var pack []byte
	err := c.db.Row(ctx, `SELECT f.size, COALESCE(p.digest, ''), f.off, f.stored, f.encoding, f.live
		FROM gear_files f LEFT JOIN gear_packs p ON p.id = f.pack_id WHERE f.name = ?`, []any{name[:]},
		&f.Size, &pack, &f.Off, &f.Stored, &f.Encoding, &f.Live)
	copy(f.Pack[:], pack)
	return f, err
}

// PackFiles returns the contents of a pack in order, live ones and dead ones.
func (c Files) PackFiles(ctx context.Context, packID int64) ([]File, error) {
	var out []File
	err := c.db.Rows(ctx, gearFileQuery+`WHERE f.pack_id = ? ORDER BY f.off, f.id`, []any{packID}, func(r *sql.Rows) error {
		f, err := scanGearFile(r)
		out = append(out, f)
		return err
	})
	return out, err
}

// Packs returns at most n packs in use with ids greater than after, ordered by id.
func (c Files) Packs(ctx context.Context, after int64, n int) ([]Pack, error) {
	var out []Pack
	err := c.db.Rows(ctx, `SELECT id, digest, size, bytes, dense, live_files, live_bytes, due_at FROM gear_packs
		WHERE state = 1 AND id > ? ORDER BY id LIMIT ?`, []any{after, n}, func(r *sql.Rows) error {
		var p Pack
		var digest sql.RawBytes
		var notBefore int64
		err := r.Scan(&p.ID, &digest, &p.Size, &p.Bytes, &p.Dense, &p.LiveFiles, &p.LiveBytes, &notBefore)
		p.NotBefore = engine.FromMillis(notBefore)
		copy(p.Digest[:], digest)
		out = append(out, p)
		return err
	})
	return out, err
}

// PackKnown reports whether a pack has a row, or a writer is about to record it. A
// negative answer is final, like that of catalog.Garbage.Known.
func (c Files) PackKnown(ctx context.Context, digest Name) (bool, error) {
	if err := c.db.Settled(ctx); err != nil {
		return false, err
	}
	var known bool
	err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE digest = ?) OR EXISTS (SELECT 1 FROM gear_intents WHERE pack = ?)`,
		[]any{digest[:], digest[:]}, &known)
	return known, err
}

// Visible reports for each name whether a repository may see the content. It may if one
// of the layers that it shows holds the content, or if a client of the repository
// uploaded the content.
func (c Files) Visible(ctx context.Context, repo string, names []Name) ([]bool, error) {
	out := make([]bool, len(names))
	id, err := catalog.RepositoryID(ctx, c.db, repo)
	if errors.Is(err, catalog.ErrNoRepository) || errors.Is(err, engine.ErrNotFound) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	at := make(map[Name][]int, len(names))
	for i, n := range names {
		at[n] = append(at[n], i)
	}
	err = byNames(names, `SELECT f.name FROM gear_files f WHERE f.name IN (%s) AND (
		EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_layers l ON l.id = lf.layer_id JOIN links k ON k.blob_id = l.blob_id AND k.repo_id = ? WHERE lf.file_id = f.id
			AND (l.embedded = 0 OR EXISTS (SELECT 1 FROM gear_grants g WHERE g.layer_id = l.id AND g.repo_id = k.repo_id)))
		OR EXISTS (SELECT 1 FROM gear_staged s WHERE s.file_id = f.id AND s.repo_id = ?))`, []any{id, id},
		func(query string, args []any) error {
			return c.db.Rows(ctx, query, args, func(r *sql.Rows) error {
				var raw sql.RawBytes
				err := r.Scan(&raw)
				var n Name
				copy(n[:], raw)
				for _, i := range at[n] {
					out[i] = true
				}
				return err
			})
		})
	return out, err
}

// Counts are sums over the Gear part.
type Counts struct {
	// Packs is the number of packs in use, and PackBytes is the size of their objects.
	Packs, PackBytes int64
	// LiveFiles is the number of contents that are needed, and LiveBytes is the number of
	// their stored bytes.
	LiveFiles, LiveBytes int64
	// Layers that are converted.
	Layers int64
}

// Counts reads the rows of all packs and counts all layers.
func (c Files) Counts(ctx context.Context) (Counts, error) {
	var n Counts
	err := c.db.Row(engine.Whole(ctx), `SELECT COUNT(*), COALESCE(SUM(size), 0), COALESCE(SUM(live_files), 0), COALESCE(SUM(live_bytes), 0),
		(SELECT COUNT(*) FROM gear_layers WHERE digest IS NOT NULL) FROM gear_packs WHERE state = 1`, nil,
		&n.Packs, &n.PackBytes, &n.LiveFiles, &n.LiveBytes, &n.Layers)
	return n, err
}
