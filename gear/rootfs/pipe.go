package rootfs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// These are the sizes of the buffers of one Reader: 5.5 MiB if the layer is larger than
// that. The buffers are large because each hand-over may have to wake a thread; on two
// cores that cost a tenth of the time with buffers of 256 KiB. The first buffers are
// small because many layers are small.
const (
	outSize, outCount = 1 << 20, 4   // uncompressed
	inSize, inCount   = 512 << 10, 3 // compressed
	firstSize         = 32 << 10
)

// zstdWindow is the size in bytes of the largest window that the zstd tool can use.
const zstdWindow = 2 << 30

// chunk is a piece of one of the two streams. Two goroutines read it. The last one to
// finish returns it to the pool.
type chunk struct {
	data []byte // cap(data) is the size of the buffer
	in   int64  // for uncompressed data: number of compressed bytes read before it was full
	refs atomic.Int32
	home *pool
}

func (c *chunk) release() {
	if c.refs.Add(-1) == 0 {
		c.home.free <- c // never blocks: the channel has room for all chunks
	}
}

// pool is a bounded set of chunks, taken by one goroutine.
type pool struct {
	free chan *chunk
	size int
	next int // size in bytes of the next buffer to be allocated
	left int // number of chunks that may still be made
}

func newPool(size, count int) *pool {
	return &pool{free: make(chan *chunk, count), size: size, next: firstSize, left: count}
}

// get returns an empty chunk with two references, or nil once done is closed.
func (p *pool) get(done <-chan struct{}) *chunk {
	var c *chunk
	select {
	case c = <-p.free:
	default:
		if p.left > 0 {
			p.left--
			c = &chunk{home: p}
			break
		}
		select {
		case c = <-p.free:
		case <-done:
			return nil
		}
	}
	if cap(c.data) < p.next {
		c.data = make([]byte, p.next)
	}
	p.next = p.size
	c.data = c.data[:cap(c.data)]
	c.refs.Store(2)
	return c
}

// job is a chunk for the hashing goroutine.
type job struct {
	c   *chunk
	sum hash.Hash
}

// pipe runs concurrently with the consumer. inflate reads the source and fills chunks,
// which go to the consumer through out and to digest through jobs.
type pipe struct {
	opts *Options
	kind Compression
	out  chan *chunk
	jobs chan job
	outs *pool

	// inflate writes these fields. They may be read once out is closed.
	err        error // nil: the stream ended as it should
	size       int64 // uncompressed
	compressed int64

	// digest writes these fields. They may be read once hashed is closed.
	hashed       chan struct{}
	diffID, blob [sha256.Size]byte
}

func newPipe(kind Compression, opts *Options) *pipe {
	return &pipe{
		opts:   opts,
		kind:   kind,
		out:    make(chan *chunk, outCount),
		jobs:   make(chan job, outCount+inCount),
		outs:   newPool(outSize, outCount),
		hashed: make(chan struct{}),
	}
}

// digest hashes both streams.
func (p *pipe) digest(diff, compressed hash.Hash) {
	defer close(p.hashed)
	for j := range p.jobs {
		j.sum.Write(j.c.data)
		j.c.release()
	}
	diff.Sum(p.diffID[:0])
	compressed.Sum(p.blob[:0])
}

// inflate reads src to its end.
func (p *pipe) inflate(ctx context.Context, src io.Reader) {
	defer close(p.out)
	defer close(p.jobs)
	diff := sha256.New()
	if p.kind == Plain {
		go p.digest(diff, diff)
		p.err = p.fill(ctx, &source{r: src}, diff, func() int64 { return p.size })
		p.compressed = p.size
		return
	}
	sum := sha256.New()
	go p.digest(diff, sum)
	in := &tee{done: ctx.Done(), src: source{r: src}, jobs: p.jobs, sum: sum, pool: newPool(inSize, inCount)}
	p.err = p.decompress(ctx, in, diff)
	p.compressed = in.total
}

// decompress inflates all of in. Several members or frames may follow each other.
func (p *pipe) decompress(ctx context.Context, in *tee, diff hash.Hash) error {
	// flate has a faster path for bufio.Reader.
	br := bufio.NewReaderSize(in, 32<<10)
	var dec io.Reader
	var err error
	if p.kind == Gzip {
		dec, err = gzip.NewReader(br)
	} else {
		var z *zstd.Decoder
		z, err = zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(uint64(min(max(p.opts.MaxWindow, zstd.MinWindowSize), zstdWindow))))
		if err == nil {
			defer z.Close()
			dec = z
		}
	}
	if err == nil {
		err = p.fill(ctx, dec, diff, func() int64 { return in.total })
	}
	var limit *LimitError
	switch {
	case err == nil:
		return nil
	case in.src.err != nil && in.src.err != io.EOF:
		return in.src.err // the decompressor's version of this error says less
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &limit):
		return err
	// A block larger than the window of its frame gives this error, too, but only in
	// frames that were made to do so.
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return &LimitError{Limit: "max_window", Max: p.opts.MaxWindow}
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	case errors.Is(err, gzip.ErrHeader) && p.size > 0:
		err = errors.New("data that is not gzip follows the last member")
	}
	at := in.total - int64(len(in.rest)+br.Buffered())
	return &FormatError{Err: fmt.Errorf("%s at compressed byte %d: %w", p.kind, at, err)}
}

// fill reads dec to its end into chunks. compressed returns the number of compressed
// bytes read so far.
func (p *pipe) fill(ctx context.Context, dec io.Reader, diff hash.Hash, compressed func() int64) error {
	for {
		c := p.outs.get(ctx.Done())
		if c == nil {
			return context.Cause(ctx)
		}
		n, err := readFull(dec, c.data)
		if rest := p.opts.MaxBytes - p.size; int64(n) > rest {
			n, err = int(rest), &LimitError{Limit: "max_layer_bytes", Max: p.opts.MaxBytes}
		}
		p.size += int64(n)
		c.data, c.in = c.data[:n], compressed()
		if err == nil {
			err = p.opts.checkBytes(p.size, c.in)
		}
		p.jobs <- job{c, diff} // neither send blocks: the channels have room for all chunks
		p.out <- c
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// readFull fills b. It returns an error of r together with the bytes before it.
func readFull(r io.Reader, b []byte) (n int, err error) {
	for idle := 0; n < len(b) && err == nil; {
		var m int
		m, err = r.Read(b[n:])
		if n += m; m > 0 {
			idle = 0
		} else if idle++; idle > 100 && err == nil {
			err = io.ErrNoProgress
		}
	}
	return n, err
}

// source reads the caller's reader and records which errors came from it.
type source struct {
	r   io.Reader
	n   int64
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read layer at byte %d: %w", s.n, err)
	}
	s.err = err
	return n, err
}

// tee reads the compressed stream and sends it to be hashed.
type tee struct {
	done  <-chan struct{}
	src   source
	jobs  chan<- job
	sum   hash.Hash
	pool  *pool
	cur   *chunk
	rest  []byte // the part of cur that is still to be returned
	err   error  // follows rest
	total int64  // bytes read
}

func (t *tee) Read(b []byte) (int, error) {
	if len(t.rest) == 0 {
		if t.err != nil {
			return 0, t.err
		}
		if t.cur != nil {
			t.cur.release()
		}
		if t.cur = t.pool.get(t.done); t.cur == nil {
			t.err = context.Canceled
			return 0, t.err
		}
		var n int
		n, t.err = readFull(&t.src, t.cur.data)
		t.total += int64(n)
		t.cur.data = t.cur.data[:n]
		t.rest = t.cur.data
		t.jobs <- job{t.cur, t.sum}
		if n == 0 {
			return 0, t.err
		}
	}
	n := copy(b, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Compression is the detected compression of a layer.
type Compression uint8

// These are the compressions of layers. They are distinguished by the first bytes, as in
// container runtimes, because media types are often wrong.
const (
	Plain Compression = iota
	Gzip
	Zstd
)

// String returns the name used in media types, or "tar".
func (c Compression) String() string {
	return [...]string{"tar", "gzip", "zstd"}[c]
}

// headSize is how many bytes detect needs.
const headSize = 6

// detect determines the compression from the first bytes of a layer. It returns an error
// for compressions that only archives use, so that they are not mistaken for a broken
// tar.
func detect(head []byte) (Compression, error) {
	switch has := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }; {
	case has("\x1f\x8b\x08"):
		return Gzip, nil
	case has("\x28\xb5\x2f\xfd"):
		return Zstd, nil
	case len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18":
		return Zstd, nil // a skippable frame; pzstd begins with one
	case has("BZh"):
		return 0, errors.New("layer is compressed with bzip2; use gzip or zstd")
	case has("\xfd7zXZ\x00"):
		return 0, errors.New("layer is compressed with xz; use gzip or zstd")
	}
	return Plain, nil
}

// stream is the uncompressed stream that the consumer reads.
type stream struct {
	pipe  *pipe
	done  <-chan struct{}
	cause func() error // why done is closed
	cur   *chunk
	rest  []byte // the part of cur that is still to be returned
	pos   int64  // bytes given out
	in    int64  // number of compressed bytes read for what has been returned
	err   error  // follows rest
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	s.pos += int64(n)
	return n, nil
}

// next moves on to the next chunk.
func (s *stream) next() error {
	if s.err != nil {
		return s.err
	}
	if s.cur != nil {
		s.cur.release()
		s.cur = nil
	}
	select {
	case <-s.done: // this takes precedence over what has been read ahead
		s.err = s.cause()
		return s.err
	default:
	}
	select {
	case c, ok := <-s.pipe.out:
		if !ok {
			s.err = cmp.Or(s.pipe.err, io.EOF)
			return s.err
		}
		s.cur, s.rest, s.in = c, c.data, c.in
	case <-s.done:
		s.err = s.cause()
	}
	return s.err
}

// drain reads to the end.
func (s *stream) drain() error {
	for {
		s.pos += int64(len(s.rest))
		s.rest = nil
		if err := s.next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
