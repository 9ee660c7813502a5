// Package filestore stores Gear files: contents named by their SHA-256, many of them in
// one object.
//
// A pack is an object with one content after the other, each compressed by itself, in the
// order in which they were first needed. Conversions write packs through a [Writer].
// [Store.Settle] later rewrites these packs densely and without contents that nothing
// needs any more. [Store.Open] and [Store.Stream] read. The catalogue says where each
// content is. It records that in one transaction with the layer that needs the content.
// docs/formats/gear-pack.md has the format and DESIGN.md the reasons.
//
// The package decides nothing about access. [gearfacts.Files.Visible] knows who may read
// a content.
package filestore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/hot"
	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/internal/buffers"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// Callers branch on these errors.
var (
	// ErrNotFound says that there is no such content.
	ErrNotFound = catalog.ErrNotFound
	// ErrLost says that the content's bytes were found damaged and that the content was
	// not made again yet.
	ErrLost = errors.New("content is damaged and waits for being made again")
	// ErrRetry says that a conversion depended on something that went away. Repeating the
	// whole conversion succeeds.
	ErrRetry = errors.New("contents changed during the conversion")
)

// CorruptError says that the bytes of a content differ from what was written.
type CorruptError struct {
	// Pack and Name are in hex.
	Pack, Name string
	Err        error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("content %s in pack %s is damaged: %v", e.Name, e.Pack, e.Err)
}

// Unwrap returns the error that was found.
func (e *CorruptError) Unwrap() error { return e.Err }

// keyPrefix is the prefix of the keys of packs in the object store.
const keyPrefix = "slipway/gear/packs/"

func packKey(digest gear.Name) string { return keyPrefix + hex.EncodeToString(digest[:]) }

// Cache keeps decoded contents. Callers must not change values. Both methods may run
// concurrently.
type Cache interface {
	Get(name gear.Name) ([]byte, bool)
	Put(name gear.Name, content []byte)
}

// Options are the options of New. The zero value works.
type Options struct {
	// Log receives what an operator should know; default: discarded.
	Log *slog.Logger
	// Clock returns the time; default time.Now.
	Clock func() time.Time
	// Workers is how many workers compress at the same time; default: the number of
	// processors. The packs written do not depend on it.
	Workers int
	// PackSize is the size of a full pack in bytes; default 64 MiB. At the usual 25 KB a
	// file, that is less than one object per 2,000 files. It is large enough that an
	// object store's price for a request does not matter.
	PackSize int64
	// Cache caches small contents; default 16 MiB of RAM.
	Cache Cache
	// Locations is how many contents' places are kept in RAM; default 65,536, at about 95
	// bytes each.
	Locations int
	// DeleteAfter is how long a replaced pack is kept for readers that have begun;
	// default 10 min. A reader that comes too late looks the content up again.
	DeleteAfter time.Duration
	// Lease is how long the unfinished work of a dead process's writers is left alone if
	// other processes share the catalogue; default 1 min.
	Lease time.Duration
	// OnCorrupt is called with damaged contents, so that a layer that holds them can be
	// converted again; see gearfacts.Layers.LayersOf. It must not block.
	OnCorrupt func(*CorruptError)
	// Proof reads packs from where they are stored and not from a cache; default: the
	// store itself. Settling reads its packs back through it.
	Proof *Store
	// Guard keeps the packs sound; default: the Guard of Proof, or else a Guard that
	// makes no parity.
	Guard *parity.Guard
}

// Store is the file store. All methods may run concurrently.
type Store struct {
	cat   *catalog.Catalog
	facts gearfacts.Files
	// checks records damaged packs whose contents are needed to rebuild dropped layers.
	checks gearfacts.Checks
	objs   objstore.Store
	opts   Options
	log    *slog.Logger

	// opener is objs if objs implements objstore.Opener, or nil.
	opener objstore.Opener

	cache  Cache
	places *placeTable
	dicts  *hot.Table[*dictionary]
	// storedDicts has more dictionaries, in their stored form.
	storedDicts *hot.Table[[]byte]
	plain       *gear.FrameDecoder

	windows windowBuffers
	batches batches
	// recoders has encoders that are lent to batches, until the garbage collector takes
	// them.
	recoders sync.Pool

	// instance is the part of the names of writers that identifies this process.
	instance string
	writers  atomic.Int64

	claims   claims
	presence presence
	guard    *parity.Guard
	// budget bounds the bytes that all presses are working on, which are in buffers.
	// fresh compresses for all writers. It has a window of some MiB for each worker.
	budget  *semaphore.Weighted
	buffers buffers.Pool
	fresh   *zstd.Encoder
	// dense has encoders for settling, until the garbage collector takes them.
	dense sync.Pool
	// settling is held during Settle, which runs at most once at a time.
	settling sync.Mutex
	// deleting is held while objects of packs are deleted. It is locked last.
	deleting sync.Mutex
}

// New returns the store of the catalogue's packs in objs. It reads nothing.
func New(cat *catalog.Catalog, objs objstore.Store, o *Options) (*Store, error) {
	s := &Store{cat: cat, facts: gearfacts.NewFiles(cat.DB), checks: gearfacts.NewChecks(cat.DB), objs: objs}
	if o != nil {
		s.opts = *o
	}
	if s.opts.Log == nil {
		s.opts.Log = slog.New(slog.DiscardHandler)
	}
	if s.opts.Clock == nil {
		s.opts.Clock = time.Now
	}
	if s.opts.Workers <= 0 {
		s.opts.Workers = runtime.GOMAXPROCS(0)
	}
	if s.opts.PackSize <= 0 {
		s.opts.PackSize = 64 << 20
	}
	if s.opts.Locations <= 0 {
		s.opts.Locations = 64 << 10
	}
	if s.opts.DeleteAfter <= 0 {
		s.opts.DeleteAfter = 10 * time.Minute
	}
	if s.opts.Lease <= 0 {
		s.opts.Lease = time.Minute
	}
	if s.cache = s.opts.Cache; s.cache == nil {
		s.cache = hot.NewContents(16 << 20)
	}
	s.log = s.opts.Log
	s.opener, _ = objstore.As[objstore.Opener](objs)
	s.places = newPlaceTable(s.opts.Locations)
	s.dicts = hot.New[*dictionary](dictsInRAM)
	s.storedDicts = hot.New[[]byte](storedDictBytes)
	s.claims.init()
	if s.guard = s.opts.Guard; s.guard == nil && s.opts.Proof != nil {
		s.guard = s.opts.Proof.guard
	}
	if s.guard == nil {
		s.guard = parity.New(cat.DB, objs, parity.Options{Log: s.log})
	}
	s.budget = semaphore.NewWeighted(pressBudget)
	var token [8]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, fmt.Errorf("make a name for this process: %w", err)
	}
	s.instance = hex.EncodeToString(token[:])
	var err error
	if s.fresh, err = newEncoder(freshLevel, gear.LargeFile, s.opts.Workers); err != nil {
		return nil, err
	}
	if s.plain, err = gear.NewFrameDecoder(nil); err != nil {
		return nil, err
	}
	return s, nil
}

// newWriterID returns a name for a writer of this process.
func (s *Store) newWriterID() string {
	return s.instance + "-" + strconv.FormatInt(s.writers.Add(1), 10)
}

// Housekeep reclaims what the writers of dead processes left behind, releases the
// contents of removed layers, and deletes replaced packs. Its cost depends on what
// changed since the last run. It should run at the start and then from time to time. It
// does nothing while another process that shares the catalogue does it.
func (s *Store) Housekeep(ctx context.Context) error {
	ctx, release, err := s.housekeeping(ctx)
	if errors.Is(err, engine.ErrLeased) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	if err := s.reclaim(ctx); err != nil {
		return fmt.Errorf("reclaim unfinished packs: %w", err)
	}
	for {
		n, err := s.facts.Collect(ctx, 1000)
		if err != nil {
			return fmt.Errorf("release contents of deleted layers: %w", err)
		}
		if n == 0 {
			break
		}
	}
	if err := s.deletePacks(ctx); err != nil {
		return fmt.Errorf("delete replaced packs: %w", err)
	}
	return nil
}

// reclaim ends the intents of writers that belong neither to this process nor to another
// one that is alive.
func (s *Store) reclaim(ctx context.Context) error {
	if s.cat.DB.Shared() {
		return s.reclaimShared(ctx)
	}
	writers, err := s.facts.Writers(ctx)
	if err != nil {
		return err
	}
	for _, w := range writers {
		if len(w) > len(s.instance) && w[:len(s.instance)] == s.instance {
			continue
		}
		if err := s.facts.EndIntents(ctx, w); err != nil {
			return err
		}
		s.log.Info("reclaimed the packs of a conversion that was cut off", "writer", w)
	}
	return nil
}

// deletePacks deletes the objects of packs that are no longer used.
func (s *Store) deletePacks(ctx context.Context) error {
	s.deleting.Lock()
	defer s.deleting.Unlock()
	if s.cat.DB.Shared() {
		return s.deleteShared(ctx)
	}
	for {
		packs, err := s.facts.Deleting(ctx, 256)
		if err != nil || len(packs) == 0 {
			return err
		}
		for _, p := range packs {
			if err := s.objs.Delete(ctx, packKey(p)); err != nil {
				return err
			}
			s.forgetDicts(p)
		}
		if err := s.facts.Forget(ctx, packs...); err != nil {
			return err
		}
	}
}
