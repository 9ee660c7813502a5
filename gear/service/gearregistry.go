// Package gearregistry implements the registry's side of Gear. It converts pushed layers,
// records which conversions wait and which failed, and decides which repository may read
// which file.
//
// A layer is converted while it is uploaded ([Service.Follow]) or, if that was not
// possible, from a durable queue in the catalogue. No failure of a conversion makes a
// push fail. A file is read through a repository that shows a layer with the file.
// Knowing the name of a file gives no access.
package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/gear/starts"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
)

// Mode says when the images of a repository are converted.
type Mode uint8

// These are the modes of conversion.
const (
	// Async converts while the image is pushed and soon after.
	Async Mode = iota
	// Sync answers the push of a manifest after its layers are converted.
	Sync
	// Off converts nothing without a request.
	Off
)

// Blobs opens stored blobs, whichever repository shows them.
type Blobs interface {
	// OpenBlob opens a blob at an offset. Errors: catalog.ErrNotFound.
	OpenBlob(ctx context.Context, d oci.Digest, off int64) (body io.ReadCloser, size int64, err error)
}

// Options are the options of New. The zero value works.
type Options struct {
	// Logger is the logger; default slog.Default.
	Logger *slog.Logger
	// Clock returns the time; default time.Now.
	Clock func() time.Time
	// Mode returns the mode of a repository; default Async for all.
	Mode func(repo string) Mode
	// SyncTimeout is the maximum time that a push waits with Sync; default 5 min.
	SyncTimeout time.Duration
	// Workers is how many layers are converted at the same time; default 2.
	Workers int
	// TempDir is the directory for large files while they are converted; default
	// os.TempDir. The files have no name.
	TempDir string
	// Layer and Index bound what a layer may cost.
	Layer *rootfs.Options
	Index *gear.Limits
	// LayerTime bounds the work of a conversion; default 1 h. The time spent waiting for
	// bytes does not count.
	LayerTime time.Duration
	// Patience is how long in total a conversion waits for the bytes of an upload that it
	// follows; default 30 s. A slower upload is converted from the queue when it is
	// complete, because others must not wait for it.
	Patience time.Duration
	// StagedFor is how long a file that a client uploaded is kept before an index holds
	// it; default 24 h.
	StagedFor time.Duration
	// SettleEvery is the time between two searches for packs to settle; 0: never.
	// SettleShare is how much of one processor settling may use, in percent; default 50.
	SettleEvery time.Duration
	SettleShare int
	// Lease is how long a conversion of a dead process is left alone if other processes
	// share the catalogue; default 1 min.
	Lease time.Duration
	// ReadOnly refuses uploads and reports, and queues nothing.
	ReadOnly bool
	// Owner returns the owner of a repository. What the images of one owner open is
	// believed for images of another owner only if the images of a second owner open it,
	// too. Default: one owner owns all repositories.
	Owner func(repo string) string
}

// These constants are the memory in bytes of all conversions together. conversionMemory
// is for contents, and followerMemory for what was uploaded and not read yet. Each may
// use twice its share. Together with compression and decompression, a process stays below
// 256 MB; see DESIGN.md.
const (
	conversionMemory = 96 << 20
	followerMemory   = 16 << 20
)

// housekeepEvery is the time between two releases of what deleted layers held.
const housekeepEvery = 10 * time.Minute

// Service is the Gear side of a registry. All methods may run concurrently.
type Service struct {
	// Book has what is known about starts of images.
	*starts.Book

	cat      *catalog.Catalog
	contents gearfacts.Files
	facts    gearfacts.Layers
	blobs    Blobs
	files    *filestore.Store
	opts     Options
	log      *slog.Logger

	// slots bounds the number of running conversions.
	slots chan struct{}
	// queued wakes the workers.
	queued chan struct{}
	// mounts bounds how many mounts wait for a conversion. Gear images are converted in a
	// moment. If too many mounts wait already, a mount does not wait: it is granted when
	// its manifest is pushed, or not at all.
	mounts chan struct{}

	mu sync.Mutex
	// active has the layers being converted, by digest. It does not have layers that are
	// still being uploaded.
	active map[oci.Digest]*conversion
	// awaits has the layers of Gear images that wait in the queue, each with the layer
	// whose conversion it waits for.
	awaits map[oci.Digest]oci.Digest
	// early has the indexes of layers whose files are not stored yet.
	early map[oci.Digest]*early
	// announced is when the last early index was published. leads counts the conversions
	// that may publish another.
	announced time.Time
	leads     int
	// changed is closed and replaced whenever a conversion ends or an index is published.
	changed chan struct{}
	closed  bool
	// runs counts the running calls of Run. idle is closed when there are none.
	runs int
	idle chan struct{}
	// pause is the time until which nothing is begun from the queue, because the outcome
	// of the last conversion could not be recorded.
	pause time.Time

	seen    visible
	metrics metrics
	// owner identifies this process in leases.
	owner string

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// conversion is a conversion of one layer while it runs.
type conversion struct {
	since time.Time
	// mu guards the fields below. bytes is how many bytes of the layer were read so far.
	// size is the size of the layer, or 0 while it is unknown.
	mu          sync.Mutex
	bytes, size int64
}

// progress records how far the conversion is. 0 leaves a value unchanged.
func (c *conversion) progress(bytes, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes, c.size = max(c.bytes, bytes), max(c.size, size)
}

// New returns the service. It reads nothing. Run does the work that no request asks for.
func New(cat *catalog.Catalog, blobs Blobs, files *filestore.Store, o *Options) *Service {
	s := &Service{cat: cat, contents: gearfacts.NewFiles(cat.DB), facts: gearfacts.NewLayers(cat.DB), blobs: blobs, files: files, active: map[oci.Digest]*conversion{}, early: map[oci.Digest]*early{}, awaits: map[oci.Digest]oci.Digest{},
		changed: make(chan struct{}), queued: make(chan struct{}, 1), mounts: make(chan struct{}, 64), idle: make(chan struct{})}
	close(s.idle)
	if o != nil {
		s.opts = *o
	}
	v := &s.opts
	if v.Logger == nil {
		v.Logger = slog.Default()
	}
	if v.Clock == nil {
		v.Clock = time.Now
	}
	if v.Mode == nil {
		v.Mode = func(string) Mode { return Async }
	}
	if v.SyncTimeout <= 0 {
		v.SyncTimeout = 5 * time.Minute
	}
	if v.Workers <= 0 {
		v.Workers = 2
	}
	if v.LayerTime <= 0 {
		v.LayerTime = time.Hour
	}
	if v.Patience <= 0 {
		v.Patience = 30 * time.Second
	}
	if v.StagedFor <= 0 {
		v.StagedFor = 24 * time.Hour
	}
	if v.SettleShare <= 0 || v.SettleShare > 100 {
		v.SettleShare = 50
	}
	if v.Owner == nil {
		v.Owner = func(string) string { return "" }
	}
	if v.Lease <= 0 {
		v.Lease = time.Minute
	}
	s.log = v.Logger
	s.owner = rand.Text()
	s.slots = make(chan struct{}, v.Workers)
	s.seen.init(v.Clock, cat.DB.Shared())
	s.metrics.init(s)
	s.Book = starts.New(cat, bookSource{s}, starts.Options{Logger: v.Logger, Clock: v.Clock, Owner: v.Owner, Writable: s.writable})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Run converts queued layers, and settles, until ctx ends. The conversions that it began
// end with Close. It returns nil.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if !s.begin() {
		return nil
	}
	defer s.work.Done()
	s.running(1)
	defer s.running(-1)
	if err := s.files.Housekeep(ctx); err != nil && ctx.Err() == nil {
		s.log.Error("clean up after unfinished conversions", "err", err)
	}
	if err := s.facts.QueueLost(ctx); err != nil && ctx.Err() == nil {
		s.log.Error("queue the layers that hold damaged files", "err", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.keepHouse(ctx) })
	s.workQueue(ctx)
	wg.Wait()
	return nil
}

// running adds n to the number of running calls of Run.
func (s *Service) running(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs == 0 {
		s.idle = make(chan struct{})
	}
	if s.runs += n; s.runs == 0 {
		close(s.idle)
	}
}

// unattended returns a channel that is closed when nobody works on the queue.
func (s *Service) unattended() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}

// attended reports whether somebody works on the queue.
func (s *Service) attended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs > 0
}

// Close ends the running conversions. The next start resumes them. The catalogue and the
// store must stay open until it returns.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.Book.Close()
	s.work.Wait()
}

// begin counts work that Close waits for. It returns false if the service is closed.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

// start records that a layer is being converted. It returns false if the layer is being
// converted already.
func (s *Service) start(d oci.Digest, c *conversion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[d] != nil {
		return false
	}
	s.active[d] = c
	return true
}

// end records that a layer is no longer being converted, and makes the queue look again
// at what waited for it.
func (s *Service) end(d oci.Digest) {
	s.mu.Lock()
	delete(s.active, d)
	var waited []oci.Digest
	for g, layer := range s.awaits {
		if layer == d && s.early[d] == nil {
			waited = append(waited, g)
			delete(s.awaits, g)
		}
	}
	s.tell()
	s.mu.Unlock()
	if len(waited) > 0 {
		s.lookAgain(s.ctx, waited...)
	}
}

// tell wakes the goroutines that wait for a change. s.mu is held.
func (s *Service) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// isActive reports whether a layer is being converted. It also returns a channel that is
// closed when any conversion ends.
func (s *Service) isActive(d oci.Digest) (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[d] != nil, s.changed
}

// keepHouse cleans up from time to time, and rewrites packs if that is wanted.
func (s *Service) keepHouse(ctx context.Context) {
	every := s.opts.SettleEvery
	if every <= 0 {
		every = housekeepEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var err error
		if s.opts.SettleEvery > 0 {
			err = s.Settle(ctx, false)
		} else {
			err = s.files.Housekeep(ctx)
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrLeased) {
			s.log.Error("clean up and settle packs", "err", err)
		}
	}
}

// Settle cleans up and rewrites packs. It rests after each pack, so that it takes no more
// than its share of time, and while layers are converted.
func (s *Service) Settle(ctx context.Context, all bool) error {
	if err := s.files.Housekeep(ctx); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	last := time.Now() // it measures work, so it does not use Options.Clock
	rep, err := s.files.Settle(ctx, filestore.SettleOptions{All: all, Progress: func(filestore.SettleReport) {
		worked := time.Since(last)
		s.rest(ctx, worked*time.Duration(100-s.opts.SettleShare)/time.Duration(s.opts.SettleShare))
		last = time.Now()
	}})
	if rep.Replaced > 0 {
		s.log.Info("settled packs", "replaced", rep.Replaced, "replaced_bytes", rep.ReplacedBytes, "written", rep.Written, "written_bytes", rep.WrittenBytes)
		s.metrics.settled.Add(float64(rep.ReplacedBytes))
	}
	return err
}

// longestRest is how long settling waits at most for conversions to end.
const longestRest = 30 * time.Second

// rest waits for a time, and then until no layer is being converted or longestRest is
// over. So packs are settled even on a registry that converts all day.
func (s *Service) rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return
	case <-t.C:
	}
	t.Reset(longestRest)
	for ctx.Err() == nil {
		s.mu.Lock()
		busy, changed := len(s.active) > 0, s.changed
		s.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-ctx.Done():
		case <-t.C:
			return
		case <-changed:
		}
	}
}
