package filestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/objstore"
)

// Bounds of what Stream reads ahead. Two windows are in RAM at once.
const (
	windowFiles = 1000
	windowBytes = 8 << 20
	// mergeGap in bytes: reading that much for nothing is cheaper than another
	// request, also with a disk.
	mergeGap = 64 << 10
)

// StreamOptions of Stream. The zero value works.
type StreamOptions struct {
	// Allow tells which contents the reader may have; the others are missing to
	// it. It is asked for many at a time. Default: all.
	Allow func(ctx context.Context, names []gear.Name) ([]bool, error)
}

// Stream writes contents as a Gear stream, in the order of names, each as it is
// stored: the reader verifies. Reads are planned ahead, so that neighbours in a
// pack cost one. An error means that the stream was cut off; a content that
// cannot be read is a record in the stream.
func (s *Store) Stream(ctx context.Context, w io.Writer, names []gear.Name, o *StreamOptions) error {
	if o == nil {
		o = &StreamOptions{}
	}
	ctx, cancel := context.WithCancel(ctx)
	windows := make(chan *window)
	go func() {
		defer close(windows)
		for rest := names; len(rest) > 0; {
			win := s.window(ctx, rest, o)
			select {
			case windows <- win:
			case <-ctx.Done():
				return
			}
			if win.err != nil {
				return
			}
			rest = rest[len(win.items):]
		}
	}()
	defer func() {
		cancel()
		for range windows { // until the goroutine has ended
		}
	}()
	out := gear.NewStreamWriter(w)
	for win := range windows {
		if win.err != nil {
			return fmt.Errorf("plan a batch: %w", win.err)
		}
		for i := range win.items {
			if err := s.send(ctx, out, &win.items[i]); err != nil {
				return fmt.Errorf("send a batch: %w", err)
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return out.End()
}

// item is a content on its way into a stream.
type item struct {
	name   gear.Name
	at     place
	known  bool
	stored []byte // nil of one that is too large to be read ahead
	err    error
}

// window is a run of the names asked for.
type window struct {
	items []item
	err   error
}

// window looks up and reads the first of names.
func (s *Store) window(ctx context.Context, names []gear.Name, o *StreamOptions) *window {
	w := &window{}
	names = names[:min(len(names), windowFiles)]
	allowed := slices.Repeat([]bool{true}, len(names))
	if o.Allow != nil {
		if allowed, w.err = o.Allow(ctx, names); w.err != nil {
			return w
		}
	}
	// What is not allowed is not even looked up, so that the time tells nothing.
	may := make([]gear.Name, 0, len(names))
	for i, n := range names {
		if allowed[i] {
			may = append(may, n)
		}
	}
	places, lost, err := s.findAll(ctx, may)
	if err != nil {
		w.err = err
		return w
	}
	var total int64
	for i, n := range names {
		it := item{name: n}
		if lost[n] && allowed[i] {
			it.known, it.err = true, ErrLost
		} else if p, ok := places[n]; ok && allowed[i] {
			it.at, it.known = p, true
			if p.encoding != gear.Chunked {
				total += p.stored
			}
		}
		w.items = append(w.items, it)
		if total >= windowBytes {
			break
		}
	}
	var read []*item
	for i := range w.items {
		if it := &w.items[i]; it.known && it.err == nil && it.at.encoding != gear.Chunked {
			read = append(read, it)
		}
	}
	s.readAll(ctx, read)
	return w
}

// findAll looks contents up; those that are not here are left out, and those that
// wait for being made again are lost.
func (s *Store) findAll(ctx context.Context, names []gear.Name) (places map[gear.Name]place, lost map[gear.Name]bool, err error) {
	places = make(map[gear.Name]place, len(names))
	ask := make([]gear.Name, 0, len(names))
	for _, n := range names {
		if p, ok := s.places.get(n); ok {
			places[n] = p
		} else {
			ask = append(ask, n)
		}
	}
	files, err := s.cat.GearFiles(ctx, ask)
	for i := range files {
		f := &files[i]
		if f.Pack == (gear.Name{}) {
			if lost == nil {
				lost = map[gear.Name]bool{}
			}
			lost[f.Name] = true
			continue
		}
		places[f.Name] = placeOf(f)
		s.places.put(f.Name, placeOf(f), 1)
	}
	return places, lost, err
}

// readAll reads the stored bytes of contents, neighbours together.
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

// send writes one record. Its error is that of the stream.
func (s *Store) send(ctx context.Context, out *gear.StreamWriter, it *item) error {
	if !it.known {
		return out.Missing(it.name)
	}
	if it.err == nil && it.stored != nil {
		var d *dictionary
		if it.at.encoding == gear.ZstdDict {
			d, it.err = s.dict(ctx, it.at.pack)
		}
		if it.err == nil {
			return sendStored(out, it.name, it.at, it.stored, d)
		}
	}
	if it.err != nil && !errors.Is(it.err, objstore.ErrNotExist) && !isDamage(it.err) {
		return s.sendFailure(ctx, out, it.name, it.err)
	}
	return s.sendAlone(ctx, out, it)
}

func (s *Store) sendFailure(ctx context.Context, out *gear.StreamWriter, name gear.Name, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !errors.Is(err, ErrLost) { // of which the log speaks already
		s.log.Error("read a content for a batch", "name", fmt.Sprintf("%x", name), "err", err)
	}
	return out.Failure(name, "the content cannot be read") // the rest is for the log
}

func sendStored(out *gear.StreamWriter, name gear.Name, at place, stored []byte, d *dictionary) error {
	var dict []byte
	if d != nil {
		dict = d.stored
	}
	f := gear.StreamFile{Name: name, Size: at.size, Encoding: at.encoding, Stored: at.stored}
	if err := out.Begin(f, at.pack, dict); err != nil {
		return err
	}
	_, err := out.Write(stored)
	return err
}

// sendAlone sends a content that is large, or whose pack has gone.
func (s *Store) sendAlone(ctx context.Context, out *gear.StreamWriter, it *item) error {
	f := &File{s: s, name: it.name, at: it.at}
	var stored []byte
	var d *dictionary
	var o objstore.Object
	err := f.read(ctx, func() (err error) {
		if f.at.encoding != gear.Chunked {
			if stored, err = s.readPack(ctx, f.at.pack, f.at.off, f.at.stored); err == nil && f.at.encoding == gear.ZstdDict {
				d, err = s.dict(ctx, f.at.pack)
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
		return s.sendFailure(ctx, out, it.name, err)
	}
	if f.at.encoding != gear.Chunked {
		return sendStored(out, it.name, f.at, stored, d)
	}
	defer o.Close()
	if err := out.Begin(gear.StreamFile{Name: it.name, Size: f.at.size, Encoding: gear.Chunked, Stored: f.at.stored}, gear.Name{}, nil); err != nil {
		return err
	}
	if _, err := out.Write(gear.AppendChunkTable(nil, f.chunks)); err != nil {
		return err
	}
	_, err = o.WriteTo(out)
	return err
}
