// Package catalog records what exists: repositories, tags, manifests, which
// blob is visible in which repository, uploads under way, and what may have
// become garbage.
//
// It is one SQL schema and one set of queries, in a database of [engine]. A method that
// changes something returns when the change is durable.
//
// Small contents and manifests live in the catalogue itself (see InlineMax):
// their bytes and their row then cost one shared fsync instead of several.
// Larger ones are objects in an object store, which this package never touches.
package catalog

import (
	"context"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// InlineMax is the largest blob in bytes that is kept in the catalogue instead
// of the object store. SQLite reads and writes values of this size faster than
// a file system does files, and an image of tiny layers then costs one fsync per
// blob. docs/bench.md has the pushes of small images per second.
const InlineMax = 16 << 10

// Errors that callers branch on.
var (
	// ErrNotFound: the repository, tag, manifest, blob or upload is not there.
	ErrNotFound = engine.ErrNotFound
	// ErrNoRepository: the repository itself is not there.
	ErrNoRepository = engine.NewVerdict("repository is not in the catalogue")
	// ErrReferenced: a manifest of the repository still names the blob.
	ErrReferenced = engine.NewVerdict("still referenced by a manifest")
	// ErrNotStored: a link was asked for a blob whose content is not, or no
	// longer, in the store; the content must be written first.
	ErrNotStored = engine.NewVerdict("content is not stored")
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

// Verdict implements engine.Verdict.
func (e *MissingError) Verdict() {}

// SizeError says that a manifest names a content with a size that it does not have.
type SizeError struct {
	Digest oci.Digest
	// Named is the size that the manifest has, Stored what the content has.
	Named, Stored int64
}

// Error implements error.
func (e *SizeError) Error() string { return "manifest names a content with a wrong size" }

// Verdict implements engine.Verdict.
func (e *SizeError) Verdict() {}

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

// Verdict implements engine.Verdict.
func (e *MediaTypeError) Verdict() {}

// ImmutableError names the tag that may not be moved or removed. Part says that what was
// to be removed is part of the index that the tag points at.
type ImmutableError struct {
	Tag  string
	Part bool
}

// Error implements error.
func (e *ImmutableError) Error() string { return "tag " + e.Tag + " is immutable" }

// Verdict implements engine.Verdict.
func (e *ImmutableError) Verdict() {}

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
	// For what is saved see Uploads.Save.
	Owner string
	Until time.Time
}

// Options of Open. The zero value works.
type Options = engine.Options

// Catalog is an open catalogue. All methods may run concurrently.
type Catalog struct {
	// DB is the database it is in.
	DB *engine.DB

	Uploads   *Uploads
	Garbage   *Garbage
	Retention *Retention
	Settings  *Settings
	Queue     *Queue
}

// Open opens the SQLite catalogue at path; see [engine.Open].
func Open(ctx context.Context, path string, o *Options) (*Catalog, error) {
	return of(engine.Open(ctx, path, o))
}

// OpenPostgres opens the catalogue in a PostgreSQL database; see [engine.OpenPostgres].
func OpenPostgres(ctx context.Context, dsn string, o *Options) (*Catalog, error) {
	return of(engine.OpenPostgres(ctx, dsn, o))
}

func of(db *engine.DB, err error) (*Catalog, error) {
	if err != nil {
		return nil, err
	}
	return &Catalog{DB: db, Uploads: &Uploads{db}, Garbage: &Garbage{DB: db}, Retention: &Retention{db}, Settings: &Settings{db}, Queue: &Queue{db}}, nil
}

// Close closes the database.
func (c *Catalog) Close() error { return c.DB.Close() }
