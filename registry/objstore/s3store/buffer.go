package s3store

import (
	"errors"
	"io"
	"sync"
)

const (
	// chunkSize is the step in which buffers grow, in bytes. A small upload takes a
	// single chunk.
	chunkSize = 256 << 10
	// flights is how many parts of an upload are sent at once. One connection does not
	// fill a fast network.
	flights = 2
)

// memory lends RAM to uploads. The zero value with a limit is ready.
type memory struct {
	limit  int64
	chunks sync.Pool // of *[chunkSize]byte

	mu   sync.Mutex
	lent int64 // what uploads may take, in bytes
}

// share decides how much an upload may take: parts of the size it wants, or the smallest
// parts if the limit is reached. The caller must call giveBack with lent.
func (m *memory) share(part int64) (size int64, parallel int, lent int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size, parallel = part, flights
	if m.lent+part*(flights+1) > m.limit {
		size, parallel = minPart, 1
	}
	lent = size * int64(parallel+1)
	m.lent += lent
	return size, parallel, lent
}

func (m *memory) giveBack(lent int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lent -= lent
}

// buffer holds the bytes of a part, in chunks of the memory. It is not safe for
// concurrent use.
type buffer struct {
	m      *memory
	chunks []*[chunkSize]byte
	size   int64
}

// add appends p.
func (b *buffer) add(p []byte) {
	for len(p) > 0 {
		at := b.size % chunkSize
		if at == 0 && b.size == int64(len(b.chunks))*chunkSize {
			c, ok := b.m.chunks.Get().(*[chunkSize]byte)
			if !ok {
				c = new([chunkSize]byte)
			}
			b.chunks = append(b.chunks, c)
		}
		n := copy(b.chunks[b.size/chunkSize][at:], p)
		b.size += int64(n)
		p = p[n:]
	}
}

// fill appends exactly n bytes of r.
func (b *buffer) fill(r io.Reader, n int64) error {
	piece := make([]byte, min(n, chunkSize))
	for n > 0 {
		m, err := io.ReadFull(r, piece[:min(n, int64(len(piece)))])
		b.add(piece[:m])
		n -= int64(m)
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cut drops what is beyond size.
func (b *buffer) cut(size int64) { b.size = min(b.size, size) }

// free gives the chunks back. The buffer is empty afterwards.
func (b *buffer) free() {
	for _, c := range b.chunks {
		b.m.chunks.Put(c)
	}
	b.chunks, b.size = nil, 0
}

// reader returns a reader of the whole buffer. Several may read at once while nobody
// adds.
func (b *buffer) reader() *bufferReader { return &bufferReader{b: b} }

// bufferReader is an [io.ReadSeeker], because a request that is repeated starts again at
// the beginning.
type bufferReader struct {
	b   *buffer
	off int64
}

func (r *bufferReader) Read(p []byte) (int, error) {
	if r.off >= r.b.size {
		return 0, io.EOF
	}
	chunk := r.b.chunks[r.off/chunkSize][r.off%chunkSize:]
	n := copy(p, chunk[:min(int64(len(chunk)), r.b.size-r.off)])
	r.off += int64(n)
	return n, nil
}

func (r *bufferReader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += r.off
	case io.SeekEnd:
		off += r.b.size
	}
	if off < 0 {
		return 0, errors.New("seek before the beginning of the buffer")
	}
	r.off = off
	return off, nil
}
