package filestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/registry/catalog/gearfacts"
)

// These budgets bound the work in progress, in bytes before compression. The same number
// of bytes again may be held compressed. Work in progress is compressed and appended
// without waiting for another press.
const (
	// pressBudget is the budget of all presses of conversions together. It is at least
	// twice the largest piece, so that two workers always have something to do.
	pressBudget = 4 * gear.LargeFile
	// settleBudget is a separate budget for settling packs. Settling compresses one large
	// piece at a time.
	settleBudget = gear.LargeFile + gear.ChunkSize
)

// codec compresses pieces.
type codec struct {
	// whole is for contents below gear.LargeFile and for chunks. If they are not nil,
	// small is for small contents and middle for the longer small contents.
	whole, small, middle *zstd.Encoder
	// dictFrame is the dictionary of small and middle in its stored form, or nil.
	dictFrame []byte
}

// smallFile is the size in bytes below which a content is compressed with the dictionary,
// if there is one. A larger content gains little, and training on such contents costs
// much. smallFile must not be more than zstd's block of 128 KiB.
const smallFile = 128 << 10

// middleFile is the smallest size, in bytes, of a small content that is compressed with
// the best level. Before each content, that level copies the tables of the dictionary to
// its own tables. The tables have 34 MB, so this takes milliseconds.
const middleFile = 8 << 10

// newEncoder returns an encoder for pieces of up to window bytes, a power of two. It
// encodes up to workers pieces at a time. A larger window would only take more memory.
// The memory is the window and the level's tables for each worker: 34 MiB with the best
// level.
func newEncoder(level zstd.EncoderLevel, window, workers int, more ...zstd.EOption) (*zstd.Encoder, error) {
	// The encoder writes no checksum, because names and chunk digests are better
	// checksums.
	return zstd.NewWriter(nil, append(more, zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(workers))...)
}

// encode returns the stored form of a piece of a content of size bytes. The result is in
// buf, or is raw itself. Chunks are compressed without a dictionary, however short the
// last one is.
func (c *codec) encode(size int64, raw, buf []byte) ([]byte, gear.Encoding) {
	z, e := c.whole, gear.Zstd
	if c.small != nil && size < smallFile {
		if z = c.small; c.middle != nil && size >= middleFile {
			z = c.middle
		}
		if c.dictFrame != nil {
			e = gear.ZstdDict
		}
	}
	if len(raw) == 0 {
		return raw, gear.Plain
	}
	if out := z.EncodeAll(raw, buf[:0]); len(out) < len(raw) {
		return out, e
	}
	return raw, gear.Plain
}

// piece is a content, or a chunk of one, on its way through a press.
type piece struct {
	file    *gear.File
	content *held
	chunk   int // of a large content

	size          int64
	encoding      gear.Encoding
	raw, buf, out []byte // raw and buf are from the store's buffers
	err           error
	done          chan struct{}
}

// inMemory is a content in memory whose pieces can be used without copying them.
type inMemory interface {
	// Peek returns n bytes from off on, or nil if they are not contiguous in memory.
	Peek(off, n int64) []byte
}

// held is a content that is released when nobody holds it any more.
type held struct {
	convert.Content
	holders atomic.Int32
}

func (h *held) drop() {
	if h.holders.Add(-1) == 0 {
		h.Release()
	}
}

// press compresses contents with several workers and appends them to packs in the order
// in which they came.
type press struct {
	s      *Store
	writer string
	codec  *codec
	roll   bool // begin a new pack when one is full

	ctx    context.Context
	cancel context.CancelFunc
	budget *semaphore.Weighted
	work   chan *piece // to the workers
	order  chan *piece // to the goroutine that appends
	wg     sync.WaitGroup

	failed atomic.Pointer[error]
	// packs has the finished packs, and pack is the current one. They belong to the
	// appender, and after close to the caller.
	packs []gearfacts.NewPack
	pack  *packWriter
	// closed says that close was called. intended says that a pack may have been
	// announced.
	closed, intended bool
	// start and chunks describe the current large content.
	start  int64
	chunks []gear.Chunk
}

func (s *Store) newPress(ctx context.Context, writer string, c *codec, budget *semaphore.Weighted) *press {
	p := &press{s: s, writer: writer, codec: c, budget: budget,
		work: make(chan *piece), order: make(chan *piece, 1024)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	for range s.opts.Workers {
		p.wg.Go(p.compress)
	}
	p.wg.Go(p.appendAll)
	return p
}

// put hands a content over. It returns an earlier failure, if there was one.
func (p *press) put(f *gear.File, c convert.Content) error {
	h := &held{Content: c}
	h.holders.Store(1)
	defer h.drop()
	if f.Size < gear.LargeFile {
		return p.send(&piece{file: f, content: h}, f.Size)
	}
	n := gear.ChunkCount(f.Size)
	if len(f.Chunks) != n || f.Size > gear.MaxFile {
		return fmt.Errorf("content %x of %d bytes has %d chunks", f.Name, f.Size, len(f.Chunks))
	}
	for i := range n {
		if err := p.send(&piece{file: f, content: h, chunk: i}, int64(gear.ChunkLen(f.Size, i))); err != nil {
			return err
		}
	}
	return nil
}

// send hands a piece over. The piece takes size bytes of the budget.
func (p *press) send(x *piece, size int64) error {
	if err := p.failure(); err != nil {
		return err
	}
	if err := p.budget.Acquire(p.ctx, size); err != nil {
		if failed := p.failure(); failed != nil {
			return failed
		}
		return err
	}
	x.size = size
	x.done = make(chan struct{})
	x.content.holders.Add(1)
	p.order <- x // the appender takes all pieces, whatever fails
	p.work <- x
	return nil
}

func (p *press) failure() error {
	if e := p.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// fail records the first failure and stops the other work.
func (p *press) fail(err error) {
	if p.failed.CompareAndSwap(nil, &err) {
		p.cancel()
	}
}

// compress is a worker.
func (p *press) compress() {
	for x := range p.work {
		if raw, err := p.read(x); err != nil {
			x.err = fmt.Errorf("read content %x: %w", x.file.Name, err)
		} else {
			x.buf = p.s.buffers.Get(x.size)
			x.out, x.encoding = p.codec.encode(x.file.Size, raw, x.buf)
			if x.encoding != gear.Plain {
				x.buf = x.out
			}
		}
		close(x.done)
	}
}

// read returns the bytes of a piece. They stay valid until its content is released.
func (p *press) read(x *piece) ([]byte, error) {
	off := int64(x.chunk) * gear.ChunkSize
	if m, ok := x.content.Content.(inMemory); ok {
		if raw := m.Peek(off, x.size); raw != nil {
			return raw, nil
		}
	}
	x.raw = p.s.buffers.Get(x.size)
	n, err := x.content.ReadAt(x.raw, off)
	if n == len(x.raw) {
		err = nil
	}
	return x.raw, err
}

// appendAll writes the pieces in order. After a failure it continues to receive pieces,
// so that nobody waits for it.
func (p *press) appendAll() {
	for x := range p.order {
		<-x.done
		err := x.err
		if err == nil && p.failure() == nil {
			err = p.append(x)
		}
		if err != nil {
			p.fail(err)
		}
		x.content.drop()
		p.budget.Release(x.size)
		p.s.buffers.Put(x.raw)
		p.s.buffers.Put(x.buf)
	}
}

// append writes a piece to the pack.
func (p *press) append(x *piece) error {
	if p.pack == nil {
		pack, err := p.s.newPack(p.ctx, p.codec.dictFrame)
		if err != nil {
			return err
		}
		p.pack = pack
	}
	if x.chunk == 0 {
		p.start, p.chunks = p.pack.off, p.chunks[:0]
	}
	if err := p.pack.write(x.out); err != nil {
		return err
	}
	encoding := x.encoding
	if x.file.Size >= gear.LargeFile {
		p.chunks = append(p.chunks, gear.Chunk{Stored: uint32(len(x.out)), Name: x.file.Chunks[x.chunk]})
		if x.chunk < len(x.file.Chunks)-1 {
			return nil
		}
		if err := p.pack.write(gear.AppendChunkTable(nil, p.chunks)); err != nil {
			return err
		}
		encoding = gear.Chunked
	}
	if err := p.pack.add(x.file.Name, x.file.Size, encoding, p.start); err != nil {
		return err
	}
	if p.roll && p.pack.full() {
		return p.finish()
	}
	return nil
}

// finish ends the current pack, if there is one.
func (p *press) finish() error {
	if p.pack == nil {
		return nil
	}
	p.intended = true
	pack, err := p.pack.finish(p.ctx, p.writer)
	if p.pack = nil; err != nil {
		return err
	}
	p.packs = append(p.packs, pack)
	return nil
}

// close waits for the work in progress, ends the last pack and returns all packs, or the
// first failure. Finished packs stay stored.
func (p *press) close() ([]gearfacts.NewPack, error) {
	p.closed = true
	close(p.work)
	close(p.order)
	p.wg.Wait()
	if p.failure() == nil {
		if err := p.finish(); err != nil {
			p.fail(err)
		}
	}
	if p.pack != nil {
		p.pack.cancel(p.ctx)
		p.pack = nil
	}
	p.cancel()
	return p.packs, p.failure()
}
