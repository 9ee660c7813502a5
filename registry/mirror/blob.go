package mirror

import (
	"context"
	"errors"
	"io"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/mirror/upstream"
	"example.org/slipway/registry/storage"
)

// ResolveBlob implements oci.Reader.
func (m *Registry) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.ResolveBlob(ctx, repo, d)
	}
	if f, admitted := m.fills.Find(m.origin(ctx, s, name, repo), d); admitted {
		if size, err := sizeOf(ctx, f); err == nil {
			s.counts.add(kindBlob, resultHit)
			return storage.BlobDescriptor(d, size), nil
		}
	}
	desc, err := m.store.ResolveBlob(ctx, repo, d)
	if err == nil {
		s.counts.add(kindBlob, resultHit)
		return desc, nil
	}
	if !oci.HasCode(err, oci.CodeBlobUnknown) {
		return desc, err
	}
	if err := oci.CheckDigest(d); err != nil {
		return desc, err
	}
	if err := m.cannotAsk(ctx, s, kindBlob, repo, string(d), m.now(), unknownBlob); err != nil {
		return desc, err
	}
	size, began, err := m.askBlob(ctx, s, name, repo, d)
	s.counts.fetched(kindBlob, began, err)
	if err == nil && size < 0 { // the upstream does not say the size
		return m.measureBlob(ctx, s, name, repo, d)
	}
	return storage.BlobDescriptor(d, size), err
}

// sizeOf waits for the size of a blob that is being fetched: only for a moment if the
// request came through other mirrors, as the fill may be waiting for this request.
func sizeOf(ctx context.Context, f *fill.Fill) (int64, error) {
	if len(route.From(ctx)) > 0 {
		short, cancel := context.WithTimeout(ctx, ringPatience)
		defer cancel()
		ctx = short
	}
	return f.Whole(ctx)
}

// measureBlob finds out the size of a blob by fetching it: the size is certain only at
// the end.
func (m *Registry) measureBlob(ctx context.Context, s *source, name, repo string, d oci.Digest) (oci.Descriptor, error) {
	c, err := m.openBlob(ctx, s, name, repo, d, fill.Whole)
	if err != nil {
		return oci.Descriptor{}, err
	}
	defer c.Close()
	size, err := c.WriteTo(io.Discard)
	return storage.BlobDescriptor(d, size), err
}

// askBlob asks the upstream whether a repository has a blob. size is -1 if the upstream
// does not say it.
func (m *Registry) askBlob(ctx context.Context, s *source, name, repo string, d oci.Digest) (size int64, began bool, err error) {
	mf, began, err := m.fly(ctx, flightKey{flyBlob, contentKey{repo, string(d)}}, func(ctx context.Context) (*oci.Manifest, error) {
		if err := s.allowed(name, ""); err != nil {
			return nil, m.refused(s, kindBlob, repo, string(d), err)
		}
		var desc oci.Descriptor
		err := upstream.Patiently(ctx, m.opts.Patience, func() (err error) {
			desc, err = s.Upstream.ResolveBlob(ctx, name, d)
			return err
		})
		if err != nil {
			m.refuse(ctx, s, kindBlob, repo, string(d), err)
			return nil, err
		}
		return &oci.Manifest{Descriptor: desc}, nil
	})
	if err != nil {
		return 0, began, err
	}
	return mf.Size, began, nil
}

// GetBlob implements oci.Reader.
func (m *Registry) GetBlob(ctx context.Context, repo string, d oci.Digest) (oci.Content, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.GetBlob(ctx, repo, d)
	}
	return m.openBlob(ctx, s, name, repo, d, fill.Whole)
}

// GetBlobRange implements oci.Reader.
func (m *Registry) GetBlobRange(ctx context.Context, repo string, d oci.Digest, off, n int64) (oci.Content, error) {
	s, name := m.source(repo)
	if s == nil {
		return m.store.GetBlobRange(ctx, repo, d, off, n)
	}
	p := fill.Span{Off: off, N: n}
	if p == fill.Whole {
		// An empty blob can be opened as a whole, but no range of it is valid.
		desc, err := m.ResolveBlob(ctx, repo, d)
		if err == nil {
			_, _, err = fill.Span{Off: off, N: max(1, desc.Size)}.In(desc.Size)
		}
		if err != nil {
			return nil, err
		}
	}
	return m.openBlob(ctx, s, name, repo, d, p)
}

func (m *Registry) fromStore(ctx context.Context, repo string, d oci.Digest, p fill.Span) (oci.Content, error) {
	if p == fill.Whole {
		return m.store.GetBlob(ctx, repo, d)
	}
	return m.store.GetBlobRange(ctx, repo, d, p.Off, p.N)
}

// maxLooks bounds how often a content is looked for if others keep fetching, storing and
// forgetting it at the same time.
const maxLooks = 5

// openBlob opens a part of a blob of a mirrored repository. It takes the blob from a
// fill, from the store or else from the upstream.
func (m *Registry) openBlob(ctx context.Context, s *source, name, repo string, d oci.Digest, p fill.Span) (oci.Content, error) {
	for look := range maxLooks {
		if _, admitted := m.fills.Find(m.origin(ctx, s, name, repo), d); !admitted {
			c, err := m.fromStore(ctx, repo, d, p)
			if err == nil {
				s.counts.add(kindBlob, resultHit)
				s.counts.send(p, c.Descriptor().Size)
				return c, nil
			}
			if !oci.HasCode(err, oci.CodeBlobUnknown) {
				return nil, err
			}
		}
		c, err := m.openFill(ctx, s, name, repo, d, p, look > 0)
		if !errors.Is(err, fill.ErrLookAgain) {
			return c, onward(ctx, err)
		}
	}
	return nil, errChanging
}

// errChanging answers a request for content that others keep fetching and forgetting.
var errChanging = &oci.Error{Code: oci.CodeUnavailable, Message: "the content is being changed all the time; ask again"}

// openFill opens a blob that the store lacks.
func (m *Registry) openFill(ctx context.Context, s *source, name, repo string, d oci.Digest, p fill.Span, again bool) (oci.Content, error) {
	if err := oci.CheckDigest(d); err != nil {
		return nil, err
	}
	if err := m.cannotAsk(ctx, s, kindBlob, repo, string(d), m.now(), unknownBlob); err != nil {
		return nil, err
	}
	if err := s.allowed(name, ""); err != nil {
		s.counts.fetched(kindBlob, true, err)
		return nil, m.refused(s, kindBlob, repo, string(d), err)
	}
	o := m.origin(ctx, s, name, repo)
	f, how, err := m.fills.Join(o, d, again)
	switch {
	case err != nil:
		return nil, err
	case how == fill.LookAgain:
		return nil, fill.ErrLookAgain
	case how == fill.Stranger:
		if err := m.introduce(ctx, f, s, name, repo); err != nil {
			return nil, err
		}
	}
	if how == fill.Follower {
		if err := m.notWaited(ctx, f, s, name, repo); err != nil {
			f.Leave()
			s.counts.fetched(kindBlob, false, err)
			return nil, err
		}
	}
	c, err := f.Open(ctx, o, p)
	if err != nil {
		f.Leave()
		if ofFill := upstream.KindOf(err) != 0 || !oci.HasCode(err, oci.CodeRangeInvalid); ofFill && !f.For(repo) && ctx.Err() == nil {
			err = fill.ErrLookAgain // the error is not about this repository
		}
		if !errors.Is(err, fill.ErrLookAgain) {
			s.counts.fetched(kindBlob, how == fill.Beginner, err)
		}
		return nil, err
	}
	s.counts.fetched(kindBlob, how == fill.Beginner, nil)
	s.counts.send(p, c.Descriptor().Size)
	return c, nil
}

// notWaited returns an error if a fill may wait for the request of ctx, in a ring of mirrors
// none of which has the blob. It asks whether the upstream has it, by a question that ends in
// a ring, unless the fill gets on.
func (m *Registry) notWaited(ctx context.Context, f *fill.Fill, s *source, name, repo string) error {
	if len(route.From(ctx)) == 0 {
		return nil
	}
	if _, err := sizeOf(ctx, f); err == nil || ctx.Err() != nil {
		return nil
	}
	_, _, err := m.askBlob(ctx, s, name, repo, f.Digest())
	return err
}

// introduce makes the caller a reader of a fill that was begun for another repository, if
// the upstream confirms that the caller's repository has the blob, too.
func (m *Registry) introduce(ctx context.Context, f *fill.Fill, s *source, name, repo string) error {
	if _, _, err := m.askBlob(ctx, s, name, repo, f.Digest()); err != nil {
		s.counts.fetched(kindBlob, true, err)
		return err
	}
	if m.fills.Admit(f, repo) {
		return nil
	}
	if err := upstream.Await(ctx, f.Settled()); err != nil {
		return err
	}
	if s.guarded && !f.Right() { // a mere claim does not show what others have stored
		return fill.ErrLookAgain
	}
	// The fill ended before the repository was let in. If the blob was stored, it only
	// has to be linked. Otherwise it is fetched once more.
	if _, err := m.store.LinkStored(ctx, repo, f.Digest()); err != nil && !oci.HasCode(err, oci.CodeBlobUnknown) {
		m.log.Warn("show a blob in a repository", "repo", repo, "digest", f.Digest(), "err", err)
	}
	return fill.ErrLookAgain
}

// origin is the repository that a blob is fetched from to answer the request of ctx.
func (m *Registry) origin(ctx context.Context, s *source, name, repo string) fill.Origin {
	return fill.Origin{Upstream: s.Name, Registry: routed{s.Upstream, m.self, route.From(ctx)}, Guarded: s.guarded, Host: host{m, s}, Name: name, Repo: repo}
}

// routed is an upstream that is asked to answer a request that came on a way.
type routed struct {
	Upstream
	self route.Self
	way  route.Way
}

// ResolveBlob implements fill.Registry.
func (r routed) ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error) {
	return r.Upstream.ResolveBlob(r.self.On(ctx, r.way), repo, d)
}

// Blob implements fill.Registry.
func (r routed) Blob(ctx context.Context, repo string, d oci.Digest, off int64) (*upstream.Body, error) {
	return r.Upstream.Blob(r.self.On(ctx, r.way), repo, d, off)
}

// host is what a source does for its fills.
type host struct {
	m *Registry
	s *source
}

var _ fill.Host = host{}

// Ask implements fill.Host.
func (h host) Ask(ctx context.Context, o fill.Origin, d oci.Digest) (int64, error) {
	size, _, err := h.m.askBlob(ctx, h.s, o.Name, o.Repo, d)
	return size, err
}

// Pulled implements fill.Host.
func (h host) Pulled(_ fill.Origin, n int64) { h.s.counts.pulled.Add(n) }

// Resumed implements fill.Host.
func (h host) Resumed(o fill.Origin, d oci.Digest, at int64) {
	h.s.counts.resumed.Add(1)
	h.m.event(Event{Action: ActionResumed, Upstream: h.s.Name, Repo: o.Repo, Digest: d, Bytes: at})
}

// Wrong implements fill.Host.
func (h host) Wrong(o fill.Origin, d oci.Digest, at int64, err error) {
	h.m.event(Event{Action: ActionWrong, Upstream: h.s.Name, Repo: o.Repo, Digest: d, Bytes: at, Err: err.Error()})
}

// Fetched implements fill.Host.
func (h host) Fetched(o fill.Origin, d oci.Digest, bytes int64, took time.Duration) {
	h.m.metrics.observe(h.s, kindBlob, took)
	h.m.event(Event{Action: ActionFetched, Upstream: h.s.Name, Repo: o.Repo, Blob: true, Digest: d, Bytes: bytes, Duration: took})
}

// Failed implements fill.Host.
func (h host) Failed(o fill.Origin, d oci.Digest, err error) {
	if !upstream.IsBack(err) { // the way on which it was asked for is not known here
		h.m.refuse(context.Background(), h.s, kindBlob, o.Repo, string(d), err)
	}
}
