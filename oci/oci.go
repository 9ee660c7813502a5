// Package oci is the OCI Distribution 1.1 protocol as Go: names and digests,
// error codes and their HTTP status, one table of requests that server and
// client share ([Parse] and [Request.Path]), and the registry as four small
// interfaces, [Reader], [Writer], [Deleter] and [Lister], summed in
// [Registry].
//
// A stored registry, a pull-through proxy and a client over HTTP all satisfy
// [Registry], so each can be put behind the server, in front of another one,
// or into the same conformance suite (package oci/ocitest).
//
// The package does no I/O and knows no storage and no HTTP server.
package oci

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Digest is an OCI content digest, "sha256:<64 hex>" or "sha512:<128 hex>".
type Digest = digest.Digest

// Descriptor is an OCI content descriptor. Size is in bytes.
type Descriptor = ocispec.Descriptor

// Media types that this registry treats specially. All others are stored and served
// unchanged.
const (
	MediaTypeOCIManifest       = ocispec.MediaTypeImageManifest
	MediaTypeOCIIndex          = ocispec.MediaTypeImageIndex
	MediaTypeDockerManifest    = "application/vnd.docker.distribution.manifest.v2+json"
	MediaTypeDockerIndex       = "application/vnd.docker.distribution.manifest.list.v2+json"
	MediaTypeDockerManifestV1  = "application/vnd.docker.distribution.manifest.v1+json"
	MediaTypeDockerManifestV1S = "application/vnd.docker.distribution.manifest.v1+prettyjws"
	MediaTypeOctetStream       = "application/octet-stream"
)

// Limits of the protocol.
const (
	// MaxNameLength is the longest repository name in bytes. SPEC: "many
	// clients impose a limit of 255 characters on the length of the
	// concatenation of the registry hostname, /, and <name>".
	MaxNameLength = 255
	// MaxTagLength is the longest tag in bytes. SPEC: [a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}.
	MaxTagLength = 128
	// MaxManifestSize is the largest manifest accepted, in bytes. SPEC: a
	// registry should accept at least 4 MiB.
	MaxManifestSize = 4 << 20
)

// Content is an open blob, or an open part of one.
//
// It must be closed. WriteTo sends the bytes in the cheapest way: a slice in RAM in one
// Write, a file through the writer's ReadFrom (sendfile). Read and WriteTo must not be
// mixed. Content is not safe for concurrent use.
type Content interface {
	io.ReadCloser
	io.WriterTo
	// Descriptor describes the whole blob, even if only a part of it is open.
	Descriptor() Descriptor
}

// Manifest is a manifest with its bytes, which nobody may change.
type Manifest struct {
	Descriptor
	// Bytes is the manifest exactly as it was pushed.
	Bytes []byte
}

// Reader reads from a registry. All methods may run concurrently. ctx bounds the call;
// for GetBlob and GetBlobRange it also bounds the use of the Content.
//
// Every method returns NAME_INVALID for a malformed repository, and UNAUTHORIZED or
// DENIED if the registry asks for credentials.
type Reader interface {
	// ResolveBlob returns a blob's size and digest. Errors: BLOB_UNKNOWN, even if other
	// repositories hold the blob.
	ResolveBlob(ctx context.Context, repo string, d Digest) (Descriptor, error)
	// GetBlob opens a blob. Errors: BLOB_UNKNOWN.
	GetBlob(ctx context.Context, repo string, d Digest) (Content, error)
	// GetBlobRange opens n bytes of a blob from the offset off; n < 0 means up to its
	// end. A range that begins at or beyond the end is RANGE_INVALID. A range that only
	// ends beyond the end is cut. Errors: BLOB_UNKNOWN, RANGE_INVALID.
	GetBlobRange(ctx context.Context, repo string, d Digest, off, n int64) (Content, error)
	// ResolveManifest returns the descriptor of a manifest by tag or digest.
	// Errors: MANIFEST_UNKNOWN.
	ResolveManifest(ctx context.Context, repo, ref string) (Descriptor, error)
	// GetManifest returns a manifest by tag or digest. Errors: MANIFEST_UNKNOWN.
	GetManifest(ctx context.Context, repo, ref string) (*Manifest, error)
}

// UploadStatus is the state of a blob upload.
type UploadStatus struct {
	// ID names the upload within its repository.
	ID string
	// Size is how many bytes the registry holds; the next chunk begins here.
	Size int64
	// MinChunk is the smallest chunk in bytes that the registry takes, except the last
	// one; 0 means any. SPEC: OCI-Chunk-Min-Length.
	MinChunk int64
}

// AtEnd as an offset of AppendUpload and CommitUpload means "wherever the
// upload stands", for a client that sent no Content-Range.
const AtEnd int64 = -1

// PutManifest is a manifest to store.
type PutManifest struct {
	// Bytes is the manifest as sent.
	Bytes []byte
	// MediaType is the request's Content-Type. If it is empty, the manifest's own media
	// type is used.
	MediaType string
	// Digest is the digest that the manifest must have. If it is empty, that is the
	// sha256 digest of Bytes.
	Digest Digest
	// Tags are the tags to point at the manifest. Either all of them are set or none.
	Tags []string
}

// PutResult is what was stored by PutManifest.
type PutResult struct {
	Descriptor
	// Subject is the manifest's subject, or empty if it has none. SPEC: OCI-Subject.
	Subject Digest
	// Tags are the tags that now point at the manifest.
	Tags []string
}

// Writer writes to a registry. When a method that stores content returns nil,
// the content and all that makes it visible are durable.
type Writer interface {
	// PushBlob stores a blob in one go. size is the number of bytes in r, or
	// negative when unknown. Errors: DIGEST_INVALID, SIZE_INVALID.
	PushBlob(ctx context.Context, repo string, d Digest, size int64, r io.Reader) (Descriptor, error)
	// MountBlob shows a blob of one repository, from, in another repository, to. Errors:
	// BLOB_UNKNOWN.
	MountBlob(ctx context.Context, to, from string, d Digest) (Descriptor, error)
	// StartUpload opens an upload. Errors: TOOMANYREQUESTS.
	StartUpload(ctx context.Context, repo string) (UploadStatus, error)
	// UploadStatus returns the state of an upload. Errors: BLOB_UPLOAD_UNKNOWN.
	UploadStatus(ctx context.Context, repo, id string) (UploadStatus, error)
	// AppendUpload adds the bytes of r. off must be the upload's size or AtEnd. size is
	// the number of bytes in r, or negative if that is unknown. Bytes that arrived before
	// an error are kept, and the upload can be continued after them. Errors:
	// BLOB_UPLOAD_UNKNOWN, RANGE_INVALID (another off), SIZE_INVALID.
	AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (UploadStatus, error)
	// CommitUpload adds the bytes of r as AppendUpload does, then turns the upload into
	// the blob d. Errors: those of AppendUpload, and DIGEST_INVALID. If the bytes have
	// another digest, the upload is gone; if d is malformed, it stays.
	CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d Digest) (Descriptor, error)
	// CancelUpload ends an upload and frees its space. Errors: BLOB_UPLOAD_UNKNOWN.
	CancelUpload(ctx context.Context, repo, id string) error
	// PutManifest stores a manifest and its tags. Errors: MANIFEST_INVALID,
	// MANIFEST_BLOB_UNKNOWN (it names content the repository lacks),
	// DIGEST_INVALID, TAG_INVALID, SIZE_INVALID, DENIED (immutable tag).
	PutManifest(ctx context.Context, repo string, m PutManifest) (PutResult, error)
}

// Deleter removes content. Space is reclaimed later, by garbage collection.
type Deleter interface {
	// DeleteBlob removes a blob from one repository. Errors: BLOB_UNKNOWN, DENIED (a
	// manifest of the repository needs it).
	DeleteBlob(ctx context.Context, repo string, d Digest) error
	// DeleteManifest removes a manifest and every tag that points at it.
	// Errors: MANIFEST_UNKNOWN, DENIED (an immutable tag points at it).
	DeleteManifest(ctx context.Context, repo string, d Digest) error
	// DeleteTag removes a tag and leaves the manifest. Errors:
	// MANIFEST_UNKNOWN, DENIED (immutable).
	DeleteTag(ctx context.Context, repo, tag string) error
}

// Lister lists. Lists are sorted by byte value and paged: a call returns at most n names
// after last, and more reports whether names remain.
type Lister interface {
	// Repositories lists repository names.
	Repositories(ctx context.Context, last string, n int) (names []string, more bool, err error)
	// Tags lists a repository's tags. Errors: NAME_UNKNOWN.
	Tags(ctx context.Context, repo, last string, n int) (tags []string, more bool, err error)
	// Referrers lists the manifests whose subject is d, of one artifact type or, with "",
	// of all. A subject without referrers is not an error. The descriptors carry
	// artifactType and annotations. They are sorted by digest, without duplicates. last
	// is a digest, which need not be that of a referrer. A page may be shorter than n
	// although there are more, but then it is not empty.
	Referrers(ctx context.Context, repo string, d Digest, artifactType, last string, n int) (list []Descriptor, more bool, err error)
}

// Registry is a whole registry.
type Registry interface {
	Reader
	Writer
	Deleter
	Lister
}

// Actor says who makes a request and from where. The server puts it into the request's
// context. The registry passes it to whatever records events.
type Actor struct {
	// Name is the authenticated subject. It is empty for an anonymous client.
	Name string
	// Addr is the client's address as host:port. It has no port if a proxy gave the
	// address without one.
	Addr string
	// UserAgent is the client's User-Agent.
	UserAgent string
	// RequestID identifies the request in logs and events.
	RequestID string
	// Host and Method are those of the request.
	Host, Method string
	// Time the request arrived.
	Time time.Time
}

type actorKey struct{}

// WithActor returns a context that carries a.
func WithActor(ctx context.Context, a *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorFrom returns the context's actor, or nil.
func ActorFrom(ctx context.Context) *Actor {
	a, _ := ctx.Value(actorKey{}).(*Actor)
	return a
}

type changedKey struct{}

// ChangedAt returns a context for a change of a tag that repeats one which another registry
// made at a time. A registry that keeps histories records that time, and refuses the change
// with TAG_NEWER if its tag points at something since a later time.
func ChangedAt(ctx context.Context, at time.Time) context.Context {
	return context.WithValue(ctx, changedKey{}, at)
}

// ChangedFrom returns the time that ChangedAt gave, or the zero time.
func ChangedFrom(ctx context.Context) time.Time {
	at, _ := ctx.Value(changedKey{}).(time.Time)
	return at
}

type readingKey struct{}

// ForReading returns a context for questions about content that is read next. A recent
// observation is a good enough answer, because the read finds out what has happened
// since.
func ForReading(ctx context.Context) context.Context {
	return context.WithValue(ctx, readingKey{}, true)
}

// IsForReading reports whether ctx is from ForReading.
func IsForReading(ctx context.Context) bool { return ctx.Value(readingKey{}) != nil }

type pushingKey struct{}

// ForPushing returns a context for questions of a client that may push. Such a client
// does not push what the registry says exists, so an image that has lost a part must
// count as absent.
func ForPushing(ctx context.Context) context.Context {
	return context.WithValue(ctx, pushingKey{}, true)
}

// IsForPushing reports whether ctx is from ForPushing.
func IsForPushing(ctx context.Context) bool { return ctx.Value(pushingKey{}) != nil }

// ClientOf returns the key under which the client at an address is counted wherever
// clients have a share or a limit: its IPv4 address, or the /64 of its IPv6 address,
// which is what one host or customer commonly has. The address may have a port. The key
// is zero if the address is not an IP address, such as that of a unix socket.
func ClientOf(addr string) netip.Addr {
	ap, err := netip.ParseAddrPort(addr)
	a := ap.Addr()
	if err != nil {
		if a, err = netip.ParseAddr(addr); err != nil {
			return netip.Addr{}
		}
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		p, _ := a.Prefix(64) // IPv6 has that many bits
		return p.Addr()
	}
	return a
}
