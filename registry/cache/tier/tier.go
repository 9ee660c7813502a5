// Package tier keeps objects of a store where they are cheap to serve: in RAM, and as
// files on an SSD.
//
// [Store] wraps an [objstore.Store], the inner store. An object that is requested and not
// cached is fetched once, however many requests for it come meanwhile, and goes to all of
// them as it arrives. [policy.TwoLevel] decides which objects stay, and where, with the
// same calls as in a simulation. This package makes the bytes follow. It passes on all
// calls except Get of the keys that [Options.Cacheable] names.
//
// Keys are content addresses: an object under a key never gets other bytes. Even so, a
// change through the Store drops what it keeps of the object. The Store does not notice
// changes that bypass it.
//
// Cached bytes may be lost at any time, which costs a fetch. The Store never fails a
// request that the inner store would have answered, and never serves bytes that are not
// the object's. See DESIGN.md.
package tier

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"iter"
	"log/slog"
	"sync"
	"time"

	"example.org/slipway/internal/policy"
	"example.org/slipway/registry/objstore"
)

// Options are the options of a Store. The zero value caches nothing.
type Options struct {
	// RAMBytes is how much memory objects may take. It includes objects that are on their
	// way in or out, and objects that were given up but are still being sent. One part in
	// 32 is reserved for these, and the policy has the rest. Default 0: none.
	RAMBytes int64
	// SSDBytes is the same for the files below Dir. Default 0: none. The overhead of the
	// file system and the footer of 48 bytes do not count.
	SSDBytes int64
	// Dir is the directory of the files. It is created if it does not exist, and belongs
	// to one Store alone. It is required with SSDBytes.
	Dir string
	// RAMPolicy and SSDPolicy are names of [policy.Names]. The default is gdsf and lru,
	// the best pair for registries that was measured.
	RAMPolicy, SSDPolicy string
	// LargeObject is the size in bytes from which an object never goes to RAM. The
	// default is the smaller of 100 MiB, as in FAST'18, and 1 % of RAMBytes. If it is
	// negative, every object that fits goes to RAM.
	LargeObject int64
	// Admission says what may be written to the SSD. Default: all.
	Admission policy.Admission
	// SSDWritePerDay limits what is written to the SSD, in bytes a day. Default 0: no
	// limit. SSDWriteBurst is how many unused bytes of that limit may accumulate. A
	// larger object is never written. The default is the bytes of an hour, and at least 4
	// GiB.
	SSDWritePerDay, SSDWriteBurst int64
	// FillLimit is how many objects are fetched at once to be kept. Others wait. Each
	// fetch to the SSD takes a buffer of 256 KiB, which does not count in RAMBytes.
	// Default 64.
	FillLimit int
	// WarmLimit is how many of these fetches may be for Warm. Default 4.
	WarmLimit int
	// Cacheable reports whether to keep a key. Default: all.
	Cacheable func(key string) bool
	// Verify returns a hash and the sum that the bytes of a key must have, or nil if the
	// key does not determine the sum. Other bytes are not kept, and are never sent to
	// their end.
	Verify func(key string) (h hash.Hash, want []byte)
	// WriteThrough keeps uploaded objects as if they had been requested. By default an
	// uploaded object is fetched when it is requested.
	WriteThrough bool
	// CheckUploads compares what was uploaded in more than one piece with Verify before
	// it is kept. Another process may have written to such an upload meanwhile, and then
	// the bytes copied here may differ from the object's. So CheckUploads is needed if
	// other processes upload to the inner store, and the inner store's state of an upload
	// does not show that one of them has written to it.
	CheckUploads bool
	// Cost is the cost of getting an object again, for policies that weigh it. It depends
	// on the object's size in bytes and on the time until the inner store's first answer.
	// Default 1 for all, as in a simulation.
	Cost func(size int64, wait time.Duration) float64
	// Seed is the seed of policies that choose at random. Default 0.
	Seed uint64
	// Logger receives what an operator should know. Default: no log.
	Logger *slog.Logger
	// Clock is the clock for pins and the write budget. Default time.Now.
	Clock func() time.Time
}

// ErrNotKept is returned by Warm for an object that the cache will not take in.
var ErrNotKept = errors.New("the cache does not keep this object")

const (
	// ahead bounds, in bytes, how far after the received bytes a range may begin and
	// still wait for the fill. A range that begins later is read from the inner store at
	// once. At 100 MB/s the wait is 80 ms at most.
	ahead = 8 << 20
	// keepFill is, in bytes, how much may be missing from a fill without waiters so that
	// it is still completed. If more is missing, half of the fill must be there.
	keepFill = 4 << 20
	// spare is the part of each tier, as 1/spare, that the policy does not know of. It
	// lets an object go up while the objects that it displaces come down. It also holds
	// uploads, windows, and objects that slow clients still read.
	spare = 32
)

// Store is an [objstore.Store] with a cache in front. All methods may run concurrently.
type Store struct {
	inner objstore.Store
	o     Options
	log   *slog.Logger
	disk  *disk // nil if there is no SSD

	ctx    context.Context // the context of background work
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // FillLimit
	warms  chan struct{} // WarmLimit
	pieces pieces
	reapMu sync.Mutex // held while files are unlinked; locked before mu

	// mu guards everything below and the fields of entries. It is not held during I/O.
	// The lock of a fill is locked after it.
	mu       sync.Mutex
	closed   bool
	two      *policy.TwoLevel
	objs     map[policy.Key]*entry // exactly the objects that two holds
	fills    map[policy.Key]*fill  // the fills that requests may join
	running  int                   // number of all fills
	changes  map[policy.Key]*change
	ram, ssd room
	garbage  []*file // given up, to be unlinked
	stuck    []*file // files that could not be unlinked, to be tried again
	down     queue   // demotions
	up       queue   // promotions
	tees     tees
	tick     uint64 // counts requests
	counts   counts
}

var (
	_ objstore.Wrapper = (*Store)(nil)
	_ objstore.Adapter = (*Store)(nil)
)

// New returns a cache in front of a store. The cache closes the store when it is closed.
// New finds the files that an earlier Store left in Dir without reading them. If the SSD
// cannot be used, the cache works without it and tries again from time to time. o may be
// nil.
func New(inner objstore.Store, o *Options) (*Store, error) {
	s := &Store{inner: inner, objs: map[policy.Key]*entry{}, fills: map[policy.Key]*fill{}, changes: map[policy.Key]*change{}}
	if o != nil {
		s.o = *o
	}
	if err := s.defaults(); err != nil {
		return nil, err
	}
	if err := s.newPolicy(); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.slots, s.warms = make(chan struct{}, s.o.FillLimit), make(chan struct{}, s.o.WarmLimit)
	s.ram.limit, s.ssd.limit = s.o.RAMBytes, s.o.SSDBytes
	s.down.wake, s.up.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	if s.o.SSDBytes > 0 {
		s.disk = &disk{dir: s.o.Dir, log: s.log, pieces: &s.pieces}
		if err := s.mount(); errors.Is(err, errInUse) {
			s.cancel()
			return nil, err
		}
		s.wg.Go(s.demoter)
		s.wg.Go(s.promoter)
		s.wg.Go(s.remounter)
	}
	return s, nil
}

func (s *Store) defaults() error {
	o := &s.o
	switch {
	case o.RAMBytes < 0 || o.SSDBytes < 0:
		return fmt.Errorf("a cache of %d bytes of RAM and %d of SSD cannot be", o.RAMBytes, o.SSDBytes)
	case o.SSDBytes > 0 && o.Dir == "":
		return errors.New("a cache on an SSD needs a directory")
	case o.SSDWritePerDay < 0 || o.SSDWriteBurst < 0:
		return errors.New("a write budget is not negative")
	}
	if o.LargeObject == 0 {
		o.LargeObject = max(1, min(100<<20, o.RAMBytes/100))
	}
	o.LargeObject = max(o.LargeObject, 0)
	o.SSDWriteBurst = cmp.Or(o.SSDWriteBurst, max(4<<30, o.SSDWritePerDay/24))
	o.RAMPolicy, o.SSDPolicy = cmp.Or(o.RAMPolicy, "gdsf"), cmp.Or(o.SSDPolicy, "lru")
	if o.FillLimit <= 0 {
		o.FillLimit = 64
	}
	if o.WarmLimit <= 0 {
		o.WarmLimit = 4
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if s.log = o.Logger; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return nil
}

func (s *Store) newPolicy() error {
	ram, err := policy.New(s.o.RAMPolicy, s.o.Seed)
	if err != nil {
		return err
	}
	ssd, err := policy.New(s.o.SSDPolicy, s.o.Seed+1)
	if err != nil {
		return err
	}
	s.two = policy.NewTwoLevel(s.o.RAMBytes-s.o.RAMBytes/spare, ram, s.o.SSDBytes-s.o.SSDBytes/spare, ssd, &policy.TwoLevelOptions{
		Now: s.o.Clock, Split: s.o.LargeObject, Admission: s.o.Admission,
		WriteRate: (s.o.SSDWritePerDay + 86_399) / 86_400, WriteBurst: s.o.SSDWriteBurst,
		OnMove: s.moved,
	})
	return nil
}

// keyOf returns the key by which the policies know an object, and which names its file.
func keyOf(key string) policy.Key {
	var b [objstore.MaxKeyLength]byte // on the stack; the conversion of a string would not be
	sum := sha256.Sum256(b[:copy(b[:], key)])
	return policy.KeyOf(sum[:])
}

// keeps reports whether objects of a key may be kept.
func (s *Store) keeps(key string) bool {
	return len(key) <= objstore.MaxKeyLength && (s.o.Cacheable == nil || s.o.Cacheable(key))
}

// Unwrap returns the inner store. See [objstore.As].
func (s *Store) Unwrap() objstore.Store { return s.inner }

// Adapt wraps the inner store's moves, uploads and adoptions. See [objstore.Adapter].
func (s *Store) Adapt(target any) bool {
	switch t := target.(type) {
	case *objstore.Mover:
		inner, ok := objstore.As[objstore.Mover](s.inner)
		if ok {
			*t = mover{s, inner}
		}
		return ok
	case *objstore.Adopter:
		inner, ok := objstore.As[objstore.Adopter](s.inner)
		if ok {
			*t = adopter{s, inner}
		}
		return ok
	case *objstore.KeyedUploader:
		inner, ok := objstore.As[objstore.KeyedUploader](s.inner)
		if ok {
			*t = keyedUploader{s, inner}
		}
		return ok
	}
	return false
}

// Stat describes an object. See [objstore.Store].
func (s *Store) Stat(ctx context.Context, key string) (objstore.Info, error) {
	return s.inner.Stat(ctx, key)
}

// List walks the objects. See [objstore.Store].
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return s.inner.List(ctx, prefix, after)
}

// Delete removes an object, and what is kept of it. See [objstore.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	defer s.change(key).end(nil)
	return s.inner.Delete(ctx, key)
}

// Put writes a whole small object. See [objstore.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	c := s.change(key)
	err := s.inner.Put(ctx, key, data, ifAbsent)
	if err != nil || !s.o.WriteThrough {
		c.end(nil)
		return err
	}
	c.end(c.teeOf(data))
	return nil
}

// mover drops what is kept under either key of a move.
type mover struct {
	s     *Store
	inner objstore.Mover
}

func (m mover) Move(ctx context.Context, from, to string) error {
	defer m.s.change(from).end(nil)
	defer m.s.change(to).end(nil)
	return m.inner.Move(ctx, from, to)
}

// adopter drops what is kept under the key of an adopted file. It does not keep the
// file's bytes. They are fetched when they are requested.
type adopter struct {
	s     *Store
	inner objstore.Adopter
}

func (a adopter) AdoptFile(ctx context.Context, key, path string) error {
	defer a.s.change(key).end(nil)
	return a.inner.AdoptFile(ctx, key, path)
}

// change is one or more changes of an object that are in progress.
type change struct {
	n       int
	overlap bool // more than one change was in progress at the same time
}

// changing is one caller's part of a change.
type changing struct {
	s *Store
	k policy.Key
	c *change // nil for a key that is not kept
}

// change drops what is kept of an object. Until end is called, nothing new of the object
// is kept.
func (s *Store) change(key string) changing {
	if !s.keeps(key) {
		return changing{s: s}
	}
	k := keyOf(key)
	s.mu.Lock()
	c := s.changes[k]
	if c == nil {
		c = &change{}
		s.changes[k] = c
	}
	c.n++
	c.overlap = c.overlap || c.n > 1
	s.forget(k)
	s.mu.Unlock()
	s.reap()
	return changing{s, k, c}
}

// end ends the change. If there was no other change meanwhile, the written bytes are kept
// if they are given.
func (c changing) end(t *tee) {
	if c.c != nil {
		c.s.mu.Lock()
		if c.c.n--; c.c.n == 0 {
			delete(c.s.changes, c.k)
		}
		if t != nil && !c.c.overlap && !c.s.closed {
			c.s.admitTee(c.k, t)
		}
		c.s.mu.Unlock()
	}
	if t != nil {
		t.drop()
		c.s.reap()
	}
}

// Close ends all fetches, notes what is kept for the next start, and closes the inner
// store.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		return s.inner.Close()
	}
	s.cancel()
	s.wg.Wait()
	s.dropTees()
	s.reap()
	if s.disk != nil {
		s.unmount()
	}
	return s.inner.Close()
}
