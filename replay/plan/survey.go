package plan

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"example.org/slipway/trace"
	"example.org/slipway/trace/store"
)

// blob is what the survey finds out about a name of table "refs": 16 bytes.
type blob struct {
	size int64
	// is is the blob that an upload brought, where that is another name.
	is store.Symbol
	// patches is how many PATCHes an upload came in.
	patches uint16
	flags   uint16
}

const (
	// flagSeen: a blob of this name was asked for or brought.
	flagSeen = 1 << iota
	// flagHash: its digest is needed.
	flagHash
)

// manifest is what is known of a manifest: a repository's tag, or a digest.
type manifest struct {
	size   int64
	layers []store.Symbol
	// warm is set if it was read before it was put.
	warm bool
	// seen is set from the first request on.
	seen bool
	// digest, config and body's length are those of the version put in place.
	digest [32]byte
}

// pair is a repository and a name.
type pair uint64

func pairOf(repo, ref store.Symbol) pair { return pair(repo)<<32 | pair(ref) }

func (p pair) repo() store.Symbol { return store.Symbol(p >> 32) }
func (p pair) ref() store.Symbol  { return store.Symbol(p & 0xffffffff) }

// inPlace says that a registry has to have a blob before the first request; other
// values are the second, since 1970, at which the trace brings it.
const inPlace = 0

// Skip counts requests that cannot be replayed, by the reason.
type Skip map[string]int64

// Plan is a trace that was surveyed. Its methods must not be called concurrently.
type Plan struct {
	// Requests is how many requests of the trace the plan has, Skipped those it leaves
	// out. Tasks is not known before they are made.
	Requests int64
	Skipped  Skip
	// First and Last are the recorded times of the plan's requests; Length is the time
	// of the run at which the last is sent, of L2 about that.
	First, Last time.Time
	Length      time.Duration
	// Blobs and BlobBytes is the content that is made; Put in place before the first
	// request are WarmBlobs blobs in their repositories, the WarmConfigs configurations
	// of all manifests and WarmManifests manifests.
	Blobs, BlobBytes                      int64
	WarmBlobs, WarmConfigs, WarmManifests int64
	// Paired uploads have no digest in the trace and were taken for the later
	// requests of a blob of the same size in the same repository.
	Paired int64

	o         Options
	src       Source
	table     *table
	names     *names
	blobs     []blob
	pairs     map[pair]uint32
	manifests map[pair]*manifest
}

// Progress is called now and then with how much of a job is done; total is 0 while
// it is not known.
type Progress func(doing string, done, total int64)

// survey is the state of the first reading.
type survey struct {
	*Plan
	// open are the manifests that clients have just read, and uploads what they have
	// just brought, by client and repository.
	open    map[pair]*visit
	uploads map[pair]*visit
	// waiting are uploads without a digest, by repository and size.
	waiting map[sized][]waiting
	swept   int64
}

type visit struct {
	last   int64
	m      *manifest
	layers []store.Symbol
}

type sized struct {
	repo store.Symbol
	size int64
}

type waiting struct {
	upload store.Symbol
	second uint32
}

// errEnough ends a reading early.
var errEnough = errors.New("enough")

// New surveys a trace. The table of digests is written to the file tablePath; one
// that is there from an earlier run over the same trace is used again as far as it
// goes. Errors: those of the source and of the file.
func New(ctx context.Context, src Source, o Options, tablePath string, progress Progress) (*Plan, error) {
	o, err := o.Defaults()
	if err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	p := &Plan{o: o, src: src, Skipped: Skip{}, names: newNames(src, o.RepoPrefix),
		pairs: map[pair]uint32{}, manifests: map[pair]*manifest{}}
	s := &survey{Plan: p, open: map[pair]*visit{}, uploads: map[pair]*visit{}, waiting: map[sized][]waiting{}}
	times := newPace(&o)
	err = p.read(ctx, p.Skipped, func(b *store.Batch, i int) error {
		if p.Requests == 0 {
			p.First = b.At(i).UTC()
		}
		p.Requests++
		p.Last, p.Length = b.At(i).UTC(), times.next(b.Time[i])
		s.request(b, i)
		if p.Requests%(1<<16) == 0 {
			progress("reading the trace", p.Requests, 0)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.complete()
	if p.table, err = makeTable(ctx, p, tablePath, progress); err != nil {
		return nil, err
	}
	if err := p.sealManifests(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close closes the table, which stays.
func (p *Plan) Close() error { return p.table.close() }

// scan calls fn for each request of the plan that can be replayed.
func (p *Plan) scan(ctx context.Context, fn func(b *store.Batch, i int) error) error {
	return p.read(ctx, Skip{}, fn)
}

// read does the same, and counts in skipped what cannot be replayed.
func (p *Plan) read(ctx context.Context, skipped Skip, fn func(b *store.Batch, i int) error) error {
	var n, first int64
	err := p.src.Scan(ctx, p.o.query(), func(b *store.Batch) error {
		for i := range b.Len() {
			if reason := p.skip(b, i); reason != "" {
				skipped[reason]++
				continue
			}
			if n == 0 {
				first = b.Time[i]
			}
			if p.o.MaxRequests > 0 && n >= p.o.MaxRequests || p.o.MaxTime > 0 && b.Time[i]-first >= p.o.MaxTime.Microseconds() {
				return errEnough
			}
			n++
			if err := fn(b, i); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// skip says why a request is not replayed, and nothing if it is.
func (p *Plan) skip(b *store.Batch, i int) string {
	kind, method := b.Kind[i], b.Method[i]
	if p.o.Level == L0 {
		switch {
		case kind == trace.Blob && method == store.GET, kind == trace.Manifest && (method == store.GET || method == store.PUT),
			kind == trace.Upload && method == store.PUT:
		default:
			return "not a GET or PUT of a blob or manifest"
		}
		switch {
		case b.Size[i] <= 0:
			return "no size"
		case b.Ref[i] == store.None:
			return "no reference"
		}
	}
	switch {
	case (kind == trace.Blob || kind == trace.Manifest || kind == trace.Upload) && b.Size[i] > maxContent && p.o.size(b.Size[i]) > maxContent:
		return "larger than 1 TiB"
	case p.o.Level == L0:
		return ""
	case kind == trace.Other:
		return "path is not the protocol's"
	case method == store.OtherMethod:
		return "unknown method"
	case method == store.DELETE && !p.o.Deletes:
		return "DELETE"
	case kind != trace.Ping && kind != trace.Catalog && b.Repo[i] == store.None:
		return "no repository"
	case (kind == trace.Blob || kind == trace.Manifest || kind == trace.Referrers) && b.Ref[i] == store.None:
		return "no reference"
	}
	ok := method == store.GET || method == store.HEAD || method == store.DELETE
	switch kind {
	case trace.Manifest:
		ok = ok || method == store.PUT
	case trace.Upload:
		ok = method == store.POST || method == store.PATCH || method == store.PUT
	case trace.Ping, trace.Tags, trace.Catalog, trace.Referrers:
		ok = method == store.GET || method == store.HEAD
	}
	if !ok {
		return method.String() + " of " + kind.String()
	}
	return ""
}

// blob returns what is known of a name.
func (p *Plan) blob(sym store.Symbol) *blob {
	if int(sym) >= len(p.blobs) {
		p.blobs = slices.Grow(p.blobs, int(sym)+1-len(p.blobs))[:int(sym)+1]
	}
	return &p.blobs[sym]
}

// manifest returns what is known of a manifest.
func (p *Plan) manifest(k pair) *manifest {
	m := p.manifests[k]
	if m == nil {
		m = &manifest{}
		p.manifests[k] = m
	}
	return m
}

// succeeded tells whether a request found what it asked for.
func succeeded(status uint16) bool { return status == 0 || status >= 200 && status < 400 }

func (s *survey) request(b *store.Batch, i int) {
	s.sweep(b.Time[i])
	ok := succeeded(b.Status[i])
	switch b.Kind[i] {
	case trace.Blob:
		if b.Method[i] == store.DELETE || !ok {
			return
		}
		// A HEAD of unknown outcome is rather one before a push.
		if b.Method[i] == store.HEAD && b.Status[i] == 0 {
			return
		}
		s.readBlob(b, i)
	case trace.Upload:
		s.upload(b, i)
	case trace.Manifest:
		switch {
		case b.Method[i] == store.PUT:
			s.putManifest(b, i)
		case b.Method[i] != store.DELETE && ok:
			s.readManifest(b, i)
		}
	}
}

// sweep forgets visits that ended long ago, once in a minute of the trace.
func (s *survey) sweep(now int64) {
	if now-s.swept < time.Minute.Microseconds() {
		return
	}
	s.swept = now
	old := now - maxSession.Microseconds()
	for _, m := range []map[pair]*visit{s.open, s.uploads} {
		for k, v := range m {
			if v.last < old {
				delete(m, k)
			}
		}
	}
}

func (s *survey) readBlob(b *store.Batch, i int) {
	repo, ref := b.Repo[i], b.Ref[i]
	bl := s.blob(ref)
	if b.Method[i] == store.GET && b.Status[i] != 206 {
		bl.size = max(bl.size, b.Size[i]) // a broken transfer is smaller
	}
	key := pairOf(repo, ref)
	_, known := s.pairs[key]
	if !known {
		s.pairs[key] = inPlace
		if bl.flags&flagSeen == 0 && b.Method[i] == store.GET {
			s.pairUp(key, b.Size[i])
		}
	}
	bl.flags |= flagSeen | flagHash
	gap := s.o.SessionGap.Microseconds()
	if v := s.open[pairOf(b.Client[i], repo)]; v != nil && b.Method[i] == store.GET && b.Time[i]-v.last <= gap {
		v.last = b.Time[i]
		v.m.add(ref)
	}
}

// add makes a blob one of the manifest's layers.
func (m *manifest) add(layer store.Symbol) {
	if len(m.layers) < maxLayers && !slices.Contains(m.layers, layer) {
		m.layers = append(m.layers, layer)
	}
}

// pairUp takes a blob that appears for the first time for the one that an upload
// without a digest has brought: to the same repository, with the same size.
func (s *survey) pairUp(key pair, size int64) {
	k := sized{key.repo(), size}
	w := s.waiting[k]
	if len(w) == 0 || size <= 0 {
		return
	}
	s.blob(w[0].upload).is = key.ref()
	s.pairs[key] = w[0].second
	s.Paired++
	if len(w) == 1 {
		delete(s.waiting, k)
	} else {
		s.waiting[k] = w[1:]
	}
}

func (s *survey) upload(b *store.Batch, i int) {
	repo, ref := b.Repo[i], b.Ref[i]
	if ref == store.None {
		return
	}
	if b.Method[i] == store.PATCH {
		if bl := s.blob(ref); bl.patches < 1<<15 {
			bl.patches++
		}
		return
	}
	if b.Method[i] != store.PUT {
		return
	}
	second := uint32(max(1, b.Time[i]/1e6))
	d := b.Digest[i]
	if d == store.None {
		d = ref
		if b.Size[i] > 0 {
			k := sized{repo, b.Size[i]}
			s.waiting[k] = append(s.waiting[k], waiting{ref, second})
		}
	}
	if d != ref {
		s.blob(ref).is = d
	}
	bl := s.blob(d)
	bl.size = max(bl.size, b.Size[i])
	bl.flags |= flagSeen | flagHash
	if _, known := s.pairs[pairOf(repo, d)]; !known {
		s.pairs[pairOf(repo, d)] = second
	}
	k := pairOf(b.Client[i], repo)
	v := s.uploads[k]
	if v == nil {
		v = &visit{}
		s.uploads[k] = v
	}
	v.last = b.Time[i]
	if len(v.layers) < maxLayers {
		v.layers = append(v.layers, ref)
	}
}

func (s *survey) putManifest(b *store.Batch, i int) {
	m := s.manifest(pairOf(b.Repo[i], b.Ref[i]))
	m.seen = true
	m.size = max(m.size, b.Size[i])
	k := pairOf(b.Client[i], b.Repo[i])
	if v := s.uploads[k]; v != nil {
		for _, l := range v.layers {
			m.add(l)
		}
		delete(s.uploads, k)
	}
}

func (s *survey) readManifest(b *store.Batch, i int) {
	m := s.manifest(pairOf(b.Repo[i], b.Ref[i]))
	if !m.seen {
		m.seen, m.warm = true, true
	}
	if b.Method[i] == store.GET {
		m.size = max(m.size, b.Size[i])
	}
	k := pairOf(b.Client[i], b.Repo[i])
	v := s.open[k]
	if v == nil {
		v = &visit{}
		s.open[k] = v
	}
	v.last, v.m = b.Time[i], m
}

// content is the name whose content an upload's or a blob's is.
func (p *Plan) content(ref store.Symbol) store.Symbol {
	if bl := p.blob(ref); bl.is != store.None {
		return bl.is
	}
	return ref
}

// complete settles what only the whole trace tells.
func (s *survey) complete() {
	for k, m := range s.manifests {
		// Uploads were noted under their own names; some are blobs of another.
		for j, l := range m.layers {
			m.layers[j] = s.content(l)
		}
		slices.Sort(m.layers)
		m.layers = slices.Compact(m.layers)
		if m.warm {
			s.WarmManifests++
		}
		for _, l := range m.layers {
			lk := pairOf(k.repo(), l)
			if _, known := s.pairs[lk]; m.warm || !known {
				s.pairs[lk] = inPlace
				s.blob(l).flags |= flagHash
			}
		}
	}
	for k, when := range s.pairs {
		if when == inPlace {
			s.WarmBlobs++
		}
		s.blob(s.content(k.ref())).flags |= flagHash
	}
	if s.o.Level == L0 { // all are in one repository
		seen := map[store.Symbol]bool{}
		for _, k := range s.sortedPairs() {
			seen[s.content(k.ref())] = true
		}
		s.WarmBlobs = int64(len(seen))
	} else {
		s.WarmConfigs = int64(len(s.manifests))
	}
	s.open, s.uploads, s.waiting = nil, nil, nil
}

// sortedManifests are the manifests in an order that is the same each time.
func (p *Plan) sortedManifests() []pair {
	keys := make([]pair, 0, len(p.manifests))
	for k := range p.manifests {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sortedPairs are the blobs to be put in place, those of one name together.
func (p *Plan) sortedPairs() []pair {
	var keys []pair
	for k, when := range p.pairs {
		if when == inPlace {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b pair) int {
		return cmp.Or(cmp.Compare(p.content(a.ref()), p.content(b.ref())), cmp.Compare(a.repo(), b.repo()), cmp.Compare(a.ref(), b.ref()))
	})
	return keys
}
