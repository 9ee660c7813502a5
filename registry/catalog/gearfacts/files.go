// Package gearfacts is what the catalogue knows of Gear: contents and the packs they are in,
// the layers that hold them, which repository may use which, the queue of conversions, and
// the profiles of images. Files are those of who stores contents, Layers those of who
// converts.
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

// Files are the facts of contents and packs. All methods may run concurrently.
type Files struct{ db *engine.DB }

// NewFiles returns the facts in a database.
func NewFiles(db *engine.DB) Files { return Files{db} }

// Layers are the facts of layers and images. All methods may run concurrently.
type Layers struct{ db *engine.DB }

// NewLayers returns the facts in a database.
func NewLayers(db *engine.DB) Layers { return Layers{db} }

// Errors of the Gear part that callers branch on.
var (
	// ErrDeleting: the object of a pack with this digest is being deleted;
	// it may be written again once that is done.
	ErrDeleting = engine.NewVerdict("the pack is being deleted")
	// ErrStale: something changed since the caller looked; doing the whole
	// again succeeds.
	ErrStale = engine.NewVerdict("the contents changed meanwhile")
)

// Name is the SHA-256 of a content or of a pack.
type Name = [32]byte

// File is a content and where its bytes lie.
type File struct {
	Name Name
	// Size in bytes of the content.
	Size int64
	// Pack is the digest of the pack; zero if the content's bytes are lost.
	Pack Name
	// Off and Stored are the place and number of its bytes in the pack.
	Off, Stored int64
	// Encoding is how they are stored; the catalogue does not know the meaning.
	Encoding uint8
	// Live tells that something needs it.
	Live bool
}

// Pack is an object of many contents.
type Pack struct {
	// ID grows in the order in which packs were recorded.
	ID     int64
	Digest Name
	// Size of the object in bytes.
	Size int64
	// Bytes are the stored bytes of all contents it was written with.
	Bytes int64
	// Dense tells that it is settled.
	Dense bool
	// LiveFiles are the contents that something needs, LiveBytes their stored
	// bytes.
	LiveFiles, LiveBytes int64
	// NotBefore: until then the pack is to stay as it is.
	NotBefore time.Time
}

// NewPack is a pack to record, with its contents in their order.
type NewPack struct {
	Digest Name
	// Size of the object, and Bytes of its contents as stored.
	Size, Bytes int64
	Dense       bool
	// NotBefore: until then the pack is to stay as it is. May be zero.
	NotBefore time.Time
	// Files' Pack and Live are not looked at.
	Files []File
}

// Layer is a converted layer.
type Layer struct {
	Digest oci.Digest
	// Index is the name of the content that is its index.
	Index Name
	// Files are the distinct contents it holds, Bytes their sizes together.
	Files, Bytes int64
	// DiffID is the SHA-256 of the uncompressed layer.
	DiffID [32]byte
	// Embedded tells that the index was in the layer: it is the one of a Gear
	// image. Its files are visible only where Grant said so, as whoever
	// knows an index can make such a layer.
	Embedded bool
}

// NewLayer is a layer to record with the names of all its contents, the
// index among them, each once.
type NewLayer struct {
	Layer
	Names []Name
}

// byNames asks query, which has one %s for the placeholders, for many names at
// once; see inParts.
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

// Files returns what is known of contents, in no order. Unknown names are
// left out; lost contents have no pack.
func (c Files) Files(ctx context.Context, names []Name) ([]File, error) {
	out := make([]File, 0, len(names))
	err := byNames(names, gearFileQuery+`WHERE f.name IN (%s)`, nil, func(query string, args []any) error {
		return c.db.Rows(ctx, query, args, func(r *sql.Rows) error {
			f, err := scanGearFile(r)
			out = append(out, f)
			return err
		})
	})
	return out, err
}

// File returns what is known of a content. Errors: engine.ErrNotFound.
func (c Files) File(ctx context.Context, name Name) (File, error) {
	f := File{Name: name}
	var pack []byte
	err := c.db.Row(ctx, `SELECT f.size, COALESCE(p.digest, ''), f.off, f.stored, f.encoding, f.live
		FROM gear_files f LEFT JOIN gear_packs p ON p.id = f.pack_id WHERE f.name = ?`, []any{name[:]},
		&f.Size, &pack, &f.Off, &f.Stored, &f.Encoding, &f.Live)
	copy(f.Pack[:], pack)
	return f, err
}

// PackFiles returns the contents of a pack, live and dead, in their order.
func (c Files) PackFiles(ctx context.Context, packID int64) ([]File, error) {
	var out []File
	err := c.db.Rows(ctx, gearFileQuery+`WHERE f.pack_id = ? ORDER BY f.off, f.id`, []any{packID}, func(r *sql.Rows) error {
		f, err := scanGearFile(r)
		out = append(out, f)
		return err
	})
	return out, err
}

// Packs returns at most n packs in use, in order of id behind after.
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

// PackKnown reports whether a pack has a row or a writer is about to record
// it. A negative answer is final, as that of Known.
func (c Files) PackKnown(ctx context.Context, digest Name) (bool, error) {
	if err := c.db.Settled(ctx); err != nil {
		return false, err
	}
	var known bool
	err := c.db.Row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE digest = ?) OR EXISTS (SELECT 1 FROM gear_intents WHERE pack = ?)`,
		[]any{digest[:], digest[:]}, &known)
	return known, err
}

// Visible tells of each name whether a repository may see it: one of the
// layers it shows holds the content, or a client of it uploaded the content.
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
	// Packs in use and the bytes of their objects.
	Packs, PackBytes int64
	// LiveFiles and LiveBytes are the contents that are needed, as stored.
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
