package plan

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// blob is what the survey finds out about a name of table "refs": 24 bytes.
type blob struct {
	size int64
	// is holds the name of the blob that an upload brought, if that differs from the upload's
	// own.
	is store.Symbol
	// home is the first repository that had it.
	home store.Symbol
	// patches is how many PATCHes an upload came in.
	patches uint16
	flags   uint16
}

const (
	// flagSeen: a blob of this name was requested or pushed.
	flagSeen = 1 << iota
	// flagHash: its digest is needed.
	flagHash
)

// pair is a repository and a name.
type pair uint64

func pairOf(repo, ref store.Symbol) pair { return pair(repo)<<32 | pair(ref) }

func (p pair) repo() store.Symbol { return store.Symbol(p >> 32) }
func (p pair) ref() store.Symbol  { return store.Symbol(p & 0xffffffff) }

// inPlace says that a registry must have a blob before the first request. Other values
// are the second, since 1970, in which the trace brings the blob.
const inPlace = 0

// Skip counts requests that cannot be replayed, by the reason.
type Skip map[string]int64

// Plan is a trace that was surveyed. Its methods must not be called concurrently.
type Plan struct {
	// Requests is the number of requests that the plan has. Skipped is how many requests
	// of the trace it leaves out. Tasks is not known until they are made.
	Requests int64
	Skipped  Skip
	// First and Last are the recorded times of the plan's requests. Length is the run's
	// time at which the last request is sent; for L2 it is approximate.
	First, Last time.Time
	Length      time.Duration
	// Blobs and BlobBytes count the content that is made. Before the first request,
	// WarmBlobs blobs, WarmConfigs configurations and WarmManifests manifests are put
	// into their repositories.
	Blobs, BlobBytes                      int64
	WarmBlobs, WarmConfigs, WarmManifests int64
	// Paired counts uploads without a digest in the trace. Each is taken for a blob of
	// the same size that is later requested from the same repository.
	Paired int64
	// Unsized counts content whose size the trace lacks. Such a blob has 4 KiB, and such
	// a manifest is as long as it must be.
	Unsized Unsized

	o         Options
	src       Source
	table     *table
	names     *names
	blobs     []blob
	pairs     map[pair]uint32
	manifests map[pair]*manifest
	places    map[pair]*place
}

// Unsized counts content whose size is not known.
type Unsized struct {
	Blobs, Manifests int64
	// Examples are the first few of both kinds.
	Examples []string
}

// Progress is called from time to time with how much of a job is done. total is 0 while
// it is not known.
type Progress func(doing string, done, total int64)

// survey is the state of the first reading.
type survey struct {
	*Plan
	// open holds the manifests that clients have just read, and uploads the contents that
	// they have just pushed, by client and repository.
	open    map[pair]*visit
	uploads map[pair]*visit
	// waiting holds uploads without a digest, by repository and size.
	waiting map[sized][]waiting
	swept   int64
}

type visit struct {
	last   int64
	m      *manifest
	layers []store.Symbol
	// children are manifests that were put by their digests.
	children []pair
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

// New surveys a trace. It writes the table of digests to the file tablePath. It uses an
// existing table of an earlier run over the same trace as far as that goes. It returns
// errors of the source and of the file.
func New(ctx context.Context, src Source, o Options, tablePath string, progress Progress) (*Plan, error) {
	o, err := o.Defaults()
	if err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	p := &Plan{o: o, src: src, Skipped: Skip{}, names: newNames(src, o.RepoPrefix),
		pairs: map[pair]uint32{}, manifests: map[pair]*manifest{}, places: map[pair]*place{}}
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

// Close closes the table and keeps its file.
func (p *Plan) Close() error { return p.table.close() }

// scan calls fn for each request of the plan that can be replayed.
func (p *Plan) scan(ctx context.Context, fn func(b *store.Batch, i int) error) error {
	return p.read(ctx, Skip{}, fn)
}

// read does the same as scan, and counts in skipped what cannot be replayed.
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

// skip returns why a request is not replayed, or "" if it is.
func (p *Plan) skip(b *store.Batch, i int) string {
	kind, method := b.Kind[i], b.Method[i]
	if p.o.Level == L0 {
		switch {
		case kind == trace.Blob && method == store.GET, kind == trace.Manifest && method == store.GET, b.Push(i):
		default:
			return "not a GET or PUT of a blob or manifest"
		}
		switch {
		case b.Size[i] <= 0:
			return "no size"
		case b.Ref[i] == store.None && b.Digest[i] == store.None:
			return "no reference"
		}
	}
	writes := method == store.PUT || method == store.POST || method == store.PATCH
	if writes && b.Status[i] >= 400 {
		return "push that was refused" // the trace does not have the reason
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

// succeeded reports whether a request found its target.
func succeeded(status uint16) bool { return status == 0 || status >= 200 && status < 400 }

func (s *survey) request(b *store.Batch, i int) {
	s.sweep(b.Time[i])
	ok := succeeded(b.Status[i])
	switch b.Kind[i] {
	case trace.Blob:
		if b.Method[i] == store.DELETE || !ok {
			return
		}
		// A HEAD of unknown outcome most likely comes before a push.
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
	if bl.home == store.None {
		bl.home = repo
	}
	if b.Method[i] == store.HEAD {
		s.pushing(b, i).add(ref) // a client that pushes asks for blobs that may be there
	}
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
	if b.Method[i] == store.GET {
		s.fetched(b, i)
	}
}

// pairUp pairs a blob that appears for the first time with an upload without a digest:
// one to the same repository with the same size.
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

// upload handles a request of an upload.
func (s *survey) upload(b *store.Batch, i int) {
	ref := b.Ref[i]
	switch {
	case b.Method[i] == store.POST && b.Status[i] == 201 && b.Digest[i] != store.None:
		if b.Size[i] == 0 {
			s.mount(b, i)
			return
		}
		s.brought(b, i, b.Digest[i])
	case ref == store.None:
	case b.Method[i] == store.PATCH:
		bl := s.blob(ref)
		if bl.patches < 1<<15 {
			bl.patches++
		}
		bl.size += max(0, b.Size[i])
	case b.Method[i] == store.PUT:
		s.closed(b, i)
	}
}

// closed handles a PUT that ends an upload. Slipway's log records the size of the whole
// blob there. Other logs record at most the bytes that came with the PUT: if the
// PATCHes before it brought more, both are added.
func (s *survey) closed(b *store.Batch, i int) {
	ref, d, size := b.Ref[i], b.Digest[i], b.Size[i]
	if before := s.blob(ref).size; before > max(0, size) {
		size = before + max(0, size)
	}
	if d == store.None {
		d = ref
		if size > 0 {
			k := sized{b.Repo[i], size}
			s.waiting[k] = append(s.waiting[k], waiting{ref, second(b, i)})
		}
	}
	bl := s.blob(d)
	bl.size = max(bl.size, size)
	if d != ref {
		s.blob(ref).is = d
	}
	s.brought(b, i, d)
	s.pushing(b, i).add(ref)
}

// second returns the time of a request as [Plan.pairs] holds it.
func second(b *store.Batch, i int) uint32 { return uint32(max(1, b.Time[i]/1e6)) }

// brought notes a blob that a push has brought.
func (s *survey) brought(b *store.Batch, i int, d store.Symbol) {
	bl := s.blob(d)
	bl.size = max(bl.size, b.Size[i])
	bl.flags |= flagSeen | flagHash
	if bl.home == store.None {
		bl.home = b.Repo[i]
	}
	if _, known := s.pairs[pairOf(b.Repo[i], d)]; !known {
		s.pairs[pairOf(b.Repo[i], d)] = second(b, i)
	}
	if b.Method[i] == store.POST {
		s.pushing(b, i).add(d)
	}
}

// mount handles the mount of a blob from another repository. If the trace has no
// repository with the blob, the blob is put in place in this repository.
func (s *survey) mount(b *store.Batch, i int) {
	repo, d := b.Repo[i], b.Digest[i]
	bl := s.blob(d)
	bl.flags |= flagSeen | flagHash
	if _, known := s.pairs[pairOf(repo, d)]; !known {
		s.pairs[pairOf(repo, d)] = second(b, i)
		if bl.home == store.None {
			s.pairs[pairOf(repo, d)] = inPlace
		}
	}
	if bl.home == store.None {
		bl.home = repo
	}
	s.pushing(b, i).add(d)
}

// pushing returns what the client of a request has brought to the repository, or has
// found there.
func (s *survey) pushing(b *store.Batch, i int) *visit {
	k := pairOf(b.Client[i], b.Repo[i])
	v := s.uploads[k]
	if v == nil {
		v = &visit{}
		s.uploads[k] = v
	}
	v.last = b.Time[i]
	return v
}

func (v *visit) add(ref store.Symbol) {
	if len(v.layers) < maxLayers && !slices.Contains(v.layers, ref) {
		v.layers = append(v.layers, ref)
	}
}

// content returns the name under which the content of an upload or a blob is known.
func (p *Plan) content(ref store.Symbol) store.Symbol {
	if bl := p.blob(ref); bl.is != store.None {
		return bl.is
	}
	return ref
}

// complete works out what only the whole trace shows.
func (s *survey) complete() {
	s.completeManifests()
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
		s.WarmBlobs, s.WarmConfigs = int64(len(seen)), 0
	}
	s.countUnsized()
	s.open, s.uploads, s.waiting = nil, nil, nil
}

// countUnsized counts the content that is made without a known size.
func (s *survey) countUnsized() {
	u := &s.Unsized
	const examples = 5
	name := func(sym store.Symbol) {
		if len(u.Examples) < examples {
			u.Examples = append(u.Examples, s.src.Name(store.Refs, sym))
		}
	}
	for sym := range s.blobs {
		if bl := &s.blobs[sym]; bl.flags&flagHash != 0 && bl.size <= 0 {
			u.Blobs++
			name(store.Symbol(sym))
		}
	}
	for _, k := range s.sortedManifests() {
		if s.manifests[k].size <= 0 {
			u.Manifests++
			name(k.ref())
		}
	}
}

// sortedManifests returns the manifests in an order that is the same each time.
func (p *Plan) sortedManifests() []pair { return sortedKeys(p.manifests) }

func sortedKeys[V any](m map[pair]V) []pair {
	return slices.Sorted(maps.Keys(m))
}

// sortedPairs returns the blobs to be put in place, grouped by name.
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
