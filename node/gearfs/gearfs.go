// Package gearfs is the file service of a node: it knows the images whose trees
// are mounted, fetches the contents of their files when they are opened, before
// that, or in the background, and keeps them in the cache directory.
//
// Terms: an image is a tree, known by the chain ID of its layers, with the index
// that names the contents of its files; a source is a repository of a registry
// with the credential that the image was pulled with. A content is only ever
// fetched from the sources of an image whose index holds it, so that whoever
// could pull the image gets its files and nobody else.
//
// What it promises: a content is fetched once however many ask for it at the same
// time; what a process waits for goes before what a profile says will be needed,
// and that before what merely completes an image; whatever a source sends is
// compared with its name, and one that lies is passed over; an open ends with the
// right bytes or with an error, in bounded time; everything but counters survives
// a restart.
//
// How the trees are mounted is the business of package view, how opens come here
// that of package poolfs; the connection to registries is made by a [Dialer] of
// the caller.
package gearfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// Source is one repository of one registry, asked with one credential. Errors
// about one file only wrap fs.ErrNotExist when the source does not have the file,
// or none for this credential, and gear.ErrContent when what it sent is not the
// file; all others count against the source as a whole, which is asked again
// later. Methods may be called concurrently; ctx bounds each, and a source that
// delivers in pieces tells of what arrives meanwhile by [gear.Arriving].
type Source interface {
	// FileSource delivers many files for one round trip, in the order asked for.
	// It need not repeat what fails. A content must come from its first byte on.
	gear.FileSource
	// Range opens n bytes of a file from off, which the caller closes. checked asks
	// for bytes that the other side verifies first, as those it sent before were
	// wrong.
	Range(ctx context.Context, f gear.File, off, n int64, checked bool) (io.ReadCloser, error)
	// Profile is which files a container of the source's image opens first, in
	// order; fs.ErrNotExist, wrapped, if that is not known.
	Profile(ctx context.Context) (Profile, error)
	// ReportProfile tells the registry which files a start opened. If it is not whole, the
	// start may have opened more.
	ReportProfile(ctx context.Context, names []gear.Name, whole bool) error
}

// SourceRef says where a source is. It is kept on disk and must hold no secret.
type SourceRef struct {
	// Registry is its base URL or host, as the Dialer understands it.
	Registry string `json:"registry"`
	Repo     string `json:"repository"`
	// Manifest is the digest of the image's manifest, for its profile.
	Manifest string `json:"manifest,omitempty"`
	// Credential tells which credential is used; its meaning is the Dialer's.
	Credential string `json:"credential,omitempty"`
}

// String names the source in logs and in the status.
func (r SourceRef) String() string { return r.Registry + "/" + r.Repo }

// Dialer makes a source of what is known of it. It should not wait for the
// network; the source connects, and asks for credentials, when it is used.
type Dialer func(ref SourceRef) (Source, error)

// Options of New. The zero value works.
type Options struct {
	// Streams is how many requests to sources run at a time; default 6. Profiles
	// take at most 2 of them, background completion 1.
	Streams int
	// Bound is how long an open or a read waits without a byte arriving before it
	// fails; default 60 s.
	Bound time.Duration
	// Stall is how long a source may deliver no byte before it is given up and
	// another one, or the same again, is asked; default 15 s.
	Stall time.Duration
	// PrefetchWait bounds how long Prefetch waits; default 20 s. What has not
	// arrived by then comes while the container runs.
	PrefetchWait time.Duration
	// BackgroundRate bounds background completion, in bytes of content a second;
	// 0 means no bound.
	BackgroundRate int64
	// BackgroundRest is how long nobody must have waited for a file before the
	// background goes on; 0: not at all. A container that starts opens one file after
	// the other, and over a slow link what came between would be in the way.
	BackgroundRest time.Duration
	// RetryWait is the first pause after a source failed; default 100 ms. Each
	// further one is half as long again, up to RetryMaxWait, default 10 s, give or
	// take half.
	RetryWait, RetryMaxWait time.Duration
	// RecordFor is how long after its start the opens of a container are
	// recorded for the profile; default 15 s.
	RecordFor time.Duration
	// Mode forces eager or lazy; default is that each start is decided.
	Mode Mode
	// Limits bound the indexes that are read back.
	Limits *gear.Limits
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Logger is told of sources that fail or lie; nil discards.
	Logger *slog.Logger
}

func (o *Options) withDefaults() Options {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Streams <= 0 {
		r.Streams = 6
	}
	for _, d := range []struct {
		at *time.Duration
		to time.Duration
	}{
		{&r.Bound, time.Minute}, {&r.Stall, 15 * time.Second}, {&r.PrefetchWait, 20 * time.Second},
		{&r.RetryWait, 100 * time.Millisecond}, {&r.RetryMaxWait, 10 * time.Second}, {&r.RecordFor, 15 * time.Second},
	} {
		if *d.at <= 0 {
			*d.at = d.to
		}
	}
	if r.Clock == nil {
		r.Clock = time.Now
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r
}

// Service is the file service. It may be used concurrently.
type Service struct {
	dir   string
	cache *cachedir.Dir
	dial  Dialer
	opts  Options
	log   *slog.Logger
	limit *rate.Limiter // of the background

	// ctx ends when the service is closed; work waits for its goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	// addMu is held while an image is added or removed. Before imagesMu.
	addMu sync.Mutex
	// imagesMu guards images, and the containers; never held while waiting.
	imagesMu   sync.RWMutex
	images     map[string]*image
	containers map[string]*container
	// views are the cache's, as far as images have been of them. Replaced as a whole.
	views []uint64

	pool  Pool // nil: nobody but the caller opens files
	sched scheduler
}

// New opens the service. Its records are in dir, and what they say of images is
// read back; an image whose records are damaged is left out, and logged, and can
// be added again. The cache stays the caller's, who closes it after the service.
func New(dir string, cache *cachedir.Dir, dial Dialer, o *Options) (*Service, error) {
	if cache == nil || dial == nil {
		return nil, errors.New("a file service needs a cache directory and a dialer")
	}
	s := &Service{dir: dir, cache: cache, dial: dial, opts: o.withDefaults(), images: map[string]*image{}, containers: map[string]*container{}}
	s.log = s.opts.Logger
	s.limit = rate.NewLimiter(rate.Inf, 0)
	if r := s.opts.BackgroundRate; r > 0 {
		s.limit = rate.NewLimiter(rate.Limit(r), int(max(r/10, limitPiece)))
	}
	for _, id := range s.cache.Views() {
		s.noteView(id)
	}
	if err := s.loadImages(); err != nil {
		return nil, fmt.Errorf("open the images in %s: %w", dir, err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.sched.init(s)
	s.goWork(s.sched.run)
	s.goWork(s.completeImages)
	return s, nil
}

// goWork runs f in a goroutine that Close waits for.
func (s *Service) goWork(f func()) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		f()
	}()
}

// Close ends everything under way; whoever waits gets an error. The records of
// images stay.
func (s *Service) Close() error {
	s.imagesMu.Lock()
	running := make([]string, 0, len(s.containers))
	for id := range s.containers {
		running = append(running, id)
	}
	s.imagesMu.Unlock()
	for _, id := range running {
		s.endRecording(id, false)
	}
	s.cancel()
	s.work.Wait()
	s.imagesMu.Lock()
	defer s.imagesMu.Unlock()
	var err error
	for chain, img := range s.images {
		err = errors.Join(err, img.close())
		delete(s.images, chain)
	}
	return err
}
