package gear

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// AppendChunkLengths appends the header of a run of chunks to be sent: how many bytes
// each chunk takes.
func AppendChunkLengths(dst []byte, chunks []Chunk) []byte {
	for _, c := range chunks {
		dst = binary.LittleEndian.AppendUint32(dst, c.Stored)
	}
	return dst
}

// ChunkReader reads n chunks of a large content as they are sent: first their stored
// lengths, 4 bytes each, and then the chunks as a pack stores them. The bytes that it
// returns have the right length but are not verified. The caller verifies them, because
// it has the chunks' digests. Errors about what was sent wrap io.ErrUnexpectedEOF or, if
// a chunk is invalid, ErrFormat and ErrContent.
type ChunkReader struct {
	r       io.Reader
	size    int64 // of the whole content
	next    int   // chunk
	lengths []byte
	in, buf []byte
	out     []byte // the part of buf that was not read yet
}

// NewChunkReader reads the lengths of n chunks, beginning with the chunk first, of a
// content of size bytes.
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

// plainFrames returns the decoder for frames without a dictionary that all chunk readers
// share.
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

// chunk reads the next chunk. It uses p as the buffer if p is long enough.
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
