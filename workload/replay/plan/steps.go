package plan

import (
	"crypto/sha256"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// l0Repo is the only repository of L0.
const l0Repo = "replay"

// manifestKey returns the key of a manifest's content at L0, where a manifest is a blob.
func (p *Plan) manifestKey(k pair, version int64) uint64 {
	return content.Key(fmt.Sprintf("%s:%s@%d", p.src.Name(store.Repos, k.repo()), p.src.Name(store.Refs, k.ref()), version))
}

// layer fills in the content of a blob by its name in the trace.
func (p *Plan) layer(s *Step, ref store.Symbol) error {
	r, err := p.table.get(p.content(ref))
	if err != nil {
		return err
	}
	if r.size == 0 { // nobody has it: its content follows from the name alone
		r.key = content.Key(p.src.Name(store.Refs, ref))
		r.size = p.o.size(p.blob(ref).size) // an upload that does not end has the size of its PATCHes
		r.digest = p.o.Maker.Digest(r.key, r.size)
	}
	s.Key, s.Size, s.Digest = r.key, r.size, r.digest
	s.Ref = digestName(r.digest)
	return nil
}

// target chooses the registry of a step.
func (p *Plan) target(b *store.Batch, i int, id int64) uint8 {
	if p.o.Targets == 1 {
		return 0
	}
	key := uint64(id)
	upload := b.Kind[i] == trace.Upload
	switch p.o.TargetPolicy {
	case ByRandom:
		if upload || b.Kind[i] == trace.Manifest && b.Method[i] == store.PUT {
			key = uint64(pairOf(b.Client[i], b.Repo[i])) // a client's push goes to one registry
		}
	case ByDigest:
		key = uint64(pairOf(b.Repo[i], b.Ref[i]))
		if b.Kind[i] == trace.Blob || upload && b.Ref[i] != store.None {
			key = uint64(p.content(b.Ref[i]))
		}
	case ByHost:
		key = uint64(b.Host[i])
	}
	return uint8(content.Pick(key^p.o.Maker.Seed, p.o.Targets))
}

// step makes the step of a request, for L0 and L1.
func (p *Plan) step(b *store.Batch, i int, id int64) (s Step, err error) {
	s = Step{Method: b.Method[i], Kind: b.Kind[i], Status: b.Status[i], Target: p.target(b, i, id)}
	if p.o.Level == L0 {
		return s, p.blobOnly(&s, b, i)
	}
	if b.Repo[i] != store.None {
		s.Repo = p.names.repo(b.Repo[i])
	}
	switch b.Kind[i] {
	case trace.Ping:
		s.Bare = b.Status[i] == 301 // registries answer /v2 with this status
	case trace.Blob:
		err = p.layer(&s, b.Ref[i])
		if b.Status[i] == 206 && b.Size[i] > 0 {
			// The trace does not say which part it was. A client that continues a
			// download requests the end.
			s.From, s.To = max(0, s.Size-p.o.size(b.Size[i])), s.Size
		}
	case trace.Manifest:
		err = p.manifestStep(&s, b, i)
	case trace.Upload:
		err = p.uploadStep(&s, b, i)
	case trace.Referrers:
		if s.Ref = p.src.Name(store.Refs, b.Ref[i]); !oci.IsDigest(s.Ref) {
			s.Ref = digestName(sha256.Sum256([]byte(s.Ref)))
		}
	}
	return s, err
}

// blobOnly makes a step of L0.
func (p *Plan) blobOnly(s *Step, b *store.Batch, i int) error {
	s.Repo = p.names.prefix + l0Repo
	if s.Method != store.GET {
		s.Op = OpPush
	}
	s.Kind = trace.Blob
	if b.Kind[i] != trace.Manifest {
		if b.Ref[i] == store.None { // a blob in a POST
			return p.layer(s, b.Digest[i])
		}
		return p.layer(s, b.Ref[i])
	}
	k := manifestOf(b, i)
	m := p.manifest(k)
	s.Key, s.Size, s.Digest = p.manifestKey(k, 0), m.size, m.digest
	if l := p.places[pairOf(b.Repo[i], b.Ref[i])]; s.Method == store.PUT && !isDigested(k) && l != nil && l.warm {
		s.Key = p.manifestKey(k, b.Time[i])
		s.Digest = p.o.Maker.Digest(s.Key, s.Size)
	}
	s.Ref = digestName(s.Digest)
	return nil
}

func (p *Plan) manifestStep(s *Step, b *store.Batch, i int) error {
	k := manifestOf(b, i)
	m := p.manifest(k)
	s.Ref = p.names.tag(b.Ref[i])
	if s.Method != store.PUT {
		if s.Ref == "" {
			s.Ref, s.Digest = digestName(m.digest), m.digest
		}
		return nil
	}
	s.Op = OpPutManifest
	version := b.Time[i]
	if s.Ref == "" || isDigested(k) { // a manifest with a digest has only one version, which other requests name
		version = 0
	}
	return p.putManifest(s, k, m, version)
}

// putManifest fills in the body of a PUT.
func (p *Plan) putManifest(s *Step, k pair, m *manifest, version int64) (err error) {
	s.MediaType, s.Body, err = p.document(k, m, version)
	s.Size, s.Digest = int64(len(s.Body)), sha256.Sum256(s.Body)
	return err
}

func (p *Plan) uploadStep(s *Step, b *store.Batch, i int) error {
	if s.Method == store.POST {
		if b.Status[i] == 201 && b.Digest[i] != store.None {
			return p.whole(s, b, i)
		}
		s.Op = OpOpen
		return nil
	}
	ref := b.Ref[i]
	if ref == store.None {
		s.Op = OpOpen // a PUT or PATCH without an upload is a mistake of its client's; an upload is begun at least
		return nil
	}
	s.Upload = content.Key(p.src.Name(store.Refs, ref)) | 1 // 0 stands for none
	if err := p.layer(s, ref); err != nil {
		return err
	}
	s.Op = OpClose
	if s.Method == store.PATCH {
		s.Op = OpPatch
		s.Parts = max(1, p.blob(ref).patches)
		if p.o.SizeScale == 1 && p.o.MaxSize == 0 {
			s.To = max(0, b.Size[i])
		}
	}
	return nil
}

// whole makes the step of a POST that needs no other request, because it mounts a blob or
// carries one.
func (p *Plan) whole(s *Step, b *store.Batch, i int) error {
	s.Op = OpPush
	if b.Size[i] == 0 {
		s.MountFrom = p.names.repo(p.blob(b.Digest[i]).home)
	}
	return p.layer(s, b.Digest[i])
}
