package mirror

import (
	"encoding/json"
	"slices"

	"example.org/slipway/oci"
)

// maxAhead is of how many blobs of one image it is known beforehand that they will
// be asked for: an image has one config and at most 127 layers, more than which no
// node can mount.
const maxAhead = 128

// ahead begins to fetch the small blobs, if there are several, of an image whose
// manifest a client was just given and the store does not have yet: the client is about
// to ask for them, one after the other or a few at a time, and each would cost it a way
// to the upstream and back.
func (m *Registry) ahead(s *source, name, repo string, mf *oci.Manifest) {
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
		return // the client asks for it next by itself; the connection is for the layers
	}
	for _, d := range small {
		if _, admitted := m.fills.find(s.fillKey(d.Digest), repo); !admitted && m.lacks(s, repo, d.Digest) {
			m.begin(s, name, repo, d.Digest)
		}
	}
}

// lacks reports whether a blob is not here, and the upstream was not asked for it in
// vain lately.
func (m *Registry) lacks(s *source, repo string, d oci.Digest) bool {
	if s.negative[kindBlob].get(repo, string(d), m.now()) != nil {
		return false
	}
	_, err := m.store.ResolveBlob(m.ctx, repo, d)
	return oci.HasCode(err, oci.CodeBlobUnknown)
}

// begin has a blob fetched without a client. Its error is for who asks for the blob.
func (m *Registry) begin(s *source, name, repo string, d oci.Digest) {
	f, how, err := m.join(s, name, repo, d, false)
	if err != nil || how != beginner && how != follower {
		return
	}
	if !m.spawn(func() {
		defer f.leave()
		// What turns out to be larger than the manifest said is for clients to want.
		if size, err := f.whole(m.ctx); err == nil && size <= m.opts.Ahead {
			_ = await(m.ctx, f.settled)
		}
	}) {
		f.leave()
	}
}
