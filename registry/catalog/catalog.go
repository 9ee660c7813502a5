// Package catalog records what exists: repositories, tags, manifests, which repository
// shows which blob, uploads under way, and what may have become garbage.
//
// It consists of an SQL schema and its queries, in a database of package [engine]. A
// method that changes something returns when the change is durable.
//
// The bytes of small contents and of manifests are in the catalogue itself (see
// InlineMax). Their bytes and their row then cost one shared fsync instead of several.
// Larger contents are objects in an object store, which this package never touches.
package catalog

import (
	"context"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/engine"
)

// InlineMax is the size in bytes of the largest blob that is kept in the catalogue
// instead of the object store. SQLite reads and writes values of this size faster than a
// file system reads and writes files. An image of tiny layers then costs one fsync per
// blob. docs/bench.md lists the pushes of small images per second.
const InlineMax = 16 << 10

// Errors that callers branch on.
var (
	// ErrNotFound says that the repository, tag, manifest, blob or upload does not exist.
	ErrNotFound = engine.ErrNotFound
	// ErrNoRepository says that the repository itself does not exist.
	ErrNoRepository = engine.NewVerdict("repository is not in the catalogue")
	// ErrReferenced says that a manifest of the repository still names the blob.
	ErrReferenced = engine.NewVerdict("still referenced by a manifest")
	// ErrNotStored says that a blob cannot be linked because its content is not in the
	// store, or is no longer there. The content must be written first.
	ErrNotStored = engine.NewVerdict("content is not stored")
)

// MissingError lists the contents that a manifest needs and its repository lacks.
type MissingError struct {
	// Digests holds the first 100 missing contents.
	Digests []oci.Digest
	// Total is the number of all missing contents.
	Total int
}

// Error implements error.
func (e *MissingError) Error() string { return "manifest names content that is not there" }

// Verdict implements engine.Verdict.
func (e *MissingError) Verdict() {}

// SizeError says that a manifest gives a wrong size for a content.
type SizeError struct {
	Digest oci.Digest
	// Named is the size in the manifest, and Stored is the size of the content.
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
	// Content holds the bytes of an inline blob. It is nil for an object in the store.
	Content []byte
	// Tag is the objstore.Info.Tag of the object that has these bytes, or "" if the tag
	// is not known. Only repair.Store.ObjectTag reads it.
	Tag string
	// Suspect says that a read of the content failed or returned wrong bytes; see
	// repair.Store.MarkSuspect.
	Suspect bool
}

// Manifest is a manifest of a repository.
type Manifest struct {
	Digest    oci.Digest
	MediaType string
	// ArtifactType is what the referrers API reports. It may be empty.
	ArtifactType string
	// Subject's digest, empty without one.
	Subject     oci.Digest
	Annotations map[string]string
	Content     []byte
}

// NewManifest is a manifest to record, together with what it names.
type NewManifest struct {
	Manifest
	// Blobs must be visible in the repository.
	Blobs []oci.Digest
	// Manifests must be in the repository.
	Manifests []oci.Digest
	// Optional contents are recorded as named, but may be absent. They are foreign
	// layers, and platforms that an index may lack.
	Optional []oci.Descriptor
	// Sizes holds the sizes that the manifest gives for Blobs and Manifests. A content
	// without an entry is not compared with what is stored.
	Sizes map[oci.Digest]int64
	// Tags will point at the manifest.
	Tags []string
	// Origin says who sets the tags.
	Origin Origin
	// Immutable reports whether a tag must not be moved once it exists.
	Immutable func(tag string) bool
}

// MediaTypeError says that the repository has the manifest already, but with another
// media type.
type MediaTypeError struct {
	// Stored is the media type that the manifest has in the repository.
	Stored string
}

// Error implements error.
func (e *MediaTypeError) Error() string {
	return "manifest is stored with the media type " + e.Stored
}

// Verdict implements engine.Verdict.
func (e *MediaTypeError) Verdict() {}

// ImmutableError names a tag that must not be moved or removed. Part says that the
// manifest to be removed is part of the index that the tag points at.
type ImmutableError struct {
	Tag  string
	Part bool
}

// Error implements error.
func (e *ImmutableError) Error() string { return "tag " + e.Tag + " is immutable" }

// Verdict implements engine.Verdict.
func (e *ImmutableError) Verdict() {}

// Upload is an upload that takes more than one request.
type Upload struct {
	ID, Repo string
	// Size is the number of bytes that are safely held.
	Size int64
	// State is the state of the object store's upload. It is empty while Content holds
	// the bytes.
	State string
	// Hash is the marshalled SHA-256 state over Size bytes.
	Hash []byte
	// Content holds the bytes of an upload that is still small.
	Content []byte
	// Intent is the digest that is about to be published, or empty.
	Intent    oci.Digest
	UpdatedAt time.Time
	// Owner alone may use the upload before Until, by the catalogue's clock. In an upload
	// that was read, an Until in the past means that the claim has expired. Uploads.Save
	// says what Until means in an upload to be saved.
	Owner string
	Until time.Time
}

// Options are the options of Open and OpenPostgres. The zero value works.
type Options = engine.Options

// Catalog is an open catalogue. All methods may run concurrently.
type Catalog struct {
	// DB is the database that holds the catalogue.
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
