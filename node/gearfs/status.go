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
	"example.org/slipway/node/gearfs/starts"
)

// imageStats counts what happened to an image since the service was opened.
type imageStats struct {
	opens, errors          atomic.Int64
	files, bytes           [priorities]atomic.Int64 // fetched, by priority
	stalls, stall, longest atomic.Int64             // nanoseconds
	watched                atomic.Int64
	coverage               coverage
	turn                   starts.Turn
	complete               atomic.Bool
	// retryAt is guarded by Service.imagesMu. pause is used by one goroutine only.
	retryAt time.Time
	pause   time.Duration

	// mu guards all fields below, and the writing of the profile.
	mu       sync.Mutex
	asking   chan struct{} // closed when the request for the profile is done
	askAgain time.Time
	decision Decision
	lacking  lacking

	trace starts.Trace // of the last start
}

// stallFrom is the shortest wait that counts as a stall.
const stallFrom = time.Millisecond

// stalled counts a caller's wait.
func (s *Service) stalled(img *image, d time.Duration) {
	if d < stallFrom {
		return
	}
	img.st.stalls.Add(1)
	img.st.stall.Add(int64(d))
	defer s.turnEager(img)
	for {
		was := img.st.longest.Load()
		if was >= int64(d) || img.st.longest.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}

// fetched counts the arrival of a whole file.
func (s *Service) fetched(fl *flight, p priority) {
	fl.img.st.trace.Here(fl.f.Name)
	fl.img.st.files[p].Add(1)
	fl.img.st.bytes[p].Add(fl.f.Size)
}

// fetchedRange counts the arrival of a part of a large file.
func (s *Service) fetchedRange(lf *large, n int64, p priority) { lf.img.st.bytes[p].Add(n) }

func (s *Service) noteDecision(img *image, d Decision) {
	img.st.mu.Lock()
	defer img.st.mu.Unlock()
	img.st.decision = d
}

// lastDecision returns the decision about the last start.
func (img *image) lastDecision() Decision {
	img.st.mu.Lock()
	defer img.st.mu.Unlock()
	return img.st.decision
}

// name returns the image's name for people.
func (img *image) name() string { return cmp.Or(img.ref, img.chain) }

// Status is the state of the service.
type Status struct {
	Images     []ImageStatus     `json:"images"`
	Containers []ContainerStatus `json:"containers"`
	Sources    []SourceStatus    `json:"sources"`
	Links      []LinkStatus      `json:"links"`
	Cache      cachedir.Stats    `json:"cache"`
	// Queued and Running count requests by priority: on demand, for profiles, and in the
	// background. Waiting is the number of callers that wait for something.
	Queued  [3]int `json:"queued"`
	Running [3]int `json:"running"`
	Waiting int64  `json:"waiting"`
}

// ImageStatus is the status of an image.
type ImageStatus struct {
	Chain   string      `json:"chain"`
	Ref     string      `json:"ref,omitempty"`
	Added   time.Time   `json:"added"`
	Sources []SourceRef `json:"sources"`
	// Files counts the files with content. LocalFiles of them are in the cache.
	Files      int   `json:"files"`
	Bytes      int64 `json:"bytes"`
	LocalFiles int   `json:"local_files"`
	LocalBytes int64 `json:"local_bytes"`
	// Decision is the decision about the last start. Its mode is empty if there was none.
	Decision Decision `json:"decision"`
	// Background says that the image is being completed. Complete says that it has been
	// completed.
	Background bool `json:"background"`
	Complete   bool `json:"complete"`
	ImageCounts
}

// ImageCounts counts what happened to an image since the service was opened.
type ImageCounts struct {
	// Opens counts the opens that reached the pool. Errors counts the requests that
	// failed.
	Opens  int64 `json:"opens"`
	Errors int64 `json:"errors"`
	// These count the files and the bytes of content that were fetched for this image.
	DemandFiles     int64 `json:"demand_files"`
	DemandBytes     int64 `json:"demand_bytes"`
	ProfileFiles    int64 `json:"profile_files"`
	ProfileBytes    int64 `json:"profile_bytes"`
	BackgroundFiles int64 `json:"background_files"`
	BackgroundBytes int64 `json:"background_bytes"`
	// FetchedShare is the fetched bytes divided by the bytes of the image.
	FetchedShare float64 `json:"fetched_share"`
	// Stalls counts waits of a millisecond or more. Stalled is their total length, and
	// LongestStall the longest.
	Stalls       int64         `json:"stalls"`
	Stalled      time.Duration `json:"stalled_ns"`
	LongestStall time.Duration `json:"longest_stall_ns"`
}

// ContainerStatus is the status of a container.
type ContainerStatus struct {
	ID      string    `json:"id"`
	Chain   string    `json:"chain"`
	Started time.Time `json:"started"`
	// Decision is the decision about its start.
	Decision Decision `json:"decision"`
	// Recording says that its opens are being recorded. Recorded is how many files it has
	// opened so far.
	Recording bool `json:"recording"`
	Recorded  int  `json:"recorded"`
}

// SourceStatus is the status of a source.
type SourceStatus struct {
	Source SourceRef `json:"source"`
	Files  int64     `json:"files"`
	Bytes  int64     `json:"bytes"`
	// Lies counts contents that did not match their names. Failures counts the latest
	// requests in a row that brought nothing. No request goes to the source before Until.
	Lies     int       `json:"lies"`
	Failures int       `json:"failures"`
	Until    time.Time `json:"until"`
	Error    string    `json:"error,omitempty"`
}

// LinkStatus is what was measured of the connection to a registry.
type LinkStatus struct {
	Registry   string        `json:"registry"`
	RTT        time.Duration `json:"rtt_ns"`
	RatePerSec float64       `json:"rate_bytes_per_second"`
}

// Status returns the state. It looks for every file of every image in the cache, so it is
// for people. Frequent callers use Summary.
func (s *Service) Status() Status {
	st := s.rest()
	for _, img := range s.allImages() {
		o := s.imageStatus(img)
		s.countLocal(img, &o)
		st.Images = append(st.Images, o)
	}
	return st
}

// summaryLooks bounds how many files Summary looks for in the cache. summaryLeast is how
// many it looks for in each image even beyond that bound. Both together take 10 ms.
const summaryLooks, summaryLeast = 100_000, 1000

// Summary is like Status, without the number of local files of each image. Instead it returns
// how many images are complete. An image counts as complete according to the last round of
// looking for its files. One call looks for a bounded number of them, and the next call
// continues.
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

// Images returns the status of all images. Unlike Summary, it looks for no files.
func (s *Service) Images() (all []ImageStatus) {
	for _, img := range s.allImages() {
		all = append(all, s.imageStatus(img))
	}
	return all
}

// removals returns how many files the cache has lost, for whatever reason.
func removals(st cachedir.Stats) int64 { return st.Evicted + st.Damaged + st.Gone }

// Image returns the status of an image. Errors: ErrUnknown.
func (s *Service) Image(chain string) (ImageStatus, error) {
	img := s.image(chain)
	if img == nil {
		return ImageStatus{}, fmt.Errorf("image %s: %w", chain, ErrUnknown)
	}
	o := s.imageStatus(img)
	s.countLocal(img, &o)
	return o, nil
}

// coverage records whether the cache has every file of an image. It looks for the files
// in rounds from the first to the last. While a file is missing, only that file is looked
// for again.
type coverage struct {
	mu       sync.Mutex
	at       int   // index of the file to look for next
	began    int64 // number of files removed when this round began
	complete bool  // as of the last round
	removed  int64 // value of began in the last complete round
}

// covers reports whether the cache has every file of an image, according to the last
// round. It looks for at most looks files.
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
	err := img.table.EachFrom(c.at, func(i int, f gear.File) bool {
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
	if err == nil && c.at == img.table.Len() {
		c.at, c.complete, c.removed = 0, true, c.began
	}
	return c.complete
}

// rest returns the status without the images.
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
		st.Links = append(st.Links, LinkStatus{registry, l.RTT, l.Rate})
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

// imageStatus returns the status of an image without the numbers of local files.
func (s *Service) imageStatus(img *image) ImageStatus {
	s.imagesMu.RLock()
	rec := img.rec
	s.imagesMu.RUnlock()
	return ImageStatus{
		Chain: rec.Chain, Ref: rec.Ref, Added: rec.Added, Sources: rec.Sources, Files: img.table.Len(), Bytes: img.table.Bytes(),
		Decision: img.lastDecision(), Background: rec.Background, Complete: img.st.complete.Load(), ImageCounts: img.counts(),
	}
}

// countLocal looks for every file of an image in the cache.
func (s *Service) countLocal(img *image, o *ImageStatus) {
	if files, bytes, err := s.missing(img, nil); err == nil {
		o.LocalFiles, o.LocalBytes = o.Files-files, o.Bytes-bytes
	}
}

// counts returns the counters of an image.
func (img *image) counts() ImageCounts {
	st := &img.st
	o := ImageCounts{
		Opens: st.opens.Load(), Errors: st.errors.Load(),
		DemandFiles: st.files[onDemand].Load(), DemandBytes: st.bytes[onDemand].Load(),
		ProfileFiles: st.files[fromProfile].Load(), ProfileBytes: st.bytes[fromProfile].Load(),
		BackgroundFiles: st.files[inBackground].Load(), BackgroundBytes: st.bytes[inBackground].Load(),
		Stalls: st.stalls.Load(), Stalled: time.Duration(st.stall.Load()), LongestStall: time.Duration(st.longest.Load()),
	}
	if img.table.Bytes() > 0 {
		o.FetchedShare = float64(o.DemandBytes+o.ProfileBytes+o.BackgroundBytes) / float64(img.table.Bytes())
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
