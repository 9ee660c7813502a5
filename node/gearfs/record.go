package gearfs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/node/gearfs/starts"
)

// container is a running container of an image.
type container struct {
	id    string
	img   *image
	began time.Time

	mu sync.Mutex
	// rec is nil once the start is over.
	rec      *recording
	decision Decision
}

// recording collects what a container opens during its start.
type recording struct {
	// known is closed when profile is set. profile is what was known before the start.
	// known is nil if nothing needs the profile during the start.
	known   chan struct{}
	profile starts.Profile
	seen    map[gear.Name]bool
	names   []gear.Name
	timer   *time.Timer
	mount   string // of the overlay whose opens are watched, or ""
	// ready is closed when opens are watched, or when it is known that they will not be.
	ready chan struct{}
	// begun says that Prefetch has begun the watch. late says that a Prefetch ended
	// before the watch was ready, so that the container may have opened files unseen.
	begun, late bool
	watch       *starts.Watch // nil if opens are not watched
	// siblings is nil until the tree is read. If opens are not watched, most uses of
	// siblings are not seen, so the guesses end soon.
	siblings *predict.Siblings
	// misses is how many files the container has waited for. ahead is nil until there are
	// some misses and the index is read.
	misses int
	ahead  *ahead
}

// add records an open. The container's mu is held.
func (r *recording) add(name gear.Name) {
	if r.siblings != nil {
		r.siblings.Opened(name)
	}
	if len(r.names) < starts.MaxFiles && !r.seen[name] {
		r.seen[name] = true
		r.names = append(r.names, name)
	}
}

// maxWatched bounds how many recordings of an image see all opens. Later ones would
// reveal little that is new, and each costs its container some time. While the profile is
// only inferred, all starts are watched, because the first report replaces it.
const maxWatched = 3

// leaseOf returns the ID of the lease for an image that has containers.
func leaseOf(chain string) string { return "image " + chain }

// ContainerStarted notes that a container of an image runs or is about to run. The
// image's files are then evicted last, and the container's opens are recorded for a
// while. mount is where the container's overlay is mounted, or "" if only opens that
// reach the pool shall be recorded. Other opens are recorded by the time Prefetch returns.
// It is no error if the container is already known. Errors: ErrUnknown.
func (s *Service) ContainerStarted(id, chain, mount string) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	c := &container{id: id, img: img, began: s.opts.Clock(), decision: img.lastDecision()}
	s.imagesMu.Lock()
	if s.containers[id] != nil || s.ctx.Err() != nil {
		s.imagesMu.Unlock()
		return nil
	}
	s.containers[id] = c
	s.imagesMu.Unlock()
	s.cache.LeaseSet(leaseOf(chain), img)
	img.st.trace.Begin(time.Now())
	r := &recording{mount: mount, ready: make(chan struct{}), seen: map[gear.Name]bool{}}
	if mount != "" || !s.hasAll(img) {
		r.known = make(chan struct{})
	}
	c.mu.Lock()
	r.timer = time.AfterFunc(s.opts.RecordFor, func() { s.endRecording(id, true) })
	c.rec = r
	c.mu.Unlock()
	if r.known != nil {
		s.goWork(func() { s.expect(c, r) })
	}
	if s.opts.Siblings {
		s.goWork(func() { s.guessSiblings(c, r) })
	}
	return nil
}

// expect reads the profile for a recording. It runs beside the start, because a profile
// may have many files.
func (s *Service) expect(c *container, r *recording) {
	p, _ := s.readProfile(c.img)
	s.cache.Touch(predict.Names(p.Files)...) // the container opens them now
	c.img.st.trace.Expect(p)
	c.mu.Lock()
	if len(r.profile.Files) == 0 {
		r.profile = p
	}
	c.mu.Unlock()
	close(r.known)
}

// beginWatches begins to watch the opens of an image's new containers. fetched are the
// files that are fetched before the containers start. They are also the profile of
// containers that were started before a profile was known.
func (s *Service) beginWatches(img *image, fetched starts.Profile) {
	for _, c := range s.containersOf(img) {
		c.mu.Lock()
		r := c.rec
		if r != nil && len(r.profile.Files) == 0 {
			r.profile = fetched
		}
		begin := r != nil && r.mount != "" && !r.begun
		if begin {
			r.begun = true
		}
		c.mu.Unlock()
		if begin {
			s.goWork(func() {
				defer close(r.ready)
				if err := s.watch(c, r, fetched); err != nil {
					s.log.Info("opens of a container's cached files cannot be recorded", "container", c.id, "err", err)
				}
			})
		}
	}
}

// watch starts to watch the opens of a container, unless enough starts were watched.
func (s *Service) watch(c *container, r *recording, fetched starts.Profile) error {
	<-r.known
	c.mu.Lock()
	p := r.profile
	c.mu.Unlock()
	if c.img.st.watched.Add(1) > maxWatched && !p.Inferred() {
		return nil
	}
	x, err := s.readIndex(c.img)
	if err != nil {
		return err
	}
	expected := make(map[gear.Name]bool, len(fetched.Files))
	for i := range fetched.Files {
		expected[fetched.Files[i].Name] = true
	}
	watch, err := starts.NewWatch(r.mount, x, func(n gear.Name) bool { return expected[n] || c.img.view.Has(n) }, func(n gear.Name) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.rec != nil {
			c.saw(n)
		}
	})
	if err != nil {
		return err
	}
	s.goWork(watch.Run)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rec == r {
		r.watch = watch
	} else { // the recording is over
		watch.Cancel()
	}
	return nil
}

// containersOf returns the containers of an image.
func (s *Service) containersOf(img *image) (of []*container) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	for _, c := range s.containers {
		if c.img == img {
			of = append(of, c)
		}
	}
	return of
}

// awaitWatches waits until the opens of an image's new containers are watched, for a short
// time at most. Containers that start together wait for the watches of all.
func (s *Service) awaitWatches(ctx context.Context, img *image) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.WatchWait)
	defer cancel()
	for _, c := range s.containersOf(img) {
		c.mu.Lock()
		r := c.rec
		begun := r != nil && r.begun
		c.mu.Unlock()
		if begun && !isReady(ctx, r.ready) {
			c.mu.Lock()
			r.late = true
			c.mu.Unlock()
		}
	}
}

// isReady reports whether a channel is closed before ctx ends.
func isReady(ctx context.Context, ready <-chan struct{}) bool {
	select {
	case <-ready:
		return true
	default:
	}
	select {
	case <-ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// guessSiblings makes every file that a container misses bring its siblings from now on.
func (s *Service) guessSiblings(c *container, r *recording) {
	if s.hasAll(c.img) {
		return
	}
	x, err := s.readIndex(c.img)
	if err != nil {
		s.log.Warn("siblings of files cannot be told", "image", c.img.name(), "err", err)
		return
	}
	l, _ := s.linkOf(c.img)
	guess := predict.NewSiblings(predict.NewTree(x), l.rtt.Seconds(), l.rate)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.siblings = guess
}

// missed requests the siblings of a file that a container waits for, and what comes after
// it if the container reads the image in order.
func (s *Service) missed(img *image, name gear.Name) {
	var siblings, next []gear.File
	lacks := func(f gear.File) bool { return !img.view.Has(f.Name) }
	for _, c := range s.containersOf(img) {
		c.mu.Lock()
		if r := c.rec; r != nil {
			if r.siblings != nil {
				siblings = append(siblings, r.siblings.Missed(name, lacks)...)
			}
			if r.misses++; r.misses == aheadAfter && s.opts.Mode == Auto {
				s.goWork(func() { s.readAhead(c, r) })
			}
			if r.ahead != nil {
				next = append(next, r.ahead.missed(name, lacks)...)
			}
		}
		c.mu.Unlock()
	}
	for i := range siblings {
		img.st.trace.Sibling(siblings[i].Name)
	}
	if siblings = append(siblings, next...); len(siblings) == 0 {
		return
	}
	for _, fl := range s.sched.joinAll(img, siblings, fromProfile, true) {
		s.sched.leave(fl) // the fetch continues, and nobody waits for it
	}
}

// readAhead makes the service fetch files in advance from now on for a container that
// reads in order.
func (s *Service) readAhead(c *container, r *recording) {
	x, err := s.readIndex(c.img)
	if err != nil {
		s.log.Warn("no files can be fetched in advance", "image", c.img.name(), "err", err)
		return
	}
	a := newAhead(x)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.ahead = a
}

// Adopt notes a container that was started before this service. Its files are leased, and
// nothing is recorded. Errors: ErrUnknown.
func (s *Service) Adopt(id, chain string) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	s.imagesMu.Lock()
	if s.containers[id] == nil {
		s.containers[id] = &container{id: id, img: img, began: s.opts.Clock()}
	}
	s.imagesMu.Unlock()
	s.cache.LeaseSet(leaseOf(chain), img)
	return nil
}

// ContainerStopped notes that a container is gone, and reports what was recorded of its
// start. It is no error if the container is not known.
func (s *Service) ContainerStopped(id string) {
	s.endRecording(id, true)
	s.imagesMu.Lock()
	c := s.containers[id]
	delete(s.containers, id)
	last := c != nil
	for _, o := range s.containers {
		last = last && o.img != c.img
	}
	s.imagesMu.Unlock()
	if c == nil {
		return
	}
	s.observe(c.img)
	if last {
		s.cache.Unlease(leaseOf(c.img.chain))
	}
}

const (
	// observeFor bounds how long the end of a container waits while the cache checks
	// which files were read. 13,000 files take about 80 ms. The rest is checked later.
	observeFor = 20 * time.Millisecond
	// observeShare bounds the cost of containers that end all the time: at most one part
	// in observeShare of the time is spent on checking the files of their image.
	observeShare = 11
)

// observing records who checks the files of an image.
type observing struct {
	mu    sync.Mutex
	busy  bool // somebody checks them, or rests afterwards
	again bool // another container has ended since
}

// begin reports whether the caller must check the files. If not, the goroutine that is
// checking them checks them again.
func (o *observing) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy {
		o.again = true
		return false
	}
	o.busy = true
	return true
}

// more reports whether the goroutine that has checked the files must check them again.
func (o *observing) more() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy, o.again = o.again, false
	return o.busy
}

// observe makes the cache check which files of an image have been read.
func (s *Service) observe(img *image) {
	if !img.observing.begin() {
		return
	}
	began := time.Now()
	next, err := s.observeFrom(img, 0, func() bool { return time.Since(began) < observeFor })
	if err == nil && s.ctx.Err() == nil {
		s.goWork(func() { s.observeOn(img, began, next) })
	}
}

// observeOn is like observe, from a position in the table on. It repeats while containers have
// ended meanwhile.
func (s *Service) observeOn(img *image, began time.Time, next int) {
	for {
		if _, err := s.observeFrom(img, next, func() bool { return s.ctx.Err() == nil }); err != nil {
			return // the image was removed
		}
		select {
		case <-time.After((observeShare - 1) * time.Since(began)):
		case <-s.ctx.Done():
			return
		}
		if !img.observing.more() {
			return
		}
		began, next = time.Now(), 0
	}
}

// observeFrom does what observe does, from a position in the table on and while more returns
// true. It returns the position where it stopped.
func (s *Service) observeFrom(img *image, from int, more func() bool) (next int, err error) {
	err = img.table.EachFrom(from, func(i int, f gear.File) bool {
		s.cache.Observe(f.Name)
		next = i + 1
		return more()
	})
	return next, err
}

// opened records that the pool got a request for a file. Any container of the domain
// whose image has the file may have opened it.
func (s *Service) opened(k fileKey) {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	for _, c := range s.containers {
		c.mu.Lock()
		if c.rec != nil && c.img.key(k.name) == k && c.img.Has(k.name) {
			c.saw(k.name)
		}
		c.mu.Unlock()
	}
}

// saw records that the container opened a file. c.mu is held, and c.rec is not nil.
func (c *container) saw(name gear.Name) {
	c.rec.add(name)
	c.img.st.trace.Wanted(name)
}

// endRecording ends the recording of a container, and reports it if report is set.
func (s *Service) endRecording(id string, report bool) {
	s.imagesMu.RLock()
	c := s.containers[id]
	s.imagesMu.RUnlock()
	if c == nil {
		return
	}
	c.mu.Lock()
	r := c.rec
	c.mu.Unlock()
	if r == nil {
		return
	}
	r.timer.Stop()
	c.mu.Lock()
	watch, whole := r.watch, !r.late
	c.mu.Unlock()
	if watch == nil || !watch.Stop() { // Stop delivers the remaining events, for which c.mu must be free
		whole = false
	}
	c.mu.Lock()
	mine := c.rec == r
	c.rec = nil
	c.mu.Unlock()
	if mine && report && s.ctx.Err() == nil {
		s.goWork(func() { s.report(c.img, r, whole) })
	}
}

// report stores what was recorded and reports it to the registry. If opens of a start may
// have been missed, only the opens that were seen count, and the start says nothing
// about other files. Otherwise a file would count as wanted because it was fetched, and
// it was fetched because it counted as wanted.
func (s *Service) report(img *image, r *recording, watched bool) {
	if r.known != nil {
		<-r.known
	} else if len(r.names) > 0 {
		r.profile, _ = s.readProfile(img)
	}
	img.st.trace.End(watched)
	had := make(map[gear.Name]bool, len(r.profile.Files))
	for _, f := range r.profile.Files {
		had[f.Name] = true
	}
	covered := 0
	for _, name := range r.names {
		if had[name] {
			covered++
		}
	}
	own := !r.profile.Inferred()
	if len(r.names) == 0 {
		return
	}
	if watched && own && len(had) > 0 {
		if err := s.addHits(img, int64(len(r.names)), int64(covered)); err != nil {
			s.log.Warn("record of an image", "err", err)
		}
	}
	merged := starts.Own(r.names)
	if own || !watched {
		merged = r.profile.Merge(r.names)
	}
	if len(merged.Files) != len(r.profile.Files) || watched && !own {
		if err := s.setProfile(img.chain, merged); err != nil && !errors.Is(err, ErrUnknown) {
			s.log.Warn("profile of an image cannot be kept", "err", err)
		}
	}
	s.reportTo(img, r.names, watched)
}

// addHits counts how well a profile did. Older starts have less and less weight.
func (s *Service) addHits(img *image, opened, covered int64) error {
	s.addMu.Lock()
	defer s.addMu.Unlock()
	if s.image(img.chain) != img {
		return nil
	}
	s.imagesMu.RLock()
	rec := *img.rec
	s.imagesMu.RUnlock()
	h := &rec.Hits
	if h.Opened > 10_000 {
		h.Opened, h.Covered = h.Opened/2, h.Covered/2
	}
	h.Opened += opened
	h.Covered += covered
	return s.replaceRecord(img, &rec)
}

// reportTo sends the profile to the image's sources in turn, until one accepts it. whole
// says that the start opened nothing else.
func (s *Service) reportTo(img *image, names []gear.Name, whole bool) {
	ctx, cancel := context.WithTimeout(s.ctx, profileWait)
	defer cancel()
	s.imagesMu.RLock()
	refs := img.rec.Sources
	s.imagesMu.RUnlock()
	var failed error
	for _, ref := range refs {
		s.sched.mu.Lock()
		known := s.sched.source(ref)
		s.sched.mu.Unlock()
		src, err := s.sched.dialled(known)
		if err == nil {
			err = src.ReportProfile(ctx, names, whole)
		}
		if err == nil {
			return
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", ref, err))
	}
	if failed != nil && s.ctx.Err() == nil {
		s.log.Info("profile cannot be reported", "image", img.name(), "err", failed)
	}
}

// Start returns what is known about the last start of an image. It returns nil if the
// image was not started since the service was opened. Errors: ErrUnknown.
func (s *Service) Start(chain string) (*starts.Start, error) {
	img := s.image(chain)
	if img == nil {
		return nil, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	x, err := s.readIndex(img)
	if err != nil {
		return nil, err
	}
	return img.st.trace.Start(x), nil
}
