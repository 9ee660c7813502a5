package filestore

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog/gearfacts"
)

// These are the levels of settled packs. Contents below smallFile are compressed with a
// dictionary, and contents below middleFile are not compressed with the best level. See
// DESIGN.md.
const (
	denseLevel = zstd.SpeedBestCompression
	smallLevel = zstd.SpeedBetterCompression
	// denseWorkers is how many workers compress with the best level. Each takes some 40
	// MB, and as much again for a dictionary. Settling is in no hurry.
	denseWorkers = 1
)

// SettleOptions are the options of Settle. The zero value works.
type SettleOptions struct {
	// All also settles packs that do not fill a new pack yet.
	All bool
	// Progress, if not nil, is called after each pack written.
	Progress func(SettleReport)
}

// SettleReport says what a call of Settle did.
type SettleReport struct {
	// Replaced is the number of replaced packs, and ReplacedBytes the size of their
	// objects.
	Replaced      int
	ReplacedBytes int64
	// Written is the number of written packs, and WrittenBytes the size of their objects.
	Written      int
	WrittenBytes int64
}

// Settle rewrites packs into dense ones, in the order in which they came. It rewrites
// packs that conversions wrote, small packs, and packs with many dead bytes. What it
// writes depends only on the packs. Readers and writers continue meanwhile. Settle may be
// interrupted at any point, and the next call continues the work. Errors:
// engine.ErrLeased if another process that shares the catalogue is settling.
func (s *Store) Settle(ctx context.Context, o SettleOptions) (rep SettleReport, err error) {
	s.settling.Lock()
	defer s.settling.Unlock()
	ctx, release, err := s.housekeeping(ctx)
	if err != nil {
		return rep, err
	}
	defer release()
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return rep, err
	}
	defer leave()
	skip := map[int64]bool{}
	for again := 0; ; {
		group, err := s.nextGroup(ctx, o.All, skip)
		if err != nil {
			return rep, fmt.Errorf("look for packs to settle: %w", err)
		}
		if len(group) == 0 {
			return rep, nil
		}
		written, err := s.settleGroup(ctx, group)
		var corrupt *CorruptError
		var busy busyError
		switch {
		case errors.As(err, &busy):
			skip[int64(busy)] = true
			continue
		case errors.Is(err, gearfacts.ErrNeeded): // the rest of the pack stays as it is
			id, ok := unsettleable(err, group)
			if !ok {
				return rep, fmt.Errorf("settle %d packs from number %d: %w", len(group), group[0].ID, err)
			}
			skip[id] = true
			continue
		case errors.As(err, &corrupt): // it is recorded as lost, so the next attempt leaves it out
			continue
		case errors.Is(err, gearfacts.ErrStale) && again < tries:
			again++
			continue
		case err != nil:
			return rep, fmt.Errorf("settle %d packs from number %d: %w", len(group), group[0].ID, err)
		}
		again = 0
		for _, p := range group {
			rep.Replaced++
			rep.ReplacedBytes += p.Size
		}
		for _, p := range written {
			rep.Written++
			rep.WrittenBytes += p.Size
		}
		if o.Progress != nil {
			o.Progress(rep)
		}
	}
}

// wasteful reports whether more than a quarter of a pack is dead.
func wasteful(p *gearfacts.Pack) bool {
	return p.LiveFiles == 0 || p.Bytes-p.LiveBytes > p.Bytes/4
}

// settled reports whether a pack is as it should be. A third of PackSize is enough, because a
// group may fill only a little more than half of a pack, and dense packs take a fifth less
// space than others.
func (s *Store) settled(p *gearfacts.Pack) bool {
	return p.Dense && !wasteful(p) && p.Size >= s.opts.PackSize/3
}

// nextGroup returns the first packs that are to be settled together. It ignores the packs
// in skip and packs that must be left alone for now.
func (s *Store) nextGroup(ctx context.Context, all bool, skip map[int64]bool) ([]gearfacts.Pack, error) {
	var group []gearfacts.Pack
	var live, after int64
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	must := false // a group of small dense packs waits for more
	for {
		page, err := s.facts.Packs(ctx, after, 1000)
		if err != nil {
			return nil, err
		}
		for i := range page {
			p := &page[i]
			after = p.ID
			if skip[p.ID] || p.NotBefore.After(now) || s.settled(p) {
				continue
			}
			if len(group) > 0 && live+p.LiveBytes > s.opts.PackSize/8*9 {
				if p.LiveBytes > live { // a small pack waits for more of its kind
					return []gearfacts.Pack{*p}, nil
				}
				return group, nil
			}
			group = append(group, *p)
			live += p.LiveBytes
			must = must || !p.Dense || wasteful(p)
			if live >= s.opts.PackSize/4*3 && (must || len(group) > 1) {
				return group, nil
			}
		}
		if len(page) == 0 {
			break
		}
	}
	if all && (must || len(group) > 1) {
		return group, nil
	}
	return s.emptyPacks(group), nil
}

// emptyPacks returns the packs from which nothing is needed. Replacing them takes no
// writing.
func (s *Store) emptyPacks(packs []gearfacts.Pack) []gearfacts.Pack {
	var out []gearfacts.Pack
	for _, p := range packs {
		if p.LiveFiles == 0 {
			out = append(out, p)
		}
	}
	return out
}

// busyError is the number of a pack with contents on which an unfinished conversion
// relies.
type busyError int64

func (e busyError) Error() string { return fmt.Sprintf("a conversion needs pack number %d", int64(e)) }

// settleGroup writes the live contents of packs into a new pack, which then replaces
// them.
func (s *Store) settleGroup(ctx context.Context, group []gearfacts.Pack) (written []gearfacts.NewPack, err error) {
	var files []gearfacts.File
	var names []gear.Name
	old := make([]int64, len(group))
	for i, p := range group {
		old[i] = p.ID
		in, err := s.facts.PackFiles(ctx, p.ID)
		if err != nil {
			return nil, err
		}
		for _, f := range in {
			names = append(names, f.Name)
			if f.Live {
				files = append(files, f)
			} else if s.claims.pinned(f.Name) { // its conversion has not ended
				return nil, busyError(p.ID)
			}
		}
	}
	id := s.newWriterID()
	recorded := false
	defer func() {
		if !recorded {
			err = errors.Join(err, s.facts.EndIntents(context.WithoutCancel(ctx), id))
		}
	}()
	if len(files) > 0 {
		if written, err = s.writeDense(ctx, id, files); err != nil {
			return nil, err
		}
		if err := s.readBack(ctx, written); err != nil {
			return nil, err
		}
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.move(ctx, gearfacts.Replacement{Writer: id, Packs: written, Old: old, Due: now.Add(s.opts.DeleteAfter)}, group); err != nil {
		return nil, err
	}
	recorded = true
	for _, n := range names {
		s.places.drop(n)
	}
	return written, nil
}

// writeDense writes contents into one pack.
func (s *Store) writeDense(ctx context.Context, writer string, files []gearfacts.File) ([]gearfacts.NewPack, error) {
	c, err := s.denseCodec(ctx, files)
	if err != nil {
		return nil, err
	}
	defer s.dense.Put(c.whole)
	// The encoders take as much memory as everything else. So the memory that was needed
	// before is freed first: samples, the encoders of the last pack, and what conversions
	// keep in pools. Freeing pools takes two collections.
	for range 2 {
		runtime.GC()
	}
	press := s.newPress(ctx, writer, c, semaphore.NewWeighted(settleBudget))
	err = s.eachStored(ctx, files, func(it *item) error {
		f := &gear.File{Name: it.name, Size: it.at.size}
		content := &packed{ctx: ctx, s: s, it: *it}
		if it.at.encoding == gear.Chunked {
			file := &File{s: s, name: it.name, at: it.at}
			var err error
			if f.Chunks, err = file.Chunks(ctx); err != nil {
				return err
			}
			content.file = file
		}
		return press.put(f, content)
	})
	if err != nil {
		press.fail(err)
	}
	packs, err := press.close()
	if err != nil {
		return nil, err
	}
	for i := range packs {
		packs[i].Dense = true
	}
	return packs, nil
}

// denseCodec trains a dictionary on the small contents.
func (s *Store) denseCodec(ctx context.Context, files []gearfacts.File) (*codec, error) {
	var small []gearfacts.File
	var total int64
	for _, f := range files {
		if f.Size < smallFile && f.Size >= packfile.Gram {
			small = append(small, f)
			total += f.Size
		}
	}
	// The samples are spread evenly over all small contents, so that the dictionary is as
	// good for the last contents as for the first.
	var chosen []gearfacts.File
	var taken, seen int64
	for _, f := range small {
		if seen += f.Size; total <= packfile.SampleBytes || taken*total <= packfile.SampleBytes*seen {
			chosen = append(chosen, f)
			taken += f.Size
		}
	}
	samples := make([][]byte, 0, len(chosen))
	all := make([]byte, 0, taken)
	err := s.eachStored(ctx, chosen, func(it *item) error {
		b := all[len(all):][:it.at.size:it.at.size]
		all = all[:len(all)+len(b)]
		_, err := (&packed{ctx: ctx, s: s, it: *it}).ReadAt(b, 0)
		samples = append(samples, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	dict := packfile.Train(all, samples, smallLevel)
	c := &codec{} // the encoders allocate their memory on first use
	if c.small, err = newEncoder(smallLevel, 2*packfile.DictSize, 1); err != nil {
		return nil, err
	}
	if dict != nil {
		c.dictFrame = c.small.EncodeAll(dict, nil)
		if c.small, err = newEncoder(smallLevel, 2*packfile.DictSize, 1, zstd.WithEncoderDict(dict)); err != nil {
			return nil, err
		}
		if c.middle, err = newEncoder(denseLevel, 2*packfile.DictSize, denseWorkers, zstd.WithEncoderDict(dict)); err != nil {
			return nil, err
		}
	}
	var ok bool
	if c.whole, ok = s.dense.Get().(*zstd.Encoder); !ok {
		c.whole, err = newEncoder(denseLevel, gear.LargeFile, denseWorkers)
	}
	return c, err
}

// eachStored reads the stored bytes of contents, reads neighbours together, and calls do
// with each in the order of files. It reads nothing of chunked contents.
func (s *Store) eachStored(ctx context.Context, files []gearfacts.File, do func(*item) error) error {
	for len(files) > 0 {
		var items []item
		var total int64
		for len(items) < len(files) && total < windowBytes {
			f := &files[len(items)]
			items = append(items, item{name: f.Name, at: placeOf(f), known: true})
			if gear.Encoding(f.Encoding) != gear.Chunked {
				total += f.Stored
			}
		}
		files = files[len(items):]
		var read []*item
		for i := range items {
			if items[i].at.encoding != gear.Chunked {
				read = append(read, &items[i])
			}
		}
		s.readAll(ctx, read)
		for i := range items {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(&items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// packed is a content that is stored in a pack.
type packed struct {
	ctx  context.Context // the context of the Settle call
	s    *Store
	it   item
	file *File // set for a chunked content, whose table was read
}

// Release does nothing, because nothing is held.
func (p *packed) Release() {}

// ReadAt reads the whole content into b or, if the content is chunked, the chunk at off.
func (p *packed) ReadAt(b []byte, off int64) (int, error) {
	if p.file != nil {
		f := *p.file // the table is shared; reading changes the other fields
		err := f.read(p.ctx, func() error {
			return f.eachChunk(p.ctx, off, off+int64(len(b)), func(_ int, chunk []byte) error {
				copy(b, chunk)
				return nil
			})
		})
		return len(b), err
	}
	if p.it.err == nil {
		out, err := p.s.decode(p.ctx, p.it.name, p.it.at, p.it.stored, b)
		if err == nil {
			return copy(b, out), nil
		}
	}
	// The content is read once more, to be sure before it is declared lost.
	f := File{s: p.s, name: p.it.name, at: p.it.at}
	out, err := f.Content(p.ctx)
	return copy(b, out), err
}
