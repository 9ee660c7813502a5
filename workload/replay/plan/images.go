package plan

import (
	"slices"

	"example.org/slipway/workload/trace/store"
)

// manifest is the content of a manifest. If the source has digests, it is named by its
// digest, as pairOf(store.None, digest), and has one version. Otherwise it is named by
// its repository and tag, and each PUT makes a new version.
type manifest struct {
	size   int64
	layers []store.Symbol
	// children are manifests that an index names. named is set once one names this manifest, and
	// depth is how many levels of manifests there are below it.
	children []pair
	named    bool
	depth    uint8
	// put is set once a push has shown what the only version names. Reads then add
	// nothing.
	put bool
	// config is the layer that stands in for the configuration; store.None if a
	// configuration is made and put in place.
	config store.Symbol
	// digest is the digest of the version put in place, or of the only version.
	digest [32]byte
}

func isDigested(k pair) bool { return k.repo() == store.None }

// place is a name under which a repository has a manifest: a tag or a digest.
type place struct {
	// content is the first content that it names.
	content pair
	// second is when the first PUT came, as [Plan.pairs] holds it.
	second uint32
	// warm is set if the place was read before a manifest was put there. brought is set if the
	// manifest exists as soon as another place of the repository is warm.
	warm, brought bool
}

// manifestOf returns the key of the manifest that a request is about.
func manifestOf(b *store.Batch, i int) pair {
	if d := b.Digest[i]; d != store.None {
		return pairOf(store.None, d)
	}
	return pairOf(b.Repo[i], b.Ref[i])
}

// manifest returns the record of a manifest.
func (p *Plan) manifest(k pair) *manifest {
	m := p.manifests[k]
	if m == nil {
		m = &manifest{}
		p.manifests[k] = m
	}
	return m
}

// at notes that a request named a manifest by a place, and reports whether no earlier
// request named it by this place.
func (s *survey) at(k, content pair) (*place, bool) {
	if l := s.places[k]; l != nil {
		return l, false
	}
	l := &place{content: content}
	s.places[k] = l
	return l, true
}

// add makes a blob one of the manifest's layers.
func (m *manifest) add(layer store.Symbol) {
	if len(m.layers) < maxLayers && !slices.Contains(m.layers, layer) {
		m.layers = append(m.layers, layer)
	}
}

func (s *survey) putManifest(b *store.Batch, i int) {
	k := manifestOf(b, i)
	m := s.manifest(k)
	m.size = max(m.size, b.Size[i])
	repo := b.Repo[i]
	if l, first := s.at(pairOf(repo, b.Ref[i]), k); first {
		l.second = second(b, i)
	}
	if isDigested(k) {
		if l, first := s.at(pairOf(repo, k.ref()), k); first {
			l.second = second(b, i)
		}
	}
	visits := pairOf(b.Client[i], repo)
	v := s.uploads[visits]
	if v == nil {
		v = &visit{last: b.Time[i]}
	}
	if !m.put {
		s.names(k, m, v)
	}
	v.layers = nil
	if byDigest := isDigested(k) && b.Ref[i] == k.ref(); byDigest { // an index may follow
		v.children, v.last = append(v.children, k), b.Time[i]
		s.uploads[visits] = v
		return
	}
	delete(s.uploads, visits)
}

// names notes what a manifest names when a client puts it. These are the layers that the
// client has brought or found, or else the manifests that it has put.
func (s *survey) names(k pair, m *manifest, v *visit) {
	if isDigested(k) && len(v.layers) > 0 {
		m.layers, m.put = nil, true
	}
	for _, l := range v.layers {
		m.add(l)
	}
	if len(m.layers) == 0 && isDigested(k) && len(v.children) > 0 && s.mayName(k, m, v.children) {
		m.children, m.put, v.children = v.children, true, nil
		for _, c := range m.children {
			child := s.manifests[c]
			child.named, m.depth = true, max(m.depth, child.depth+1)
		}
	}
}

// maxLevels bounds the levels of manifests below an index: it may name indexes.
const maxLevels = 2

// mayName reports whether a manifest may be an index of others. A trace only allows a
// guess. The guess must not make an index that names itself in the end, or an index of
// endless levels. So a manifest that an index names already gets no children.
func (s *survey) mayName(k pair, m *manifest, children []pair) bool {
	return !m.named && !slices.ContainsFunc(children, func(c pair) bool { return c == k || s.manifests[c].depth >= maxLevels })
}

func (s *survey) readManifest(b *store.Batch, i int) {
	k := manifestOf(b, i)
	m := s.manifest(k)
	l, first := s.at(pairOf(b.Repo[i], b.Ref[i]), k)
	if first {
		l.warm = true
	}
	if isDigested(k) && b.Ref[i] != k.ref() {
		if d, unknown := s.at(pairOf(b.Repo[i], k.ref()), k); unknown {
			d.brought, d.warm = first, !first // a tag that was moved unseen brings nothing
		}
	}
	if b.Method[i] == store.GET {
		m.size = max(m.size, b.Size[i])
	}
	visits := pairOf(b.Client[i], b.Repo[i])
	v := s.open[visits]
	if v == nil {
		v = &visit{}
		s.open[visits] = v
	}
	v.last, v.m = b.Time[i], m
}

// fetched notes that a client has fetched a layer after a manifest.
func (s *survey) fetched(b *store.Batch, i int) {
	v := s.open[pairOf(b.Client[i], b.Repo[i])]
	if v == nil || b.Time[i]-v.last > s.o.SessionGap.Microseconds() {
		return
	}
	v.last = b.Time[i]
	if !v.m.put {
		v.m.add(b.Ref[i])
	}
}

// completeManifests finds out which contents the names in manifests stand for, and makes sure
// that the contents are in the manifests' repositories before the manifests.
func (s *survey) completeManifests() {
	for _, m := range s.manifests {
		// The layers were noted under the names of their uploads; the blob of an upload may
		// have another name.
		for j, l := range m.layers {
			m.layers[j] = s.content(l)
		}
		slices.Sort(m.layers)
		m.layers = slices.Compact(m.layers)
	}
	own := map[pair]uint32{} // the first PUT of each manifest, inPlace for none
	for k, l := range s.places {
		if l.warm {
			s.WarmManifests++
		}
		m := s.manifests[l.content]
		there := l.warm || l.brought
		if !isOwn(k, l) && !there { // the place of the digest counts
			continue
		}
		for _, layer := range m.layers {
			lk := pairOf(k.repo(), layer)
			when, known := s.pairs[lk]
			if there || !known || isDigested(l.content) && when > l.second {
				s.pairs[lk] = inPlace
				s.blob(layer).flags |= flagHash
			}
		}
		for _, c := range m.children {
			if at := s.places[pairOf(k.repo(), c.ref())]; there || at == nil {
				m.children = nil // some repository has the index and not what it names
				break
			}
		}
		if there {
			own[l.content] = inPlace
		} else if was, ok := own[l.content]; !ok || l.second < was {
			own[l.content] = l.second
		}
	}
	for k, m := range s.manifests {
		s.chooseConfig(k, m, own[k])
	}
	for k, l := range s.places {
		if s.needsConfig(k, l) {
			s.WarmConfigs++
		}
	}
}

// isOwn reports whether a place names its content by the content's own name.
func isOwn(k pair, l *place) bool {
	return k == l.content || isDigested(l.content) && k.ref() == l.content.ref()
}

// needsConfig reports whether a configuration is put in place for a manifest.
func (p *Plan) needsConfig(k pair, l *place) bool {
	m := p.manifests[l.content]
	return m.config == store.None && len(m.children) == 0 && (isOwn(k, l) || l.warm)
}

// maxConfig bounds what can stand in for a configuration, in bytes, because registries
// read configurations.
const maxConfig = 1 << 20

// chooseConfig makes the smallest of a manifest's blobs its configuration, because one of
// the blobs that were pushed or fetched is the configuration. So no blob is pushed that
// the trace does not have. The blob must exist with the first version.
func (s *survey) chooseConfig(k pair, m *manifest, first uint32) {
	for _, l := range m.layers {
		size := s.blob(l).size
		if size <= 0 || size > maxConfig || m.config != store.None && size >= s.blob(m.config).size {
			continue
		}
		if !isDigested(k) && s.pairs[pairOf(k.repo(), l)] > first {
			continue
		}
		m.config = l
	}
}
