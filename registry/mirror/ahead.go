package mirror

import (
	"context"
	"encoding/json"
	"slices"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/upstream"
)

// maxAhead bounds how many blobs of one image are fetched before a client asks for them.
// An image has one config and at most 127 layers, because no node can mount more.
const maxAhead = 128

// ahead begins to fetch the small blobs of an image, if there are several. A client was
// just given the image's manifest, which the store does not have yet. The client is about
// to ask for these blobs one after the other, or a few at a time, and each request would
// cost it a round trip to the upstream.
func (m *Registry) ahead(ctx context.Context, s *source, name, repo string, mf *oci.Manifest) {
	if m.opts.Ahead <= 0 || s.Offline || oci.IsIndex(mf.MediaType) {
		return
	}
	var doc document
	if json.Unmarshal(mf.Bytes, &doc) != nil || !doc.runs() {
		return
	}
	blobs := doc.Layers
	if doc.Config != nil {
		blobs = append(slices.Clone(blobs), *doc.Config)
	}
	small := slices.DeleteFunc(slices.Clone(blobs[:min(len(blobs), maxAhead)]), func(d oci.Descriptor) bool {
		return d.Size > m.opts.Ahead || len(d.URLs) > 0 || oci.CheckDigest(d.Digest) != nil
	})
	if len(small) < 2 {
		return // the client asks for this blob next anyway; leave the connection to the layers
	}
	for _, d := range small {
		if _, admitted := m.fills.Find(m.origin(ctx, s, name, repo), d.Digest); !admitted && m.lacks(s, repo, d.Digest) {
			m.begin(ctx, s, name, repo, d.Digest)
		}
	}
}

// lacks reports whether the store lacks a blob that the upstream has not refused lately.
func (m *Registry) lacks(s *source, repo string, d oci.Digest) bool {
	if s.negative[kindBlob].get(repo, string(d), m.now()) != nil {
		return false
	}
	_, err := m.store.ResolveBlob(m.ctx, repo, d)
	return oci.HasCode(err, oci.CodeBlobUnknown)
}

// begin fetches a blob that no client has asked for yet. An error of the fetch is
// reported to the clients that ask for the blob later.
func (m *Registry) begin(ctx context.Context, s *source, name, repo string, d oci.Digest) {
	f, how, err := m.fills.Join(m.origin(ctx, s, name, repo), d, false)
	if err != nil || how != fill.Beginner && how != fill.Follower {
		return
	}
	if !m.spawn(func() {
		defer f.Leave()
		// If the blob turns out to be larger than the manifest said, wait for a client to
		// ask for it.
		if size, err := f.Whole(m.ctx); err == nil && size <= m.opts.Ahead {
			_ = upstream.Await(m.ctx, f.Settled())
		}
	}) {
		f.Leave()
	}
}
