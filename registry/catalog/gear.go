package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/oci"
)

// Errors of the Gear part that callers branch on.
var (
	// ErrGearDeleting: the object of a pack with this digest is being deleted;
	// it may be written again once that is done.
	ErrGearDeleting = newVerdict("the pack is being deleted")
	// ErrGearStale: something changed since the caller looked; doing the whole
	// again succeeds.
	ErrGearStale = newVerdict("the contents changed meanwhile")
)

// GearName is the SHA-256 of a content or of a pack.
type GearName = [32]byte

// GearFile is a content and where its bytes lie.
type GearFile struct {
	Name GearName
	// Size in bytes of the content.
	Size int64
	// Pack is the digest of the pack; zero if the content's bytes are lost.
	Pack GearName
	// Off and Stored are the place and number of its bytes in the pack.
	Off, Stored int64
	// Encoding is how they are stored; the catalogue does not know the meaning.
	Encoding uint8
	// Live tells that something needs it.
	Live bool
}

// GearPack is an object of many contents.
type GearPack struct {
	// ID grows in the order in which packs were recorded.
	ID     int64
	Digest GearName
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

// NewGearPack is a pack to record, with its contents in their order.
type NewGearPack struct {
	Digest GearName
	// Size of the object, and Bytes of its contents as stored.
	Size, Bytes int64
	Dense       bool
	// NotBefore: until then the pack is to stay as it is. May be zero.
	NotBefore time.Time
	// Files' Pack and Live are not looked at.
	Files []GearFile
}

// GearLayer is a converted layer.
type GearLayer struct {
	Digest oci.Digest
	// Index is the name of the content that is its index.
	Index GearName
	// Files are the distinct contents it holds, Bytes their sizes together.
	Files, Bytes int64
	// DiffID is the SHA-256 of the uncompressed layer.
	DiffID [32]byte
	// Embedded tells that the index was in the layer: it is the one of a Gear
	// image. Its files are visible only where GrantGear said so, as whoever
	// knows an index can make such a layer.
	Embedded bool
}

// NewGearLayer is a layer to record with the names of all its contents, the
// index among them, each once.
type NewGearLayer struct {
	GearLayer
	Names []GearName
}

// lookUp is how many rows one statement of the Gear part changes at most, lookUpNames
// how many it reads by their names: each statement has a transaction to begin.
const (
	lookUp      = 64
	lookUpNames = 256
)

// marks returns n placeholders, or groups of them.
func marks(group string, n int) string {
	return strings.TrimSuffix(strings.Repeat(group+", ", n), ", ")
}

// byNames asks query, which has one %s for the placeholders, for many names at
// once; see inParts.
func byNames(names []GearName, query string, more []any, each func(query string, args []any) error) error {
	return inParts(names, func(part []GearName) error {
		args := make([]any, len(part), len(part)+len(more))
		for i := range part {
			args[i] = part[i][:]
		}
		return each(fmt.Sprintf(query, marks("?", len(part))), append(args, more...))
	})
}

const gearFileQuery = `SELECT f.name, f.size, COALESCE(p.digest, ''), f.off, f.stored, f.encoding, f.live
	FROM gear_files f LEFT JOIN gear_packs p ON p.id = f.pack_id `

func scanGearFile(r *sql.Rows) (f GearFile, err error) {
	var name, pack sql.RawBytes
	err = r.Scan(&name, &f.Size, &pack, &f.Off, &f.Stored, &f.Encoding, &f.Live)
	copy(f.Name[:], name)
	copy(f.Pack[:], pack)
	return f, err
}

// GearFiles returns what is known of contents, in no order. Unknown names are
// left out; lost contents have no pack.
func (c *Catalog) GearFiles(ctx context.Context, names []GearName) ([]GearFile, error) {
	out := make([]GearFile, 0, len(names))
	err := byNames(names, gearFileQuery+`WHERE f.name IN (%s)`, nil, func(query string, args []any) error {
		return c.db.rows(ctx, query, args, func(r *sql.Rows) error {
			f, err := scanGearFile(r)
			out = append(out, f)
			return err
		})
	})
	return out, err
}

// GearFile returns what is known of a content. Errors: ErrNotFound.
func (c *Catalog) GearFile(ctx context.Context, name GearName) (GearFile, error) {
	f := GearFile{Name: name}
	var pack []byte
	err := c.db.row(ctx, `SELECT f.size, COALESCE(p.digest, ''), f.off, f.stored, f.encoding, f.live
		FROM gear_files f LEFT JOIN gear_packs p ON p.id = f.pack_id WHERE f.name = ?`, []any{name[:]},
		&f.Size, &pack, &f.Off, &f.Stored, &f.Encoding, &f.Live)
	copy(f.Pack[:], pack)
	return f, err
}

// GearPackFiles returns the contents of a pack, live and dead, in their order.
func (c *Catalog) GearPackFiles(ctx context.Context, packID int64) ([]GearFile, error) {
	var out []GearFile
	err := c.db.rows(ctx, gearFileQuery+`WHERE f.pack_id = ? ORDER BY f.off, f.id`, []any{packID}, func(r *sql.Rows) error {
		f, err := scanGearFile(r)
		out = append(out, f)
		return err
	})
	return out, err
}

// GearPacks returns at most n packs in use, in order of id behind after.
func (c *Catalog) GearPacks(ctx context.Context, after int64, n int) ([]GearPack, error) {
	var out []GearPack
	err := c.db.rows(ctx, `SELECT id, digest, size, bytes, dense, live_files, live_bytes, due_at FROM gear_packs
		WHERE state = 1 AND id > ? ORDER BY id LIMIT ?`, []any{after, n}, func(r *sql.Rows) error {
		var p GearPack
		var digest sql.RawBytes
		var notBefore int64
		err := r.Scan(&p.ID, &digest, &p.Size, &p.Bytes, &p.Dense, &p.LiveFiles, &p.LiveBytes, &notBefore)
		p.NotBefore = fromMillis(notBefore)
		copy(p.Digest[:], digest)
		out = append(out, p)
		return err
	})
	return out, err
}

// GearPackKnown tells whether a pack has a row or a writer is about to record
// it. A negative answer is final, as that of Known.
func (c *Catalog) GearPackKnown(ctx context.Context, digest GearName) (bool, error) {
	if err := c.db.settled(ctx); err != nil {
		return false, err
	}
	var known bool
	err := c.db.row(ctx, `SELECT EXISTS (SELECT 1 FROM gear_packs WHERE digest = ?) OR EXISTS (SELECT 1 FROM gear_intents WHERE pack = ?)`,
		[]any{digest[:], digest[:]}, &known)
	return known, err
}

// GearLayer returns a converted layer whose blob is here. Errors: ErrNotFound.
func (c *Catalog) GearLayer(ctx context.Context, d oci.Digest) (GearLayer, error) {
	l := GearLayer{Digest: d}
	var index, diffID []byte
	err := c.db.row(ctx, `SELECT index_name, files, bytes, diff_id, embedded FROM gear_layers WHERE digest = ?`, []any{string(d)},
		&index, &l.Files, &l.Bytes, &diffID, &l.Embedded)
	copy(l.Index[:], index)
	copy(l.DiffID[:], diffID)
	return l, err
}

// GearLayersOf returns at most n layers that hold a content: first those that
// have its bytes, then those of Gear images, which have them only of their index.
func (c *Catalog) GearLayersOf(ctx context.Context, name GearName, n int) ([]oci.Digest, error) {
	list, err := c.names(ctx, `SELECT l.digest FROM gear_files f JOIN gear_layer_files lf ON lf.file_id = f.id JOIN gear_layers l ON l.id = lf.layer_id
		WHERE f.name = ? AND l.digest IS NOT NULL
		ORDER BY l.embedded, EXISTS (SELECT 1 FROM gear_recipes r WHERE r.layer_id = l.id AND r.state >= 3), l.id LIMIT ?`, name[:], n)
	out := make([]oci.Digest, len(list))
	for i, d := range list {
		out[i] = oci.Digest(d)
	}
	return out, err
}

// GearVisible tells of each name whether a repository may see it: one of the
// layers it shows holds the content, or a client of it uploaded the content.
func (c *Catalog) GearVisible(ctx context.Context, repo string, names []GearName) ([]bool, error) {
	out := make([]bool, len(names))
	id, err := c.repoID(ctx, repo)
	if errors.Is(err, ErrNoRepository) || errors.Is(err, ErrNotFound) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	at := make(map[GearName][]int, len(names))
	for i, n := range names {
		at[n] = append(at[n], i)
	}
	err = byNames(names, `SELECT f.name FROM gear_files f WHERE f.name IN (%s) AND (
		EXISTS (SELECT 1 FROM gear_layer_files lf JOIN gear_layers l ON l.id = lf.layer_id JOIN links k ON k.blob_id = l.blob_id AND k.repo_id = ? WHERE lf.file_id = f.id
			AND (l.embedded = 0 OR EXISTS (SELECT 1 FROM gear_grants g WHERE g.layer_id = l.id AND g.repo_id = k.repo_id)))
		OR EXISTS (SELECT 1 FROM gear_staged s WHERE s.file_id = f.id AND s.repo_id = ?))`, []any{id, id},
		func(query string, args []any) error {
			return c.db.rows(ctx, query, args, func(r *sql.Rows) error {
				var raw sql.RawBytes
				err := r.Scan(&raw)
				var n GearName
				copy(n[:], raw)
				for _, i := range at[n] {
					out[i] = true
				}
				return err
			})
		})
	return out, err
}

// GearCounts are sums over the Gear part.
type GearCounts struct {
	// Packs in use and the bytes of their objects.
	Packs, PackBytes int64
	// LiveFiles and LiveBytes are the contents that are needed, as stored.
	LiveFiles, LiveBytes int64
	// Layers that are converted.
	Layers int64
}

// GearCounts reads the rows of all packs and counts all layers.
func (c *Catalog) GearCounts(ctx context.Context) (GearCounts, error) {
	var n GearCounts
	err := c.db.row(whole(ctx), `SELECT COUNT(*), COALESCE(SUM(size), 0), COALESCE(SUM(live_files), 0), COALESCE(SUM(live_bytes), 0),
		(SELECT COUNT(*) FROM gear_layers WHERE digest IS NOT NULL) FROM gear_packs WHERE state = 1`, nil,
		&n.Packs, &n.PackBytes, &n.LiveFiles, &n.LiveBytes, &n.Layers)
	return n, err
}

// GearJob is a layer that waits for its conversion.
type GearJob struct {
	Digest oci.Digest
	// Attempts that failed so far, and why the last one did.
	Attempts int
	Failure  string
	// Due is when the next attempt is.
	Due time.Time
	// Size of the layer in bytes, and the number of a repository that shows it or 0,
	// which only GearJobs tells.
	Size int64
	Repo int64
}

func scanGearJob(r *sql.Rows) (j GearJob, err error) {
	var due int64
	err = r.Scan(&j.Digest, &j.Attempts, &j.Failure, &due)
	j.Due = fromMillis(due)
	return j, err
}

// QueueGear asks for the conversion of layers. Those that are converted or
// asked for already are passed over. It survives the end of the process, but
// perhaps not a power cut: a push should not wait for it, and whoever misses the
// index asks again.
func (c *Catalog) QueueGear(ctx context.Context, layers ...oci.Digest) error {
	return c.db.writeLazy(ctx, func(t *tx) error {
		for _, d := range layers {
			_, err := t.exec(`INSERT INTO gear_jobs (digest, due_at, attempts, failure)
				SELECT digest, ?, 0, '' FROM blobs WHERE digest = ? AND state = 1 AND NOT EXISTS (SELECT 1 FROM gear_layers l WHERE l.digest = blobs.digest)
				ON CONFLICT (digest) DO NOTHING`, t.now(), string(d))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// fairJobs is among how many conversions, the oldest that are due, repositories take
// turns. It bounds what a look at the queue costs.
const fairJobs = 4096

// GearJobs returns at most n conversions that are due. Repositories take turns, each
// with its oldest first, so that one that pushes much does not keep others waiting. A
// layer that several repositories show is that of the oldest of them.
func (c *Catalog) GearJobs(ctx context.Context, n int) ([]GearJob, error) {
	var out []GearJob
	err := c.db.rows(ctx, `WITH due AS (SELECT id, digest, attempts, failure, due_at FROM gear_jobs WHERE due_at <= ? ORDER BY due_at, id LIMIT ?),
		owned AS (SELECT due.*, COALESCE(b.size, 0) AS size, COALESCE((SELECT MIN(l.repo_id) FROM links l WHERE l.blob_id = b.id), 0) AS repo
			FROM due LEFT JOIN blobs b ON b.digest = due.digest),
		turns AS (SELECT owned.*, ROW_NUMBER() OVER (PARTITION BY repo ORDER BY due_at, id) AS turn FROM owned)
		SELECT digest, attempts, failure, due_at, size, repo FROM turns ORDER BY turn, due_at, id LIMIT ?`, []any{c.now(), fairJobs, n}, func(r *sql.Rows) error {
		var j GearJob
		var due int64
		err := r.Scan(&j.Digest, &j.Attempts, &j.Failure, &due, &j.Size, &j.Repo)
		j.Due = fromMillis(due)
		out = append(out, j)
		return err
	})
	return out, err
}

// EndGearJob forgets a conversion that is done or not wanted any more.
func (c *Catalog) EndGearJob(ctx context.Context, d oci.Digest) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`DELETE FROM gear_jobs WHERE digest = ?`, string(d))
		return err
	})
}

// DeferGearJob records that a conversion failed and is to be tried again.
func (c *Catalog) DeferGearJob(ctx context.Context, d oci.Digest, failure string, until time.Time) error {
	return c.db.write(ctx, func(t *tx) error {
		_, err := t.exec(`UPDATE gear_jobs SET attempts = attempts + 1, failure = ?, due_at = ? WHERE digest = ?`, failure, until.UnixMilli(), string(d))
		return err
	})
}
