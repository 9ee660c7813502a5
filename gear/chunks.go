package gear

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// AppendChunkLengths appends what chunks begin with when some of them are sent: how
// many bytes each takes.
func AppendChunkLengths(dst []byte, chunks []Chunk) []byte {
	for _, c := range chunks {
		dst = binary.LittleEndian.AppendUint32(dst, c.Stored)
	}
	return dst
}

// ChunkReader reads n chunks of a large content as they are sent: their stored
// lengths, 4 bytes each, and then the chunks as a pack has them. What it returns is
// as long as it should be, and not verified: the reader has the chunks' digests.
// Errors of what was sent wrap io.ErrUnexpectedEOF or, where a chunk is none,
// ErrFormat and ErrContent.
type ChunkReader struct {
	r       io.Reader
	size    int64 // of the whole content
	next    int   // chunk
	lengths []byte
	in, buf []byte
	out     []byte // of buf, what was not read yet
}

// NewChunkReader reads the lengths of n chunks from the first one of a content of
// size bytes.
func NewChunkReader(r io.Reader, size int64, first, n int) (*ChunkReader, error) {
	if size < LargeFile || size > MaxFile || first < 0 || n < 1 || n > ChunkCount(size)-first {
		return nil, fmt.Errorf("%d chunks from chunk %d of a content of %d bytes: %w", n, first, size, ErrFormat)
	}
	lengths, err := appendRead(nil, r, 4*n)
	if err != nil {
		return nil, fmt.Errorf("read the lengths of %d chunks: %w", n, err)
	}
	return &ChunkReader{r: r, size: size, next: first, lengths: lengths}, nil
}

// plainFrames decodes frames without a dictionary, for all readers of chunks.
var plainFrames = sync.OnceValues(func() (*FrameDecoder, error) { return NewFrameDecoder(nil) })

// Read implements io.Reader.
func (c *ChunkReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(c.out) == 0 {
		if len(c.lengths) == 0 {
			return 0, io.EOF
		}
		chunk, err := c.chunk(p)
		if errors.Is(err, ErrFormat) {
			err = fmt.Errorf("%w: %w", ErrContent, err)
		}
		if err != nil {
			return 0, fmt.Errorf("chunk %d: %w", c.next, err)
		}
		c.next++
		c.lengths = c.lengths[4:]
		if len(chunk) <= len(p) && &chunk[0] == &p[0] {
			return len(chunk), nil
		}
		c.out = chunk
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// chunk reads the next chunk, into p if it is long enough.
func (c *ChunkReader) chunk(p []byte) ([]byte, error) {
	stored, size := binary.LittleEndian.Uint32(c.lengths), ChunkLen(c.size, c.next)
	if stored == 0 || int64(stored) > int64(size) {
		return nil, fmt.Errorf("%d bytes are sent in %d: %w", size, stored, ErrFormat)
	}
	to := c.buf
	if len(p) >= size {
		to = p[:size]
	} else if cap(to) < size {
		c.buf = make([]byte, size)
		to = c.buf
	}
	to = to[:size]
	if int(stored) == size {
		_, err := io.ReadFull(c.r, to)
		return to, unexpected(err)
	}
	var err error
	if c.in, err = appendRead(c.in[:0], c.r, int(stored)); err != nil {
		return nil, err
	}
	z, err := plainFrames()
	if err != nil {
		return nil, err
	}
	return z.Decode(to, c.in, size)
}
