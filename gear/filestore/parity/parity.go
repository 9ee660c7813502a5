// Package parity keeps packs sound. A group of packs has parity files. A lost pack is
// made again from the parity files and the other packs of its group.
// docs/formats/gear-parity.md has the format. The package reads packs whole and never
// replaces an object by bytes that do not have the object's digest. It decides nothing
// about which packs form a group.
package parity

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/reedsolomon"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

const (
	// packPrefix and parityPrefix begin the keys of packs and parity files.
	packPrefix   = "slipway/gear/packs/"
	parityPrefix = "slipway/gear/parity/"
	// GroupPacks is how many packs a full group has at least. With one parity file, parity
	// takes a tenth of the packs, or less.
	GroupPacks = 10
	// parityBlock is how many bytes of each pack of a group are in RAM at a time.
	parityBlock = 256 << 10
	// repairPause is how long a repair is not repeated for a reader after the parity did not
	// suffice.
	repairPause = time.Minute
)

func packKey(digest gear.Name) string   { return packPrefix + hex.EncodeToString(digest[:]) }
func parityKey(digest gear.Name) string { return parityPrefix + hex.EncodeToString(digest[:]) }

// Options are the options of New. The zero value works.
type Options struct {
	// Log receives what an operator should know; default: discarded.
	Log *slog.Logger
	// Files is the number of parity files of a group, and so the number of packs of a group
	// that may be lost at once; 0: no parity is made.
	Files int
	// Shared says that other processes use the same catalogue, and may be making parity;
	// New sets it if the database can tell.
	Shared bool
	// OnRepair is called with a pack that was made again. It must not block.
	OnRepair func(pack gear.Name)
}

// Guard keeps the packs of an object store sound. All methods may run concurrently.
type Guard struct {
	objs   objstore.Store
	groups gearfacts.Parity
	checks gearfacts.Checks
	opts   Options

	mu sync.Mutex // also held while an object that nothing names is deleted
	// unborn counts the parity files that are being made and are not recorded yet.
	unborn map[gear.Name]int

	repairing sync.Mutex
	lost      map[gear.Name]loss // packs for which the parity did not suffice; guarded by repairing
}

// New returns the guard of the packs in objs, about which db knows.
func New(db *engine.DB, objs objstore.Store, o Options) *Guard {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Shared = o.Shared || db.Shared()
	return &Guard{objs: objs, groups: gearfacts.NewParity(db), checks: gearfacts.NewChecks(db), opts: o,
		unborn: map[gear.Name]int{}, lost: map[gear.Name]loss{}}
}

// Files returns the number of parity files of a group; 0: no parity is made.
func (s *Guard) Files() int { return s.opts.Files }

// parityHeader returns the header of the parity file pos of a group.
// docs/formats/gear-parity.md describes it.
func parityHeader(packs []gearfacts.Object, files, pos int) []byte {
	b := append([]byte("SLPARIT\x01"), byte(len(packs)), byte(files), byte(pos))
	for _, p := range packs {
		b = append(b, p.Digest[:]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(p.Size))
	}
	return b
}

// headerSize returns the size of the header of a group's parity files.
func headerSize(g *gearfacts.ParityGroup) int64 {
	return int64(len(parityHeader(g.Packs, len(g.Files), 0)))
}

// shardSize returns the size of the largest pack. The others count as if zeros followed
// them.
func shardSize(packs []gearfacts.Object) (n int64) {
	for _, p := range packs {
		n = max(n, p.Size)
	}
	return n
}

// DamagedError says that a pack is not what its digest says.
type DamagedError struct {
	Pack gear.Name
	Err  error
}

// Error implements error.
func (e *DamagedError) Error() string { return fmt.Sprintf("pack %x: %v", e.Pack, e.Err) }

// Unwrap returns what was found.
func (e *DamagedError) Unwrap() error { return e.Err }

// Protect makes the parity of a group of packs, and calls record when the parity is
// durable and was read back. packs describes the packs as they are in the object store.
// Protect reads every byte of them. Errors: *DamagedError, and those of record.
func (s *Guard) Protect(ctx context.Context, packs []gearfacts.Object, record func(gearfacts.Group) error) (err error) {
	w, err := s.newWriter(ctx, packs, s.opts.Files)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.end(ctx)) }()
	if err := w.encode(ctx); err != nil {
		return err
	}
	g := gearfacts.Group{Packs: packs}
	for i, u := range w.uploads {
		f := gearfacts.Object{Digest: gear.Name(w.sums[i].Sum(nil)), Size: u.Size()}
		w.claim(f.Digest)
		if err := u.Commit(ctx, parityKey(f.Digest)); err != nil {
			return err
		}
		if err := s.verifyObject(ctx, parityKey(f.Digest), f.Digest, nil); err != nil {
			return fmt.Errorf("read back parity file %x: %w", f.Digest, err)
		}
		g.Files = append(g.Files, f)
	}
	return record(g)
}

// writer makes the parity files of one group.
type writer struct {
	s       *Guard
	packs   []gearfacts.Object
	code    reedsolomon.Encoder
	uploads []objstore.Upload
	sums    []hash.Hash
	claimed []gear.Name
}

func (s *Guard) newWriter(ctx context.Context, packs []gearfacts.Object, files int) (_ *writer, err error) {
	w := &writer{s: s, packs: packs}
	if w.code, err = reedsolomon.New(len(packs), files); err != nil {
		return nil, fmt.Errorf("parity of %d packs in %d files: %w", len(packs), files, err)
	}
	for i := range files {
		header := parityHeader(packs, files, i)
		u, err := s.objs.NewUpload(ctx, int64(len(header))+shardSize(packs))
		if err != nil {
			return nil, errors.Join(err, w.end(ctx))
		}
		w.uploads, w.sums = append(w.uploads, u), append(w.sums, sha256.New())
		if err := w.write(i, header); err != nil {
			return nil, errors.Join(err, w.end(ctx))
		}
	}
	return w, nil
}

func (w *writer) write(i int, p []byte) error {
	w.sums[i].Write(p)
	_, err := w.uploads[i].Write(p)
	return err
}

// claim keeps Sweep from deleting a parity file before it is recorded.
func (w *writer) claim(file gear.Name) {
	p := w.s
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unborn[file]++
	w.claimed = append(w.claimed, file)
}

// end drops what was not committed.
func (w *writer) end(ctx context.Context) error {
	var errs []error
	for _, u := range w.uploads {
		errs = append(errs, u.Cancel(ctx))
	}
	p := w.s
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range w.claimed {
		if p.unborn[f]--; p.unborn[f] == 0 {
			delete(p.unborn, f)
		}
	}
	return errors.Join(errs...)
}

// encode reads the packs and writes their parity.
func (w *writer) encode(ctx context.Context) error {
	sources := make([]*shard, len(w.packs))
	for i, p := range w.packs {
		r, err := w.s.openShard(ctx, packKey(p.Digest), 0, p)
		if err != nil {
			return errors.Join(&DamagedError{p.Digest, err}, closeShards(sources))
		}
		sources[i] = r
	}
	err := w.encodeFrom(ctx, sources)
	return errors.Join(err, closeShards(sources))
}

func (w *writer) encodeFrom(ctx context.Context, sources []*shard) error {
	blocks := newBlocks(len(w.packs) + len(w.uploads))
	for left := shardSize(w.packs); left > 0 && ctx.Err() == nil; left -= parityBlock {
		n := int(min(left, parityBlock))
		for i, src := range sources {
			blocks[i] = blocks[i][:n]
			if err := src.fill(blocks[i]); err != nil {
				return &DamagedError{src.Digest, err}
			}
		}
		for i := range w.uploads {
			blocks[len(sources)+i] = blocks[len(sources)+i][:n]
		}
		if err := w.code.Encode(blocks); err != nil {
			return err
		}
		for i := range w.uploads {
			if err := w.write(i, blocks[len(sources)+i]); err != nil {
				return err
			}
		}
	}
	for _, src := range sources {
		if err := src.verify(); err != nil && ctx.Err() == nil {
			return &DamagedError{src.Digest, err}
		}
	}
	return ctx.Err()
}

func newBlocks(n int) [][]byte {
	blocks := make([][]byte, n)
	for i := range blocks {
		blocks[i] = make([]byte, parityBlock)
	}
	return blocks
}

// shard is a pack or a parity file that is read from its beginning on.
type shard struct {
	gearfacts.Object
	o    objstore.Object
	sum  hash.Hash
	left int64
}

// openShard opens an object. It skips a header of some bytes, which it hashes.
func (s *Guard) openShard(ctx context.Context, key string, header int64, of gearfacts.Object) (*shard, error) {
	o, err := s.objs.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	r := &shard{Object: of, o: o, sum: sha256.New(), left: of.Size}
	if o.Info().Size != of.Size {
		return nil, errors.Join(fmt.Errorf("%d bytes, and not %d: %w", o.Info().Size, of.Size, packfile.ErrFormat), o.Close())
	}
	if err := r.fill(make([]byte, header)); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return r, nil
}

// fill reads the next bytes, and zeros beyond the end.
func (r *shard) fill(b []byte) error {
	n := min(int64(len(b)), r.left)
	if _, err := io.ReadFull(r.o, b[:n]); err != nil {
		return fmt.Errorf("the object is too short: %w", err)
	}
	r.sum.Write(b[:n])
	r.left -= n
	clear(b[n:])
	return nil
}

// verify reports whether what was read is what was stored.
func (r *shard) verify() error {
	if gear.Name(r.sum.Sum(nil)) != r.Digest {
		return fmt.Errorf("the object has another digest: %w", gear.ErrContent)
	}
	return nil
}

func closeShards(list []*shard) error {
	var errs []error
	for _, r := range list {
		if r != nil {
			errs = append(errs, r.o.Close())
		}
	}
	return errors.Join(errs...)
}
