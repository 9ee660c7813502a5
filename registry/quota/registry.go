package quota

import (
	"context"
	"io"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

// Registry returns a registry whose writes keep to the limits.
func (l *Limits) Registry(r oci.Registry) oci.Registry {
	if l == nil {
		return r
	}
	return limited{r, l}
}

// limited is a registry with quotas.
type limited struct {
	oci.Registry
	limits *Limits
}

// body takes what a client sends into account. A body of unknown size is counted in steps.
type body struct {
	ctx    context.Context
	r      io.Reader
	limits *Limits
	repo   string
	left   int64 // how many more bytes are counted already
	done   []func(unread int64)
	err    error // the refusal
}

// step is how many bytes of a body of unknown size are counted at once. Each such request
// may keep up to a step of a quota from others without needing it.
const step = 32 << 10

// newBody returns the body of a request. d is its content, if it is known.
func (s limited) newBody(ctx context.Context, repo string, size int64, r io.Reader, d oci.Digest) (*body, error) {
	b := &body{ctx: ctx, r: r, limits: s.limits, repo: repo}
	if size >= 0 {
		return b, b.take(size, d)
	}
	return b, nil
}

func (b *body) take(n int64, d oci.Digest) error {
	if n == 0 {
		return nil
	}
	done, err := b.limits.take(b.ctx, b.repo, catalog.Usage{Bytes: n}, d)
	if err != nil {
		b.err = err
		return err
	}
	b.done = append(b.done, done)
	b.left += n
	return nil
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		if err := b.take(b.limits.room(b.repo), ""); err != nil {
			// A body may also end exactly where the quota is reached.
			var one [1]byte
			if _, end := io.ReadFull(b.r, one[:]); end == io.EOF {
				b.err = nil
				return 0, io.EOF
			}
			return 0, err
		}
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

// end gives back what was counted and not read, and returns the refusal instead of what
// the registry made of it.
func (b *body) end(err error) error {
	for i, done := range b.done {
		if i < len(b.done)-1 {
			done(0)
		} else {
			done(b.left) // a step is counted when all before it was read
		}
	}
	if err != nil && b.err != nil {
		return b.err
	}
	return err
}

// Receive calls do with what a client sends to a repository besides blobs and manifests,
// and counts it. size is negative if it is not known.
func (l *Limits) Receive(ctx context.Context, repo string, size int64, r io.Reader, do func(io.Reader) error) error {
	if l == nil {
		return do(r)
	}
	b, err := limited{limits: l}.newBody(ctx, repo, size, r, "")
	if err != nil {
		return err
	}
	return b.end(do(b))
}

// PushBlob implements oci.Writer.
func (s limited) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	b, err := s.newBody(ctx, repo, size, r, d)
	if err != nil {
		return oci.Descriptor{}, err
	}
	desc, err := s.Registry.PushBlob(ctx, repo, d, size, b)
	return desc, b.end(err)
}

// MountBlob implements oci.Writer.
func (s limited) MountBlob(ctx context.Context, to, from string, d oci.Digest) (oci.Descriptor, error) {
	if len(s.limits.of(to)) == 0 {
		return s.Registry.MountBlob(ctx, to, from, d)
	}
	have, err := s.ResolveBlob(ctx, from, d)
	if err != nil {
		return oci.Descriptor{}, err
	}
	done, err := s.limits.take(ctx, to, catalog.Usage{Bytes: have.Size}, d)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer done(0)
	return s.Registry.MountBlob(ctx, to, from, d)
}

// StartUpload implements oci.Writer. A client whose quota is reached learns that before it
// sends anything.
func (s limited) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	done, err := s.limits.take(ctx, repo, catalog.Usage{Bytes: 1}, "")
	if err != nil {
		return oci.UploadStatus{}, err
	}
	defer done(1) // nothing is stored yet
	return s.Registry.StartUpload(ctx, repo)
}

// AppendUpload implements oci.Writer.
func (s limited) AppendUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader) (oci.UploadStatus, error) {
	b, err := s.newBody(ctx, repo, size, r, "")
	if err != nil {
		return oci.UploadStatus{}, err
	}
	st, err := s.Registry.AppendUpload(ctx, repo, id, off, size, b)
	return st, b.end(err)
}

// CommitUpload implements oci.Writer. The bytes that arrived before count already.
func (s limited) CommitUpload(ctx context.Context, repo, id string, off, size int64, r io.Reader, d oci.Digest) (oci.Descriptor, error) {
	b, err := s.newBody(ctx, repo, size, r, "")
	if err != nil {
		return oci.Descriptor{}, err
	}
	desc, err := s.Registry.CommitUpload(ctx, repo, id, off, size, b, d)
	return desc, b.end(err)
}

// PutManifest implements oci.Writer.
func (s limited) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	if len(s.limits.of(repo)) == 0 {
		return s.Registry.PutManifest(ctx, repo, m)
	}
	d := m.Digest
	if d == "" {
		d = oci.SHA256(m.Bytes)
	}
	bytes, err := s.limits.take(ctx, repo, catalog.Usage{Bytes: int64(len(m.Bytes))}, d)
	if err != nil {
		return oci.PutResult{}, err
	}
	defer bytes(0)
	fresh, err := s.limits.fresh(ctx, repo, m.Tags)
	if err != nil {
		return oci.PutResult{}, err
	}
	tags, err := s.limits.take(ctx, repo, catalog.Usage{Tags: fresh}, "")
	if err != nil {
		return oci.PutResult{}, err
	}
	defer tags(0)
	return s.Registry.PutManifest(ctx, repo, m)
}

// fresh returns how many of the tags a repository does not have. It asks the catalogue,
// because the registry says that an image is unknown if part of it is lost, and whoever
// pushes such an image again moves its tag.
func (l *Limits) fresh(ctx context.Context, repo string, tags []string) (n int64, err error) {
	seen := map[string]bool{}
	for _, tag := range tags {
		if seen[tag] {
			continue
		}
		seen[tag] = true
		has, err := l.source.HasTag(ctx, repo, tag)
		if err != nil {
			return 0, storage.ClientError("look for tag "+tag+" for quotas", err)
		}
		if !has {
			n++
		}
	}
	return n, nil
}
