package gearfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/flow"
	"example.org/slipway/node/gearfs/starts"
)

// maxPrefetch is the size in bytes of the largest file that a profile fetches as a whole.
// Programs mostly read only parts of a larger file. These parts are fetched on demand.
const maxPrefetch = 32 << 20

// Prefetched is the result of Prefetch.
type Prefetched struct {
	Decision Decision `json:"decision"`
	// Files is how many files were requested because they were not local. Bytes is their
	// size. Left is how many of them had not come when the prefetch ended.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	Left  int   `json:"left"`
	// Took is how long it waited.
	Took time.Duration `json:"took_ns"`
}

// Prefetch fetches the files that a container of an image will open, before the container
// starts. These are the files of the profile; nil means the known profile. Prefetch also
// requests all other files if that is faster. It returns when the profile's files are
// there, when its bound has passed, when no source answers, or when ctx ends. It also waits
// until the opens of new containers are watched, for WatchWait at most. Files that
// are missing by then still come. A file that cannot be fetched is no error here, because
// its open will fail. Errors: ErrUnknown.
func (s *Service) Prefetch(ctx context.Context, chain string, profile []gear.Name) (Prefetched, error) {
	img := s.image(chain)
	if img == nil {
		return Prefetched{}, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.opts.PrefetchWait)
	defer cancel()
	defer s.awaitWatches(ctx, img)
	if s.hasAll(img) { // then it does not matter what a container will open
		s.sched.credit(img)
		s.beginWatches(img, starts.Profile{})
		d := decide(s.decisionOf(img, starts.Profile{}))
		s.noteDecision(img, d)
		return Prefetched{Decision: d, Took: time.Since(began)}, nil
	}
	known := starts.Own(profile)
	if profile == nil {
		known = s.profileOf(ctx, img)
	}
	img.st.trace.Begin(began)
	plan, err := s.plan(img, known, s.sched.credit(img))
	if err != nil {
		return Prefetched{}, err
	}
	s.noteDecision(img, plan.decision)
	img.st.turn.Begin(plan.beyondFiles, plan.beyond, img.waits(), time.Now())
	img.st.trace.Expect(known)
	s.beginWatches(img, known)
	res := Prefetched{Decision: plan.decision}
	flights := s.sched.joinAll(img, plan.ask, fromProfile, true)
	res.Files = len(plan.ask)
	for i := range plan.ask {
		res.Bytes += plan.ask[i].Size
	}
	for _, fl := range s.sched.joinAll(img, plan.rest, fromProfile, true) {
		s.sched.leave(fl) // the fetch continues, and nobody waits for it
	}
	s.awaitAll(ctx, img, flights)
	for _, fl := range flights {
		select {
		case <-fl.done:
		default:
			res.Left++
		}
	}
	res.Took = time.Since(began)
	return res, nil
}

// awaitAll waits for flights until ctx ends or no source works: a container whose
// registry is unreachable starts with the local files.
func (s *Service) awaitAll(ctx context.Context, img *image, flights []*flight) {
	tick := time.NewTicker(completeEvery)
	defer tick.Stop()
	hope := true
	for _, fl := range flights {
		for waiting := hope; waiting; {
			select {
			case <-fl.done:
				waiting = false
			case <-ctx.Done():
				hope = false
			case <-s.ctx.Done():
				hope = false
			case <-tick.C:
				hope = !s.sched.away(img)
			}
			waiting = waiting && hope
		}
		s.sched.leave(fl)
	}
}

// awayAfter is how many requests in a row must bring nothing before a source counts as
// unreachable.
const awayAfter = 3

// away reports whether no source of an image works at present.
func (c *scheduler) away(img *image) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.imagesMu.RLock()
	defer c.s.imagesMu.RUnlock()
	for _, ref := range img.rec.Sources {
		if c.source(ref).failures < awayAfter {
			return false
		}
	}
	return true
}

// prefetchPlan is what a start fetches.
type prefetchPlan struct {
	decision Decision
	ask      []gear.File // requested before the start
	rest     []gear.File // requested at the same time
	// beyondFiles and beyond are how many files are missing that are not in ask, and their
	// bytes.
	beyondFiles int
	beyond      int64
}

// plan chooses between eager and lazy, and lists the files to fetch. early are files of the
// profile that came before, for the same start.
func (s *Service) plan(img *image, profile starts.Profile, early []gear.File) (prefetchPlan, error) {
	var p prefetchPlan
	in := s.decisionOf(img, profile)
	seen := make(map[gear.Name]bool, len(profile.Files))
	for i := range profile.Files {
		name := profile.Files[i].Name
		if seen[name] {
			continue
		}
		seen[name] = true
		if img.view.Has(name) {
			continue
		}
		_, at, err := img.table.Find(name)
		if err != nil {
			return p, err
		}
		if at < 0 {
			continue // a file of another version of the image
		}
		f, err := img.table.Whole(at)
		if err != nil {
			return p, err
		}
		if f.Size <= maxPrefetch {
			p.ask = append(p.ask, f)
			in.askedBytes += f.Size
		}
		in.profileFiles++
		in.profileBytes += f.Size
	}
	var err error
	if in.missingFiles, in.missingBytes, err = s.lacks(img); err != nil {
		return p, err
	}
	p.beyondFiles, p.beyond = in.missingFiles-len(p.ask), in.missingBytes-in.askedBytes
	for i := range early {
		in.profileFiles, in.missingFiles = in.profileFiles+1, in.missingFiles+1
		in.profileBytes, in.missingBytes, in.askedBytes = in.profileBytes+early[i].Size, in.missingBytes+early[i].Size, in.askedBytes+early[i].Size
	}
	p.decision = decide(in)
	if p.decision.Mode == Eager {
		to := &p.rest
		if p.decision.waitsForAll(in.forced) {
			to = &p.ask
		}
		add := func(f gear.File) bool {
			if !seen[f.Name] || f.Size > maxPrefetch {
				*to = append(*to, f)
			}
			return true
		}
		if to == &p.ask { // all are waited for, so the order does not matter
			_, _, err = s.missing(img, add)
		} else {
			err = s.inOrder(img, add)
		}
	}
	return p, err
}

// inOrder calls each for every file of an image that is not local, in the order of the
// tree: programs that read most of an image read one directory after the other.
func (s *Service) inOrder(img *image, each func(f gear.File) bool) error {
	x, err := s.readIndex(img)
	if err != nil {
		return err
	}
	for i := range x.Files {
		if f := x.Files[i]; !img.view.Has(f.Name) && !each(f) {
			break
		}
	}
	return nil
}

// waits returns what the containers of an image have got and waited for.
func (img *image) waits() starts.Waits {
	return starts.Waits{Fetched: img.st.bytes[onDemand].Load(), Stalled: time.Duration(img.st.stall.Load())}
}

// turnEager fetches the rest of an image whose containers read so much of it that they
// probably read most.
func (s *Service) turnEager(img *image) {
	if s.opts.Mode != Auto {
		return
	}
	link, _ := s.linkOf(img)
	why, due := img.st.turn.Due(img.waits(), cmp.Or(link.rate, flow.AssumedRate), link.rate > 0, s.opts.Completes, time.Now())
	if !due {
		return
	}
	if most := s.cache.Stats().MaxBytes; most > 0 && img.table.Bytes() > most {
		return
	}
	s.goWork(func() {
		var files []gear.File
		if err := s.inOrder(img, func(f gear.File) bool { files = append(files, f); return true }); err != nil {
			s.log.Warn("the rest of an image cannot be fetched", "image", img.name(), "err", err)
			return
		}
		d := img.lastDecision()
		d.Mode, d.Reason = Eager, fmt.Sprintf("%s; before that: %s", why, d.Reason)
		s.noteDecision(img, d)
		for _, fl := range s.sched.joinAll(img, files, fromProfile, true) {
			s.sched.leave(fl) // the fetch continues, and nobody waits for it
		}
	})
}

// decisionOf returns what is known before a start without looking for files.
func (s *Service) decisionOf(img *image, profile starts.Profile) decisionInput {
	in := decisionInput{forced: s.opts.Mode, profiled: len(profile.Files), guess: profile.Guess(), files: img.table.Len(), bytes: img.table.Bytes()}
	in.link, in.hits = s.linkOf(img)
	return in
}

// hasAll reports whether all files of an image are local. It looks for each file only if
// files were removed from the cache. Otherwise it looks only for a file that was missing.
func (s *Service) hasAll(img *image) bool {
	return s.covers(img, removals(s.cache.Stats()), img.table.Len()+1)
}

// lacking is how much of an image is not local. It is valid while the cache's counts of
// published, shown and removed files stay the same.
type lacking struct {
	known          bool
	shown, removed int64
	files          int
	bytes          int64
}

// lacks returns the number and the bytes of an image's files that are not local. It
// counts them only if something has changed since the last count.
func (s *Service) lacks(img *image) (files int, bytes int64, err error) {
	st := s.cache.Stats()
	now := lacking{known: true, shown: st.Published + st.Shown, removed: removals(st)}
	img.st.mu.Lock()
	was := img.st.lacking
	img.st.mu.Unlock()
	if was.known && was.shown == now.shown && was.removed == now.removed {
		return was.files, was.bytes, nil
	}
	if now.files, now.bytes, err = s.missing(img, nil); err != nil {
		return 0, 0, err
	}
	img.st.mu.Lock()
	img.st.lacking = now
	img.st.mu.Unlock()
	return now.files, now.bytes, nil
}

// missing counts the files of an image that are not local. If each is not nil, it is
// called for every such file until it returns false.
func (s *Service) missing(img *image, each func(f gear.File) bool) (files int, bytes int64, err error) {
	var failed error
	err = img.table.Each(func(i int, f gear.File) bool {
		if img.view.Has(f.Name) {
			return true
		}
		files++
		bytes += f.Size
		if each == nil {
			return true
		}
		if f, failed = img.table.Whole(i); failed != nil {
			return false
		}
		return each(f)
	})
	return files, bytes, errors.Join(err, failed)
}

// linkOf returns what was measured of the connection to an image's first working source,
// and how well profiles of the image did.
func (s *Service) linkOf(img *image) (measured, hits) {
	s.imagesMu.RLock()
	rec := img.rec
	s.imagesMu.RUnlock()
	s.sched.mu.Lock()
	defer s.sched.mu.Unlock()
	for _, ref := range rec.Sources {
		if l := s.sched.links[ref.Registry]; l != nil {
			return measured{l.RTT, l.Rate}, rec.Hits
		}
	}
	return measured{}, rec.Hits
}

// Background sets whether an image is completed in the background, also after a
// restart. Errors: ErrUnknown.
func (s *Service) Background(chain string, on bool) error {
	img := s.image(chain)
	if img == nil {
		return fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	s.addMu.Lock()
	defer s.addMu.Unlock()
	s.imagesMu.RLock()
	rec := *img.rec
	s.imagesMu.RUnlock()
	if rec.Background == on {
		return nil
	}
	rec.Background = on
	img.st.complete.Store(false)
	return s.replaceRecord(img, &rec)
}

const (
	// completeEvery is how often the service looks for images to complete, and the first
	// pause after an image could not be completed.
	completeEvery = 250 * time.Millisecond
	// maxCompletePause is the longest such pause.
	maxCompletePause = 5 * time.Minute
	// tooLargePause is the pause for an image that does not fit in the cache.
	tooLargePause = 24 * time.Hour
	// window is how many background files are queued at a time.
	window = 4096
)

// completeImages fetches the missing files of images, one image after the other.
func (s *Service) completeImages() {
	tick := time.NewTicker(completeEvery)
	defer tick.Stop()
	for {
		for _, img := range s.allImages() {
			s.imagesMu.RLock()
			on := img.rec.Background && !img.st.complete.Load() && time.Now().After(img.st.retryAt)
			s.imagesMu.RUnlock()
			if on {
				s.complete(img)
			}
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// errTooLarge says that fetching more of an image evicts what was fetched before.
var errTooLarge = errors.New("the cache has no room for the whole image (cache.max_bytes)")

// complete fetches the missing files of an image. It stops at an image that does not fit
// in the cache, because its files would be fetched again and again.
func (s *Service) complete(img *image) {
	lost := removals(s.cache.Stats())
	for left := img.table.Len(); s.ctx.Err() == nil; {
		var files []gear.File
		_, _, err := s.missing(img, func(f gear.File) bool {
			files = append(files, f)
			return len(files) < window
		})
		if max := s.cache.Stats().MaxBytes; max > 0 && (img.table.Bytes() > max || len(files) > 0 && left <= 0 && removals(s.cache.Stats()) > lost) {
			err, files = errTooLarge, nil
		}
		left -= len(files)
		flights := s.sched.joinAll(img, files, inBackground, false)
		failed := err
		for _, fl := range flights {
			if err := s.sched.awaitQuietly(fl, func() bool { return s.completing(img) }); err != nil {
				failed = err
			}
			s.sched.leave(fl)
		}
		switch {
		case s.ctx.Err() != nil || !s.completing(img):
			return
		case failed != nil:
			img.st.pause = min(max(2*img.st.pause, 4*completeEvery), maxCompletePause)
			if errors.Is(failed, errTooLarge) {
				img.st.pause = tooLargePause
			}
			s.imagesMu.Lock()
			img.st.retryAt = time.Now().Add(img.st.pause)
			s.imagesMu.Unlock()
			s.log.Warn("an image cannot be completed for now", "image", img.name(), "again_in", img.st.pause, "err", failed)
			return
		case len(flights) == 0:
			img.st.pause = 0
			img.st.complete.Store(true)
			return
		}
	}
}

// completing reports whether an image is still to be completed.
func (s *Service) completing(img *image) bool {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	return s.images[img.chain] == img && img.rec.Background
}

// awaitQuietly waits for a flight without being urgent, while wanted returns true.
func (c *scheduler) awaitQuietly(fl *flight, wanted func() bool) error {
	for {
		select {
		case <-fl.done:
			return fl.err
		case <-c.s.ctx.Done():
			return ErrClosed
		case <-time.After(completeEvery):
			if !wanted() {
				return errAbandoned
			}
		}
	}
}
