package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror/upstream"
)

// Upstream is one registry that is mirrored: an [upstream.Upstream]. repo is the
// name the upstream knows. Errors are *upstream.Error, or the context's. All
// methods may run concurrently.
type Upstream interface {
	// ResolveManifest asks what a tag or digest stands for now.
	ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error)
	// Manifest fetches a manifest, whose digest was checked where ref is one.
	Manifest(ctx context.Context, repo, ref, have string) (m *oci.Manifest, etag string, unchanged bool, err error)
	// ResolveBlob asks whether the repository has a blob. Its size is -1 where the upstream does
	// not say it.
	ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	// Blob opens a blob at off. Its bytes are not checked.
	Blob(ctx context.Context, repo string, d oci.Digest, off int64) (*upstream.Body, error)
	// Referrers lists all manifests whose subject is d, or fails.
	Referrers(ctx context.Context, repo string, d oci.Digest) ([]oci.Descriptor, error)
	// Tags lists at most n tags behind last.
	Tags(ctx context.Context, repo, last string, n int) (tags []string, more bool, err error)
	// Status tells how the upstream is.
	Status() upstream.Status
}

// Store is where mirrored content is kept: a [registry.Registry], whose Partial
// option says that the repositories of the sources are mirrors (see [Names]).
type Store interface {
	oci.Registry
	keeper
	forgetter
	// NamedBy returns the manifests of a repository that name a manifest.
	NamedBy(ctx context.Context, repo string, d oci.Digest) ([]oci.Digest, error)
}

// keeper takes what was fetched and checked.
type keeper interface {
	AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error)
	AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error)
	LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	NotePull(repo, ref string)
}

// forgetter finds and drops what is not to be kept any longer.
type forgetter interface {
	ForgetTag(ctx context.Context, repo, tag string) error
	Forget(ctx context.Context, repo string, o registry.ForgetOptions, digests ...oci.Digest) (registry.Forgotten, error)
	ForgetBlob(ctx context.Context, repo string, d oci.Digest) error
	MirrorImages(ctx context.Context, q registry.MirrorQuery) (list []registry.MirrorImage, next string, err error)
	MirrorUsage(ctx context.Context, prefixes ...string) (registry.MirrorUsage, error)
	MirrorAdded() int64
}

var _ Store = (*registry.Registry)(nil)

// Source is an upstream and how its content is mirrored.
type Source struct {
	// Name is the first segment of its repositories' names, such as docker.io.
	Name string
	// Hosts are further names by which NameFor knows it.
	Hosts []string
	// Upstream fetches.
	Upstream Upstream
	// TTL is how long what a tag stands for is not asked again; 0: 1 h, negative:
	// each read asks.
	TTL time.Duration
	// NegativeTTL is how long it is remembered that something is not there, or not
	// for us; 0: 10 s, negative: not at all.
	NegativeTTL time.Duration
	// StaleIfError is how long after it was last confirmed a tag is served while
	// the upstream fails; 0: 720 h, negative: not at all.
	StaleIfError time.Duration
	// Offline never asks the upstream: what is here is served.
	Offline bool
	// Library puts library/ before names of one segment, as Docker Hub has it.
	Library bool
	// KeepDeleted goes on to serve a tag that the upstream has no more.
	KeepDeleted bool
	// Allow, unless empty, has a rule for everything that may be fetched; Deny wins
	// over it.
	Allow, Deny []Rule
	// Platforms of which images are fetched; default: all.
	Platforms []oci.Platform
	// MinAge is how old an image must be to be fetched, by the time in its config.
	MinAge time.Duration
	// OnlySigned fetches images only that have a signature upstream, of cosign or
	// Notation. It is not verified here: that is for whoever runs the image.
	OnlySigned bool
}

// Options of New. Dir is required.
type Options struct {
	// Dir holds blobs while they come in, and is made where it is missing. On the
	// store's file system a blob is moved from it and not copied.
	Dir string
	// Sources are the upstreams.
	Sources []Source
	// Any are registries that are mirrored and not in Sources; default: none.
	Any *Any
	// Default is the source of names that are of none and not stored; default: none.
	Default string
	// Mappings rename repositories; the first that matches counts.
	Mappings []Mapping
	// Offline makes all sources so.
	Offline bool
	// MemoryBytes is what small blobs may take in RAM while they come in; default
	// 16 MiB. Beyond it they are written to Dir as large ones are.
	MemoryBytes int64
	// KeepFree is how many bytes of Dir's disk blobs that come in leave free; default 0.
	// What would take more is not kept; see the package comment.
	KeepFree int64
	// Ahead is the size in bytes of the largest blobs of an image that are fetched as
	// soon as a client was given its manifest; default: none.
	Ahead int64
	// Linger is how long the fetching of a blob goes on that nobody reads any
	// more; default 10 min. What was fetched is kept for the next. Where nothing
	// has come yet the fetching ends at once.
	Linger time.Duration
	// Patience is how long a client waits for an upstream that is busy or broken
	// off; default 15 s.
	Patience time.Duration
	// MaxBytes of content that only mirrors have; above it the images used longest
	// ago are forgotten. Default: no limit.
	MaxBytes int64
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Logger; default slog.Default.
	Logger *slog.Logger
	// OnEvent is called for each Event. It must not block.
	OnEvent func(Event)
}

func (o *Options) withDefaults() Options {
	v := *o
	if v.MemoryBytes <= 0 {
		v.MemoryBytes = 16 << 20
	}
	if v.Linger <= 0 {
		v.Linger = 10 * time.Minute
	}
	if v.Patience <= 0 {
		v.Patience = 15 * time.Second
	}
	if v.Clock == nil {
		v.Clock = time.Now
	}
	if v.Logger == nil {
		v.Logger = slog.Default()
	}
	return v
}

// source is a Source at work.
type source struct {
	Source
	tags     tags
	negative [kinds]negatives
	children aging[childKey, child]
	signed   aging[childKey, bool] // manifests that only_signed lets in
	counts   counts
	// strict says that manifests must be looked at before they are let in.
	strict bool
	// overdue is how many questions about tags have been with the upstream for longer than anybody waits.
	overdue atomic.Int64
	// guarded says that whoever asked chose the upstream. What it says it has, but has
	// not sent, proves nothing.
	guarded bool
}

// Registry is a pull-through registry over a stored one. All methods may run
// concurrently.
type Registry struct {
	store   Store
	opts    Options
	log     *slog.Logger
	sources map[string]*source // by name; not changed after New
	hosts   map[string]*source
	any     anys
	names   localNames
	fills   fills
	flights flights
	pending pending
	recent  recent
	gate    gate
	revoked revocations
	metrics *metrics
	started time.Time
	usage   usage

	// ctx ends with Close. What is in the background belongs to it and not to
	// the request that began it.
	ctx        context.Context
	cancel     context.CancelFunc
	mu         sync.Mutex // guards closed against background.Add
	closed     bool
	background sync.WaitGroup
}

var _ oci.Registry = (*Registry)(nil)

// New returns a registry that mirrors sources into a store, which it does not
// close. Fills that an earlier process left unfinished go on when they are asked
// for.
func New(store Store, o *Options) (*Registry, error) {
	if o == nil || o.Dir == "" {
		return nil, errors.New("a mirror needs a directory for what comes in")
	}
	m := &Registry{store: store, opts: o.withDefaults(), sources: map[string]*source{}, hosts: map[string]*source{}}
	m.log = m.opts.Logger
	m.started = m.opts.Clock()
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.metrics = newMetrics(m)
	for _, s := range m.opts.Sources {
		if err := m.addSource(s); err != nil {
			return nil, err
		}
	}
	if d := m.opts.Default; d != "" && m.sources[d] == nil {
		return nil, fmt.Errorf("the default upstream %q is not configured", d)
	}
	if err := checkMappings(m.opts.Mappings); err != nil {
		return nil, err
	}
	if err := m.fills.init(m.opts.Dir, m.started); err != nil {
		return nil, fmt.Errorf("open the directory of fills: %w", err)
	}
	if err := m.revoked.init(m.opts.Dir); err != nil {
		return nil, fmt.Errorf("read which tags were refused: %w", err)
	}
	m.background.Add(1)
	go m.keepHouse()
	return m, nil
}

func (m *Registry) addSource(v Source) error {
	if !oci.ValidName(v.Name) || strings.Contains(v.Name, "/") {
		return fmt.Errorf("upstream name %q is not one segment of a repository name", v.Name)
	}
	if v.Upstream == nil {
		return fmt.Errorf("upstream %s has no registry", v.Name)
	}
	if m.sources[v.Name] != nil {
		return fmt.Errorf("upstream %s is there twice", v.Name)
	}
	for _, r := range append(append([]Rule(nil), v.Allow...), v.Deny...) {
		if err := r.check(); err != nil {
			return fmt.Errorf("upstream %s: %w", v.Name, err)
		}
	}
	s := m.newSource(v)
	m.sources[v.Name] = s
	for _, h := range append([]string{v.Name}, v.Hosts...) {
		if h = strings.ToLower(h); m.hosts[h] != nil {
			return fmt.Errorf("host %s belongs to two upstreams", h)
		}
		m.hosts[h] = s
	}
	return nil
}

// newSource puts a source to work.
func (m *Registry) newSource(v Source) *source {
	v.TTL = lifetime(v.TTL, time.Hour)
	v.NegativeTTL = lifetime(v.NegativeTTL, 10*time.Second)
	v.StaleIfError = lifetime(v.StaleIfError, 720*time.Hour)
	v.Offline = v.Offline || m.opts.Offline
	return &source{Source: v, strict: len(v.Platforms) > 0 || v.MinAge > 0 || v.OnlySigned}
}

// lifetime is a duration of a Source: 0 takes the default, negative is none.
func lifetime(d, def time.Duration) time.Duration {
	switch {
	case d == 0:
		return def
	case d < 0:
		return 0
	}
	return d
}

// Close ends what is being fetched and waits until what was fetched is stored, as
// far as ctx allows. Fills go on in the next process.
func (m *Registry) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.background.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("store what was fetched: %w", ctx.Err())
	}
}

// spawn runs f in the background, unless the registry is closed.
func (m *Registry) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.background.Add(1)
	go func() {
		defer m.background.Done()
		f()
	}()
	return true
}

func (m *Registry) now() time.Time { return m.opts.Clock() }

// errClosed answers requests that come while the registry is being closed.
func errClosed() error {
	return &oci.Error{Code: oci.CodeUnavailable, Message: "the registry is going down"}
}

// storing is a context for what must be stored although Close was called.
func (m *Registry) storing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(m.ctx), 10*time.Minute)
}

// source returns the source of a repository and the upstream's name for it, or nil.
func (m *Registry) source(repo string) (s *source, name string) {
	first, name, ok := strings.Cut(repo, "/")
	if !ok {
		return nil, ""
	}
	if s = m.sources[first]; s == nil {
		s = m.unlisted(first)
	}
	return s, name
}

// Mirrored reports whether a repository, by its canonical name, is a mirror.
func (m *Registry) Mirrored(repo string) bool {
	first, _, ok := strings.Cut(repo, "/")
	return ok && m.sources[first] != nil || m.opts.Any != nil && m.opts.Any.Mirrored(repo)
}

// Names returns what tells mirrored repositories of the sources of those names
// from others, as the store needs it before there is a Registry.
func Names(sources ...string) func(repo string) bool {
	set := make(map[string]bool, len(sources))
	for _, s := range sources {
		set[s] = true
	}
	return func(repo string) bool {
		first, _, ok := strings.Cut(repo, "/")
		return ok && set[first]
	}
}
