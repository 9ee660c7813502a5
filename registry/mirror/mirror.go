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
	"example.org/slipway/registry/mirror/fill"
	"example.org/slipway/registry/mirror/revoked"
	"example.org/slipway/registry/mirror/route"
	"example.org/slipway/registry/mirror/upstream"
)

// Upstream is a registry that is mirrored: an [upstream.Upstream]. repo is the
// repository's name at the upstream. Errors are *upstream.Error, or the context's. All
// methods may be called concurrently.
type Upstream interface {
	// ResolveManifest asks what a tag or digest stands for now.
	ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error)
	// Manifest fetches a manifest. If ref is a digest, the manifest has been checked
	// against it.
	Manifest(ctx context.Context, repo, ref, have string) (m *oci.Manifest, etag string, unchanged bool, err error)
	// ResolveBlob asks whether the repository has a blob. The size is -1 if the upstream
	// does not say it.
	ResolveBlob(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	// Blob opens a blob at the offset off. The bytes are not checked.
	Blob(ctx context.Context, repo string, d oci.Digest, off int64) (*upstream.Body, error)
	// Referrers lists all manifests whose subject is d, or fails.
	Referrers(ctx context.Context, repo string, d oci.Digest) ([]oci.Descriptor, error)
	// Tags lists at most n tags after the tag last.
	Tags(ctx context.Context, repo, last string, n int) (tags []string, more bool, err error)
	// Status returns the state of the upstream.
	Status() upstream.Status
}

// Store is the store of mirrored content: a [registry.Registry]. Its Partial option must
// report that the repositories of the sources are mirrors (see [Names]).
type Store interface {
	oci.Registry
	keeper
	forgetter
	// NamedBy returns the manifests of a repository that name a manifest.
	NamedBy(ctx context.Context, repo string, d oci.Digest) ([]oci.Digest, error)
}

// keeper stores content that was fetched and checked.
type keeper interface {
	AdoptBlob(ctx context.Context, repo string, d oci.Digest, size int64, path string) (oci.Descriptor, error)
	AdoptBytes(ctx context.Context, repo string, d oci.Digest, content []byte) (oci.Descriptor, error)
	LinkStored(ctx context.Context, repo string, d oci.Digest) (oci.Descriptor, error)
	NotePull(repo, ref string)
}

// forgetter finds and drops content that is no longer to be kept.
type forgetter interface {
	ForgetTag(ctx context.Context, repo, tag string) error
	Forget(ctx context.Context, repo string, o registry.ForgetOptions, digests ...oci.Digest) (registry.Forgotten, error)
	ForgetBlob(ctx context.Context, repo string, d oci.Digest) error
	MirrorImages(ctx context.Context, q registry.MirrorQuery) (list []registry.MirrorImage, next string, err error)
	MirrorUsage(ctx context.Context, prefixes ...string) (registry.MirrorUsage, error)
	MirrorAdded() int64
}

var _ Store = (*registry.Registry)(nil)

// Source describes an upstream and how its content is mirrored.
type Source struct {
	// Name is the first segment of the names of its repositories, such as docker.io.
	Name string
	// Hosts are further names by which NameFor knows the source.
	Hosts []string
	// Upstream fetches the content.
	Upstream Upstream
	// TTL is how long the upstream is not asked again what a tag stands for. 0 means 1 h.
	// A negative value means that each read asks.
	TTL time.Duration
	// NegativeTTL is how long it is remembered that the upstream does not have something,
	// or does not let us have it. 0 means 10 s. A negative value means not at all.
	NegativeTTL time.Duration
	// StaleIfError is how long after its last confirmation a tag is served while the
	// upstream fails. 0 means 720 h. A negative value means not at all.
	StaleIfError time.Duration
	// Offline says that the upstream is never asked, and only stored content is served.
	Offline bool
	// Library adds library/ before names of one segment, as Docker Hub does.
	Library bool
	// KeepDeleted says that a tag is still served after the upstream has deleted it.
	KeepDeleted bool
	// Allow and Deny are rules. Unless Allow is empty, only content that one of its rules
	// matches is fetched. Content that a rule of Deny matches is not fetched.
	Allow, Deny []Rule
	// Platforms are the platforms whose images are fetched. Default: all.
	Platforms []oci.Platform
	// MinAge is the least age of an image that is fetched, by the time in the image's
	// config.
	MinAge time.Duration
	// OnlySigned restricts fetching to images that have a signature of cosign or Notation
	// at the upstream. The signature is not verified here: that is up to whoever runs the
	// image.
	OnlySigned bool
}

// Options are the options of New. Dir is required.
type Options struct {
	// Dir holds blobs while they are being fetched. It is created if it is missing. If it
	// is on the store's file system, finished blobs are moved into the store and not
	// copied.
	Dir string
	// Sources describes the upstreams.
	Sources []Source
	// Any says which registries are mirrored although they are not in Sources. Default:
	// none.
	Any *Any
	// Default is the name of the source for repository names that no source has and that
	// are not stored. Default: none.
	Default string
	// Mappings rename repositories. The first that matches counts.
	Mappings []Mapping
	// Offline sets Offline for all sources.
	Offline bool
	// MemoryBytes bounds the RAM for small blobs that are being fetched. Default: 16 MiB.
	// Beyond it, small blobs are written to Dir as large ones are.
	MemoryBytes int64
	// KeepFree is how many bytes of Dir's disk must stay free. Default: 0. A blob that
	// would need some of them is not kept; see the package comment.
	KeepFree int64
	// Ahead is the largest size in bytes of the blobs of an image that are fetched as
	// soon as a client was given the image's manifest. Default: no blobs are.
	Ahead int64
	// Linger is how long the fetching of a blob goes on after its last reader has left.
	// Default: 10 min. What was fetched is kept for the next reader. If nothing has come
	// yet, the fetching ends at once.
	Linger time.Duration
	// Patience is how long a client waits for an upstream that is busy or whose
	// connection broke off. Default: 15 s.
	Patience time.Duration
	// MaxBytes bounds the content that only mirrors have. If there is more, the images
	// that were used longest ago are forgotten. Default: no limit.
	MaxBytes int64
	// Clock returns the time. Default: time.Now.
	Clock func() time.Time
	// Logger is the log. Default: slog.Default.
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

// source is a Source in use.
type source struct {
	Source
	tags     tags
	negative [kinds]negatives
	children aging[childKey, child]
	signed   aging[childKey, bool] // manifests that OnlySigned lets in
	counts   counts
	// strict says that a manifest's content must be checked against the rules before it
	// is let in.
	strict bool
	// overdue is the number of questions about tags that the upstream has left unanswered
	// for longer than confirmWithin.
	overdue atomic.Int64
	// guarded says that a client chose the upstream. Then a claim of the upstream that it
	// has some content proves nothing until it has sent the content.
	guarded bool
}

// Registry is a pull-through registry in front of a stored one. All methods may be called
// concurrently.
type Registry struct {
	store   Store
	opts    Options
	log     *slog.Logger
	sources map[string]*source // by name; not changed after New
	hosts   map[string]*source
	any     anys
	names   localNames
	self    route.Self
	fills   *fill.Fills
	flights flights
	pending pending
	recent  recent
	gate    gate
	revoked *revoked.Tags
	metrics *metrics
	started time.Time
	usage   usage

	// ctx ends with Close. Work in the background uses it, and not the context of the
	// request that began the work.
	ctx        context.Context
	cancel     context.CancelFunc
	mu         sync.Mutex // guards closed against background.Add
	closed     bool
	background sync.WaitGroup
}

var _ oci.Registry = (*Registry)(nil)

// New returns a registry that mirrors sources into a store. It does not close the store.
// A fill that an earlier process left unfinished is continued when a client asks for the
// blob.
func New(store Store, o *Options) (*Registry, error) {
	if o == nil || o.Dir == "" {
		return nil, errors.New("a mirror needs a directory for what comes in")
	}
	m := &Registry{store: store, opts: o.withDefaults(), sources: map[string]*source{}, hosts: map[string]*source{}, self: route.New()}
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
	var err error
	m.fills, err = fill.New(m.ctx, fill.Options{Dir: m.opts.Dir, MemoryBytes: m.opts.MemoryBytes, KeepFree: m.opts.KeepFree, Linger: m.opts.Linger,
		Patience: m.opts.Patience, Clock: m.opts.Clock, Logger: m.log, Store: store, Spawn: m.spawn, Gather: m.gate.pass,
		Stored: func(repo string, d oci.Digest) { m.recent.add(contentKey{repo, string(d)}) },
		Recent: func(repo string, d oci.Digest) bool { return m.recent.has(contentKey{repo, string(d)}) }})
	if err != nil {
		return nil, fmt.Errorf("open the directory of fills: %w", err)
	}
	if m.revoked, err = revoked.Open(m.opts.Dir); err != nil {
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

// newSource makes the source for v.
func (m *Registry) newSource(v Source) *source {
	v.TTL = lifetime(v.TTL, time.Hour)
	v.NegativeTTL = lifetime(v.NegativeTTL, 10*time.Second)
	v.StaleIfError = lifetime(v.StaleIfError, 720*time.Hour)
	v.Offline = v.Offline || m.opts.Offline
	return &source{Source: v, strict: len(v.Platforms) > 0 || v.MinAge > 0 || v.OnlySigned}
}

// lifetime returns a duration of a Source: def if d is 0, and 0 if d is negative.
func lifetime(d, def time.Duration) time.Duration {
	switch {
	case d == 0:
		return def
	case d < 0:
		return 0
	}
	return d
}

// Close ends the fills and waits until ctx ends or everything that was fetched is stored.
// Unfinished fills are continued in the next process.
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

// spawn runs f in the background and returns true. If the registry is closed it returns
// false.
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

// storing returns a context for storing content, which goes on after Close was called.
func (m *Registry) storing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(m.ctx), 10*time.Minute)
}

// source returns the source of a repository and the repository's name at the upstream.
// The source is nil if the repository is not mirrored.
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

// Mirrored reports whether a repository, given by its canonical name, is a mirror.
func (m *Registry) Mirrored(repo string) bool {
	first, _, ok := strings.Cut(repo, "/")
	return ok && m.sources[first] != nil || m.opts.Any != nil && m.opts.Any.Mirrored(repo)
}

// Names returns a function that reports whether a repository is a mirror of one of the
// sources with these names. The store needs it before there is a Registry.
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
