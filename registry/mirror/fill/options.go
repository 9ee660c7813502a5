// Package fill fetches blobs from upstreams, each once for all who want it. Its readers are
// given the bytes as they come, except for the last ones, which wait until the digest is
// known to be right. Then the blob is stored. What a fill has fetched when it fails is kept
// on disk, and the next fill goes on from there.
package fill

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

// Origin is a repository of an upstream, which a blob is fetched from.
type Origin struct {
	// Upstream is the upstream's name.
	Upstream string
	// Registry is the upstream.
	Registry Registry
	// Guarded says that a client chose the upstream. Then a claim of the upstream that it
	// has some content proves nothing until it has sent the content.
	Guarded bool
	Host    Host
	// Name is the name of the repository at the upstream, and Repo is its name here.
	Name, Repo string
}

// Registry is an upstream.
type Registry interface {
	ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	Blob(ctx context.Context, repo string, d oci.Digest, off int64) (*upstream.Body, error)
}

// Host is the mirror of an upstream, which asks questions and counts what happens.
type Host interface {
	// Ask returns the size of a blob, or -1 if the upstream does not say it.
	Ask(ctx context.Context, o Origin, d oci.Digest) (size int64, err error)
	// Pulled counts bytes that came from the upstream.
	Pulled(o Origin, n int64)
	// Resumed notes that a download goes on after a break. Wrong notes that the upstream
	// sent something wrong. The argument named at is how many bytes there are.
	Resumed(o Origin, d oci.Digest, at int64)
	Wrong(o Origin, d oci.Digest, at int64, err error)
	// Fetched notes that a blob was fetched. Failed notes that it could not be fetched.
	Fetched(o Origin, d oci.Digest, bytes int64, took time.Duration)
	Failed(o Origin, d oci.Digest, err error)
}

// Store is where blobs are put; see registry.Registry.
type Store interface {
	AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error)
	AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error)
	LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
}

// Options are the options of New. All are required, unless 0 makes sense.
type Options struct {
	// Dir holds blobs while they are being fetched.
	Dir string
	// MemoryBytes bounds the RAM for small blobs that are being fetched.
	MemoryBytes int64
	// KeepFree is how many bytes of Dir's disk must stay free.
	KeepFree int64
	// Linger is how long the fetching of a blob goes on after its last reader has left.
	Linger time.Duration
	// Patience is how long a client waits for an upstream that is busy or whose
	// connections break.
	Patience time.Duration
	Clock    func() time.Time
	Logger   *slog.Logger
	Store    Store
	// Spawn runs f in the background and returns true. If the mirror is closed it returns
	// false.
	Spawn func(f func()) bool
	// Gather waits a moment, so that small blobs that come together are stored together.
	Gather func(ctx context.Context)
	// Stored notes that a repository has a blob now, and Recent reports whether that was
	// noted a moment ago.
	Stored func(repo string, d oci.Digest)
	Recent func(repo string, d oci.Digest) bool
}

// ErrLookAgain says that the store may have the blob by now.
var ErrLookAgain = errors.New("the blob was stored in the meantime")

// ErrClosed returns the answer to requests that come while the registry is being closed.
func ErrClosed() error {
	return &oci.Error{Code: oci.CodeUnavailable, Message: "the registry is going down"}
}
