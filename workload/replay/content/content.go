// Package content makes bytes in place of what a trace does not hold: layers of images of which
// only pseudonyms are left. The bytes follow from a key, so everybody who replays the trace
// makes the same bytes, from any offset, without a table or a file.
package content

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// blockSize is the unit in which bytes are random, repeated or shared, in bytes. It
// is small enough for a deduplicating store to find shared blocks.
const blockSize = 4096

// sharedBlocks is how many different blocks the duplicates are drawn from.
const sharedBlocks = 1 << 16

// Maker makes content. The zero value makes random bytes.
type Maker struct {
	// Seed is mixed into all content: two runs with different seeds share nothing.
	Seed uint64
	// Compressible is the share of each block that a compressor can squeeze out, 0
	// to 1.
	Compressible float64
	// Duplicates is the share of blocks that other content has too, 0 to 1.
	Duplicates float64
}

// Check returns an error if a share is not between 0 and 1.
func (m Maker) Check() error {
	for _, v := range []float64{m.Compressible, m.Duplicates} {
		if math.IsNaN(v) || v < 0 || v > 1 {
			return errors.New("the shares of compressible and of duplicate content are from 0 to 1")
		}
	}
	return nil
}

// Key returns the key of the content that a name stands for: a digest, a pseudonym, an
// upload.
func Key(name string) uint64 {
	h := uint64(14695981039346656037) // FNV-1a, whose offset and prime these are
	for i := 0; i < len(name); i++ {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return mix(h)
}

// mix returns x mixed by the finalizer of SplitMix64: every bit of the result depends on
// every bit of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// share maps a hash to a number from 0 to below 1.
func share(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// block fills b, of blockSize bytes, with block i of a key's content.
func (m Maker) block(b []byte, key uint64, i int64) {
	h := mix(key ^ mix(m.Seed^mix(uint64(i))))
	if m.Duplicates > 0 && share(mix(h+1)) < m.Duplicates {
		h = mix(m.Seed ^ mix(h%sharedBlocks))
	}
	random := blockSize - int(m.Compressible*blockSize)&^7
	for o := 0; o < random; o += 8 {
		binary.LittleEndian.PutUint64(b[o:], mix(h+uint64(o)))
	}
	for o := random; o < blockSize; o += 8 {
		binary.LittleEndian.PutUint64(b[o:], h)
	}
}

// Reader returns a reader of the content of a key from off up to end, which are byte
// offsets. The reader is also an [io.Seeker] within these bounds, and not safe for
// concurrent use.
func (m Maker) Reader(key uint64, off, end int64) *Reader {
	return &Reader{maker: m, key: key, start: off, pos: off, end: max(off, end), have: -1}
}

// Reader makes content as it is read.
type Reader struct {
	maker           Maker
	key             uint64
	start, pos, end int64
	have            int64 // the block that is in buf; negative for none
	buf             [blockSize]byte
}

var _ io.ReadSeeker = (*Reader)(nil)

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (n int, err error) {
	if r.pos >= r.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.end-r.pos)]
	for n < len(p) {
		i, in := r.pos/blockSize, int(r.pos%blockSize)
		if in == 0 && len(p)-n >= blockSize {
			r.maker.block(p[n:n+blockSize], r.key, i)
			n, r.pos = n+blockSize, r.pos+blockSize
			continue
		}
		if r.have != i {
			r.maker.block(r.buf[:], r.key, i)
			r.have = i
		}
		c := copy(p[n:], r.buf[in:])
		n, r.pos = n+c, r.pos+int64(c)
	}
	return n, nil
}

// Seek implements [io.Seeker]; offsets count from the first byte that the reader
// was made for.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos - r.start
	case io.SeekEnd:
		offset += r.end - r.start
	}
	if offset < 0 {
		return 0, errors.New("seek before the content's begin")
	}
	r.pos = r.start + offset
	return offset, nil
}

// Digest returns the SHA-256 of size bytes of a key's content.
func (m Maker) Digest(key uint64, size int64) (sum [sha256.Size]byte) {
	h := sha256.New()
	buf := make([]byte, 64<<10)
	r := m.Reader(key, 0, size)
	for {
		n, err := r.Read(buf)
		if err != nil {
			break
		}
		h.Write(buf[:n])
	}
	h.Sum(sum[:0])
	return sum
}

// Pick chooses one of n by a key, evenly and independently of how [Maker] uses the key.
func Pick(key uint64, n int) int {
	if n < 2 {
		return 0
	}
	return int(mix(key^0x5bd1e9955bd1e995) % uint64(n))
}
