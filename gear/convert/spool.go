package convert

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"example.org/slipway/gear"
)

// Contents are kept in blocks of one size that are reused. So the number of blocks bounds
// the memory, whenever the garbage collector runs. A block is as large as a chunk. A file
// of at least that size begins at the start of a block, so that its chunks are its
// blocks.
const (
	blockSize   = gear.ChunkSize
	leastBlocks = 8
	// memoryFile is the maximum size in bytes of a file kept in memory.
	memoryFile    = 16 << 20
	defaultMemory = 128 << 20
)

// block is a piece of memory. Contents refer to it, and so does the spooler while it
// fills the block.
type block struct {
	data []byte
	refs atomic.Int32
}

type spooler struct {
	blocks int // the maximum number of blocks
	made   int
	free   chan *block // holds all of them
	dir    string
	cur    *block // the block being filled; its first used bytes are full
	used   int
	tick   func() // is called for every block read
}

func newSpooler(memory int64, dir string) *spooler {
	if memory <= 0 {
		memory = defaultMemory
	}
	n := int(max(memory/blockSize, leastBlocks))
	return &spooler{blocks: n, free: make(chan *block, n), dir: dir, tick: func() {}}
}

// inMemory returns the maximum size in bytes of a file kept in memory. The batch that is
// not handed over yet takes at most another quarter of the memory. So half of the memory
// is always free or about to be released.
func (s *spooler) inMemory() int64 { return min(memoryFile, int64(s.blocks)*blockSize/4) }

// get waits for a free block and returns it with one reference.
func (s *spooler) get(ctx context.Context) (*block, error) {
	s.tick()
	var b *block
	select {
	case b = <-s.free:
	default:
		if s.made < s.blocks {
			s.made++
			b = &block{data: make([]byte, blockSize)}
			break
		}
		select {
		case b = <-s.free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	b.refs.Store(1)
	return b, nil
}

func (s *spooler) put(b *block) {
	if b.refs.Add(-1) == 0 {
		s.free <- b // never blocks: the channel has room for all blocks
	}
}

func (s *spooler) close() {
	if s.cur != nil {
		s.put(s.cur)
		s.cur = nil
	}
}

// toMemory reads a file of size bytes; size is more than 0.
func (s *spooler) toMemory(ctx context.Context, r io.Reader, size int64) (*memContent, error) {
	if size >= blockSize {
		s.close()
	}
	c := &memContent{spool: s, size: size}
	for left := size; left > 0; {
		if s.cur == nil || s.used == blockSize {
			s.close()
			b, err := s.get(ctx)
			if err != nil {
				c.Release()
				return nil, err
			}
			s.cur, s.used = b, 0
		}
		if len(c.blocks) == 0 {
			c.off = s.used
		}
		s.cur.refs.Add(1)
		c.blocks = append(c.blocks, s.cur)
		n := int(min(left, int64(blockSize-s.used)))
		if _, err := io.ReadFull(r, s.cur.data[s.used:s.used+n]); err != nil {
			c.Release()
			return nil, noEOF(err)
		}
		s.used += n
		left -= int64(n)
	}
	return c, nil
}

// noEOF turns an end of a content before its full size into an ordinary error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// memContent is a content in memory. It has size bytes and begins at off in the first
// block.
type memContent struct {
	spool   *spooler
	blocks  []*block
	off     int
	size    int64
	release sync.Once
}

// ReadAt reads from memory.
func (c *memContent) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, errors.New("read at a negative offset")
	}
	if rest := max(c.size-off, 0); int64(len(p)) > rest {
		p, err = p[:rest], io.EOF
	}
	for at := int64(c.off) + off; n < len(p); {
		k := copy(p[n:], c.blocks[at/blockSize].data[at%blockSize:])
		n, at = n+k, at+int64(k)
	}
	return n, err
}

// Peek returns n bytes from off on without copying them. They are valid until c is
// released. Peek returns nil if they are in more than one block.
func (c *memContent) Peek(off, n int64) []byte {
	if off < 0 || n < 0 || n > c.size-off {
		return nil
	}
	at := int64(c.off) + off
	if at%blockSize+n > blockSize {
		return nil
	}
	return c.blocks[at/blockSize].data[at%blockSize:][:n:n]
}

// Release gives the blocks back.
func (c *memContent) Release() {
	c.release.Do(func() {
		for _, b := range c.blocks {
			c.spool.put(b)
		}
	})
}

// hash computes the names of the content and of its chunks.
func (c *memContent) hash(f *gear.File) {
	whole := sha256.New()
	off, left := c.off, c.size
	for _, b := range c.blocks {
		n := int(min(left, int64(blockSize-off)))
		part := b.data[off : off+n]
		whole.Write(part)
		if c.size >= gear.LargeFile {
			f.Chunks = append(f.Chunks, sha256.Sum256(part))
		}
		off, left = 0, left-int64(n)
	}
	whole.Sum(f.Name[:0])
}

// diskContent is a content in a file that has no name.
type diskContent struct{ *os.File }

// Release closes the file, which frees its space.
func (c diskContent) Release() { c.File.Close() }

// toDisk reads a file of f.Size bytes and computes its name. It hashes the file while
// reading it, because a layer may well consist of this one file. Once indexOnly returns
// true, if it is not nil, the file is not kept and there is no content.
func (s *spooler) toDisk(ctx context.Context, r io.Reader, f *gear.File, indexOnly func() bool) (_ Content, err error) {
	tmp, err := os.CreateTemp(s.dir, "slipway-spool-*")
	if err != nil {
		return nil, fmt.Errorf("spool file: %w", err)
	}
	defer func() {
		if err != nil {
			tmp.Close()
		}
	}()
	if err := os.Remove(tmp.Name()); err != nil {
		return nil, fmt.Errorf("spool file: %w", err)
	}
	type piece struct {
		b *block
		n int
	}
	pieces, done := make(chan piece, 2), make(chan struct{})
	go func() {
		defer close(done)
		whole := sha256.New()
		for p := range pieces {
			whole.Write(p.b.data[:p.n])
			if f.Size >= gear.LargeFile {
				f.Chunks = append(f.Chunks, sha256.Sum256(p.b.data[:p.n]))
			}
			s.put(p.b)
		}
		whole.Sum(f.Name[:0])
	}()
	defer func() {
		close(pieces)
		<-done
	}()
	keep := true
	for left := f.Size; left > 0; {
		b, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		n := int(min(left, blockSize))
		if _, err := io.ReadFull(r, b.data[:n]); err != nil {
			s.put(b)
			return nil, noEOF(err)
		}
		if keep = keep && (indexOnly == nil || !indexOnly()); keep {
			if _, err := tmp.Write(b.data[:n]); err != nil {
				s.put(b)
				return nil, fmt.Errorf("spool file: %w", err)
			}
		}
		pieces <- piece{b, n}
		left -= int64(n)
	}
	if !keep {
		return nil, tmp.Close()
	}
	return diskContent{tmp}, nil
}
