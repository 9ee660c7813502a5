// Package registry is the stored registry: an [oci.Registry] whose contents lie in an
// object store and whose facts lie in a catalogue.
//
// A pull reads RAM, and otherwise the catalogue and the object store. A push hashes while
// it writes, and is answered when the bytes and the catalogue row are durable. Nothing is
// ever partly visible. Garbage is collected while everything goes on (see
// [Registry.Collect]). DESIGN.md describes the protocol between pushes and the collector,
// and what a crash leaves behind.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/cache"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/upload"
)

// The actions of an [Event] have the names that Distribution's notifications use.
const (
	ActionPush   = "push"
	ActionPull   = "pull"
	ActionMount  = "mount"
	ActionDelete = "delete"
)

// Event is something that happened to a repository.
type Event struct {
	Action string
	Repo   string
	// Tag is set if the request named a tag.
	Tag string
	// Blob says that Descriptor describes a blob and not a manifest.
	Blob bool
	// Descriptor describes the manifest or blob. For a deletion it has only the digest.
	Descriptor oci.Descriptor
	// References are the contents that a pushed manifest names.
	References []oci.Descriptor
	// FromRepo is the repository that a mounted blob came from.
	FromRepo string
	// Mirrored says that the content was not pushed by a client but came from the
	// registry of which the repository is a copy; see Options.Partial.
	Mirrored bool
	Time     time.Time
}

// Options are the options of New. The zero value works.
type Options struct {
	// Logger; default slog.Default.
	Logger *slog.Logger
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Steady returns the time since an arbitrary moment. Unlike Clock, it is never set.
	// Default: the system's monotonic clock, or Clock if that is set.
	Steady func() time.Duration
	// MemoryBytes bounds the RAM kept for manifests, small blobs and frequently used
	// rows; default 16 MiB.
	MemoryBytes int64
	// Memory, if not nil, is used instead of MemoryBytes, and is shared with other users.
	Memory *Memory
	// MaxUploads is how many uploads may be open in RAM at once; default 100,000. Uploads
	// that only have a row in the catalogue do not count.
	MaxUploads int
	// MaxUploadsPerClient is how many of the uploads in RAM may belong to one client
	// address (see oci.Actor); default a quarter of MaxUploads, and at least one.
	MaxUploadsPerClient int
	// UploadMaxAge is how long an abandoned upload is kept; default 168 h, as in
	// Distribution.
	UploadMaxAge time.Duration
	// MaxManifestBytes; default oci.MaxManifestSize.
	MaxManifestBytes int64
	// MissingPlatforms reports whether an index of a repository may name a
	// manifest that is not there; default: none may.
	MissingPlatforms func(repo string, d oci.Descriptor) bool
	// MissingBlobs allows a manifest to name a config and layers that are not there. By
	// default it may not, because such an image cannot be pulled.
	MissingBlobs bool
	// Partial reports whether a repository is a copy of a repository in another registry,
	// and has only what was requested; default: none is. The manifests of a copy may name
	// what is not here, its tags move as they do in the original, and AdoptBlob, Forget
	// and similar methods change it. Nobody pushes to a copy, so its content has no
	// grace period.
	Partial func(repo string) bool
	// Immutable reports whether a tag, once it exists, may not be moved or
	// removed; default: every tag may.
	Immutable func(repo, tag string) bool
	// ForeignURL reports whether a manifest may name content at this URL;
	// default: any.
	ForeignURL func(url string) bool
	// OnEvent is called after each push, mount and delete, and after each pull while
	// PullEvents returns true. An error makes the request fail, so that no event is lost once
	// the client has its answer. OnEvent must not call the registry.
	OnEvent func(ctx context.Context, e Event) error
	// PullEvents reports whether OnEvent is also called for pulls; default: never.
	PullEvents func() bool
	// Tap watches blobs while they come in; default: none.
	Tap upload.Tap
	// Grace is how long unreferenced content is kept. The catalogue must have been opened
	// with the same value. Default 1 h.
	Grace time.Duration
	// DeleteUntagged makes the collector remove manifests that nothing points at.
	DeleteUntagged bool
	// DeleteDisabled makes every deletion return UNSUPPORTED.
	DeleteDisabled bool
	// ReadOnly makes every write return UNSUPPORTED.
	ReadOnly bool

	// The following options matter if other processes share the catalogue.

	// Replica begins the name of this process in claims and leases, so that operators
	// recognise it. By default the name is only random.
	Replica string
	// Lease is how long a replica keeps what it has claimed after it dies; default 1 min.
	Lease time.Duration
	// StrictTags makes each read of a tag ask the catalogue. A client that got an answer
	// from one replica then sees the change at all other replicas at once.
	StrictTags bool
	// Watcher, if not nil, receives the changes of other replicas, once the registry has
	// forgotten what it knew about the changed keys.
	Watcher engine.Watcher

	// Anonymous says that the store has no identity, like a backup's store. The identity
	// is then not checked.
	Anonymous bool
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.Logger == nil {
		v.Logger = slog.Default()
	}
	if v.Steady == nil {
		begin, clock := time.Now(), v.Clock
		v.Steady = func() time.Duration { return time.Since(begin) }
		if clock != nil {
			v.Steady = func() time.Duration { return clock().Sub(begin) }
		}
	}
	if v.PullEvents == nil {
		v.PullEvents = func() bool { return false }
	}
	if v.Clock == nil {
		v.Clock = time.Now
	}
	if v.MemoryBytes == 0 {
		v.MemoryBytes = 16 << 20
	}
	if v.MaxUploads <= 0 {
		v.MaxUploads = 100_000
	}
	if v.MaxUploadsPerClient <= 0 {
		v.MaxUploadsPerClient = max(1, v.MaxUploads/4)
	}
	if v.UploadMaxAge <= 0 {
		v.UploadMaxAge = 168 * time.Hour
	}
	if v.MaxManifestBytes <= 0 {
		v.MaxManifestBytes = oci.MaxManifestSize
	}
	if v.Grace <= 0 {
		v.Grace = time.Hour
	}
	if v.Lease <= 0 {
		v.Lease = time.Minute
	}
	return v
}

// Registry is a stored registry. All methods may run concurrently.
type Registry struct {
	cat     *catalog.Catalog
	store   objstore.Store
	opts    Options
	log     *slog.Logger
	ram     *cache.RAM
	storage *storage.Storage
	replica *replica.Replica
	// lost is when this process stopped receiving the changes of other replicas, in
	// nanoseconds of the steady clock, plus one. It is 0 while the process receives all
	// changes.
	lost     atomic.Int64
	promised promises

	uploads *upload.Uploads
	pulls   pulls
	lately  hot
	seen    seen
	// parsing bounds how many large manifests are decoded at once. Each takes up to 48
	// MiB for a moment.
	parsing  chan struct{}
	collects collector
	// mirrored is what MirrorAdded returns.
	mirrored atomic.Int64
	clock    clockWatch
	// clockNoted is when noteClock last noted the time, on a clock that nobody sets.
	clockNoted time.Duration
	metrics    metrics
	// holdBack is the time before which the collector removes nothing; see keep.
	holdBack time.Time
	started  time.Time
	// rebooted says that the machine went down during the last run.
	rebooted bool

	background sync.WaitGroup
	stop       chan struct{}
	stopOnce   sync.Once
}

var _ oci.Registry = (*Registry)(nil)

// New returns a registry over an open catalogue and object store, which it does not
// close. It first settles what a crash left behind. That takes time in proportion to the
// uploads that were being published, and not to the size of the store. If the store is
// away, New leaves this until the store is back; see CheckStore. It is an error if the
// catalogue has no registry's id and the store belongs to another registry.
func New(ctx context.Context, cat *catalog.Catalog, store objstore.Store, o *Options) (*Registry, error) {
	r := &Registry{cat: cat, store: store, opts: o.withDefaults(), stop: make(chan struct{}), parsing: make(chan struct{}, 4)}
	r.log = r.opts.Logger
	if r.opts.Memory == nil {
		r.opts.Memory = NewMemory(r.opts.MemoryBytes)
	}
	r.ram = r.opts.Memory.ram
	var err error
	r.replica, err = replica.New(ctx, cat.DB, replica.Options{Name: r.opts.Replica, Lease: r.opts.Lease, Clock: r.opts.Clock, Steady: r.opts.Steady})
	if err != nil {
		return nil, fmt.Errorf("read the catalogue's clock: %w", err)
	}
	if r.replica.Shared {
		r.lost.Store(1) // until the catalogue says otherwise
	}
	r.storage = storage.New(cat, store, r.replica, storage.Options{Logger: r.log, Facts: facts{r}, ReadOnly: r.opts.ReadOnly,
		Anonymous: r.opts.Anonymous, Forget: r.forgetBlob, Recover: r.recoverStore})
	r.uploads = upload.New(cat, store, r.storage, r.replica, upload.Options{Logger: r.log, MaxUploads: r.opts.MaxUploads, MaxPerClient: r.opts.MaxUploadsPerClient,
		MaxAge: r.opts.UploadMaxAge, Tap: r.opts.Tap, Pushed: r.pushed, Relink: r.relink, Forget: r.forgetBlob})
	r.pulls.pending = map[pullKey]int64{}
	r.pulls.full = make(chan struct{}, 1)
	r.metrics.init(r)
	r.started = r.replica.Now()
	r.clock = clockWatch{now: r.replica.Now, steady: r.opts.Steady, grace: r.opts.Grace}
	r.clock.look()
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	r.background.Add(1)
	go r.keepHouse()
	r.storage.Watch()
	if r.replica.Shared {
		r.background.Add(1)
		go r.watch()
	}
	return r, nil
}

// Close ends the background work and saves what is only in RAM: the state of open
// uploads, and the times of last pulls.
func (r *Registry) Close(ctx context.Context) error {
	r.stopOnce.Do(func() {
		close(r.stop)
		r.storage.Close()
	})
	r.background.Wait()
	err := errors.Join(r.uploads.Close(ctx), r.flushPulls(ctx), r.flushSeen(ctx))
	if err == nil && !r.replica.Shared && r.seen.complete(r.judgingTime(), r.opts.Grace) {
		err = r.cat.Settings.End(ctx, r.replica.Now())
	}
	return err
}

// keepHouse does small tasks at regular intervals.
func (r *Registry) keepHouse() {
	defer r.background.Done()
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-r.pulls.full:
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err := r.flushPulls(ctx); err != nil {
				r.log.Error("record the times of last pulls", "err", err)
			}
			cancel()
		case <-minute.C:
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err := r.replica.ReadClock(ctx); err != nil {
				r.log.Warn("read the catalogue's clock", "err", err)
			}
			if err := r.flushPulls(ctx); err != nil {
				r.log.Error("record the times of last pulls", "err", err)
			}
			if err := r.flushSeen(ctx); err != nil {
				r.log.Error("postpone what clients were told of", "err", err)
			}
			if r.storage.Away() == nil {
				if err := r.uploads.Purge(ctx); err != nil {
					r.log.Error("purge old uploads", "err", err)
				}
			}
			if err := r.noteClock(ctx); err != nil {
				r.log.Error("note the time", "err", err)
			}
			r.judgingTime() // so that every step of the clock is noticed soon
			r.seen.rotate(r.replica.Steady(), r.opts.Grace)
			cancel()
		}
	}
}

// begin notes that the process uses the catalogue, and checks the store.
func (r *Registry) begin(ctx context.Context) error {
	if !r.replica.Shared {
		b, err := r.cat.Settings.Begin(ctx, bootID(), r.started, r.opts.Grace, MaxIdle)
		if err != nil {
			return fmt.Errorf("begin to use the catalogue: %w", err)
		}
		// After a crash it is not known what clients were last told.
		r.holdBack, r.rebooted = b.HoldBack, b.Rebooted
		if b.Idle > MaxIdle {
			r.log.Warn("the clock says that the registry has not run for long; in case the clock is wrong, garbage collection takes nothing for a grace period; slipway gc --now does not wait",
				"days", int(b.Idle.Hours()/24), "until", b.HoldBack)
		}
	}
	if r.opts.Anonymous {
		return r.recoverStore(ctx)
	}
	if err := r.seedClock(ctx); err != nil {
		r.log.Warn("note the time of the newest push or pull", "err", err) // on a full disk the registry still serves pulls
	}
	err := r.storage.Check(ctx)
	var away *storage.StoreError
	if !errors.As(err, &away) {
		return err
	}
	id, _, err := r.cat.Settings.RegistryID(ctx)
	if err == nil && id == "" && away.Other {
		return away
	}
	return err
}

func (r *Registry) recoverStore(ctx context.Context) error {
	return r.uploads.Recover(ctx, r.rebooted, r.started)
}

func (r *Registry) forgetBlob(repo string, d oci.Digest) { r.ram.Drop(blobKey(repo, d)) }

// pushed sends the event of an upload that has become a blob.
func (r *Registry) pushed(ctx context.Context, repo string, desc oci.Descriptor) error {
	return r.emit(ctx, Event{Action: ActionPush, Repo: repo, Blob: true, Descriptor: desc})
}

// bootID identifies one run of the machine. If it cannot be read, every start counts as a
// start after a reboot, which only costs unfinished uploads.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return time.Now().String()
	}
	return strings.TrimSpace(string(b))
}

// Ready returns nil if the registry can serve.
func (r *Registry) Ready(ctx context.Context) error {
	if err := r.cat.Ping(ctx); err != nil {
		return fmt.Errorf("read the catalogue: %w", err)
	}
	return r.storage.Check(ctx)
}

// Metrics returns the registry's Prometheus collectors.
func (r *Registry) Metrics() []prometheus.Collector { return r.metrics.collectors() }

func (r *Registry) emit(ctx context.Context, e Event) error {
	if r.opts.OnEvent == nil {
		return nil
	}
	e.Time = r.replica.Now()
	if e.Action != ActionPull {
		// The change is made. Its event must be sent even if the client hangs up.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
	}
	if err := r.opts.OnEvent(ctx, e); err != nil {
		return storage.Unavailable(fmt.Errorf("record the %s event: %w", e.Action, err))
	}
	return nil
}

func (r *Registry) deletable() error {
	if r.opts.DeleteDisabled {
		return &oci.Error{Code: oci.CodeUnsupported, Message: "deleting is switched off (storage.delete.enabled)"}
	}
	return r.storage.Writable()
}
