package filestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// These constants bound what Stream does at the same time.
const (
	// planNames is how many contents are looked up together.
	planNames = gear.StreamRun
	// batchBytes is about how many bytes are read together and sent by one write. They
	// should stay in the processor's cache in between.
	batchBytes = 512 << 10
	// alongBytes is the stored size of the longest content that is read together with
	// others.
	alongBytes = batchBytes / 2
	// headRoom is the space in a window's buffer before the contents. It holds what the
	// stream says about them, so that both are one write.
	headRoom = 56 << 10
	// mergeGap is how many unneeded bytes may be read to save a request, if each range of
	// a pack is one request. Reading that many is cheaper than another request.
	mergeGap = 64 << 10
	// slowWindow is the time that reading a window may take. If it takes longer, the next
	// window is read while this one is sent. If the bytes are in RAM already, handing
	// them from one goroutine to another costs more than it saves.
	slowWindow = 4 * time.Millisecond
	// openPacks is the number of packs that a batch keeps open.
	openPacks = 8
)

// StreamOptions are the options of Stream. The zero value works.
type StreamOptions struct {
	// Allow reports which contents the reader may have. The others count as missing. It
	// is called with many names at a time. Default: all are allowed.
	Allow func(ctx context.Context, names []gear.Name) ([]bool, error)
}

// Stream writes contents as a Gear stream, in the order of names, each in its stored
// form. The reader verifies them. Neighbours in a pack are read and sent together. An
// error means that the stream was cut off. A content that cannot be read becomes a record
// in the stream.
func (s *Store) Stream(ctx context.Context, w io.Writer, names []gear.Name, o *StreamOptions) error {
	b := s.batches.take(s, w, names)
	defer s.batches.give(b)
	in, out := &b.in, &b.out
	if o != nil {
		in.allow = o.Allow
	}
	next := in.read(ctx)
	for next != nil {
		if next.err != nil {
			return fmt.Errorf("plan a batch: %w", next.err)
		}
		win := next
		var ahead chan *window
		if win.took > slowWindow {
			ahead = make(chan *window, 1)
			go func() { ahead <- in.read(ctx) }()
		}
		err := out.send(ctx, win)
		s.windows.give(win.buf)
		if ahead != nil {
			next = <-ahead
		} else if err == nil {
			next = in.read(ctx)
		}
		if err != nil {
			return fmt.Errorf("send a batch: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	out.out = out.enc.AppendEnd(out.out[:0])
	return out.flush(nil)
}

// window is a run of the requested names, with what is stored of them.
type window struct {
	items []entry
	buf   *[headRoom + batchBytes + alongBytes]byte
	took  time.Duration
	err   error
	// dicts has the dictionaries that contents in buf need.
	dicts [][]byte
}

// entry is a content on its way into a stream.
type entry struct {
	name gear.Name
	at   place
	how  sending
	pos  int // position of its bytes in the window's buffer
	dict int // index of the dictionary it needs, in the window's dicts; -1: none
}

// sending is how a content gets into a stream.
type sending uint8

const (
	asMissing sending = iota
	asUnknown         // not yet looked up
	asLost
	// alone: the content is sent alone, because it is large or could not be read with
	// others.
	alone
	// along: the content is sent with its neighbours in the window's buffer.
	along
)

// batchReader looks up and reads windows.
type batchReader struct {
	s     *Store
	allow func(ctx context.Context, names []gear.Name) ([]bool, error)
	// rest has the names that are not looked up yet. planned has the names that were
	// looked up.
	rest    []gear.Name
	planned []entry
	// plans has two buffers that are used in turn, because a window may still be sent
	// from one while the next window is made.
	plans  [2][]entry
	turn   int
	along  []int32    // indexes into planned, in the order of packs
	open   []openPack // the pack used last is at the end
	looked int        // names that were planned
	keys   []sortKey  // are reused by sortAlong
	packs  []gear.Name
	// bare has the packs whose dictionaries are not sent.
	bare        []gear.Name
	raw, packed []byte // are reused by recode
}

type openPack struct {
	id gear.Name
	o  objstore.ReadAtCloser
}

func (b *batchReader) close() {
	for _, p := range b.open {
		_ = p.o.Close() // it was only read
	}
}

// read makes the next window. It returns nil if there is none.
func (b *batchReader) read(ctx context.Context) *window {
	began := time.Now() // it measures the disk, so it does not use Options.Clock
	w := &window{}
	if len(b.planned) == 0 {
		if len(b.rest) == 0 {
			return nil
		}
		if w.err = b.plan(ctx); w.err != nil {
			return w
		}
	}
	pos, n := headRoom, 0
	b.along = b.along[:0]
	for n < len(b.planned) && pos < headRoom+batchBytes {
		it := &b.planned[n]
		n++
		if it.how == along {
			it.pos = pos
			pos += b.room(it)
			b.along = append(b.along, int32(n-1))
		}
	}
	w.items, b.planned = b.planned[:n], b.planned[n:]
	if len(b.along) > 0 {
		w.buf = b.s.windows.take()
		b.readAlong(ctx, w, w.buf[:pos])
		b.recode(ctx, w)
	}
	w.took = time.Since(began)
	return w
}

// plan looks up the first of the remaining names.
func (b *batchReader) plan(ctx context.Context) error {
	names := b.rest[:min(len(b.rest), planNames)]
	b.rest = b.rest[len(names):]
	var allowed []bool
	if b.allow != nil {
		var err error
		if allowed, err = b.allow(ctx, names); err != nil {
			return err
		}
	}
	b.turn = 1 - b.turn
	items := slices.Grow(b.plans[b.turn][:0], len(names))[:len(names)]
	b.plans[b.turn], b.planned = items, items
	for i, n := range names {
		items[i] = entry{name: n}
		// What is not allowed is not even looked up, so that the response time reveals
		// nothing.
		if allowed == nil || allowed[i] {
			items[i].how = asUnknown
		}
	}
	if b.s.places.locate(items) > 0 {
		if err := b.lookUp(ctx, items); err != nil {
			return err
		}
	}
	if len(b.rest) == 0 && b.looked == 0 {
		b.withoutDicts(ctx, items)
	}
	b.looked += len(items)
	return nil
}

// lookUp asks the catalogue for the places that are unknown.
func (b *batchReader) lookUp(ctx context.Context, items []entry) error {
	var names []gear.Name
	for i := range items {
		if items[i].how == asUnknown {
			names = append(names, items[i].name)
		}
	}
	files, err := b.s.facts.Files(ctx, names)
	if err != nil {
		return err
	}
	rows := make(map[gear.Name]*gearfacts.File, len(files))
	for i := range files {
		rows[files[i].Name] = &files[i]
	}
	for i := range items {
		it := &items[i]
		if it.how != asUnknown {
			continue
		}
		f := rows[it.name]
		switch {
		case f == nil:
			it.how = asMissing
		case f.Pack == (gear.Name{}):
			it.how = asLost
		default:
			it.found(placeOf(f))
			b.s.places.put(it.name, it.at) // in this order
		}
	}
	return nil
}

// found records where a content is.
func (it *entry) found(p place) {
	it.at, it.how = p, along
	if p.encoding == gear.Chunked || p.stored > alongBytes {
		it.how = alone
	}
}

// readAlong reads the contents that the window's buffer is to hold. A content that cannot
// be read is later sent alone, and sending it finds out why it cannot be read.
func (b *batchReader) readAlong(ctx context.Context, w *window, buf []byte) {
	b.sortAlong(w.items)
	for list := (alongside{w.items, b.along}); list.len() > 0; {
		pack, n, needs := list.at(0).at.pack, 0, false
		for n < list.len() && list.at(n).at.pack == pack {
			needs = needs || list.at(n).at.encoding == gear.ZstdDict && !b.isBare(list.at(n))
			n++
		}
		of := list.first(n)
		list = list.behind(n)
		if needs {
			d, err := b.s.storedDict(ctx, pack)
			if err != nil {
				of.leave()
				continue
			}
			w.dicts = append(w.dicts, d)
		}
		for i := range n {
			if of.at(i).dict = -1; of.at(i).at.encoding == gear.ZstdDict && needs {
				of.at(i).dict = len(w.dicts) - 1
			}
		}
		if b.s.opener != nil {
			b.readPlaces(ctx, pack, of, buf)
		} else {
			b.readRanges(ctx, pack, of, buf)
		}
	}
}

// sortAlong sorts what is read into the order of packs. It uses integer keys, because
// comparing the names of packs each time takes longer.
func (b *batchReader) sortAlong(items []entry) {
	b.keys, b.packs = b.keys[:0], b.packs[:0]
	last, sorted := 0, true
	for _, i := range b.along {
		at := &items[i].at
		if last >= len(b.packs) || b.packs[last] != at.pack {
			if last = slices.Index(b.packs, at.pack); last < 0 {
				last = len(b.packs)
				b.packs = append(b.packs, at.pack)
			}
		}
		key := sortKey{uint64(last)<<keyOffBits | uint64(at.off), i}
		sorted = sorted && (len(b.keys) == 0 || b.keys[len(b.keys)-1].at <= key.at)
		b.keys = append(b.keys, key)
	}
	if sorted {
		return
	}
	slices.SortFunc(b.keys, func(x, y sortKey) int { return cmp.Compare(x.at, y.at) })
	for k := range b.keys {
		b.along[k] = b.keys[k].i
	}
}

// keyOffBits is the number of bits of the offset in a sortKey.
const keyOffBits = 48

type sortKey struct {
	at uint64 // number of the pack and offset
	i  int32  // in the window's items
}

// alongside is some of a window's contents, in the order of packs.
type alongside struct {
	items []entry
	order []int32
}

func (l alongside) len() int               { return len(l.order) }
func (l alongside) at(i int) *entry        { return &l.items[l.order[i]] }
func (l alongside) first(n int) alongside  { return alongside{l.items, l.order[:n]} }
func (l alongside) behind(n int) alongside { return alongside{l.items, l.order[n:]} }

// leave leaves the contents to be sent alone.
func (l alongside) leave() {
	for i := range l.order {
		l.at(i).how = alone
	}
}

// adjacent returns how many of the first contents directly follow each other both in
// their pack and in the window, and how many bytes they have.
func (l alongside) adjacent() (count int, bytes int64) {
	first := l.at(0)
	for count, bytes = 1, first.at.stored; count < l.len(); count++ {
		it := l.at(count)
		if it.at.off != first.at.off+bytes || int64(it.pos) != int64(first.pos)+bytes {
			break
		}
		bytes += it.at.stored
	}
	return count, bytes
}

// readPlaces reads contents of one pack if a read does not cost a request.
func (b *batchReader) readPlaces(ctx context.Context, pack gear.Name, list alongside, buf []byte) {
	o, err := b.pack(ctx, pack)
	if err != nil {
		list.leave()
		return
	}
	for list.len() > 0 {
		n, length := list.adjacent()
		first := list.at(0)
		if _, err := o.ReadAt(buf[first.pos:first.pos+int(length)], first.at.off); err != nil {
			list.first(n).leave()
		}
		list = list.behind(n)
	}
}

// pack opens a pack, unless it is open.
func (b *batchReader) pack(ctx context.Context, id gear.Name) (io.ReaderAt, error) {
	for i := len(b.open) - 1; i >= 0; i-- {
		if p := b.open[i]; p.id == id {
			b.open = append(slices.Delete(b.open, i, i+1), p)
			return p.o, nil
		}
	}
	o, err := b.s.opener.OpenAt(ctx, packKey(id))
	if err != nil {
		return nil, err
	}
	if len(b.open) == openPacks {
		_ = b.open[0].o.Close()
		b.open = slices.Delete(b.open, 0, 1)
	}
	b.open = append(b.open, openPack{id, o})
	return o, nil
}

// readRanges reads contents of one pack with few requests.
func (b *batchReader) readRanges(ctx context.Context, pack gear.Name, list alongside, buf []byte) {
	for list.len() > 0 {
		end, n := list.at(0).at.off, 0
		for n < list.len() && list.at(n).at.off <= end+mergeGap {
			end = max(end, list.at(n).at.off+list.at(n).at.stored)
			n++
		}
		if err := b.readRange(ctx, pack, end, list.first(n), buf); err != nil {
			list.first(n).leave()
		}
		list = list.behind(n)
	}
}

// readRange reads contents, and the bytes between them, up to end.
func (b *batchReader) readRange(ctx context.Context, pack gear.Name, end int64, list alongside, buf []byte) error {
	off := list.at(0).at.off
	o, err := b.s.objs.Get(ctx, packKey(pack), off, end-off)
	if err != nil {
		return err
	}
	defer o.Close()
	for i := range list.len() {
		it := list.at(i)
		place := buf[it.pos : it.pos+int(it.at.stored)]
		if it.at.off < off { // it was requested twice, so it shares the bytes of the entry before
			copy(place, buf[list.at(i-1).pos:])
			continue
		}
		if _, err := io.CopyN(io.Discard, o, it.at.off-off); err != nil {
			return err
		}
		if _, err := io.ReadFull(o, place); err != nil {
			return err
		}
		off = it.at.off + it.at.stored
	}
	return nil
}

// batchWriter sends windows.
type batchWriter struct {
	s   *Store
	w   io.Writer
	enc gear.StreamEncoder
	out []byte // records that go before what is sent next
}

// flush sends the records in out, and then bytes.
func (b *batchWriter) flush(bytes []byte) error {
	for _, p := range [][]byte{b.out, bytes} {
		if len(p) == 0 {
			continue
		}
		if _, err := b.w.Write(p); err != nil {
			return err
		}
	}
	b.out = b.out[:0]
	return nil
}

// send sends a window. It returns an error if the stream fails.
func (b *batchWriter) send(ctx context.Context, w *window) error {
	for i := 0; i < len(w.items); {
		switch it := &w.items[i]; it.how {
		case asMissing:
			b.out = b.enc.AppendMissing(b.out, it.name)
			i++
		case asLost:
			b.fail(it.name, ErrLost)
			i++
		case alone:
			if err := b.flush(nil); err != nil {
				return err
			}
			if err := b.sendAlone(ctx, it); err != nil {
				return err
			}
			i++
		case along:
			n, err := b.sendRun(w, i)
			if err != nil {
				return err
			}
			i += n
		}
	}
	return b.flush(nil)
}

// sendRun sends, as one record, the contents from index i on up to the first that is not
// sent along.
func (b *batchWriter) sendRun(w *window, i int) (n int, err error) {
	items, held := w.items[i:], -1
	for ; n < len(items) && items[n].how == along; n++ {
		it := &items[n]
		if it.dict < 0 || it.dict == held {
			continue
		}
		if held = it.dict; b.enc.HasDict(it.at.pack) {
			continue
		}
		if n > 0 {
			break // a dictionary goes between two records
		}
		if b.out, err = b.enc.AppendDict(b.out, it.at.pack, w.dicts[held]); err != nil {
			return 0, err
		}
	}
	// Everything before these bytes in the buffer was sent already, so its space is free.
	start, end := items[0].pos, items[n-1].pos+int(items[n-1].at.stored)
	if head := len(b.out) + b.enc.ContentsLen(n); head <= start {
		before := append(w.buf[start-head:start-head:start], b.out...)
		b.out = b.out[:0]
		if _, err = b.enc.AppendContents(before, n, describe(items)); err == nil {
			_, err = b.w.Write(w.buf[start-head : end])
		}
		return n, err
	}
	if b.out, err = b.enc.AppendContents(b.out, n, describe(items)); err != nil {
		return 0, err
	}
	return n, b.flush(w.buf[start:end])
}

// describe returns a function that describes items for the stream.
func describe(items []entry) func(i int) gear.StreamFile {
	return func(i int) gear.StreamFile { return streamFile(items[i].name, &items[i].at) }
}

func streamFile(name gear.Name, at *place) gear.StreamFile {
	return gear.StreamFile{Name: name, Size: at.size, Encoding: at.encoding, Stored: at.stored, Dict: at.pack}
}

// fail records that a content cannot be sent.
func (b *batchWriter) fail(name gear.Name, err error) {
	if !errors.Is(err, ErrLost) { // the log mentions it already if it is lost
		b.s.log.Error("read a content for a batch", "name", fmt.Sprintf("%x", name), "err", err)
	}
	b.out = b.enc.AppendFailure(b.out, name, "the content cannot be read") // the rest is for the log
}

// sendAlone sends a content that is large, or whose pack has gone.
func (b *batchWriter) sendAlone(ctx context.Context, it *entry) error {
	s, f := b.s, &File{s: b.s, name: it.name, at: it.at}
	var stored []byte
	var d []byte
	var o objstore.Object
	err := f.read(ctx, func() (err error) {
		if f.at.encoding != gear.Chunked {
			if stored, err = s.readPack(ctx, f.at.pack, f.at.off, f.at.stored); err == nil && f.at.encoding == gear.ZstdDict {
				d, err = s.storedDict(ctx, f.at.pack)
			}
			return err
		}
		if err := f.readTable(ctx); err != nil {
			return err
		}
		_, n := f.at.table()
		o, err = s.objs.Get(ctx, packKey(f.at.pack), f.at.off, f.at.stored-n)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			b.fail(it.name, err)
		}
		return ctx.Err()
	}
	if o != nil {
		defer o.Close()
		stored = gear.AppendChunkTable(nil, f.chunks)
	}
	if d != nil && !b.enc.HasDict(f.at.pack) {
		if b.out, err = b.enc.AppendDict(b.out, f.at.pack, d); err != nil {
			return err
		}
	}
	one := func(int) gear.StreamFile { return streamFile(it.name, &f.at) }
	if b.out, err = b.enc.AppendContents(b.out, 1, one); err != nil {
		return err
	}
	if err := b.flush(stored); err != nil || o == nil {
		return err
	}
	_, err = o.WriteTo(b.w)
	return err
}
