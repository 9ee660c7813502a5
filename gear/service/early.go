package service

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/gearfacts"
)

const (
	// earlyFiles bounds the number of files of all layers whose index is published before
	// the files are stored. They take some 20 MB of RAM.
	earlyFiles = 200_000
	// earlyWait is the maximum time that a request for such a file waits for it.
	earlyWait = 30 * time.Second
	// earlyFor is how long after a push a queued layer gets its index before its files.
	// Later, both come at the same time, which costs less.
	earlyFor = 10 * time.Second
	// earlySize is the minimum size in bytes of a layer whose index is published before
	// its files.
	earlySize = 4 << 20
	// The files of such layers are stored when no index was published for earlyPause and
	// none is being made, because other layers of the image are likely to follow. They
	// are stored sooner if somebody asks for one, and at the latest after earlyLongest.
	earlyPause   = 300 * time.Millisecond
	earlyLongest = 5 * time.Second
)

// early is the index of a layer whose files are not stored yet.
type early struct {
	content Content
	names   map[gear.Name]struct{}
	since   time.Time
	wanted  bool // somebody waits for a file
	// stored is closed when the files are stored, or when it is known that they will not
	// be.
	stored chan struct{}
}

// errEarly ends a conversion that made an index and stored no file.
var errEarly = errors.New("the index is there; the files are to follow")

// leading is the sink of a conversion. It stores files as long as the conversion is not
// behind. From then on it makes only the index, which takes half the time.
type leading struct {
	*filestore.Writer
	behind func() bool // nil: never
	alone  atomic.Bool // without the files
}

// gaveUp reports whether files are no longer stored.
func (l *leading) gaveUp(ctx context.Context) bool {
	if !l.indexOnly() {
		return false
	}
	l.Abort(ctx) // it has an effect only the first time
	return true
}

// indexOnly reports whether the conversion has given up the files and makes only the index. It
// may be called concurrently with the other methods.
func (l *leading) indexOnly() bool {
	if !l.alone.Load() && l.behind != nil && l.behind() {
		l.alone.Store(true)
	}
	return l.alone.Load()
}

// Missing implements convert.Sink.
func (l *leading) Missing(ctx context.Context, names []gear.Name) ([]bool, error) {
	if l.gaveUp(ctx) {
		return make([]bool, len(names)), nil
	}
	return l.Writer.Missing(ctx, names)
}

// Put implements convert.Sink.
func (l *leading) Put(ctx context.Context, f gear.File, c convert.Content) error {
	if l.gaveUp(ctx) {
		c.Release()
		return nil
	}
	return l.Writer.Put(ctx, f, c)
}

// announce publishes the index of a layer whose files are not stored. It returns errEarly
// if it did so.
func (s *Service) announce(d oci.Digest, out *convert.Result) error {
	var buf bytes.Buffer
	if err := out.Index.Encode(&buf); err != nil {
		return fmt.Errorf("encode the index of %s: %w", d, err)
	}
	e := &early{names: make(map[gear.Name]struct{}, len(out.Index.Files)+1), since: time.Now(), stored: make(chan struct{})}
	e.content = Content{name: sha256.Sum256(buf.Bytes()), diffID: out.Sums.DiffID, size: int64(buf.Len()), small: buf.Bytes()}
	e.names[e.content.name] = struct{}{}
	for i := range out.Index.Files {
		e.names[out.Index.Files[i].Name] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	files := len(e.names)
	for _, other := range s.early {
		files += len(other.names)
	}
	if files <= earlyFiles && s.early[d] == nil {
		s.early[d], s.announced = e, e.since
		s.tell()
		time.AfterFunc(earlyPause, s.wake)
	}
	return errEarly
}

// earlyIndex returns the index of a layer whose files will follow, or nil.
func (s *Service) earlyIndex(d oci.Digest) *Content {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.early[d]; e != nil {
		return &e.content
	}
	return nil
}

// endEarly ends the wait for the files of a layer. Either they are stored, or the layer
// could not be converted and its index is no longer valid.
func (s *Service) endEarly(d oci.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.early[d]; e != nil {
		delete(s.early, d)
		close(e.stored)
	}
}

// arriving waits for the named files that belong to a layer which the repository shows
// and whose files are being stored. It reports whether there were any.
func (s *Service) arriving(ctx context.Context, repo string, names []gear.Name) (bool, error) {
	s.mu.Lock()
	of := map[oci.Digest]*early{}
	for d, e := range s.early {
		if slices.ContainsFunc(names, func(n gear.Name) bool { _, ok := e.names[n]; return ok }) {
			of[d], e.wanted = e, true
		}
	}
	s.mu.Unlock()
	if len(of) > 0 {
		s.wake()
	}
	any := false
	for d, e := range of {
		_, err := s.cat.Blob(ctx, repo, d)
		if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
			continue
		}
		if err != nil {
			return false, err
		}
		any = true
		t := time.NewTimer(earlyWait)
		select {
		case <-e.stored:
		case <-t.C:
		case <-s.ctx.Done():
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.Stop()
		if err != nil {
			return false, err
		}
	}
	return any, nil
}

// indexFirst reports whether a layer of the queue gets its index before its files.
func (s *Service) indexFirst(j gearfacts.Job, size int64) bool {
	return !s.cat.DB.Shared() && j.Attempts == 0 && size >= earlySize && s.opts.Clock().Sub(j.Due) < earlyFor && s.earlyIndex(j.Digest) == nil
}

// filesLater reports whether the files of a layer should still wait.
func (s *Service) filesLater(d oci.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.early[d]
	return e != nil && !e.wanted && time.Since(e.since) < earlyLongest && (s.leads > 0 || time.Since(s.announced) < earlyPause)
}

// lead adds n to the number of conversions that may publish an index before the files.
func (s *Service) lead(n int) {
	s.mu.Lock()
	s.leads += n
	s.mu.Unlock()
	if n < 0 {
		s.wake()
	}
}

// earlyWaiting returns the layers whose files the queue has still to store.
func (s *Service) earlyWaiting() []oci.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []oci.Digest
	for d := range s.early {
		if s.active[d] == nil {
			out = append(out, d)
		}
	}
	return out
}

// indexesFirst sorts the jobs of layers that have an early index behind the others. It sorts
// the layers that came just now by size, the largest first. The reason is that the index of an
// image is complete only with the index of its largest layer, which one processor has to make.
// A small layer is passed over for no longer than earlyFor.
func (s *Service) indexesFirst(jobs []gearfacts.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Clock()
	rank := func(j *gearfacts.Job) int {
		switch {
		case s.early[j.Digest] != nil:
			return 2
		case j.Attempts == 0 && now.Sub(j.Due) < earlyFor:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(jobs, func(a, b gearfacts.Job) int {
		x, y := rank(&a), rank(&b)
		if x == 1 && y == 1 {
			return cmp.Compare(b.Size, a.Size)
		}
		return cmp.Compare(x, y)
	})
	s.takeTurns(jobs, func(j *gearfacts.Job) bool { return rank(j) == 2 })
}

// takeTurns orders jobs so that repositories take turns. Each repository's jobs stay in
// order. Jobs for which later returns true come after all others. A layer being converted
// counts as a turn of its repository. The caller holds mu.
func (s *Service) takeTurns(jobs []gearfacts.Job, later func(*gearfacts.Job) bool) {
	had := map[int64]int{}
	for i := range jobs {
		if s.active[jobs[i].Digest] != nil {
			had[jobs[i].Repo]++
		}
	}
	turn := make(map[oci.Digest]int, len(jobs))
	for i := range jobs {
		if j := &jobs[i]; s.active[j.Digest] == nil {
			turn[j.Digest] = had[j.Repo]
			had[j.Repo]++
		}
	}
	slices.SortStableFunc(jobs, func(a, b gearfacts.Job) int {
		switch x, y := later(&a), later(&b); {
		case x == y:
			return cmp.Compare(turn[a.Digest], turn[b.Digest])
		case x:
			return 1
		}
		return -1
	})
}
