package chain

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/gear"
	"example.org/slipway/volume/block"
)

const (
	// batchBytes is how many bytes one Fetch asks for, as when an image is exported. An
	// image of 2 GB needs some thirty round trips.
	batchBytes = 64 << 20
	batchFiles = 4096
	// parallel is how many batches are fetched at a time. They hide each other's round
	// trips, and computing the sums keeps two cores busy.
	parallel = 4

	// piece is how many bytes of a content are read at a time, in whole blocks.
	piece = 256 << 10
	// gathered is how many bytes of adjacent small files are written at once.
	gathered = 1 << 20
	// hole is the shortest run of zeros, in whole pieces of a content, that is not
	// written.
	hole = 64 << 10
)

// content is a content of a plan and all places where it goes.
type content struct {
	file   gear.File
	places [][]block.Extent
}

// fill writes the plan of a step to its volume.
func (b *build) fill(ctx context.Context, st *step, v block.Volume) error {
	b.meter.volume(st.id)
	for _, z := range st.plan.Zeros {
		if err := v.Zero(z.Off, z.Len); err != nil {
			return err
		}
	}
	w := b.placer(v)
	for _, m := range st.plan.Meta {
		if err := errors.Join(ctx.Err(), w.put(m.Data, m.Off)); err != nil {
			return err
		}
		b.meter.add(int64(len(m.Data)))
	}
	if err := w.flush(); err != nil {
		return err
	}
	fetch, below := contents(st)
	if err := b.copyBelow(ctx, st, v, below); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, batch := range batches(fetch) {
		g.Go(func() error { return b.fetch(ctx, v, batch) })
	}
	return g.Wait()
}

// contents lists the contents of a plan once each, by their first place: the contents to
// fetch, and the contents that a volume below has.
func contents(st *step) (fetch, below []*content) {
	byName := make(map[gear.Name]*content, len(st.plan.Files))
	for i := range st.plan.Files {
		p := &st.plan.Files[i]
		if p.File.Size == 0 || len(p.Extents) == 0 {
			continue
		}
		if c, ok := byName[p.File.Name]; ok {
			c.places = append(c.places, p.Extents)
			continue
		}
		c := &content{p.File, [][]block.Extent{p.Extents}}
		byName[p.File.Name] = c
		if _, ok := st.below[p.File.Name]; ok {
			below = append(below, c)
		} else {
			fetch = append(fetch, c)
		}
	}
	slices.SortFunc(fetch, func(a, b *content) int { return cmp.Compare(a.places[0][0].Off, b.places[0][0].Off) })
	return fetch, below
}

// batches splits a list of contents.
func batches(list []*content) [][]*content {
	var out [][]*content
	var batch []*content
	size := int64(0)
	for _, c := range list {
		if len(batch) > 0 && (len(batch) == batchFiles || size+c.file.Size > batchBytes) {
			out, batch, size = append(out, batch), nil, 0
		}
		batch, size = append(batch, c), size+c.file.Size
	}
	if len(batch) > 0 {
		out = append(out, batch)
	}
	return out
}

// fetch fetches the contents of a batch and writes them to their places.
func (b *build) fetch(ctx context.Context, v block.Volume, batch []*content) error {
	files := make([]gear.File, len(batch))
	for i, c := range batch {
		files[i] = c.file
	}
	w := b.placer(v)
	err := b.files.Fetch(ctx, files, func(i int, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return w.content(batch[i], r)
	})
	if err != nil {
		return err
	}
	return w.flush()
}

// copyBelow copies contents to their places from complete volumes below.
func (b *build) copyBelow(ctx context.Context, st *step, v block.Volume, list []*content) (err error) {
	open := map[string]block.Volume{}
	defer func() {
		for _, v := range open {
			err = errors.Join(err, v.Close())
		}
	}()
	w := b.placer(v)
	for _, c := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		from := st.below[c.file.Name]
		if open[from.id] == nil {
			v, err := b.s.Open(ctx, from.id)
			if errors.Is(err, block.ErrNotFound) {
				return errRemoved
			}
			if err != nil {
				return err
			}
			open[from.id] = v
		}
		if err := w.content(c, newExtentReader(open[from.id], from.extents, c.file.Size)); err != nil {
			return fmt.Errorf("copy from volume %s: %w", from.id, err)
		}
	}
	return w.flush()
}

// newExtentReader returns a reader of size bytes in consecutive extents.
func newExtentReader(v io.ReaderAt, extents []block.Extent, size int64) io.Reader {
	list := make([]io.Reader, 0, len(extents))
	for _, e := range extents {
		n := min(e.Len, size)
		list = append(list, io.NewSectionReader(v, e.Off, n))
		size -= n
	}
	return io.MultiReader(list...)
}

// buffers lends buffers to placers.
var buffers = sync.Pool{New: func() any { return new([piece]byte) }}

var zeros [piece]byte

// placer writes pieces to a volume. One goroutine uses it.
type placer struct {
	v     block.Volume
	meter *meter
	run   []byte // gathered, from off on
	off   int64
}

func (b *build) placer(v block.Volume) *placer { return &placer{v: v, meter: &b.meter} }

// put writes whole blocks, perhaps together with the blocks that come next.
func (w *placer) put(p []byte, off int64) error {
	if off != w.off+int64(len(w.run)) || len(w.run)+len(p) > gathered {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(p) >= gathered/2 && len(w.run) == 0 {
		_, err := w.v.WriteAt(p, off)
		return err
	}
	if len(w.run) == 0 {
		w.off = off
	}
	w.run = append(w.run, p...)
	return nil
}

// flush writes what is gathered.
func (w *placer) flush() error {
	if len(w.run) == 0 {
		return nil
	}
	_, err := w.v.WriteAt(w.run, w.off)
	w.run = w.run[:0]
	return err
}

// content reads a content, verifies it and writes it to all its places. If the content is
// wrong, what was written of it is in a volume that will not be committed.
func (w *placer) content(c *content, r io.Reader) error {
	err := w.copy(c, r)
	if err != nil {
		return fmt.Errorf("content %x: %w", c.file.Name, err)
	}
	return nil
}

func (w *placer) copy(c *content, r io.Reader) error {
	buf := buffers.Get().(*[piece]byte)
	defer buffers.Put(buf)
	places := make([]cursor, len(c.places))
	for i, p := range c.places {
		places[i] = cursor{extents: p}
	}
	sum := sha256.New()
	for left := c.file.Size; left > 0; {
		n := int(min(left, piece))
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("it ends %d bytes early: %w", left, io.ErrUnexpectedEOF)
			}
			return err
		}
		sum.Write(buf[:n])
		left -= int64(n)
		whole := (n + block.BlockSize - 1) &^ (block.BlockSize - 1)
		clear(buf[n:whole])
		for i := range places {
			if err := w.place(&places[i], buf[:whole]); err != nil {
				return err
			}
		}
		w.meter.add(int64(n) * int64(len(places)))
	}
	var one [1]byte
	if n, err := io.ReadFull(r, one[:]); n > 0 {
		return fmt.Errorf("it is longer than its %d bytes", c.file.Size)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	if gear.Name(sum.Sum(nil)) != c.file.Name {
		return errors.New("its bytes do not match its name")
	}
	return nil
}

// place writes a piece of whole blocks to the next place of a content.
func (w *placer) place(at *cursor, p []byte) error {
	empty := len(p) >= hole && bytes.Equal(p, zeros[:len(p)])
	for len(p) > 0 {
		off, n := at.take(int64(len(p)))
		if n == 0 {
			return errors.New("the plan has no room for it")
		}
		var err error
		if empty {
			err = w.v.Zero(off, n)
		} else {
			err = w.put(p[:n], off)
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// cursor is the position in a content's extents up to which it is written.
type cursor struct {
	extents []block.Extent
	used    int64 // of the first
}

// take returns where the next n bytes go, and how many of them fit there; none beyond the
// end.
func (c *cursor) take(n int64) (off, k int64) {
	for len(c.extents) > 0 {
		e := c.extents[0]
		if k = min(n, e.Len-c.used); k > 0 {
			off = e.Off + c.used
			c.used += k
			return off, k
		}
		c.extents, c.used = c.extents[1:], 0
	}
	return 0, 0
}
