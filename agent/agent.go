// Package agent is the part of Slipway that runs on a node. It learns from containerd or
// from users which images are to run, fetches their indexes, mounts their trees, and
// fetches their files from the registry into a cache that all images share.
//
// It runs as two processes, or as one process under systemd. The keeper holds the
// descriptor of the FUSE pool and the listening sockets, and starts the worker, which
// does everything else. When the worker dies, the next worker continues at the same
// point, and containers notice only a pause. Under systemd, systemd's descriptor store
// holds the descriptor instead.
//
// Everything that containers need is in the kernel (mounts) and on disk (files, indexes,
// image files). So containers that have their files continue without the agent, and come
// back after a reboot without the registry.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
	"example.org/slipway/agent/images"
	"example.org/slipway/agent/kubelet"
	"example.org/slipway/agent/peers"
	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/internal/footprint"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/snapshotter"
	"example.org/slipway/node/view"
)

// Agent is the worker.
type Agent struct {
	cfg   *config.Agent
	log   *slog.Logger
	lay   layout
	began time.Time

	keys    *registries.Keychain
	regs    *registries.Set
	cache   *cachedir.Dir
	files   *gearfs.Service
	peers   *peers.Exchange // nil without peers.listen
	images  *images.Set
	pool    *poolfs.Server
	snaps   *snapshotter.Snapshotter
	cri     *kubelet.Proxy
	warm    *warmer
	api     *http.Server
	metrics *http.Server
	support *view.Support
	stale   []view.Mount // overlays over a pool that no longer exists

	// ender ends the whole agent; twice says that the keeper gets two signals. It is nil
	// if systemd ends the agent.
	ender func(twice bool) error

	listeners Listeners
	life      context.Context // ends with the agent
	cancel    context.CancelFunc
	telling   sync.WaitGroup // who talks to registries in the background

	poolCtx    context.Context // ends the serving of the pool
	stopPool   context.CancelFunc
	poolServed bool
	poolEnded  chan struct{}

	closing sync.Once
	closed  error
}

// layout is where the agent's files are.
type layout struct {
	images.Dirs
	cache, indexes, snapshots string // on disk
	probe                     string // for the probes of the kernel
	reserve                   string // a file that holds disk space for the next start
	run, state, api           string // lost at a reboot
	keys, otherKeys           string // one of them is lost at a reboot; the first is used
	volumeState               string // this, too
}

func layoutOf(cfg *config.Agent) layout {
	root, run := cfg.Root, cfg.Run
	keys, otherKeys := filepath.Join(run, "keys.json"), filepath.Join(root, "keys.json")
	if cfg.CRI.KeepCredentials {
		keys, otherKeys = otherKeys, keys
	}
	return layout{
		Dirs: images.Dirs{
			Chains: filepath.Join(root, "chains"), Trees: filepath.Join(root, "trees"), Unpacked: filepath.Join(root, "unpacked"),
			Mounts: filepath.Join(root, "mounts"), VolumeRecords: filepath.Join(root, "volumes"),
			Pool: filepath.Join(run, "pool"), Views: filepath.Join(run, "trees"), Volumes: filepath.Join(run, "volumes"),
			VolumeMounts: filepath.Join(run, "volume-mounts"), VolumeSocket: filepath.Join(run, "volumes.sock"),
		},
		cache: filepath.Join(root, "cache"), indexes: filepath.Join(root, "images"), snapshots: filepath.Join(root, "snapshots"),
		probe: filepath.Join(root, "probe"), reserve: filepath.Join(root, "reserve"),
		run: run, state: filepath.Join(run, "pool.state"), keys: keys, otherKeys: otherKeys, api: filepath.Join(run, "agent.sock"),
		volumeState: filepath.Join(run, "volumes.state"),
	}
}

// makeDirs creates the directories. Only root has access: anybody who could read them
// would see the files of all images. Mounts of snapshots pass through containerd's bind
// mounts, which do not need access.
func (l *layout) makeDirs() error {
	for _, dir := range []string{l.cache, l.indexes, l.Chains, l.Trees, l.snapshots, l.Mounts, l.Unpacked, l.run, l.Pool, l.Views, l.Volumes} {
		if dir == l.Pool || dir == l.Volumes {
			if _, mounted, err := view.Mounted(dir); err == nil && mounted {
				continue
			}
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("directory of the agent: %w", err)
		}
	}
	return nil
}

// New creates the worker of a pool. dev is the descriptor of the pool, or nil if there
// can be no pool; then images are unpacked. New takes over what an earlier worker left.
// The listeners become the worker's.
func New(ctx context.Context, cfg *config.Agent, dev *os.File, ls Listeners, log *slog.Logger) (_ *Agent, err error) {
	a := &Agent{cfg: cfg, log: log, lay: layoutOf(cfg), began: time.Now(), listeners: ls, poolEnded: make(chan struct{})}
	a.life, a.cancel = context.WithCancel(context.Background())
	a.poolCtx, a.stopPool = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := a.lay.makeDirs(); err != nil {
		return nil, err
	}
	if err := registries.MoveKeychain(a.lay.otherKeys, a.lay.keys); err != nil {
		log.Warn("credentials of images", "err", err)
	}
	if a.keys, err = registries.OpenKeychain(a.lay.keys); err != nil {
		log.Warn("credentials of images", "err", err)
	}
	a.regs = registries.New(cfg, a.keys, log)
	if err := a.lay.freeReserve(); err != nil {
		return nil, err
	}
	if err := a.openFiles(); err != nil {
		return nil, err
	}
	a.cache.Room(startRoom)
	if a.support, err = supportOf(ctx, cfg, a.lay.probe, dev, log); err != nil {
		return nil, err
	}
	o := &images.Options{Dirs: a.lay.Dirs, Volumes: dev != nil, Files: a.files, Cache: a.cache, Registries: a.regs, Support: a.support, Log: log}
	if a.peers != nil {
		o.Expect = a.peers.Expect
	}
	if a.images, err = images.Open(ctx, a.life, cfg, o); err != nil {
		return nil, err
	}
	if dev != nil {
		if a.pool, err = poolfs.New(dev, a.files, a.files, &poolfs.Options{
			State: a.lay.state, Bound: cfg.Fetch.OpenTimeout, NoPassthrough: !cfg.Kernel.Passthrough, Opened: func(n [32]byte) { a.cache.Touch(n) }, Log: log}); err != nil {
			return nil, err
		}
	}
	if err := a.images.Resume(); err != nil {
		return nil, err
	}
	if a.pool != nil {
		a.files.SetPool(a.pool)
		a.cache.SetHolders(a.images.Holders(a.pool))
	}
	if a.pool != nil && a.pool.Fresh() {
		if a.stale, err = overlaysOf(cfg.Root); err != nil {
			return nil, err
		}
		refresh(a.stale, log)
	}
	if cfg.CRI.Address != "" {
		if a.cri, err = kubelet.NewProxy(cfg.CRI.Containerd, a.keys, a.diskUse, a.giveBack, log); err != nil {
			return nil, err
		}
	}
	a.warm = newWarmer(a)
	a.lay.keepReserve()
	return a, nil
}

// freeReserve releases the disk space that an earlier agent reserved.
func (l *layout) freeReserve() error {
	if err := os.Remove(l.reserve); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keepReserve reserves disk space for the next start, as much as is free. Without it, an
// agent could not start on a full disk if no file can be evicted.
func (l *layout) keepReserve() {
	f, err := os.OpenFile(l.reserve, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return // the disk is full now
	}
	defer f.Close()
	for n := int64(startRoom); n >= 64<<10; n /= 2 {
		if unix.Fallocate(int(f.Fd()), 0, 0, n) == nil {
			return
		}
	}
}

// diskUse returns what images use on the disk in addition to their snapshots.
func (a *Agent) diskUse() kubelet.DiskUse {
	st := a.cache.Stats()
	return kubelet.DiskUse{Dir: a.lay.snapshots, Bytes: uint64(st.Bytes + st.PartialBytes + st.LateBytes), Inodes: uint64(st.Files + st.Partial)}
}

// giveBack frees disk space of the cache, because kubelet removes images only to gain
// space. It keeps what running containers need.
func (a *Agent) giveBack(bytes int64) {
	freed := a.cache.Evict(bytes)
	a.log.Info("an image was removed, and its share of the cache with it", "image_bytes", bytes, "evicted_bytes", freed)
}

// openFiles opens the cache, and the file service that uses it.
func (a *Agent) openFiles() (err error) {
	policy := cachedir.LRU
	if a.cfg.Cache.Policy == "fifo" {
		policy = cachedir.FIFO
	}
	a.cache, err = cachedir.Open(a.lay.cache, &cachedir.Options{MaxBytes: int64(a.cfg.Cache.MaxBytes), Policy: policy, Logger: a.log})
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	mode := gearfs.Mode(a.cfg.Fetch.Mode)
	if a.cfg.Fetch.Mode == "auto" {
		mode = gearfs.Auto
	}
	dial, err := a.withPeers(a.regs.Dial)
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	// Nodes that start together wait for each other, which says nothing of the link.
	completes := a.cfg.Fetch.Background && a.cfg.Peers.Listen == ""
	a.files, err = gearfs.New(a.lay.indexes, a.cache, dial, &gearfs.Options{
		Streams: a.cfg.Fetch.Streams, Bound: a.cfg.Fetch.OpenTimeout, PrefetchWait: a.cfg.Fetch.ProfileTimeout,
		BackgroundRate: int64(a.cfg.Fetch.BackgroundRate), BackgroundRest: min(backgroundRest, a.cfg.Fetch.BackgroundDelay),
		RecordFor: a.cfg.Profiles.Duration, Siblings: a.cfg.Profiles.Siblings, Completes: completes, Mode: mode, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("file service: %w", err)
	}
	return nil
}

// backgroundRest is how long nobody must have waited for a file before the agent fetches
// the rest of images.
const backgroundRest = 2 * time.Second

// startRoom is the most bytes of disk that the start of an agent takes, for its probes
// and the state of its pool. A full cache must not prevent a start.
const startRoom = 4 << 20

// supportOf finds out how images are mounted. Images are unpacked if lazy mounts do not
// work, even if the configuration asks for a way that does not work: a node without its
// agent starts no containers at all.
func supportOf(ctx context.Context, cfg *config.Agent, dir string, dev *os.File, log *slog.Logger) (*view.Support, error) {
	tier, err := view.ParseTier(cfg.Kernel.Tier)
	if err != nil {
		return nil, err
	}
	s := &view.Support{Tier: view.Plain}
	switch {
	case dev == nil:
		s.Reasons = []string{"plain: " + whyNoPool()}
	default:
		probed, err := probe(ctx, dir, tier)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			s.Reasons = []string{err.Error(), "plain: nothing else works"}
		} else {
			s = probed
		}
	}
	if s.Tier == view.FUSE {
		s.Tier = view.Plain
	}
	level := slog.LevelInfo
	if s.Tier == view.Plain {
		level = slog.LevelWarn
	}
	log.Log(ctx, level, "images are mounted in this way", "tier", s.Tier, "reasons", s.Reasons)
	return s, nil
}

// probe tries what the kernel can do. It first removes what a worker left in dir if it
// was killed during a probe.
func probe(ctx context.Context, dir string, tier view.Tier) (*view.Support, error) {
	if err := view.UnmountBelow(dir); err != nil {
		return nil, fmt.Errorf("take away what was tried out before: %w", err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return nil, err
	}
	return view.Probe(ctx, dir, tier)
}

// whyNoPool returns why there is no pool.
func whyNoPool() string {
	if err := poolfs.Available(); err != nil {
		return fmt.Sprintf("there is no FUSE (%v)", err)
	}
	return "the pool could not be mounted when the agent started, as its log says"
}

// errPoolGone says that somebody has unmounted the pool.
var errPoolGone = errors.New("it was unmounted")

// Run serves until ctx ends, and then closes. It calls ready once everything answers.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	serve := func(what string, do func() error) {
		work.Go(func() {
			if err := do(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	// The pool starts first and ends last, because everything else may open files in it.
	if a.pool != nil {
		a.poolServed = true
		serve("pool", a.servePool)
		work.Go(func() { a.refreshAgain(a.life, a.stale) })
	}
	var err error
	if a.snaps, err = snapshotter.New(a.lay.snapshots, a.images.Lower(), &snapshotter.Options{Logger: a.log}); err == nil {
		a.startServers(serve)
		ready()
		<-ctx.Done()
		err = context.Cause(ctx)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	cancel(nil)
	err = errors.Join(err, a.Close())
	work.Wait()
	return err
}

// servePool serves the pool until Close.
func (a *Agent) servePool() error {
	defer close(a.poolEnded)
	if err := a.pool.Serve(a.poolCtx); a.poolCtx.Err() == nil {
		return cmp.Or(err, errPoolGone)
	}
	return nil
}

func (a *Agent) startServers(serve func(string, func() error)) {
	if l := a.listeners.Snapshots; l != nil {
		serve("snapshots", func() error { return a.snaps.Serve(l) })
	}
	if l := a.listeners.API; l != nil {
		a.api = newServer(api.Handler(a))
		serve("local API", func() error { return serveHTTP(a.api, l) })
	}
	if l := a.listeners.CRI; l != nil && a.cri != nil {
		serve("image service", func() error { return a.cri.Serve(l) })
	}
	if l := a.listeners.Metrics; l != nil {
		a.metrics = newServer(a.metricsHandler())
		serve("metrics", func() error { return serveHTTP(a.metrics, l) })
	}
	if l := a.listeners.Peers; l != nil && a.peers != nil {
		serve("peers", func() error { return a.peers.Serve(l, a.files.Share) })
		a.telling.Go(func() { a.tellPeers(a.life) })
	}
	if a.cfg.Report {
		a.telling.Go(func() { a.tellRegistries(a.life) })
	}
	if a.cfg.Warm {
		a.warm.work.Go(func() { a.warm.run(a.life) })
	}
	if len(a.cfg.Registries) > 0 {
		a.telling.Go(func() { a.stayConnected(a.life) })
	}
	go footprint.Keep(a.life)
}

func newServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
}

func serveHTTP(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends everything except the mounts, which containers use.
func (a *Agent) Close() error {
	a.closing.Do(func() { a.closed = a.close() })
	return a.closed
}

// shutdown is how long calls in progress of the local API may take when the agent ends.
const shutdown = 3 * time.Second

// close first ends what may request files, then the pool, and last what fetches the
// files. So an open that waits is left to the next worker and does not fail.
func (a *Agent) close() error {
	var errs []error
	end := func(err error) { errs = append(errs, err) }
	end(a.stopAnswering())
	a.cancel()
	a.telling.Wait()
	if a.warm != nil {
		a.warm.work.Wait()
	}
	end(a.images.Close())
	if a.peers != nil {
		end(a.peers.Close())
	}
	a.stopPool()
	if a.poolServed {
		<-a.poolEnded
	}
	if a.pool != nil {
		if a.cache != nil {
			a.cache.SetHolders(nil)
		}
		end(a.pool.Close())
	}
	if a.files != nil {
		end(a.files.Close())
	}
	if a.cache != nil {
		end(a.cache.Close())
	}
	if a.regs != nil {
		a.regs.Close()
	}
	return errors.Join(errs...)
}

// stopAnswering ends the servers. It waits for calls in progress, but not for long.
func (a *Agent) stopAnswering() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	ends := make(chan error, 2)
	go func() {
		if a.api == nil {
			ends <- nil
		} else if err := a.api.Shutdown(ctx); err != nil {
			ends <- a.api.Close()
		} else {
			ends <- nil
		}
	}()
	go func() {
		if a.snaps == nil {
			ends <- nil
		} else {
			ends <- a.snaps.Close()
		}
	}()
	var errs []error
	if a.cri != nil {
		errs = append(errs, a.cri.Close())
	}
	if a.metrics != nil {
		errs = append(errs, a.metrics.Close())
	}
	return errors.Join(append(errs, <-ends, <-ends)...)
}
