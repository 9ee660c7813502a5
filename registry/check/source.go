package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
)

// Source has good copies of contents. It is a backup or another registry. The caller
// verifies the bytes.
type Source interface {
	// Content opens a content that the given images need. The caller closes it. Errors: ErrNoCopy,
	// *RefusedError.
	Content(ctx context.Context, d oci.Digest, images []repair.Use) (io.ReadCloser, error)
}

// ErrNoCopy is returned by a [Source] that does not have a content.
var ErrNoCopy = errors.New("the source does not have the content")

// RefusedError is returned by a [Source] that refuses to give a content. It may have the
// content.
type RefusedError struct {
	Repo string // the first repository that refused
	Err  error
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("repository %s of the source refuses to give it: %v", e.Repo, e.Err)
}

// Unwrap returns what the source answered.
func (e *RefusedError) Unwrap() error { return e.Err }

// Stored returns a source that has everything that a registry has stored. The registry
// may be a backup. The source returns a content whichever repository shows it.
func Stored(reg *registry.Registry) Source { return stored{reg.Upkeep()} }

type stored struct{ up *registry.Upkeep }

func (s stored) Content(ctx context.Context, d oci.Digest, _ []repair.Use) (io.ReadCloser, error) {
	b, err := s.up.Catalog.StoredBlob(ctx, d)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, ErrNoCopy
	}
	if err != nil {
		return nil, err
	}
	if b.Content != nil {
		return io.NopCloser(bytes.NewReader(b.Content)), nil
	}
	obj, err := s.up.Store.Get(ctx, storage.BlobKey(d), 0, -1)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, ErrNoCopy
	}
	return obj, err
}

// Other returns a source that reads from another registry. If repo is set, it looks for every
// content there. Otherwise it looks in the repositories with the same names as those that need the
// content.
func Other(r oci.Reader, repo string) Source { return other{r, repo} }

type other struct {
	r    oci.Reader
	repo string
}

func (s other) Content(ctx context.Context, d oci.Digest, images []repair.Use) (io.ReadCloser, error) {
	repos := []string{s.repo}
	if s.repo == "" {
		repos = repos[:0]
		for _, u := range images {
			if len(repos) == 0 || repos[len(repos)-1] != u.Repo {
				repos = append(repos, u.Repo) // they are in order
			}
		}
	}
	var refused *RefusedError
	for _, repo := range repos {
		src, err := s.in(ctx, repo, d)
		switch status := statusOf(err); {
		case err == nil:
			return src, nil
		case status == http.StatusNotFound:
		case status/100 == 4 && status != http.StatusTooManyRequests:
			if refused == nil {
				refused = &RefusedError{Repo: repo, Err: err}
			}
		default:
			return nil, err
		}
	}
	if refused != nil {
		return nil, refused
	}
	return nil, ErrNoCopy
}

// in opens a content of one repository, either as a blob or as a manifest.
func (s other) in(ctx context.Context, repo string, d oci.Digest) (io.ReadCloser, error) {
	blob, err := s.r.GetBlob(ctx, repo, d)
	if err == nil || statusOf(err) != http.StatusNotFound {
		return blob, err
	}
	m, err := s.r.GetManifest(ctx, repo, string(d))
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(m.Bytes)), nil
}

// statusOf returns the status of a registry's answer, or 0 for any other error.
func statusOf(err error) int {
	var e *oci.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.HTTPStatus()
}

// bring repairs a problem with a content by taking the content from the source, and
// reports that. done is false if the problem remains. In that case refused is the
// source's answer if it refused to give the content.
func (f *fsck) bring(ctx context.Context, p Problem, d oci.Digest) (done bool, refused string, err error) {
	done, err = f.fromSource(ctx, d)
	if no := (*RefusedError)(nil); errors.As(err, &no) {
		return false, "; " + no.Error(), nil
	}
	if !done || err != nil {
		return false, "", err
	}
	if p.Hurts, err = f.hurts(ctx, d); err != nil {
		return true, "", err
	}
	p.Repaired = true
	p.Detail += "; its bytes came from the source"
	f.note(p)
	return true, "", nil
}

// fromSource repairs a content with bytes of the source, before anything is given up. done is false
// if there is no source, or if it has no good copy.
func (f *fsck) fromSource(ctx context.Context, d oci.Digest) (done bool, err error) {
	if !f.o.Repair || f.o.From == nil || !oci.ValidDigest(d) {
		return false, nil
	}
	images, err := f.facts.Uses(ctx, d, maxHurts)
	if err != nil {
		return false, err
	}
	src, err := f.o.From.Content(ctx, d, images)
	if errors.Is(err, ErrNoCopy) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fetch %s from the source: %w", d, err)
	}
	defer src.Close()
	done, err = f.up.Heal(ctx, d, src)
	if oci.HasCode(err, oci.CodeDigestInvalid) { // the source's copy is damaged
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("heal %s: %w", d, err)
	}
	return done, nil
}

// Contents checks the bytes of contents, or only their sizes if quick is set. It records
// damaged contents as missing, so that the next client that pushes them is asked for
// their bytes. It returns the damaged contents. Absent and damaged contents stay set
// aside, as after a repair by Run.
func Contents(ctx context.Context, reg *registry.Registry, contents []oci.Digest, quick bool) (damaged []oci.Digest, err error) {
	up := reg.Upkeep()
	if err := errors.Join(up.Storage.Writable(), reg.CheckStore(ctx)); err != nil {
		return nil, err
	}
	f := newFsck(reg, up, Options{Repair: true, Quick: quick, GiveUpMany: true})
	ctx, release, err := up.Replica.AloneSoon(ctx, replica.LeaseCollect, "check of contents")
	if err != nil {
		return nil, fmt.Errorf("wait for a collection to end: %w", err)
	}
	defer release()
	for _, d := range contents {
		c, err := repair.New(up.Catalog.DB).StoredContent(ctx, d)
		if errors.Is(err, catalog.ErrNotFound) {
			continue
		}
		if err == nil {
			err = f.checkContent(ctx, c)
		}
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", d, replica.LeaseError(ctx, err))
		}
	}
	for _, p := range f.rep.Problems {
		if p.Repaired && p.Kind != ProblemSize {
			damaged = append(damaged, p.Digest)
		}
	}
	return damaged, nil
}
