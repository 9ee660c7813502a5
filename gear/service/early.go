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
	// earlyFiles is how many files the layers may have together whose index is
	// given out before the files are stored: some 20 MB of RAM.
	earlyFiles = 200_000
	// earlyWait is how long a request for such a file waits for it at most.
	earlyWait = 30 * time.Second
	// earlyFor is how long after a push a layer that waits in the queue gets its
	// index first. Later its files come at the same time, which costs less.
	earlyFor = 10 * time.Second
	// earlySize in bytes is what a layer must have for that to be worth it.
	earlySize = 4 << 20
	// The files of such layers come when no index has come for earlyPause and none
	// is being made, as other layers of the image are likely to be on their way; or
	// when somebody asks for one; or after earlyLongest.
	earlyPause   = 300 * time.Millisecond
	earlyLongest = 5 * time.Second
)

// early is the index of a layer whose files are not stored yet.
type early struct {
	content Content
	names   map[gear.Name]struct{}
	since   time.Time
	wanted  bool // somebody waits for a file
	// stored is closed when the files are there, or will not come.
	stored chan struct{}
}

// errEarly ends a conversion that made an index and stored no file.
var errEarly = errors.New("the index is there; the files are to follow")

// leading is the sink of a conversion that stores files as long as it is not
// behind. From then on it makes the index only, which takes half the time.
type leading struct {
	*filestore.Writer
	behind func() bool // nil: never
	alone  atomic.Bool // without the files
}

// gaveUp reports whether files are not stored any more.
func (l *leading) gaveUp(ctx context.Context) bool {
	if !l.indexOnly() {
		return false
	}
	l.Abort(ctx) // the first time
	return true
}

// indexOnly is gaveUp for who reads the layer, concurrently with the other methods.
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

// announce gives out the index of a layer whose files are not stored. Errors:
// errEarly if that is done.
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

// earlyIndex returns the index of a layer whose files are to follow, or nil.
func (s *Service) earlyIndex(d oci.Digest) *Content {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.early[d]; e != nil {
		return &e.content
	}
	return nil
}

// endEarly ends the wait for the files of a layer: they are stored, or the layer
// could not be converted and its index is none any more.
func (s *Service) endEarly(d oci.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.early[d]; e != nil {
		delete(s.early, d)
		close(e.stored)
	}
}

// arriving waits for those of the names that are files of a layer which the
// repository shows and whose files are being stored. It reports whether there were
// any.
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

// filesLater reports whether the files of a layer are left to wait.
func (s *Service) filesLater(d oci.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.early[d]
	return e != nil && !e.wanted && time.Since(e.since) < earlyLongest && (s.leads > 0 || time.Since(s.announced) < earlyPause)
}

// lead counts the conversions that may give out an index before the files.
func (s *Service) lead(n int) {
	s.mu.Lock()
	s.leads += n
	s.mu.Unlock()
	if n < 0 {
		s.wake()
	}
}

// earlyWaiting are the layers whose files are to come from the queue.
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

// indexesFirst puts the jobs of layers that have an early index behind the others,
// and of these the ones that came just now in the order of their sizes: the index
// of an image is there when that of its largest layer is, which one processor makes.
// A small one is passed over for no longer than earlyFor.
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

// takeTurns puts jobs in the order in which repositories take turns, each in the order
// that its jobs have; later ones come behind all others. What is being converted counts
// as a turn that its repository has had. The caller holds mu.
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
