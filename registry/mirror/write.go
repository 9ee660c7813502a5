package mirror

import (
	"context"
	"io"
	"slices"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/mirror/upstream"
)

// ours returns an error if a repository is mirrored, because nobody can write to it then.
func (m *Registry) ours(repo string) error {
	if m.Mirrored(repo) {
		first, _, _ := strings.Cut(repo, "/")
		return oci.Errorf(oci.CodeUnsupported, "%s is a mirror of %s: nothing can be pushed to it; push to the upstream, or under another name", repo, first)
	}
	return nil
}

// wrote notes that a repository of this server was written to.
func (m *Registry) wrote(repo string, err error) {
	if err == nil && m.opts.Default != "" {
		m.names.forget(repo)
	}
}

// PushBlob implements oci.Writer.
func (m *Registry) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	if err := m.ours(repo); err != nil {
		return oci.Descriptor{}, err
	}
	desc, err := m.store.PushBlob(ctx, repo, d, size, r)
	m.wrote(repo, err)
	return desc, err
}

// MountBlob implements oci.Writer. A blob of a mirror can be mounted if it is stored.
func (m *Registry) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	if err := m.ours(to); err != nil {
		return oci.Descriptor{}, err
	}
	desc, err := m.store.MountBlob(ctx, to, from, d)
	m.wrote(to, err)
	return desc, err
}

// StartUpload implements oci.Writer.
func (m *Registry) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	if err := m.ours(repo); err != nil {
		return oci.UploadStatus{}, err
	}
	return m.store.StartUpload(ctx, repo)
}

// UploadStatus implements oci.Writer.
func (m *Registry) UploadStatus(ctx context.Context, repo, id string) (oci.UploadStatus, error) {
	return m.store.UploadStatus(ctx, repo, id)
}

// AppendUpload implements oci.Writer.
func (m *Registry) AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (oci.UploadStatus, error) {
	return m.store.AppendUpload(ctx, repo, id, off, size, r)
}

// CommitUpload implements oci.Writer.
func (m *Registry) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	desc, err := m.store.CommitUpload(ctx, repo, id, off, size, r, d)
	m.wrote(repo, err)
	return desc, err
}

// CancelUpload implements oci.Writer.
func (m *Registry) CancelUpload(ctx context.Context, repo, id string) error {
	return m.store.CancelUpload(ctx, repo, id)
}

// PutManifest implements oci.Writer.
func (m *Registry) PutManifest(ctx context.Context, repo string, p oci.PutManifest) (oci.PutResult, error) {
	if err := m.ours(repo); err != nil {
		return oci.PutResult{}, err
	}
	res, err := m.store.PutManifest(ctx, repo, p)
	m.wrote(repo, err)
	return res, err
}

// DeleteBlob implements oci.Deleter. In a mirror it drops the stored copy.
func (m *Registry) DeleteBlob(ctx context.Context, repo string, d oci.Digest) error {
	if !m.Mirrored(repo) {
		return m.store.DeleteBlob(ctx, repo, d)
	}
	if err := m.settle(ctx, repo); err != nil {
		return err
	}
	if _, err := m.store.ResolveBlob(ctx, repo, d); err != nil {
		return err
	}
	return m.store.ForgetBlob(ctx, repo, d)
}

// DeleteManifest implements oci.Deleter. In a mirror it drops the stored copy of the
// image and frees its space at once.
func (m *Registry) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	if !m.Mirrored(repo) {
		return m.store.DeleteManifest(ctx, repo, d)
	}
	got, err := m.forget(ctx, repo, registry.ForgetOptions{}, d)
	if err == nil && got.Manifests == 0 {
		return unknownManifest(repo, string(d), "")
	}
	return err
}

// DeleteTag implements oci.Deleter. In a mirror the tag is dropped until a client asks
// for it again.
func (m *Registry) DeleteTag(ctx context.Context, repo, tag string) error {
	s, _ := m.source(repo)
	if s == nil {
		return m.store.DeleteTag(ctx, repo, tag)
	}
	if err := m.settle(ctx, repo); err != nil {
		return err
	}
	if _, err := m.store.ResolveManifest(ctx, repo, tag); err != nil {
		return err
	}
	s.tags.drop(repo, tag)
	return m.store.ForgetTag(ctx, repo, tag)
}

// Forget drops images of a mirrored repository: those that refs give by tag or digest, or
// all if there are no refs. Content that is visible nowhere else is gone at once. Readers
// that have content open can read it to its end.
func (m *Registry) Forget(ctx context.Context, repo string, refs ...string) (registry.Forgotten, error) {
	if !m.Mirrored(repo) {
		return registry.Forgotten{}, oci.Errorf(oci.CodeUnsupported, "%s is not a mirror", repo)
	}
	if err := m.settle(ctx, repo); err != nil {
		return registry.Forgotten{}, err
	}
	var list []oci.Digest
	for _, ref := range refs {
		d, err := m.store.ResolveManifest(ctx, repo, ref)
		if err != nil {
			return registry.Forgotten{}, err
		}
		list = append(list, d.Digest)
	}
	if len(refs) == 0 {
		err := m.images(ctx, registry.MirrorQuery{Prefix: repo}, func(i registry.MirrorImage) error {
			if i.Repo == repo {
				list = append(list, i.Digest)
			}
			return nil
		})
		if err != nil {
			return registry.Forgotten{}, err
		}
	}
	return m.forget(ctx, repo, registry.ForgetOptions{}, list...)
}

func (m *Registry) forget(ctx context.Context, repo string, o registry.ForgetOptions, list ...oci.Digest) (registry.Forgotten, error) {
	if err := m.settle(ctx, repo); err != nil {
		return registry.Forgotten{}, err
	}
	got, err := m.store.Forget(ctx, repo, o, list...)
	if err == nil && got.Manifests > 0 && m.opts.OnEvent != nil {
		name, _, _ := strings.Cut(repo, "/")
		for _, d := range list {
			m.event(Event{Action: ActionForgotten, Upstream: name, Repo: repo, Digest: d})
		}
	}
	return got, err
}

// settle waits until the content of a repository that has been fetched is stored.
// Otherwise it could be forgotten first and stored afterwards. settle does not wait for
// content that is still being fetched.
func (m *Registry) settle(ctx context.Context, repo string) error {
	m.gate.unlock()
	if err := m.pending.settle(ctx, repo); err != nil {
		return err
	}
	for _, done := range m.fills.Unsettled(repo) {
		if err := upstream.Await(ctx, done); err != nil {
			return err
		}
	}
	return nil
}

// Repositories implements oci.Lister. It lists the repositories of this server, and the
// mirrored repositories from which something is stored.
func (m *Registry) Repositories(ctx context.Context, last string, n int) ([]string, bool, error) {
	return m.store.Repositories(ctx, last, n)
}

// Incomplete returns why lists of a repository may be incomplete, or "" if they are
// complete.
func (m *Registry) Incomplete(repo string) string {
	if s, _ := m.source(repo); s != nil && s.Offline {
		return "this is what is here of " + s.Name + ", which is not asked"
	}
	return ""
}

// Tags implements oci.Lister. For a mirrored repository it lists the tags that the
// upstream has. If the upstream is offline, it lists the stored ones. While the upstream
// fails it returns an error, because the stored tags are only a part and would look like
// all.
func (m *Registry) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.Tags(ctx, repo, last, n)
	}
	if s.Offline || m.self.Back(ctx) {
		s.counts.add(kindTags, resultHit)
		return m.store.Tags(ctx, repo, last, n)
	}
	if err := s.allowed(name, ""); err != nil {
		s.counts.fetched(kindTags, true, err)
		return nil, false, err
	}
	tags, more, err := s.Upstream.Tags(m.self.On(ctx, route.From(ctx)), name, last, n)
	s.counts.fetched(kindTags, true, err)
	return tags, more, err
}

// Referrers implements oci.Lister in the same way as Tags.
func (m *Registry) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.Referrers(ctx, repo, d, artifactType, last, n)
	}
	if s.Offline || m.self.Back(ctx) {
		s.counts.add(kindReferrers, resultHit)
		return m.store.Referrers(ctx, repo, d, artifactType, last, n)
	}
	if err := s.allowed(name, ""); err != nil {
		s.counts.fetched(kindReferrers, true, err)
		return nil, false, err
	}
	list, err := s.Upstream.Referrers(m.self.On(ctx, route.From(ctx)), name, d)
	s.counts.fetched(kindReferrers, true, err)
	if upstream.KindOf(err) == upstream.NotFound { // nobody refers to it
		err = nil
	}
	if err != nil {
		return nil, false, err
	}
	list, more := referrersPage(list, artifactType, last, n)
	return list, more, nil
}

// referrersPage returns one page of an upstream's list.
func referrersPage(list []oci.Descriptor, artifactType, last string, n int) ([]oci.Descriptor, bool) {
	list = slices.DeleteFunc(slices.Clone(list), func(d oci.Descriptor) bool {
		return string(d.Digest) <= last || artifactType != "" && d.ArtifactType != artifactType
	})
	slices.SortFunc(list, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	list = slices.CompactFunc(list, func(a, b oci.Descriptor) bool { return a.Digest == b.Digest })
	if n = max(0, n); len(list) > n {
		return list[:n], n > 0
	}
	return list, false
}
