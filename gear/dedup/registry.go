package dedup

import (
	"context"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
)

// Registry has the methods of a registry that the analysis needs. Every [oci.Registry]
// has them.
type Registry interface {
	GetManifest(ctx context.Context, repo, ref string) (*oci.Manifest, error)
	GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error)
	Repositories(ctx context.Context, last string, n int) (names []string, more bool, err error)
	Tags(ctx context.Context, repo, last string, n int) (tags []string, more bool, err error)
}

// AddRegistry adds the tagged images of all repositories of a registry, each repository
// as a series. host is the name of the registry in messages. reg must stay open until the
// analysis is done. AddRegistry returns an error if the registry cannot be listed. An
// image that cannot be read becomes a [Problem].
func (s *Set) AddRegistry(ctx context.Context, reg Registry, host string) error {
	return oci.EachName(func(last string, n int) ([]string, bool, error) { return reg.Repositories(ctx, last, n) }, func(repo string) error {
		if err := s.AddRepository(ctx, reg, host, repo, nil); err != nil && !oci.HasCode(err, oci.CodeNameUnknown) {
			return err
		}
		return nil
	})
}

// AddRepository adds images of one repository by tag or digest. Without refs it adds all
// tagged images. An image with several tags is added once, under its first tag. Errors
// are as for [Set.AddRegistry].
func (s *Set) AddRepository(ctx context.Context, reg Registry, host, repo string, refs []string) error {
	if refs == nil {
		var err error
		if refs, err = allTags(ctx, reg, repo); err != nil {
			return err
		}
	}
	const atOnce = 8
	heads := make([]*oci.Manifest, len(refs))
	errs := make([]error, len(refs))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, ref := range refs {
		g.Go(func() error {
			heads[i], errs[i] = reg.GetManifest(ctx, repo, ref)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	if err := ctx.Err(); err != nil {
		return err
	}
	p := &repository{reg: reg, host: host, repo: repo, read: heads}
	defer func() { p.read = nil }()
	seen := map[oci.Digest]bool{}
	for i, ref := range refs {
		if errs[i] != nil {
			s.problems = append(s.problems, Problem{Where: p.String() + ":" + ref, Images: []string{repo + "/" + ref}, Err: errs[i].Error()})
			continue
		}
		if d := heads[i].Digest; !seen[d] {
			seen[d] = true
			s.addReference(ctx, p, repo, ref, heads[i].Descriptor)
		}
	}
	return ctx.Err()
}

func allTags(ctx context.Context, reg Registry, repo string) ([]string, error) {
	return oci.AllNames(func(last string, n int) ([]string, bool, error) { return reg.Tags(ctx, repo, last, n) })
}

// repository is a place: a repository of a registry.
type repository struct {
	reg        Registry
	host, repo string
	// read has the manifests that were read already. It is set only while images are
	// added.
	read []*oci.Manifest
}

var _ place = (*repository)(nil)

func (r *repository) String() string { return r.host + "/" + r.repo }

func (r *repository) manifest(ctx context.Context, d oci.Descriptor) ([]byte, error) {
	for _, m := range r.read {
		if m != nil && m.Digest == d.Digest {
			return m.Bytes, nil
		}
	}
	m, err := r.reg.GetManifest(ctx, r.repo, string(d.Digest))
	if err != nil {
		return nil, err
	}
	return readChecked(strings.NewReader(string(m.Bytes)), d)
}

func (r *repository) blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	return r.reg.GetBlob(ctx, r.repo, d.Digest)
}

// look assumes that a registry has what its manifests name.
func (r *repository) look(oci.Descriptor) error { return nil }
