// Package gearfs is the file service of a node. It knows the images whose trees are
// mounted. It fetches the contents of their files when they are opened, before that, or
// in the background, and keeps them in the cache directory.
//
// Terms: an image is a tree with the index that names the contents of its files. The
// chain ID of its layers identifies it. A source is a repository of a registry with the
// credential that the image was pulled with. A content is only ever fetched from the
// sources of an image whose index has it. So whoever could pull the image gets its files,
// and nobody else does.
//
// The service guarantees the following. A content is fetched once, however many callers
// request it at the same time. What a process waits for goes before what a profile
// predicts, and that goes before what merely completes an image. Everything that a source
// sends is compared with its name, and a source that lies is skipped. An open ends with
// the right bytes or an error, in bounded time. Everything but counters survives a
// restart.
//
// Package view mounts the trees, and package poolfs passes opens to this package. A
// [Dialer] of the caller connects to registries.
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
	"example.org/slipway/node/gearfs/starts"
)

// Source is one repository of one registry, accessed with one credential. An error about
// only one file wraps fs.ErrNotExist if the source does not have the file, or not for
// this credential. It wraps gear.ErrContent if the bytes sent are not the file. Every
// other error counts against the source as a whole, which is tried again later. Methods
// may be called concurrently. ctx bounds each call. A source that delivers in pieces
// reports the bytes that arrive meanwhile with [gear.Arriving].
type Source interface {
	// FileSource delivers many files in one round trip, in the requested order. It need
	// not retry files that fail. A content must come from its first byte on.
	gear.FileSource
	// Range opens n bytes of a file from off. The caller closes the result. checked asks
	// the other side to verify the bytes first, because bytes that it sent before were
	// wrong.
	Range(ctx context.Context, f gear.File, off, n int64, checked bool) (io.ReadCloser, error)
	// Profile returns which files a container of the source's image opens first, in
	// order. It returns fs.ErrNotExist, wrapped, if that is unknown.
	Profile(ctx context.Context) (starts.Profile, error)
	// ReportProfile reports to the registry which files a start opened. If whole is
	// false, the start may have opened more.
	ReportProfile(ctx context.Context, names []gear.Name, whole bool) error
}

// SourceRef identifies a source. It is kept on disk and must hold no secret.
type SourceRef struct {
	// Registry is the registry's base URL or host, as the Dialer understands it.
	Registry string `json:"registry"`
	Repo     string `json:"repository"`
	// Manifest is the digest of the image's manifest. The profile is stored under it.
	Manifest string `json:"manifest,omitempty"`
	// Credential identifies the credential to use. The Dialer defines its meaning.
	Credential string `json:"credential,omitempty"`
}

// String returns the name of the source in logs and in the status.
func (r SourceRef) String() string { return r.Registry + "/" + r.Repo }

// Dialer returns the source for a SourceRef. It should not wait for the network: the
// source connects, and requests credentials, when it is used.
type Dialer func(ref SourceRef) (Source, error)

// Options are the options of New. The zero value works.
type Options struct {
	// Streams bounds how many requests to sources run at a time. The default is 6.
	// Profiles use at most 2 of them, background completion 1.
	Streams int
	// Bound is how long an open or a read waits without a byte arriving before it fails.
	// The default is 60 s.
	Bound time.Duration
	// Stall is how long a source may deliver no byte before the request is given up and
	// another source, or the same one, is tried. The default is 15 s.
	Stall time.Duration
	// PrefetchWait bounds how long Prefetch waits. The default is 20 s. Files that have
	// not arrived by then arrive while the container runs.
	PrefetchWait time.Duration
	// BackgroundRate bounds background completion, in bytes of content a second. 0 means
	// no bound.
	BackgroundRate int64
	// BackgroundRest is how long nobody must have waited for a file before the background
	// continues. 0 means no rest. A starting container opens one file after the other,
	// and over a slow link background requests in between would delay it.
	BackgroundRest time.Duration
	// RetryWait is the first pause after a source failed. The default is 100 ms. Each
	// further pause is half as long again, up to RetryMaxWait, whose default is 10 s.
	// Every pause varies by up to half.
	RetryWait, RetryMaxWait time.Duration
	// RecordFor is how long after its start the opens of a container are recorded for the
	// profile. The default is 15 s.
	RecordFor time.Duration
	// WatchWait bounds how long a start waits until its opens are watched. If that takes
	// longer, its report says that it is partial. The default is 100 ms.
	WatchWait time.Duration
	// Siblings says that small files of the same directory are fetched along with a file
	// that a starting container misses.
	Siblings bool
	// Completes says that the images of running containers are completed in the background
	// sooner or later (see Background). Then nothing is fetched in vain if the rest of an
	// image comes while a container starts.
	Completes bool
	// Mode forces eager or lazy. By default, each start is decided separately.
	Mode Mode
	// Limits bound the indexes that are read from disk.
	Limits *gear.Limits
	// Clock returns the time. The default is time.Now.
	Clock func() time.Time
	// Logger logs sources that fail or lie. If it is nil, nothing is logged.
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
		{&r.RetryWait, 100 * time.Millisecond}, {&r.RetryMaxWait, 10 * time.Second}, {&r.RecordFor, 15 * time.Second}, {&r.WatchWait, 100 * time.Millisecond},
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

	// ctx ends when the service is closed. work waits for its goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	// addMu is held while an image is added or removed. It is locked before imagesMu.
	addMu sync.Mutex
	// imagesMu guards images and the containers. It is never held while waiting.
	imagesMu   sync.RWMutex
	images     map[string]*image
	containers map[string]*container
	// views are the cache's views that have belonged to images. The slice is replaced as
	// a whole.
	views []uint64

	pool  Pool // nil: only the caller opens files
	sched scheduler
}

// New opens the service. Its records are in dir. New reads back the records of images. It
// omits and logs an image whose records are damaged; the image can be added again. The
// caller still owns the cache and closes it after the service.
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

// Close ends all running work. Waiting callers get an error. The records of images stay.
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
