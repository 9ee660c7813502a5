// Package filestore keeps Gear files: contents named by their SHA-256, many of
// them in one object.
//
// A pack is an object of contents one after the other, each compressed by
// itself, in the order in which they were first needed. Conversions write packs
// through a [Writer]; [Store.Settle] rewrites those later, densely and without
// what nothing needs any more; [Store.Open] and [Store.Stream] read. Where each
// content lies is in the catalogue, in one transaction with the layer that needs
// it; docs/formats/gear-pack.md has the format and DESIGN.md the reasons.
//
// The package decides nothing about access: who may read a content is known by
// [gearfacts.Files.Visible].
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
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// Errors that callers branch on.
var (
	// ErrNotFound: there is no such content.
	ErrNotFound = catalog.ErrNotFound
	// ErrLost: the content's bytes were found damaged and it was not made again
	// yet.
	ErrLost = errors.New("content is damaged and waits for being made again")
	// ErrRetry: a conversion depended on something that went away. The whole
	// conversion done again succeeds.
	ErrRetry = errors.New("contents changed during the conversion")
)

// CorruptError says that the bytes of a content are not what was written.
type CorruptError struct {
	// Pack and Name in hex.
	Pack, Name string
	Err        error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("content %s in pack %s is damaged: %v", e.Name, e.Pack, e.Err)
}

// Unwrap returns what was found wrong.
func (e *CorruptError) Unwrap() error { return e.Err }

// keyPrefix is where packs are in the object store.
const keyPrefix = "slipway/gear/packs/"

func packKey(digest gear.Name) string { return keyPrefix + hex.EncodeToString(digest[:]) }

// Cache keeps decoded contents. Values must not be changed. Both methods may run
// concurrently.
type Cache interface {
	Get(name gear.Name) ([]byte, bool)
	Put(name gear.Name, content []byte)
}

// Options of New. The zero value works.
type Options struct {
	// Log takes what an operator would want to know; default: discarded.
	Log *slog.Logger
	// Clock tells the time; default time.Now.
	Clock func() time.Time
	// Workers compress at once; default: the number of processors. What they
	// write does not depend on it.
	Workers int
	// PackSize in bytes is how large a pack gets; default 64 MiB. Below one
	// object per 2,000 files at the usual 25 KB a file, and large enough that an
	// object store's price for a request does not matter.
	PackSize int64
	// Cache of small contents; default 16 MiB of RAM.
	Cache Cache
	// Locations is how many contents' places are kept in RAM; default 65,536,
	// at about 95 bytes each.
	Locations int
	// DeleteAfter is how long a replaced pack stays for readers that have begun;
	// default 10 min. One that comes too late looks the content up again.
	DeleteAfter time.Duration
	// Lease is how long, where other processes share the catalogue, what the writers
	// of one that died have begun is left alone; default 1 min.
	Lease time.Duration
	// OnCorrupt is told of damaged contents, so that a layer that holds them can
	// be converted again; see gearfacts.Layers.LayersOf. It must not block.
	OnCorrupt func(*CorruptError)
	// Proof reads packs from where they are stored and from no cache; default: the store
	// itself. Settling reads back with it.
	Proof *Store
}

// Store is the file store. All methods may run concurrently.
type Store struct {
	cat   *catalog.Catalog
	facts gearfacts.Files
	objs  objstore.Store
	opts  Options
	log   *slog.Logger

	// opener is objs if that has the ability, or nil.
	opener objstore.Opener

	cache  Cache
	places *placeTable
	dicts  *hot.Table[*dictionary]
	// storedDicts are more of them, as they are stored.
	storedDicts *hot.Table[[]byte]
	plain       *gear.FrameDecoder

	windows windowBuffers
	batches batches
	// recoders are encoders lent to batches, until the collector takes them.
	recoders sync.Pool

	// instance makes the names of writers those of this process.
	instance string
	writers  atomic.Int64

	claims   claims
	presence presence
	// budget bounds what all presses have under way, in bytes, which is in
	// buffers. fresh compresses for all writers: it has a window
	// of some MiB for each worker.
	budget  *semaphore.Weighted
	buffers buffers
	fresh   *zstd.Encoder
	// dense has encoders for settling, until the collector takes them.
	dense sync.Pool
	// settling is held by the one Settle there may be.
	settling sync.Mutex
	// deleting is held while objects of packs are deleted. It is taken last.
	deleting sync.Mutex
}

// New returns the store of the catalogue's packs in objs. It reads nothing.
func New(cat *catalog.Catalog, objs objstore.Store, o *Options) (*Store, error) {
	s := &Store{cat: cat, facts: gearfacts.NewFiles(cat.DB), objs: objs}
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

// newWriterID names a writer of this process.
func (s *Store) newWriterID() string {
	return s.instance + "-" + strconv.FormatInt(s.writers.Add(1), 10)
}

// Housekeep reclaims what writers of processes that died left behind, releases
// the contents of layers that are gone, and deletes replaced packs. Its cost
// depends on what changed since the last run. It is to run at the start and then
// now and then. Where another process that shares the catalogue is at it, it does
// nothing.
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

// reclaim ends the intents of writers that are not of this process, and of no other
// that is alive.
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

// deletePacks deletes the objects of packs that are out of use.
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
