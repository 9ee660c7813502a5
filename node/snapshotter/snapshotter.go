package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Options are the optional parts of a Snapshotter. The zero value works.
type Options struct {
	// Logger logs events for operators. By default nothing is logged.
	Logger *slog.Logger
}

// Snapshotter is containerd's Snapshotter and Cleaner over one directory:
//
//	lock            locked while the directory is open
//	metadata.db     names, labels, parents; in containerd's format
//	snapshots/N     one ordinary snapshot; N is its number in metadata.db
//	    fs          the files that it adds: the upper directory, later a lower one
//	    work        the overlay's work directory of an active snapshot
//	    mnt         mount point of the overlay over a claimed chain
//	    layers      the parts of that overlay
//	    container   symbolic link to the key for which Started was called
//	    root        key of the root from Lower that is used in place of the above
//	chains/X        Lower may know the chain X without a record of it
//
// All methods may run concurrently.
type Snapshotter struct {
	root  string
	lower Lower
	log   *slog.Logger
	meta  *storage.MetaStore
	lock  *os.File

	options   []string // of overlays that containerd mounts
	userxattr bool     // overlays keep their marks in user.*
	idmap     bool     // containerd can map the user ids of a mount
	shared    bool     // mounts made here show in other mount namespaces

	chains keyed // serializes Claim and Drop of a chain; locked before ids
	ids    keyed // serializes mounting, unmounting and removal of a snapshot
	clean  sync.Mutex

	life   context.Context // ends with Close
	end    context.CancelFunc
	begun  sync.WaitGroup // work that continues after New
	closed sync.Once

	mu      sync.Mutex
	ended   bool
	busy    map[string]string // keys and ids of snapshots whose removal failed because they were in use
	servers map[*grpc.Server]struct{}
}

var (
	_ snapshots.Snapshotter = (*Snapshotter)(nil)
	_ snapshots.Cleaner     = (*Snapshotter)(nil)
)

// New opens the snapshots in root. It creates the directory if necessary. The directory
// belongs to one process at a time. lower may be nil, and then every layer is unpacked.
// New repairs what a crash left behind. Slower work continues after New returns. This
// includes calling Started of lower for containers whose file systems are still mounted.
func New(root string, lower Lower, o *Options) (*Snapshotter, error) {
	if o == nil {
		o = &Options{}
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	s := &Snapshotter{root: root, lower: lower, log: o.Logger, busy: map[string]string{}, servers: map[*grpc.Server]struct{}{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.begun.Go(func() {
		s.resume(s.life)
		if err := s.Cleanup(s.life); err != nil && s.life.Err() == nil {
			s.log.Warn("snapshots left by an earlier run stay for now", "error", err)
		}
	})
	return s, nil
}

func (s *Snapshotter) open() (err error) {
	for _, dir := range []string{s.root, s.dir(), s.chainDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// The paths in mountinfo have no symbolic links.
	if s.root, err = filepath.EvalSymlinks(s.root); err != nil {
		return err
	}
	if strings.ContainsAny(s.root, ",:\\ \t\n") {
		return fmt.Errorf("the directory %q has a comma, colon, backslash or blank in its path, which mount options cannot hold; choose another", s.root)
	}
	if s.lock, err = lockFile(filepath.Join(s.root, "lock")); err != nil {
		return fmt.Errorf("snapshots in %s: %w", s.root, err)
	}
	dtype, err := fs.SupportsDType(s.root)
	if err != nil {
		return fmt.Errorf("examine the file system of %s: %w", s.root, err)
	}
	if !dtype {
		return fmt.Errorf("the file system of %s gives no file types in listings, which overlays need; make an xfs with ftype=1, or use ext4", s.root)
	}
	if s.meta, err = storage.NewMetaStore(filepath.Join(s.root, "metadata.db")); err != nil {
		return err
	}
	s.setOptions()
	if err := s.checkPropagation(); err != nil {
		return err
	}
	if err := s.retireOrphans(s.life); err != nil {
		return err
	}
	return s.restoreLost(s.life)
}

// setOptions determines the options that containerd's overlayfs snapshotter would use.
// Overlays share layers, which index=on would refuse. In a user namespace the overlay's
// marks must be user.* attributes.
func (s *Snapshotter) setOptions() {
	var err error
	if s.userxattr, err = overlayutils.NeedsUserXAttr(s.root); err != nil {
		s.log.Warn("whether overlays need userxattr is not known", "assumed", s.userxattr, "error", err)
	}
	if s.userxattr {
		s.options = append(s.options, "userxattr")
	}
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		s.options = append(s.options, "index=off")
	}
	if s.idmap, err = overlayutils.SupportsIDMappedMounts(); err != nil {
		s.log.Info("no mapped user ids on mounts", "error", err)
	}
}

// lockFile locks the directory for this process until the file is closed.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("in use by another process; end that one, or give this one a root of its own")
		}
		return nil, err
	}
	return f, nil
}

// Close ends Serve, waits for running work and closes the metadata. Mounts stay:
// containers keep running, and the next New finds the mounts. Close may be called again.
func (s *Snapshotter) Close() (err error) {
	s.closed.Do(func() {
		s.end()
		s.stopServing()
		s.begun.Wait()
		if s.meta != nil {
			err = s.meta.Close()
		}
		if s.lock != nil {
			err = errors.Join(err, s.lock.Close())
		}
	})
	return err
}

func (s *Snapshotter) dir() string               { return filepath.Join(s.root, "snapshots") }
func (s *Snapshotter) path(id string) string     { return filepath.Join(s.root, "snapshots", id) }
func (s *Snapshotter) upper(id string) string    { return filepath.Join(s.path(id), "fs") }
func (s *Snapshotter) work(id string) string     { return filepath.Join(s.path(id), "work") }
func (s *Snapshotter) mnt(id string) string      { return filepath.Join(s.path(id), "mnt") }
func (s *Snapshotter) chainDir() string          { return filepath.Join(s.root, "chains") }
func (s *Snapshotter) container(d string) string { return filepath.Join(d, "container") }

// Stat returns the record of a snapshot.
func (s *Snapshotter) Stat(ctx context.Context, key string) (info snapshots.Info, err error) {
	err = s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		_, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	return info, err
}

// Update changes the labels of a snapshot.
func (s *Snapshotter) Update(ctx context.Context, info snapshots.Info, fields ...string) (updated snapshots.Info, err error) {
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		updated, err = storage.UpdateInfo(ctx, info, fields...)
		return err
	})
	return updated, err
}

// Walk calls fn for each snapshot that matches the filters. It lists the snapshots first,
// so fn may call any method.
func (s *Snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	var infos []snapshots.Info
	err := s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(_ context.Context, info snapshots.Info) error {
			infos = append(infos, info)
			return nil
		}, filters...)
	})
	if err != nil && !(errdefs.IsNotFound(err) && len(infos) == 0) { // nothing was ever recorded
		return err
	}
	for _, info := range infos {
		if err := fn(ctx, info); err != nil {
			return err
		}
	}
	return nil
}

// Usage returns the disk usage of a snapshot without the snapshots below it. The usage of
// an active snapshot is counted now. The usage of a committed snapshot is recorded, and
// Lower returns the usage of a claimed one.
func (s *Snapshotter) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	id, info, usage, err := s.get(ctx, key)
	switch {
	case err != nil:
		return snapshots.Usage{}, err
	case isClaimed(usage):
		size, inodes, err := s.needLower().Usage(ctx, chainName(key))
		if err != nil {
			return snapshots.Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, err)
		}
		return snapshots.Usage{Size: size, Inodes: inodes}, nil
	case info.Kind == snapshots.KindActive:
		if root, err := rootKey(s.path(id)); err != nil || root != "" {
			return s.rootUsage(ctx, key, root, err)
		}
		du, err := fs.DiskUsage(ctx, s.upper(id))
		if err != nil {
			return snapshots.Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, err)
		}
		return snapshots.Usage(du), nil
	}
	return usage, nil
}

// get reads a record in its own transaction.
func (s *Snapshotter) get(ctx context.Context, key string) (id string, info snapshots.Info, usage snapshots.Usage, err error) {
	err = s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		id, info, usage, err = storage.GetInfo(ctx, key)
		return err
	})
	return id, info, usage, err
}
