// Package images makes what the pages of an image show: what its manifest and its config
// say, its files, and how the files of two images differ.
//
// A page's data is for the template of the same name in package web, which decides who may
// see the page. All content is untrusted, because the user who pushed it chose it. Sizes
// are bounded before anything is read or built.
package images

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/signatures"
)

// Browse reads what repositories have. Its reads do not count as pulls.
type Browse interface {
	// Tag and Manifest return a manifest, or catalog.ErrNotFound.
	Tag(ctx context.Context, repo, tag string) (catalog.Manifest, error)
	Manifest(ctx context.Context, repo string, d oci.Digest) (catalog.Manifest, error)
	// ManifestUse returns where a manifest is used, with at most n tags and indexes.
	ManifestUse(ctx context.Context, repo string, d oci.Digest, n int) (browse.ManifestUse, error)
	// Content returns a blob of at most the given number of bytes, or
	// catalog.ErrNotFound.
	Content(ctx context.Context, repo string, d oci.Digest, most int64) ([]byte, error)
	// Attached lists at most n of the manifests whose subject is d.
	Attached(ctx context.Context, repo string, d oci.Digest, n int) (list []oci.Descriptor, more bool, err error)
	// Layer returns the state of a layer of a repository.
	Layer(ctx context.Context, repo string, d oci.Digest) (LayerState, error)
	// Signatures verifies the signatures of an image, if there are keys for that.
	Signatures(ctx context.Context, repo string, d oci.Digest) ([]signatures.Signature, error)
}

// LayerState is the state of a layer.
type LayerState struct {
	// Here reports that the repository has the layer.
	Here bool
	// Converted reports that the layer was converted to Files distinct contents, which
	// have Bytes bytes together. Waiting reports that the layer waits for its conversion.
	// Failure is the error of the last attempt.
	Converted, Waiting bool
	Files, Bytes       int64
	Failure            string
}

// Files gives the pages that show the files of images what they need in addition to
// Browse. None of its methods counts as a pull, asks an upstream, or begins a conversion.
type Files interface {
	// MayLook and Look are methods of gearregistry.Service.
	MayLook(ctx context.Context, repo string, d oci.Digest) error
	Look(ctx context.Context, repo string, d oci.Digest) (*gear.Index, error)
	// Profile is gearregistry.Service's LookProfile. It returns the files that containers
	// open first.
	Profile(ctx context.Context, repo string, manifest oci.Digest) ([]gear.Name, error)
	// Share and Holders are methods of gearfacts.Layers.
	Share(ctx context.Context, image oci.Digest, layers []oci.Digest, repo string) (gearfacts.Share, error)
	Holders(ctx context.Context, names []gear.Name, n int) ([]gearfacts.Holders, error)
	// Converts reports whether layers of a repository are converted automatically.
	Converts(repo string) bool
}

// Starts knows how containers of images started on nodes. *fleet.Book implements it.
type Starts interface {
	// Starts returns at most n of the last starts of an image of a repository, the newest
	// first. The image is that of one of some manifests.
	Starts(repo string, manifests []string, n int) []fleet.Image
}

// Options are the options of New. Files and Starts may be missing.
type Options struct {
	Browse Browse
	// Starts knows how images started on nodes. If it is nil, no starts are shown.
	Starts Starts
	// Files gives access to the files of images. If it is nil, no files are shown.
	Files  Files
	Logger *slog.Logger
	Clock  func() time.Time
	// Base is the path of the first page, with a trailing slash. Links begin with it.
	Base string
}

// Pages makes the data of pages. All methods may run concurrently.
type Pages struct {
	opts  Options
	log   *slog.Logger
	trees *trees
	// ctx is the context of background work. stop ends that work, and Close waits for it.
	// beginning prevents more work from beginning then.
	ctx        context.Context
	stop       context.CancelFunc
	background sync.WaitGroup
	beginning  sync.Mutex
}

// New returns pages. The caller must close them.
func New(o Options) *Pages {
	p := &Pages{opts: o, log: o.Logger, trees: newTrees()}
	p.ctx, p.stop = context.WithCancel(context.Background()) // what is counted is kept for the next request
	return p
}

// begin runs work in the background until Close. It reports false if Close was already
// called.
func (p *Pages) begin(work func(context.Context)) bool {
	p.beginning.Lock()
	defer p.beginning.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.background.Go(func() { work(p.ctx) })
	return true
}

// Close ends background work and waits for it. Pages are still made after that.
func (p *Pages) Close() {
	p.beginning.Lock()
	p.stop()
	p.beginning.Unlock()
	p.background.Wait()
}

// Viewer is the user for whom a page is made.
type Viewer struct {
	// Admin reports that the user manages the registry. MayDelete reports that the user
	// may delete images of the repository. Everywhere reports that the user may learn
	// about all repositories.
	Admin, MayDelete, Everywhere bool
	// Host is the host by which clients name the registry. Plain reports that they reach
	// it without TLS.
	Host  string
	Plain bool
}

// request is a request for a page.
type request struct {
	*Pages
	Viewer
	r *http.Request
}

func (q *request) ctx() context.Context { return q.r.Context() }

// ErrNoDirectory says that an image lacks the requested directory.
var ErrNoDirectory = errors.New("the image has no such directory")

// Absent reports whether an error says that something does not exist.
func Absent(err error) bool {
	return errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) ||
		oci.HasCode(err, oci.CodeBlobUnknown, oci.CodeManifestUnknown, oci.CodeNameUnknown)
}

// Ref is an image as an address names it. Ref is a tag or a digest.
type Ref struct{ Repo, Ref string }

// ParseRef splits REPOSITORY:TAG or REPOSITORY@DIGEST.
func ParseRef(s string) (Ref, bool) {
	repo, ref, digest := strings.Cut(s, "@")
	if !digest {
		i := strings.LastIndexByte(s, ':')
		if i < 0 {
			return Ref{}, false
		}
		repo, ref = s[:i], s[i+1:]
	}
	valid := oci.ValidName(repo) && (digest && oci.ValidDigest(oci.Digest(ref)) || !digest && oci.ValidTag(ref))
	return Ref{repo, ref}, valid
}

// String returns the form that ParseRef reads.
func (r Ref) String() string {
	if oci.IsDigest(r.Ref) {
		return r.Repo + "@" + r.Ref
	}
	return r.Repo + ":" + r.Ref
}

// Read reads the manifest of the image.
func (r Ref) Read(ctx context.Context, b Browse) (catalog.Manifest, error) {
	if oci.IsDigest(r.Ref) {
		return b.Manifest(ctx, r.Repo, oci.Digest(r.Ref))
	}
	return b.Tag(ctx, r.Repo, r.Ref)
}

// DigestLink returns REPOSITORY@DIGEST, in which an address need not escape any character.
// It returns "" if the digest is invalid.
func DigestLink[D ~string](repo string, digest D) string {
	if !oci.ValidDigest(oci.Digest(digest)) || !oci.ValidName(repo) {
		return ""
	}
	return repo + "@" + string(digest)
}

// TagLink returns REPOSITORY:TAG, in which an address need not escape any character. It
// returns "" if either part is malformed.
func TagLink(repo, tag string) string {
	if !oci.ValidName(repo) || !oci.ValidTag(tag) {
		return ""
	}
	return repo + ":" + tag
}
