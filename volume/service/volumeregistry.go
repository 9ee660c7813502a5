// Package volumeregistry is the registry's side of Cider: it has images built as
// volumes, keeps account of what waits and what failed, tells nodes where an image
// is, gives them credentials, and has volumes removed that no image needs.
//
// What is to be built stands in a durable queue in the catalogue. A build begins
// when all layers of its image have their Gear index, and takes contents from the
// file store; nothing of it ever fails a push. What was built is a record
// (volref.Record): in the catalogue, from where it is served to who may pull the
// image, and beside the image as an OCI referrer.
//
// The catalogue knows every volume before it is made. So one that a build leaves
// half made is known, too: the next attempt makes it anew, and where there is none
// it is removed as any other.
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
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/volumefacts"
	"example.org/slipway/volume/block"
)

// Layers is where the layers of images come from: the Gear side of the registry.
type Layers interface {
	// StoredIndex returns the index of a layer whose files are all stored, and
	// whether it is that of a Gear image. Errors: *gearregistry.PendingError.
	StoredIndex(ctx context.Context, repo string, d oci.Digest) (x *gear.Index, embedded bool, err error)
	// Contents of these files.
	Contents() gear.FileSource
}

// Registry is where the records go that stand beside images.
type Registry interface {
	PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error)
	PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error)
	DeleteManifest(ctx context.Context, repo string, d oci.Digest) error
}

// Issuer is what a store can that gives out credentials; others need none.
type Issuer interface {
	// Credential is one to read volumes, and to make clones of them, for ttl;
	// ReadCredential one to read them only.
	Credential(ctx context.Context, ttl time.Duration) (volref.Credential, error)
	ReadCredential(ctx context.Context, ttl time.Duration) (volref.Credential, error)
	// Expire ends those whose time is over, and tells how many.
	Expire(ctx context.Context) (int, error)
}

// Options of New. The zero value works.
type Options struct {
	// Logger; default slog.Default.
	Logger *slog.Logger
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Build tells of a repository whether its images are built when they are
	// pushed; default: those of none are.
	Build func(repo string) bool
	// FS are the file systems of what is built; default ext4.
	FS []string
	// Workers is how many images are built at once; default 1. A build keeps one
	// processor and the network to the storage busy.
	Workers int
	// CredentialTTL is how long a credential is good for; default 24 h.
	CredentialTTL time.Duration
	// CollectEvery is the time between two looks for volumes that no image needs;
	// default 1 min.
	CollectEvery time.Duration
	// Lease is how long, where other processes share the catalogue, a build of one
	// that died is left alone; default 1 min.
	Lease time.Duration
	// Copied tells of a repository that it is a copy of one in another registry:
	// nothing is put beside its images; default: none is.
	Copied func(repo string) bool
	// ReadOnly builds nothing and refuses requests to.
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
	// owner names this process in leases.
	owner string

	storage     storage
	credentials credentials
	slots       chan struct{}
	queued      chan struct{} // wakes the workers
	gone        chan struct{} // wakes the collector
	// collecting is held by the one collection of this process.
	collecting chan struct{}

	mu sync.Mutex
	// active are the builds at work, by the ids of their images. A nil one is held
	// by the collector.
	active map[int64]*build
	// pauses are how long those that wait were put off the last time.
	pauses map[int64]time.Duration
	// rest is until when nothing is begun, as the catalogue takes in no outcome.
	rest time.Time

	metrics metrics
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

// New returns the service. open opens the storage of volumes; it is called when
// that is needed first, and again some time after it failed, as a registry is to
// serve while that storage is away.
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

// Run builds what is queued, and removes what is not needed, until ctx ends and
// what it began has ended. What that cuts off is taken up by the next call. It
// returns nil.
func (s *Service) Run(ctx context.Context) error {
	if s.opts.ReadOnly {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	wake(s.gone) // for what was left before
	var wg sync.WaitGroup
	wg.Go(func() { s.keepHouse(ctx) })
	s.workQueue(ctx)
	wg.Wait()
	return nil
}

// Close ends what is under way and closes the storage. Calls of Run must have
// ended, or be about to, and no request may come behind it.
func (s *Service) Close() error {
	s.cancel()
	return s.storage.close()
}

// storage opens the store of volumes when it is needed.
type storage struct {
	open func(context.Context) (block.Store, error)
	ctx  context.Context // bounds the tries to open it

	mu sync.Mutex
	// store is nil while it is not open; err is why the last try failed, at a time.
	store block.Store
	err   error
	at    time.Time
	// trying is closed when the try under way ends; nil: there is none.
	trying chan struct{}
	closed bool
}

const (
	// openAgain is the time between two tries to open the storage.
	openAgain = 5 * time.Second
	// openWithin is how long one may take.
	openWithin = 30 * time.Second
	// quickly is how long a request waits for the storage to be opened.
	quickly = 3 * time.Second
)

// openFailed begins the error of storage that cannot be opened.
const openFailed = "open the storage of volumes"

var (
	errClosed = errors.New("the registry is stopping")
	errAway   = errors.New("the storage of volumes does not answer")
)

// get returns the store, and opens it if it is not open.
func (g *storage) get(ctx context.Context) (block.Store, error) {
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

// soon is get for a request, which has better to do than to wait for storage that
// is away.
func (g *storage) soon(ctx context.Context) (block.Store, error) {
	limited, cancel := context.WithTimeout(ctx, quickly)
	defer cancel()
	s, err := g.get(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = errAway
	}
	return s, err
}

// try opens the store once.
func (g *storage) try(done chan struct{}) {
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

func (g *storage) close() error {
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
	return m, registry.Unavailable(err)
}

// now is the time by which what is in the catalogue becomes due.
func (s *Service) now(ctx context.Context) (time.Time, error) {
	if !s.cat.DB.Shared() {
		return s.opts.Clock(), nil
	}
	return s.cat.DB.Now(ctx)
}

func checkFS(fs string) error {
	if fs != volref.Ext4 && fs != volref.EROFS {
		return oci.Errorf(oci.CodeUnsupported, "%.40q is no file system of volumes; there are %s and %s", fs, volref.Ext4, volref.EROFS)
	}
	return nil
}

func (s *Service) endPause(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pauses, id)
}
