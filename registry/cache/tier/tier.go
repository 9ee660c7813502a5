// Package tier keeps objects of a store where they are cheap to serve: in RAM, and as
// files on an SSD.
//
// [Store] wraps an [objstore.Store]. What is asked for and not there is fetched once,
// however many ask for it meanwhile, and goes to all of them as it arrives. Which objects
// stay, and where, is for [policy.TwoLevel] to say, in the same calls as in a simulation;
// this package makes the bytes follow. Everything but Get of the keys that
// [Options.Cacheable] names is passed on.
//
// Keys are content addresses: an object under a key never gets other bytes. A change
// through the Store drops what it keeps all the same; a change behind its back is not
// seen.
//
// What it keeps may be lost at any time, at the price of a fetch. It never fails a
// request that the store inside would have answered, and never serves bytes that are not
// the object's: see DESIGN.md.
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

// Options of a Store. The zero value caches nothing.
type Options struct {
	// RAMBytes is how much memory objects may take, with those that are on their way in
	// or out and those that were given up but are still being sent. One part in 32 is
	// kept for these; the policy has the rest. Default 0: none.
	RAMBytes int64
	// SSDBytes is the same for the files below Dir. Default 0: none. What a file system adds to a file's bytes, and a footer of 48 bytes, is not counted.
	SSDBytes int64
	// Dir is where the files are. It is made if it is missing, and belongs to one Store
	// alone. Needed with SSDBytes.
	Dir string
	// RAMPolicy and SSDPolicy are names of [policy.Names]. Default gdsf and lru: the best
	// pair for registries that was measured.
	RAMPolicy, SSDPolicy string
	// LargeObject is the size in bytes from which on an object never goes to RAM.
	// Default the smaller of 100 MiB and 1 % of RAMBytes. FAST'18 has 100 MiB. Negative:
	// whatever fits goes to RAM.
	LargeObject int64
	// Admission says what may be written to the SSD. Default all.
	Admission policy.Admission
	// SSDWritePerDay limits what is written to the SSD, in bytes a day. Default 0: no
	// limit. SSDWriteBurst is how many bytes of it may add up; a larger object is never
	// written. Default an hour's, and at least 4 GiB.
	SSDWritePerDay, SSDWriteBurst int64
	// FillLimit is how many objects are fetched at once to be kept; others wait. Each that
	// goes to the SSD takes a buffer of 256 KiB, which does not count in RAMBytes. Default
	// 64.
	FillLimit int
	// WarmLimit is how many of them may be fetched because of Warm. Default 4.
	WarmLimit int
	// Cacheable tells which keys to keep. Default: all.
	Cacheable func(key string) bool
	// Verify returns a hash and the sum that the bytes of a key must have, or nil where
	// the key does not tell. Other bytes are not kept, and never sent to their end.
	Verify func(key string) (h hash.Hash, want []byte)
	// WriteThrough keeps what is uploaded as if it had been asked for. Default: it is
	// fetched when it is.
	WriteThrough bool
	// CheckUploads has what was uploaded in more than one piece compared with Verify
	// before it is kept. It is needed where other processes upload to the store inside,
	// and its state of an upload does not tell that one of them has written to it
	// meanwhile: what was copied here may then not be what the object has.
	CheckUploads bool
	// Cost is what it takes to get an object again, for policies that weigh that: of its
	// size in bytes and of the time until the store inside gave its first answer. Default
	// 1 for all, as in a simulation.
	Cost func(size int64, wait time.Duration) float64
	// Seed is for policies that choose at random. Default 0.
	Seed uint64
	// Logger is told what an operator should know. Default: nobody is.
	Logger *slog.Logger
	// Clock is for pins and the write budget. Default time.Now.
	Clock func() time.Time
}

// ErrNotKept is returned by Warm for an object that the cache will not take in.
var ErrNotKept = errors.New("the cache does not keep this object")

const (
	// ahead is how far behind the end of what has arrived a range may begin and still
	// wait for the fill to get there, in bytes. What begins beyond it is read from the
	// store inside at once. At 100 MB/s the wait is 80 ms at most.
	ahead = 8 << 20
	// keepFill is how much may be missing from a fill that nobody waits for any more
	// for it to be finished nevertheless, in bytes; else half of it must be there.
	keepFill = 4 << 20
	// spare is the part of each tier, as 1/spare, that the policy does not know of. It
	// lets an object go up while those it displaces come down, and holds uploads, windows
	// and what slow clients still read.
	spare = 32
)

// Store is an [objstore.Store] with a cache in front. All methods may run concurrently.
type Store struct {
	inner objstore.Store
	o     Options
	log   *slog.Logger
	disk  *disk // nil without an SSD

	ctx    context.Context // of what runs in the background
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // FillLimit
	warms  chan struct{} // WarmLimit
	pieces pieces
	reapMu sync.Mutex // held while files are unlinked; before mu

	// mu guards all below and the fields of entries, and is held for no I/O. A fill's
	// own lock comes after it.
	mu       sync.Mutex
	closed   bool
	two      *policy.TwoLevel
	objs     map[policy.Key]*entry // what two holds, and nothing else
	fills    map[policy.Key]*fill  // those that requests may join
	running  int                   // all fills
	changes  map[policy.Key]*change
	ram, ssd room
	garbage  []*file // given up, to be unlinked
	stuck    []*file // those that could not be, to be tried again
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

// New returns a cache in front of a store, which it closes with itself. It knows the files
// that an earlier one left in Dir without reading them. An SSD that cannot be used does
// not keep it from working: it is tried again from time to time. o may be nil.
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

// keyOf is what the policies know an object by, and its file's name.
func keyOf(key string) policy.Key {
	var b [objstore.MaxKeyLength]byte // on the stack: the conversion of a string is not
	sum := sha256.Sum256(b[:copy(b[:], key)])
	return policy.KeyOf(sum[:])
}

// keeps reports whether objects of a key may be kept.
func (s *Store) keeps(key string) bool {
	return len(key) <= objstore.MaxKeyLength && (s.o.Cacheable == nil || s.o.Cacheable(key))
}

// Unwrap returns the store inside. See [objstore.As].
func (s *Store) Unwrap() objstore.Store { return s.inner }

// Adapt takes part in moves, uploads and adoptions. See [objstore.Adapter].
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

// Put writes a small object whole. See [objstore.Store].
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

// adopter drops what is kept under the key of an adopted file. The file's bytes are not
// kept: they come in when they are asked for.
type adopter struct {
	s     *Store
	inner objstore.Adopter
}

func (a adopter) AdoptFile(ctx context.Context, key, path string) error {
	defer a.s.change(key).end(nil)
	return a.inner.AdoptFile(ctx, key, path)
}

// change is one or more changes of an object under way.
type change struct {
	n       int
	overlap bool // there was more than one
}

// changing is the part of a change that one caller has.
type changing struct {
	s *Store
	k policy.Key
	c *change // nil for a key that is not kept
}

// change drops what is kept of an object and keeps nothing new of it until end.
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

// end ends the change. If there was no other meanwhile, what was written is kept, if it
// is given.
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

// Close ends what is being fetched, notes what is kept for the next start, and closes the
// store inside.
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
