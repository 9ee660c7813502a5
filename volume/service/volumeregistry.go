// Package volumeregistry implements the registry's side of Cider. It builds images as
// volumes, and records which builds wait and which failed. It says to nodes where an
// image is, gives them credentials, and removes volumes that no image needs.
//
// Builds wait in a durable queue in the catalogue. A build begins when all layers of its
// image have their Gear index, and takes contents from the file store. No failure of a
// build makes a push fail. The result of a build is a record (volref.Record). It is
// stored in the catalogue, from where it is served to clients that may pull the image,
// and beside the image as an OCI referrer.
//
// The catalogue records every volume before it is made. So it also knows a volume that an
// interrupted build leaves incomplete. The next attempt makes the volume again. If there
// is no further attempt, the volume is removed like any other.
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
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/volumefacts"
	"example.org/slipway/registry/storage"
	"example.org/slipway/volume/block"
)

// Layers provides the layers of images: it is the Gear side of the registry.
type Layers interface {
	// StoredIndex returns the index of a layer whose files are all stored, and whether
	// the layer belongs to a Gear image. Errors: *gear.PendingError.
	StoredIndex(ctx context.Context, repo string, d oci.Digest) (x *gear.Index, embedded bool, err error)
	// Contents returns the contents of these files.
	Contents() gear.FileSource
}

// Registry stores the records beside images.
type Registry interface {
	PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error)
	PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error)
	DeleteManifest(ctx context.Context, repo string, d oci.Digest) error
}

// Issuer is implemented by stores that issue credentials. Other stores need none.
type Issuer interface {
	// Credential returns a credential to read volumes and to make clones of them, which
	// is valid for ttl. ReadCredential returns one that only permits reading.
	Credential(ctx context.Context, ttl time.Duration) (volref.Credential, error)
	ReadCredential(ctx context.Context, ttl time.Duration) (volref.Credential, error)
	// Expire ends the credentials whose time is over, and returns how many there were.
	Expire(ctx context.Context) (int, error)
}

// Options are the options of New. The zero value works.
type Options struct {
	// Logger is the logger; default slog.Default.
	Logger *slog.Logger
	// Clock returns the time; default time.Now.
	Clock func() time.Time
	// Build reports whether the images of a repository are built when they are pushed;
	// default: never.
	Build func(repo string) bool
	// FS has the file systems in which images are built; default ext4.
	FS []string
	// Workers is how many images are built at the same time; default 1. A build keeps one
	// processor and the network to the storage busy.
	Workers int
	// CredentialTTL is how long a credential is valid; default 24 h.
	CredentialTTL time.Duration
	// CollectEvery is the time between two searches for volumes that no image needs;
	// default 1 min.
	CollectEvery time.Duration
	// Lease is how long a build of a dead process is left alone if other processes share
	// the catalogue; default 1 min.
	Lease time.Duration
	// Copied reports whether a repository is a copy of a repository in another registry.
	// Nothing is put beside the images of such a repository. Default: never.
	Copied func(repo string) bool
	// ReadOnly builds nothing and refuses requests to build.
	ReadOnly bool
}

// Service is the volume side of a registry. All methods may run concurrently.
type Service struct {
	cat    *catalog.Catalog
	facts  volumefacts.Store
	layers Layers
	reg    Registry
	opts   Options
	log    *slog.Logger
	// owner identifies this process in leases.
	owner string

	storage     volumeStorage
	credentials credentials
	slots       chan struct{}
	queued      chan struct{} // wakes the workers
	gone        chan struct{} // wakes the collector
	// collecting is held by a collection, which runs at most once at a time in this
	// process.
	collecting chan struct{}

	mu sync.Mutex
	// active has the running builds by the ids of their images. A nil entry is held by
	// the collector.
	active map[int64]*build
	// pauses says for how long each waiting build was put off the last time.
	pauses map[int64]time.Duration
	// rest is the time until which nothing is begun, because the catalogue does not
	// record outcomes.
	rest time.Time

	metrics metrics
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

// New returns the service. open opens the storage of volumes. It is called when the
// storage is needed for the first time, and again some time after it failed, because a
// registry must also serve while that storage is away.
func New(cat *catalog.Catalog, layers Layers, reg Registry, open func(context.Context) (block.Store, error), o *Options) *Service {
	s := &Service{cat: cat, facts: volumefacts.New(cat.DB), layers: layers, reg: reg, owner: rand.Text(), queued: make(chan struct{}, 1),
		gone: make(chan struct{}, 1), collecting: make(chan struct{}, 1), active: map[int64]*build{}, pauses: map[int64]time.Duration{}}
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
	if v.Build == nil {
		v.Build = func(string) bool { return false }
	}
	if len(v.FS) == 0 {
		v.FS = []string{volref.Ext4}
	}
	if v.Workers <= 0 {
		v.Workers = 1
	}
	if v.CredentialTTL <= 0 {
		v.CredentialTTL = 24 * time.Hour
	}
	if v.CollectEvery <= 0 {
		v.CollectEvery = time.Minute
	}
	if v.Lease <= 0 {
		v.Lease = time.Minute
	}
	if v.Copied == nil {
		v.Copied = func(string) bool { return false }
	}
	s.log = v.Logger
	s.slots = make(chan struct{}, v.Workers)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.storage.open, s.storage.ctx = open, s.ctx
	s.metrics.init(s)
	return s
}

// Run builds queued images and removes unneeded volumes until ctx ends. It returns when
// the work that it began has ended. The next call resumes interrupted work. It returns
// nil.
func (s *Service) Run(ctx context.Context) error {
	if s.opts.ReadOnly {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	wake(s.gone) // for what remained from before
	var wg sync.WaitGroup
	wg.Go(func() { s.keepHouse(ctx) })
	s.workQueue(ctx)
	wg.Wait()
	return nil
}

// Close ends the running work and closes the storage. Calls of Run must have ended, or be
// about to end, and no request may follow.
func (s *Service) Close() error {
	s.cancel()
	return s.storage.close()
}

// volumeStorage opens the store of volumes when it is needed.
type volumeStorage struct {
	open func(context.Context) (block.Store, error)
	ctx  context.Context // bounds the attempts to open it

	mu sync.Mutex
	// store is nil while the store is not open. err is why the last attempt failed, and
	// at is when.
	store block.Store
	err   error
	at    time.Time
	// trying is closed when the running attempt ends. It is nil if no attempt is running.
	trying chan struct{}
	closed bool
}

const (
	// openAgain is the time between two attempts to open the storage.
	openAgain = 5 * time.Second
	// openWithin is how long an attempt may take.
	openWithin = 30 * time.Second
	// quickly is how long a request waits for the storage to be opened.
	quickly = 3 * time.Second
)

// openFailed is the beginning of the error for storage that cannot be opened.
const openFailed = "open the storage of volumes"

var (
	errClosed = errors.New("the registry is stopping")
	errAway   = errors.New("the storage of volumes does not answer")
)

// get returns the store, and opens it if it is not open.
func (g *volumeStorage) get(ctx context.Context) (block.Store, error) {
	for {
		g.mu.Lock()
		switch {
		case g.closed:
			g.mu.Unlock()
			return nil, errClosed
		case g.store != nil || g.err != nil && g.trying == nil && time.Since(g.at) < openAgain:
			defer g.mu.Unlock()
			return g.store, g.err
		case g.trying == nil:
			g.trying = make(chan struct{})
			go g.try(g.trying)
		}
		trying := g.trying
		g.mu.Unlock()
		select {
		case <-trying:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// soon is like get, for a request, which must not wait long for storage that is away.
func (g *volumeStorage) soon(ctx context.Context) (block.Store, error) {
	limited, cancel := context.WithTimeout(ctx, quickly)
	defer cancel()
	s, err := g.get(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = errAway
	}
	return s, err
}

// try attempts once to open the store.
func (g *volumeStorage) try(done chan struct{}) {
	ctx, cancel := context.WithTimeout(g.ctx, openWithin)
	defer cancel()
	s, err := g.open(ctx)
	if err != nil {
		s, err = nil, fmt.Errorf("%s: %w", openFailed, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.store, g.err, g.at, g.trying = s, err, time.Now(), nil
	close(done)
}

func (g *volumeStorage) close() error {
	g.mu.Lock()
	g.closed = true
	trying := g.trying
	g.mu.Unlock()
	if trying != nil {
		<-trying
	}
	g.mu.Lock()
	s := g.store
	g.store = nil
	g.mu.Unlock()
	if s == nil {
		return nil
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("close the storage of volumes: %w", err)
	}
	return nil
}

// shows returns a manifest that a repository shows. Errors: MANIFEST_UNKNOWN.
func (s *Service) shows(ctx context.Context, repo string, d oci.Digest) (catalog.Manifest, error) {
	m, err := s.cat.Manifest(ctx, repo, d)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) {
		return m, oci.Errorf(oci.CodeManifestUnknown, "%s has no manifest %s", repo, d)
	}
	return m, storage.Unavailable(err)
}

// now returns the time by which builds in the catalogue become due.
func (s *Service) now(ctx context.Context) (time.Time, error) {
	if !s.cat.DB.Shared() {
		return s.opts.Clock(), nil
	}
	return s.cat.DB.Now(ctx)
}

func checkFS(fs string) error {
	if fs != volref.Ext4 && fs != volref.EROFS {
		return oci.Errorf(oci.CodeUnsupported, "%.40q is not a file system of volumes; there are %s and %s", fs, volref.Ext4, volref.EROFS)
	}
	return nil
}

func (s *Service) endPause(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pauses, id)
}
