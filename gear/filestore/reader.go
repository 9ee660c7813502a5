package filestore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/hot"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// place says where a content is.
type place struct {
	size, off, stored int64
	pack              gear.Name
	encoding          gear.Encoding
}

func placeOf(f *gearfacts.File) place {
	return place{f.Size, f.Off, f.Stored, f.Pack, gear.Encoding(f.Encoding)}
}

// table returns where the chunk table of a chunked content is.
func (p place) table() (off, n int64) {
	n = int64(gear.ChunkCount(p.size)) * gear.ChunkEntry
	return p.off + p.stored - n, n
}

// dictionary is a pack's dictionary, in its stored form and ready for decoding.
type dictionary struct {
	stored  []byte
	decoder *gear.FrameDecoder
}

// tries is how often a content is looked up again if its pack has gone, or read again if
// it seems damaged, before the failure is believed.
const tries = 3

// find looks a content up. Errors: ErrNotFound, ErrLost.
func (s *Store) find(ctx context.Context, name gear.Name) (place, error) {
	if p, ok := s.places.get(name); ok {
		return p, nil
	}
	f, err := s.facts.File(ctx, name)
	if err != nil {
		return place{}, fmt.Errorf("content %x: %w", name, err)
	}
	if f.Pack == (gear.Name{}) {
		return place{}, fmt.Errorf("content %x: %w", name, ErrLost)
	}
	p := placeOf(&f)
	s.places.put(name, p)
	return p, nil
}

// File is a content to be read. It keeps nothing open. It may be used by one goroutine at
// a time.
type File struct {
	s      *Store
	name   gear.Name
	at     place
	chunks []gear.Chunk // once they were read
}

// Open finds a content. Errors: ErrNotFound, ErrLost.
func (s *Store) Open(ctx context.Context, name gear.Name) (*File, error) {
	p, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return &File{s: s, name: name, at: p}, nil
}

// Cached returns the verified content if it is in RAM, and nil otherwise. The caller must
// not change or keep it.
func (s *Store) Cached(name gear.Name) []byte {
	b, ok := s.cache.Get(name)
	if !ok {
		return nil
	}
	return b
}

// Size returns the size of the content in bytes.
func (f *File) Size() int64 { return f.at.size }

// read calls do until it succeeds. The place of the content may change between two calls.
// If do repeatedly fails because of what the pack holds, or because the medium does not give
// it back, read has the pack made again from parity. If that is impossible, and bytes differ
// from what was written, read marks the content as lost. A medium may be read again later.
func (f *File) read(ctx context.Context, do func() error) error {
	var err error
	var unreadable bool
	for range tries {
		if err = do(); err == nil {
			return nil
		}
		if !maybeLost(err) && !errors.Is(err, packfile.ErrBrokeOff) {
			return err
		}
		unreadable = parity.IsUnreadable(err)
		f.s.places.drop(f.name)
		p, err := f.s.find(ctx, f.name)
		if err != nil {
			return err
		}
		if p.pack != f.at.pack {
			f.chunks = nil
		}
		f.at = p
	}
	if errors.Is(err, packfile.ErrBrokeOff) {
		return &objstore.BusyError{Err: err}
	}
	switch repair := f.s.guard.Repaired(ctx, f.at.pack); {
	case repair == nil:
		f.s.forgetDicts(f.at.pack)
		f.chunks = nil
		if err = do(); err == nil || !maybeLost(err) {
			return err
		}
		unreadable = parity.IsUnreadable(err)
	case !errors.Is(repair, parity.ErrNoParity):
		return repair
	}
	if unreadable {
		return err
	}
	return f.s.damaged(ctx, f.name, f.at.pack, err)
}

// maybeLost reports whether an error of a read says that a pack may be lost.
func maybeLost(err error) bool {
	return parity.IsUnreadable(err) || errors.Is(err, objstore.ErrNotExist) || packfile.IsDamage(err)
}

// damaged records that a content is lost.
func (s *Store) damaged(ctx context.Context, name, pack gear.Name, found error) error {
	e := &CorruptError{Pack: hex.EncodeToString(pack[:]), Name: hex.EncodeToString(name[:]), Err: found}
	s.places.drop(name)
	s.log.Error("content is damaged", "name", e.Name, "pack", e.Pack, "err", found)
	ctx = context.WithoutCancel(ctx)
	err := s.facts.Lose(ctx, name, pack)
	if errors.Is(err, gearfacts.ErrNeeded) { // there is no layer to make it again from
		err = errors.Join(err, s.checks.Found(ctx, pack, found.Error()))
	} else if s.opts.OnCorrupt != nil {
		s.opts.OnCorrupt(e)
	}
	if err != nil {
		return errors.Join(e, fmt.Errorf("record that content %s is lost: %w", e.Name, err))
	}
	return e
}

// Content returns the verified content. It must be smaller than gear.LargeFile, and the
// caller must not change it. Errors: *CorruptError, ErrLost.
func (f *File) Content(ctx context.Context) ([]byte, error) {
	if f.at.encoding == gear.Chunked {
		return nil, fmt.Errorf("content of %d bytes is not read whole", f.at.size)
	}
	if b, ok := f.s.cache.Get(f.name); ok {
		return b, nil
	}
	var out []byte
	err := f.read(ctx, func() error {
		stored, err := f.s.readPack(ctx, f.at.pack, f.at.off, f.at.stored)
		if err == nil {
			out, err = f.s.decode(ctx, f.name, f.at, stored, nil)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	f.s.cache.Put(f.name, out)
	return out, nil
}

// readPack reads n bytes of a pack.
func (s *Store) readPack(ctx context.Context, pack gear.Name, off, n int64) ([]byte, error) {
	o, err := s.objs.Get(ctx, packKey(pack), off, n)
	if err != nil {
		return nil, fmt.Errorf("read pack: %w", err)
	}
	defer o.Close()
	if o.Info().Size < off+n { // checked before memory is allocated for it
		return nil, fmt.Errorf("%d bytes at %d of %d: %w", n, off, o.Info().Size, packfile.ErrShort)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(o, b); err != nil {
		return nil, fmt.Errorf("read pack: %w", packfile.Early(err))
	}
	return b, nil
}

// windowBytes is how many bytes of adjacent contents are read at a time.
const windowBytes = 8 << 20

// item is a content whose stored bytes are to be read.
type item struct {
	name   gear.Name
	at     place
	known  bool
	stored []byte
	err    error
}

// readAll reads the stored bytes of contents, and reads neighbours together.
func (s *Store) readAll(ctx context.Context, items []*item) {
	slices.SortFunc(items, func(a, b *item) int {
		return cmp.Or(slices.Compare(a.at.pack[:], b.at.pack[:]), cmp.Compare(a.at.off, b.at.off))
	})
	for len(items) > 0 {
		first := items[0].at
		end := first.off + first.stored
		n := 1
		for n < len(items) && items[n].at.pack == first.pack && items[n].at.off <= end+mergeGap {
			end = max(end, items[n].at.off+items[n].at.stored)
			n++
		}
		run := items[:n]
		items = items[n:]
		b, err := s.readPack(ctx, first.pack, first.off, end-first.off)
		for _, it := range run {
			if it.err = err; err == nil {
				off := it.at.off - first.off
				it.stored = b[off : off+it.at.stored : off+it.at.stored]
			}
		}
	}
}

// decode makes a content that is not chunked from its stored bytes, and verifies it. The
// result may be in buf, or be stored itself.
func (s *Store) decode(ctx context.Context, name gear.Name, p place, stored, buf []byte) (out []byte, err error) {
	switch p.encoding {
	case gear.Plain:
		out = stored
	case gear.Zstd:
		out, err = s.plain.Decode(buf, stored, int(p.size))
	case gear.ZstdDict:
		var d *dictionary
		if d, err = s.dict(ctx, p.pack); err == nil {
			out, err = d.decoder.Decode(buf, stored, int(p.size))
		}
	default:
		err = fmt.Errorf("encoding %d: %w", p.encoding, gear.ErrFormat)
	}
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(out) != name {
		return nil, gear.ErrContent
	}
	return out, nil
}

// dict returns a pack's dictionary, ready for decoding.
func (s *Store) dict(ctx context.Context, pack gear.Name) (*dictionary, error) {
	if d, ok := s.dicts.Get(pack); ok {
		return d, nil
	}
	stored, ok := s.storedDicts.Get(pack)
	if !ok {
		var err error
		if stored, err = s.readDict(ctx, pack); err != nil {
			return nil, err
		}
	}
	d := &dictionary{stored: stored}
	var err error
	if d.decoder, err = gear.NewFrameDecoder(stored); err != nil {
		return nil, err
	}
	s.dicts.Put(pack, d, 1)
	s.storedDicts.Put(pack, stored, int64(len(stored)))
	return d, nil
}

// storedDict returns a pack's dictionary in its stored form. The dictionary was decoded
// once, so it is sound.
func (s *Store) storedDict(ctx context.Context, pack gear.Name) ([]byte, error) {
	if stored, ok := s.storedDicts.Get(pack); ok {
		return stored, nil
	}
	d, err := s.dict(ctx, pack)
	if err != nil {
		return nil, err
	}
	// The dictionary may be in RAM only in the form that is ready for decoding.
	s.storedDicts.Put(pack, d.stored, int64(len(d.stored)))
	return d.stored, nil
}

func (s *Store) readDict(ctx context.Context, pack gear.Name) ([]byte, error) {
	header, err := s.readPack(ctx, pack, 0, packfile.HeaderSize)
	if err != nil {
		return nil, err
	}
	n, err := packfile.DictLen(header)
	if err != nil {
		return nil, err
	}
	return s.readPack(ctx, pack, packfile.HeaderSize, int64(n))
}

const (
	// dictsInRAM is how many packs' dictionaries are kept ready for decoding. Each takes
	// about 0.5 MB.
	dictsInRAM = 2 * hot.Shards
	// storedDictBytes is how many bytes of stored dictionaries are kept for streams. It
	// suffices for the dictionaries of 100 packs, which hold 6 GB of contents.
	storedDictBytes = 8 << 20
)

// Chunks returns the SHA-256 of the chunks of a content of gear.LargeFile bytes or more,
// and nil for a smaller content. Errors: *CorruptError, ErrLost.
func (f *File) Chunks(ctx context.Context) ([]gear.Name, error) {
	if f.at.encoding != gear.Chunked {
		return nil, nil
	}
	if err := f.read(ctx, func() error { return f.readTable(ctx) }); err != nil {
		return nil, err
	}
	names := make([]gear.Name, len(f.chunks))
	for i, c := range f.chunks {
		names[i] = c.Name
	}
	return names, nil
}

func (f *File) readTable(ctx context.Context) error {
	if f.chunks != nil {
		return nil
	}
	off, n := f.at.table()
	key := tableName(f.name, f.at.pack)
	raw, cached := f.s.cache.Get(key)
	if !cached {
		var err error
		if raw, err = f.s.readPack(ctx, f.at.pack, off, n); err != nil {
			return err
		}
	}
	chunks, err := gear.ParseChunkTable(raw, f.at.size, f.at.stored)
	if err != nil {
		return err
	}
	if !cached {
		f.s.cache.Put(key, raw)
	}
	f.chunks = chunks
	return nil
}

// tableName returns the name of a content's chunk table in the cache. It is not the name
// of a content, because it is made of two hashes.
func tableName(name, pack gear.Name) gear.Name {
	for i := range name {
		name[i] ^= ^pack[i]
	}
	return name
}

// WriteRange writes n bytes of the content from off to w, and returns how many it wrote.
// It writes each chunk once the chunk is verified. If n < 0, the range extends to the end
// of the content. A range beyond the end of the content is cut. Of a large content only
// the chunks that the range touches are read. Errors: *CorruptError, ErrLost.
func (f *File) WriteRange(ctx context.Context, w io.Writer, off, n int64) (int64, error) {
	if off < 0 {
		return 0, fmt.Errorf("offset %d is negative", off)
	}
	off = min(off, f.at.size)
	if n < 0 || n > f.at.size-off {
		n = f.at.size - off
	}
	if n == 0 {
		return 0, nil
	}
	if f.at.encoding != gear.Chunked {
		b, err := f.Content(ctx)
		if err != nil {
			return 0, err
		}
		k, err := w.Write(b[off : off+n])
		return int64(k), err
	}
	end, at := off+n, off
	err := f.read(ctx, func() error {
		return f.eachChunk(ctx, at, end, func(i int, chunk []byte) error {
			begin := int64(i) * gear.ChunkSize
			k, err := w.Write(chunk[at-begin : min(end-begin, int64(len(chunk)))])
			at += int64(k)
			return err
		})
	})
	return at - off, err
}

// ErrNoChunk is returned, wrapped, for chunks that a content does not have.
var ErrNoChunk = errors.New("the content has no such chunk")

// WriteChunks writes n chunks of a content of gear.LargeFile bytes or more, beginning
// with the chunk first, in their stored form. It writes the length of each chunk before
// them. A gear.ChunkReader reads the result. WriteChunks verifies nothing, because that
// would cost as much as sending stored chunks saves. A reader that gets wrong chunks
// requests the bytes through WriteRange, which notices the damage. begin is called with
// the number of bytes that will be written. Errors: ErrNoChunk, ErrLost; *CorruptError if
// the table is damaged.
func (f *File) WriteChunks(ctx context.Context, w io.Writer, first, n int, begin func(length int64)) error {
	if f.at.encoding != gear.Chunked || first < 0 || n < 1 || n > gear.ChunkCount(f.at.size)-first {
		return fmt.Errorf("%d from chunk %d on, of %d bytes: %w", n, first, f.at.size, ErrNoChunk)
	}
	var o objstore.Object
	var length int64
	err := f.read(ctx, func() (err error) {
		if err = f.readTable(ctx); err == nil {
			o, length, err = f.stored(ctx, first, n)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer o.Close()
	head := gear.AppendChunkLengths(make([]byte, 0, 4*n), f.chunks[first:first+n])
	begin(int64(len(head)) + length)
	if _, err := w.Write(head); err != nil {
		return err
	}
	if _, err := io.CopyN(w, o, length); err != nil {
		return fmt.Errorf("send %d chunks: %w", n, packfile.Early(err))
	}
	return nil
}

// stored opens n chunks in their stored form, beginning with the chunk first, and returns
// how many bytes they have.
func (f *File) stored(ctx context.Context, first, n int) (o objstore.Object, length int64, err error) {
	from := f.at.off
	for i, c := range f.chunks[:first+n] {
		if i < first {
			from += int64(c.Stored)
		} else {
			length += int64(c.Stored)
		}
	}
	if o, err = f.s.objs.Get(ctx, packKey(f.at.pack), from, length); err != nil {
		return nil, 0, fmt.Errorf("read pack: %w", err)
	}
	if o.Info().Size < from+length {
		return nil, 0, errors.Join(fmt.Errorf("%d bytes at %d of %d: %w", length, from, o.Info().Size, packfile.ErrShort), o.Close())
	}
	return o, length, nil
}

// eachChunk reads the chunks that hold the bytes from off to end, with one read of the
// pack, and calls do with each verified chunk. The chunk is valid during the call.
func (f *File) eachChunk(ctx context.Context, off, end int64, do func(i int, chunk []byte) error) error {
	if err := f.readTable(ctx); err != nil {
		return err
	}
	first, last := int(off/gear.ChunkSize), int((end-1)/gear.ChunkSize)
	o, _, err := f.stored(ctx, first, last-first+1)
	if err != nil {
		return err
	}
	defer o.Close()
	var in, out []byte
	for i := first; i <= last; i++ {
		c, size := f.chunks[i], gear.ChunkLen(f.at.size, i)
		if in = in[:0]; cap(in) < int(c.Stored) {
			in = make([]byte, gear.ChunkSize)
		}
		in = in[:c.Stored]
		if _, err := io.ReadFull(o, in); err != nil {
			return fmt.Errorf("read pack: %w", packfile.Early(err))
		}
		chunk := in
		if len(in) < size {
			if out, err = f.s.plain.Decode(out, in, size); err != nil {
				return err
			}
			chunk = out
		}
		if sha256.Sum256(chunk) != c.Name {
			return fmt.Errorf("chunk %d: %w", i, gear.ErrContent)
		}
		if err := do(i, chunk); err != nil {
			return err
		}
	}
	return nil
}
