package gearfs

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// imageStats are what happened to an image since the service was opened.
type imageStats struct {
	opens, errors          atomic.Int64
	files, bytes           [priorities]atomic.Int64 // fetched, by priority
	stalls, stall, longest atomic.Int64             // nanoseconds
	watched                atomic.Int64
	coverage               coverage
	complete               atomic.Bool
	// retryAt is guarded by Service.imagesMu, pause is of one goroutine.
	retryAt time.Time
	pause   time.Duration

	// mu guards all below, and the writing of the profile.
	mu       sync.Mutex
	asking   chan struct{} // closed when the profile has been asked for
	askAgain time.Time
	decision Decision
	lacking  lacking

	trace trace // of the last start
}

// stallFrom is how long a wait must be to count as a stall.
const stallFrom = time.Millisecond

// stalled notes that somebody waited.
func (s *Service) stalled(img *image, d time.Duration) {
	if d < stallFrom {
		return
	}
	img.st.stalls.Add(1)
	img.st.stall.Add(int64(d))
	for {
		was := img.st.longest.Load()
		if was >= int64(d) || img.st.longest.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}

// fetched notes that a whole file came.
func (s *Service) fetched(fl *flight, p priority) {
	fl.img.st.trace.here(fl.f.Name)
	fl.img.st.files[p].Add(1)
	fl.img.st.bytes[p].Add(fl.f.Size)
}

// fetchedRange notes that a part of a large file came.
func (s *Service) fetchedRange(lf *large, n int64, p priority) { lf.img.st.bytes[p].Add(n) }

func (s *Service) noteDecision(img *image, d Decision) {
	img.st.mu.Lock()
	defer img.st.mu.Unlock()
	img.st.decision = d
}

// lastDecision is how the last start was done.
func (img *image) lastDecision() Decision {
	img.st.mu.Lock()
	defer img.st.mu.Unlock()
	return img.st.decision
}

// name is how people call the image.
func (img *image) name() string { return cmp.Or(img.ref, img.chain) }

// Status is the state of the service.
type Status struct {
	Images     []ImageStatus     `json:"images"`
	Containers []ContainerStatus `json:"containers"`
	Sources    []SourceStatus    `json:"sources"`
	Links      []LinkStatus      `json:"links"`
	Cache      cachedir.Stats    `json:"cache"`
	// Queued and Running requests, by priority: on demand, of profiles, in the
	// background. Waiting is how many callers wait for something.
	Queued  [3]int `json:"queued"`
	Running [3]int `json:"running"`
	Waiting int64  `json:"waiting"`
}

// ImageStatus is an image's part of the status.
type ImageStatus struct {
	Chain   string      `json:"chain"`
	Ref     string      `json:"ref,omitempty"`
	Added   time.Time   `json:"added"`
	Sources []SourceRef `json:"sources"`
	// Files with content, of which LocalFiles are in the cache.
	Files      int   `json:"files"`
	Bytes      int64 `json:"bytes"`
	LocalFiles int   `json:"local_files"`
	LocalBytes int64 `json:"local_bytes"`
	// Decision is how the last start was done; its mode is empty if there was none.
	Decision Decision `json:"decision"`
	// Background tells that the image is being completed, Complete that it was.
	Background bool `json:"background"`
	Complete   bool `json:"complete"`
	ImageCounts
}

// ImageCounts are what happened to an image since the service was opened.
type ImageCounts struct {
	// Opens reached the pool; Errors of them failed.
	Opens  int64 `json:"opens"`
	Errors int64 `json:"errors"`
	// Files and bytes of content that were fetched for this image.
	DemandFiles     int64 `json:"demand_files"`
	DemandBytes     int64 `json:"demand_bytes"`
	ProfileFiles    int64 `json:"profile_files"`
	ProfileBytes    int64 `json:"profile_bytes"`
	BackgroundFiles int64 `json:"background_files"`
	BackgroundBytes int64 `json:"background_bytes"`
	// FetchedShare is the bytes fetched as a share of the image.
	FetchedShare float64 `json:"fetched_share"`
	// Stalls are waits of a millisecond or more, Stalled is how long they took
	// together, LongestStall the longest.
	Stalls       int64         `json:"stalls"`
	Stalled      time.Duration `json:"stalled_ns"`
	LongestStall time.Duration `json:"longest_stall_ns"`
}

// ContainerStatus is a container's part of the status.
type ContainerStatus struct {
	ID      string    `json:"id"`
	Chain   string    `json:"chain"`
	Started time.Time `json:"started"`
	// Decision is how its start was done.
	Decision Decision `json:"decision"`
	// Recording tells that its opens are being recorded, Recorded how many files
	// it has opened so far.
	Recording bool `json:"recording"`
	Recorded  int  `json:"recorded"`
}

// SourceStatus is a source's part of the status.
type SourceStatus struct {
	Source SourceRef `json:"source"`
	Files  int64     `json:"files"`
	Bytes  int64     `json:"bytes"`
	// Lies are contents that were not what they should have been; Failures
	// requests in a row that brought nothing; it is not asked before Until.
	Lies     int       `json:"lies"`
	Failures int       `json:"failures"`
	Until    time.Time `json:"until"`
	Error    string    `json:"error,omitempty"`
}

// LinkStatus is what was measured of the way to a registry.
type LinkStatus struct {
	Registry   string        `json:"registry"`
	RTT        time.Duration `json:"rtt_ns"`
	RatePerSec float64       `json:"rate_bytes_per_second"`
}

// Status tells the state. It asks the cache for every file of every image, so it
// is for people; those who ask often take Summary.
func (s *Service) Status() Status {
	st := s.rest()
	for _, img := range s.allImages() {
		o := s.imageStatus(img)
		s.countLocal(img, &o)
		st.Images = append(st.Images, o)
	}
	return st
}

// summaryLooks is for how many files Summary asks the cache at most, and
// summaryLeast for how many of each image even so: 10 ms in all.
const summaryLooks, summaryLeast = 100_000, 1000

// Summary is Status without how many files of each image are local, and tells
// instead how many images are complete. That is as of the last time when each of
// their files was looked for: it looks for a bounded number of them, and goes on
// with the next call.
func (s *Service) Summary() (st Status, complete int) {
	st = s.rest()
	all := s.allImages()
	removed := removals(st.Cache)
	for _, img := range all {
		st.Images = append(st.Images, s.imageStatus(img))
		if s.covers(img, removed, max(summaryLeast, summaryLooks/len(all))) {
			complete++
		}
	}
	return st, complete
}

// removals is how many files the cache has lost, for whatever reason.
func removals(st cachedir.Stats) int64 { return st.Evicted + st.Damaged + st.Gone }

// Image is an image's part of the status. Errors: ErrUnknown.
func (s *Service) Image(chain string) (ImageStatus, error) {
	img := s.image(chain)
	if img == nil {
		return ImageStatus{}, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	o := s.imageStatus(img)
	s.countLocal(img, &o)
	return o, nil
}

// coverage is whether the cache has every file of an image. Files are looked for
// in rounds from the first to the last, so that one that is missing is looked for
// again and again, and all others once.
type coverage struct {
	mu       sync.Mutex
	at       int   // the file to look for next
	began    int64 // how many files had been removed when this round began
	complete bool  // since the last round
	removed  int64 // how many had been when that began
}

// covers reports whether the cache has every file of an image, as of the last round,
// and looks for so many of them.
func (s *Service) covers(img *image, removed int64, looks int) bool {
	c := &img.st.coverage
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.complete && c.removed == removed {
		return true
	}
	if c.at == 0 {
		c.began = removed
	}
	err := img.table.eachFrom(c.at, func(i int, f gear.File) bool {
		if looks--; looks < 0 {
			return false
		}
		if !img.view.Has(f.Name) {
			c.complete = false
			return false
		}
		c.at = i + 1
		return true
	})
	if err == nil && c.at == len(img.table.keys) {
		c.at, c.complete, c.removed = 0, true, c.began
	}
	return c.complete
}

// rest is the status but for the images.
func (s *Service) rest() Status {
	var st Status
	st.Containers = s.containerStatus()
	st.Cache = s.cache.Stats()
	st.Waiting = s.sched.urgent.Load()
	c := &s.sched
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, src := range c.sources {
		o := SourceStatus{Source: src.ref, Files: src.files, Bytes: src.bytes, Lies: src.lies, Failures: src.failures, Until: src.until}
		if src.err != nil {
			o.Error = src.err.Error()
		}
		st.Sources = append(st.Sources, o)
	}
	for registry, l := range c.links {
		st.Links = append(st.Links, LinkStatus{registry, l.rtt, l.rate})
	}
	for p := range priorities {
		st.Queued[p], st.Running[p] = len(c.queues[p])+len(c.ranges[p]), c.running[p]
	}
	slices.SortFunc(st.Sources, func(a, b SourceStatus) int {
		return cmp.Or(cmp.Compare(a.Source.String(), b.Source.String()), cmp.Compare(a.Source.Manifest, b.Source.Manifest))
	})
	slices.SortFunc(st.Links, func(a, b LinkStatus) int { return cmp.Compare(a.Registry, b.Registry) })
	return st
}

// imageStatus is an image's part but for what is local.
func (s *Service) imageStatus(img *image) ImageStatus {
	s.imagesMu.RLock()
	rec := img.rec
	s.imagesMu.RUnlock()
	return ImageStatus{
		Chain: rec.Chain, Ref: rec.Ref, Added: rec.Added, Sources: rec.Sources, Files: len(img.table.keys), Bytes: img.table.bytes,
		Decision: img.lastDecision(), Background: rec.Background, Complete: img.st.complete.Load(), ImageCounts: img.counts(),
	}
}

// countLocal asks the cache for every file of an image.
func (s *Service) countLocal(img *image, o *ImageStatus) {
	if files, bytes, err := s.missing(img, nil); err == nil {
		o.LocalFiles, o.LocalBytes = o.Files-files, o.Bytes-bytes
	}
}

// counts are the counters of an image.
func (img *image) counts() ImageCounts {
	st := &img.st
	o := ImageCounts{
		Opens: st.opens.Load(), Errors: st.errors.Load(),
		DemandFiles: st.files[onDemand].Load(), DemandBytes: st.bytes[onDemand].Load(),
		ProfileFiles: st.files[fromProfile].Load(), ProfileBytes: st.bytes[fromProfile].Load(),
		BackgroundFiles: st.files[inBackground].Load(), BackgroundBytes: st.bytes[inBackground].Load(),
		Stalls: st.stalls.Load(), Stalled: time.Duration(st.stall.Load()), LongestStall: time.Duration(st.longest.Load()),
	}
	if img.table.bytes > 0 {
		o.FetchedShare = float64(o.DemandBytes+o.ProfileBytes+o.BackgroundBytes) / float64(img.table.bytes)
	}
	return o
}

func (s *Service) containerStatus() []ContainerStatus {
	s.imagesMu.RLock()
	defer s.imagesMu.RUnlock()
	var out []ContainerStatus
	for _, c := range s.containers {
		c.mu.Lock()
		o := ContainerStatus{ID: c.id, Chain: c.img.chain, Started: c.began, Decision: c.decision, Recording: c.rec != nil}
		if c.rec != nil {
			o.Recorded = len(c.rec.names)
		}
		c.mu.Unlock()
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b ContainerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
