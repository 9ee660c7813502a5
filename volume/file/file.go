// Package file keeps volumes in a shared directory, such as one of NFS, for users who
// have no Ceph.
//
// A volume is a sparse file of the device's size, and a map of the blocks that the volume has
// itself. Any other block is the parent's, or zeros. A block of the map is 4 KiB, the unit of
// the file systems in the volumes. So writing never copies a parent's block, and a block that
// two versions of an image share is not stored again when a neighbouring block changes. The
// price is small: 32 KiB of map for each GiB while a volume is written, and 16 bytes for each
// stretch after that. With blocks of 64 KiB a change to one inode would store, and copy, 16
// times as much.
//
// The directory holds
//
//	place.json           its identity, a random number made once
//	lock, locks/         locks for changes, see lock.go
//	volumes/NAME/        a volume:
//	  volume.json          parent, size, whether it is committed; replaced as a whole
//	  data                 the blocks at their places
//	  map                  until the commit: a bit for each block whose data is durable
//	  recent               until the commit: a bit for each block, valid while the
//	                       machine that wrote it runs
//	  lost                 if bytes may be lost that a flush could not write: the volume
//	                       is never committed
//	  extents              from the commit on: the map as a list
//	  leases/              who has it open: see lease.go
//	  children/            a name for each clone
//	tmp/                 volumes that are being removed
//
// A process learns of the death of others on its machine at once, by flock. Machines learn of
// each other's death when leases expire. Their clocks must agree within half of
// [Options].LeaseTime.
package file

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/durable"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// Options adjust a store.
type Options struct {
	// Timeout is how long the directory may take for a step. After that, methods of the
	// store and of volumes return block.ErrAway. Default 30 s. A step that has begun
	// continues in the background, and holds back steps that would overtake it.
	Timeout time.Duration
	// LeaseTime is how long a volume is kept for a machine that died. A process renews
	// its leases three times in that time. Default 60 s.
	LeaseTime time.Duration
	// Existing refuses a directory that is not a place of volumes yet, such as a mount
	// point whose mount is missing. By default such a directory becomes a place.
	Existing bool
	// Clock returns the time for leases. Default time.Now.
	Clock func() time.Time
}

// version is the version of the directory's format.
const version = 1

// Store is a place of volumes in a directory.
type Store struct {
	dir   string
	o     Options
	place volref.Place
	boot  string // identity of the running kernel
	io    *guard

	lockFile *os.File
	turn     chan struct{} // holds one element while a goroutine has the lock
	unlocked atomic.Bool   // the directory has no flock

	mu     sync.Mutex // guards layers and closed
	layers map[string]*layer
	closed bool
}

var _ block.Store = (*Store)(nil)

// errClosed is returned for a store or volume that was closed.
var errClosed = fmt.Errorf("it is closed: %w", fs.ErrClosed)

// Open opens the place of volumes in a directory, which must exist. o may be nil.
func Open(dir string, o *Options) (*Store, error) {
	s := &Store{turn: make(chan struct{}, 1), layers: map[string]*layer{}}
	if o != nil {
		s.o = *o
	}
	s.o.Timeout = cmp.Or(s.o.Timeout, 30*time.Second)
	s.o.LeaseTime = cmp.Or(s.o.LeaseTime, time.Minute)
	if s.o.Clock == nil {
		s.o.Clock = time.Now
	}
	s.io = newGuard(s.o.Timeout)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		s.boot = strings.TrimSpace(string(boot))
		s.dir, err = filepath.Abs(dir)
	}
	if err == nil {
		err = s.io.do(context.Background(), func(context.Context, beat) error { return s.open() })
	}
	if err == nil {
		if err = s.sweep(); err != nil {
			err = errors.Join(err, s.lockFile.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the volumes in %s: %w", dir, storageError(err))
	}
	return s, nil
}

// open makes the directory a place if it is not one, and reads its identity.
func (s *Store) open() error {
	if _, err := os.Stat(s.path("place.json")); err != nil {
		if s.o.Existing || !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it is not a directory of volumes: %w", err)
		}
		if err := s.make(); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(s.path("place.json"))
	if err != nil {
		return err
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return fmt.Errorf("read its identity: %w", err)
	}
	if id.Version != version || id.Cluster == "" {
		return fmt.Errorf("it is of version %d; known is %d", id.Version, version)
	}
	s.place = volref.Place{Driver: "file", Cluster: id.Cluster}
	s.lockFile, err = os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	return err
}

type identity struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
}

// make creates the parts of the directory and at last its identity, which is created only
// once.
func (s *Store) make() error {
	for _, d := range []string{"locks", "volumes", "tmp"} {
		if err := os.Mkdir(s.path(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	b, err := json.Marshal(identity{version, token()})
	if err != nil {
		return err
	}
	// A link is created only once, however many processes try.
	whole := s.path("place." + token())
	if err := durable.WriteFile(whole, b); err != nil {
		return err
	}
	err = os.Link(whole, s.path("place.json"))
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(whole), durable.SyncDir(s.dir))
}

// token returns a random name.
func token() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return hex.EncodeToString(b[:])
}

// path returns a path in the directory.
func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// volume returns a path in the directory of a volume.
func (s *Store) volume(id string, elem ...string) string {
	return filepath.Join(append([]string{s.dir, "volumes", id}, elem...)...)
}

// sweep removes the remains of interrupted removals.
func (s *Store) sweep() error {
	return s.io.do(context.Background(), func(ctx context.Context, alive beat) error {
		var left []os.DirEntry
		// Creating there requires the lock, so everything in it is left over.
		err := s.locked(ctx, func(*held) (err error) {
			left, err = os.ReadDir(s.path("tmp"))
			return err
		})
		for _, e := range left {
			alive()
			err = errors.Join(err, os.RemoveAll(s.path("tmp", e.Name())))
		}
		return err
	})
}

// Place implements [block.Store].
func (s *Store) Place() volref.Place { return s.place }

// Close implements [block.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.lockFile.Close()
}

// check returns an error if a call with a name cannot go on.
func (s *Store) check(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return volref.CheckName(id)
}

// storageError maps an error of the file system to one of package block.
func storageError(err error) error {
	switch {
	case err == nil, errors.Is(err, block.ErrFull), errors.Is(err, block.ErrAway), errors.Is(err, block.ErrDenied):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", block.ErrFull, err)
	case errors.Is(err, unix.ESTALE), errors.Is(err, unix.EIO), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.ENOTCONN):
		return fmt.Errorf("%w: %w", block.ErrAway, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", block.ErrDenied, err)
	}
	return err
}
