// Package catalog records what exists: repositories, tags, manifests, which
// blob is visible in which repository, uploads under way, and what may have
// become garbage.
//
// It is one SQL schema and one set of queries. SQLite is the default: write-ahead
// log, synchronous=FULL, one writer that commits many callers' changes with one
// fsync (group commit), and a few readers beside it. PostgreSQL is for several
// processes that share a catalogue; see [Catalog.Shared]. A method that changes
// something returns when the change is durable.
//
// Small contents and manifests live in the catalogue itself (see InlineMax):
// their bytes and their row then cost one shared fsync instead of several.
// Larger ones are objects in an object store, which this package never touches.
//
// Times are of one clock, see [Catalog.Now], and stored in milliseconds.
package catalog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// InlineMax is the largest blob in bytes that is kept in the catalogue instead
// of the object store. SQLite reads and writes values of this size faster than
// a file system does files, and an image of tiny layers then costs one fsync per
// blob. docs/bench.md has the pushes of small images per second.
const InlineMax = 16 << 10

// Errors that callers branch on.
var (
	// ErrNotFound: the repository, tag, manifest, blob or upload is not there.
	ErrNotFound = newVerdict("not in the catalogue")
	// ErrNoRepository: the repository itself is not there.
	ErrNoRepository = newVerdict("repository is not in the catalogue")
	// ErrReferenced: a manifest of the repository still names the blob.
	ErrReferenced = newVerdict("still referenced by a manifest")
	// ErrNotStored: a link was asked for a blob whose content is not, or no
	// longer, in the store; the content must be written first.
	ErrNotStored = newVerdict("content is not stored")
)

// MissingError names the content that a manifest needs and its repository lacks.
type MissingError struct {
	// Digests are the first 100 of them.
	Digests []oci.Digest
	// Total is how many there are in all.
	Total int
}

// Error implements error.
func (e *MissingError) Error() string { return "manifest names content that is not there" }

// SizeError says that a manifest names a content with a size that it does not have.
type SizeError struct {
	Digest oci.Digest
	// Named is the size that the manifest has, Stored what the content has.
	Named, Stored int64
}

// Error implements error.
func (e *SizeError) Error() string { return "manifest names a content with a wrong size" }

// Blob is a content as the catalogue knows it.
type Blob struct {
	Digest oci.Digest
	// Size in bytes.
	Size int64
	// Content holds the bytes of an inline blob; nil for an object in the store.
	Content []byte
	// Tag is the objstore.Info.Tag of the object that has these bytes, "" if it is not
	// known. Only ObjectTag reads it.
	Tag string
	// Suspect says that a read of the content failed, or gave wrong bytes; see MarkSuspect.
	Suspect bool
}

// Manifest is a manifest of a repository.
type Manifest struct {
	Digest    oci.Digest
	MediaType string
	// ArtifactType as the referrers API reports it; may be empty.
	ArtifactType string
	// Subject's digest, empty without one.
	Subject     oci.Digest
	Annotations map[string]string
	Content     []byte
}

// NewManifest is a manifest to record together with what it names.
type NewManifest struct {
	Manifest
	// Blobs that must be visible in the repository.
	Blobs []oci.Digest
	// Manifests that must be in the repository.
	Manifests []oci.Digest
	// Optional contents are recorded as named, but may be absent: foreign
	// layers, and platforms an index may lack.
	Optional []oci.Descriptor
	// Sizes of Blobs and Manifests as the manifest has them; those it leaves out are
	// not compared with what is stored.
	Sizes map[oci.Digest]int64
	// Tags that are to point at the manifest.
	Tags []string
	// Immutable tells of a tag whether it may be moved once it exists.
	Immutable func(tag string) bool
}

// MediaTypeError says that a repository holds a manifest already, under another
// media type than it was pushed with.
type MediaTypeError struct {
	// Stored is the media type it has.
	Stored string
}

// Error implements error.
func (e *MediaTypeError) Error() string {
	return "manifest is stored with the media type " + e.Stored
}

// ImmutableError names the tag that may not be moved or removed. Part says that what was
// to be removed is part of the index that the tag points at.
type ImmutableError struct {
	Tag  string
	Part bool
}

// Error implements error.
func (e *ImmutableError) Error() string { return "tag " + e.Tag + " is immutable" }

// Upload is an upload that outlives a request.
type Upload struct {
	ID, Repo string
	// Size in bytes that are safely held.
	Size int64
	// State of the object store's upload; empty while Content holds the bytes.
	State string
	// Hash is the marshalled sha256 state over Size bytes.
	Hash []byte
	// Content holds the bytes of an upload that is still small.
	Content []byte
	// Intent is the digest about to be published, or empty.
	Intent    oci.Digest
	UpdatedAt time.Time
	// Owner alone may use the upload before Until, by the catalogue's clock. In
	// what is read, an Until that has passed tells of a claim that has run out.
	// For what is saved see SaveUploads.
	Owner string
	Until time.Time
}

// Options of Open. The zero value works.
type Options struct {
	// Clock tells the time; default time.Now, and with PostgreSQL the clock of
	// its server, so that all who share it have the same.
	Clock func() time.Time
	// Readers is how many connections read at once; default 2, and 8 with
	// PostgreSQL. Hot rows are in RAM above the catalogue, and each costs about
	// 0.7 MB.
	Readers int
	// Grace is how long something unreferenced is kept at least, counted from
	// the change that made it so; default 1 h.
	Grace time.Duration
	// Reserve keeps a part of the disk for deleting and collecting; see [Catalog.Room].
	// Only with SQLite. Default: none is kept.
	Reserve bool
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Grace <= 0 {
		v.Grace = time.Hour
	}
	return v
}

// Catalog is an open catalogue. All methods may run concurrently.
type Catalog struct {
	db    *database
	opts  Options
	grace time.Duration

	mu sync.Mutex
	// deleters are the names under which BeginDeleting was called.
	deleters map[string]bool
}

// Open opens the SQLite catalogue at path and brings its schema up to date. An
// absent file is created.
func Open(ctx context.Context, path string, o *Options) (*Catalog, error) {
	opts := o.withDefaults()
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	if opts.Readers <= 0 {
		opts.Readers = 2
	}
	db, err := openSQLite(ctx, path, &opts)
	if isDamaged(err) {
		err = fmt.Errorf("the catalogue %s is damaged; restore a backup (slipway restore): %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	return &Catalog{db: db, opts: opts, grace: opts.Grace}, nil
}

// OpenPostgres opens the catalogue in a PostgreSQL database, version 13 or later
// with the encoding UTF8, which many processes may share, and brings its schema up
// to date. dsn is a connection string of PostgreSQL, as a URL or as keywords; the
// schema used is the first of the search path. Of several hosts the one that
// accepts changes is taken. A pool between has to keep sessions together.
func OpenPostgres(ctx context.Context, dsn string, o *Options) (*Catalog, error) {
	opts := o.withDefaults()
	if opts.Readers <= 0 {
		opts.Readers = 8
	}
	var clock func() int64
	if opts.Clock != nil {
		clock = systemMillis(opts.Clock)
	}
	db, err := openPostgres(ctx, dsn, opts.Readers, clock)
	if err != nil {
		return nil, fmt.Errorf("open catalogue on PostgreSQL: %w", err)
	}
	return &Catalog{db: db, opts: opts, grace: opts.Grace}, nil
}

// Close waits for writes under way and closes the catalogue. A Watch must have
// ended.
func (c *Catalog) Close() error { return c.db.close() }

// now is the catalogue's clock outside of changes, as well as it is known.
func (c *Catalog) now() int64 { return c.db.now(nil) }

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
