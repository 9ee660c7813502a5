package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"os"
	"sort"

	"example.org/slipway/volume/block"
)

// A page is the unit in which the map of a volume that is written is kept: a bit for
// each of 32,768 blocks, 128 MiB of the device, in 4 KiB. Pages without a bit take
// no memory. In files, words are little-endian.
const (
	pageBytes  = 4096
	pageWords  = pageBytes / 8
	pageBlocks = pageBytes * 8
)

type page [pageWords]uint64

// bitmap is the set of a volume's own blocks while it is written. Bits are set and never
// cleared.
type bitmap []*page

func newBitmap(blocks int64) bitmap { return make(bitmap, (blocks+pageBlocks-1)/pageBlocks) }

// run reports whether block b is in the set, and how many blocks from b on, up to end,
// have the same answer.
func (m bitmap) run(b, end int64) (n int64, in bool) {
	in = m.get(b)
	at := b
	for at < end {
		p := m[at/pageBlocks]
		if p == nil {
			if in {
				break
			}
			at = (at/pageBlocks + 1) * pageBlocks
			continue
		}
		w := p[at%pageBlocks/64] >> (at % 64)
		if in {
			w = ^w
		} // now the first 1 ends the run
		same := int64(bits.TrailingZeros64(w))
		if left := 64 - at%64; same >= left {
			at += left
			continue
		}
		at += same
		break
	}
	return min(at, end) - b, in
}

func (m bitmap) get(b int64) bool {
	p := m[b/pageBlocks]
	return p != nil && p[b%pageBlocks/64]>>(b%64)&1 != 0
}

// set adds blocks b up to, but not including, end to the set.
func (m bitmap) set(b, end int64) {
	for b < end {
		if m[b/pageBlocks] == nil {
			m[b/pageBlocks] = new(page)
		}
		n := min(64-b%64, end-b)
		m[b/pageBlocks][b%pageBlocks/64] |= (^uint64(0) >> (64 - n)) << (b % 64)
		b += n
	}
}

func (p *page) bytes() []byte {
	b := make([]byte, 0, pageBytes)
	for _, w := range p {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// load adds the bits that a file has from off on.
func (m bitmap) load(f *os.File, off int64) error {
	buf := make([]byte, pageBytes)
	for i := range m {
		n, err := f.ReadAt(buf, off+int64(i)*pageBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for w := range n / 8 {
			if v := binary.LittleEndian.Uint64(buf[w*8:]); v != 0 {
				if m[i] == nil {
					m[i] = new(page)
				}
				m[i][w] |= v
			}
		}
		if n < pageBytes {
			return nil // the rest was never written
		}
	}
	return nil
}

// stretch is n blocks from first on.
type stretch struct{ first, n int64 }

// stretches lists the blocks in the set that are below blocks.
func (m bitmap) stretches(blocks int64) []stretch {
	var list []stretch
	for b := int64(0); b < blocks; {
		n, in := m.run(b, blocks)
		if in {
			list = append(list, stretch{b, n})
		}
		b += n
	}
	return list
}

// runOf is like bitmap.run, for an ordered list of stretches.
func runOf(list []stretch, b, end int64) (n int64, in bool) {
	i := sort.Search(len(list), func(i int) bool { return list[i].first+list[i].n > b })
	switch {
	case i == len(list):
		return end - b, false
	case list[i].first <= b:
		return min(list[i].first+list[i].n, end) - b, true
	}
	return min(list[i].first, end) - b, false
}

// The file extents begins with a magic of 8 bytes, of which the last is the version. Then
// come, for each stretch, the number of blocks since the end of the stretch before and
// the number of its blocks, both as uvarint. The end is the CRC-32C of everything before
// it.
const extentsMagic = "SLVEXT\x00\x01"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeExtents(list []stretch) []byte {
	b := []byte(extentsMagic)
	end := int64(0)
	for _, x := range list {
		b = binary.AppendUvarint(b, uint64(x.first-end))
		b = binary.AppendUvarint(b, uint64(x.n))
		end = x.first + x.n
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var errExtents = errors.New("its list of extents is damaged")

// decodeExtents reads the list of a volume with the given number of blocks.
func decodeExtents(b []byte, blocks int64) ([]stretch, error) {
	n := len(b) - crc32.Size
	if n < len(extentsMagic) || string(b[:len(extentsMagic)]) != extentsMagic ||
		binary.LittleEndian.Uint32(b[n:]) != crc32.Checksum(b[:n], castagnoli) {
		return nil, errExtents
	}
	var list []stretch
	end := uint64(0)
	for b = b[len(extentsMagic):n]; len(b) > 0; {
		gap, k := binary.Uvarint(b)
		if k <= 0 {
			return nil, errExtents
		}
		length, l := binary.Uvarint(b[k:])
		left := uint64(blocks) - end
		if l <= 0 || length == 0 || gap > left || length > left-gap {
			return nil, errExtents
		}
		list = append(list, stretch{int64(end + gap), int64(length)})
		end += gap + length
		b = b[k+l:]
	}
	return list, nil
}

// blocksOf returns how many blocks stretches have.
func blocksOf(list []stretch) (n int64) {
	for _, x := range list {
		n += x.n
	}
	return n
}

// checkSize returns an error if a device cannot have that size.
func checkSize(size int64) error {
	if size <= 0 || size%block.BlockSize != 0 || size > maxSize {
		return fmt.Errorf("no volume has %d bytes", size)
	}
	return nil
}

// maxSize is the largest size of a device: a bitmap of 512 MiB, and the limit of ext4.
const maxSize = 16 << 40
