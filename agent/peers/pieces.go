package peers

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
)

// piece is what nodes trade: a file that has no chunks, or a chunk of a large file.
type piece struct {
	name  gear.Name
	chunk int32 // whole for a file without chunks
}

const (
	whole = -1
	// pieceEntry is the length in bytes of a piece in a request, and maxPieces how many a
	// request has at most.
	pieceEntry, maxPieces = 36, 4096
)

// piecesOf returns the pieces of a file.
func piecesOf(f *gear.File) []piece {
	if f.Size < gear.LargeFile {
		return []piece{{f.Name, whole}}
	}
	out := make([]piece, len(f.Chunks))
	for i := range out {
		out[i] = piece{f.Name, int32(i)}
	}
	return out
}

// of returns the size of a piece and its SHA-256. ok is false if the file has no such
// piece.
func (p piece) of(f *gear.File) (size int, sum gear.Name, ok bool) {
	switch {
	case f.Size < gear.LargeFile:
		return int(f.Size), f.Name, p.chunk == whole && f.Size >= 0
	case p.chunk >= 0 && int(p.chunk) < len(f.Chunks):
		return gear.ChunkLen(f.Size, int(p.chunk)), f.Chunks[p.chunk], true
	}
	return 0, sum, false
}

func appendPieces(dst []byte, list []piece) []byte {
	for _, p := range list {
		dst = append(dst, p.name[:]...)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(p.chunk))
	}
	return dst
}

// parsePieces is the inverse of appendPieces.
func parsePieces(b []byte) ([]piece, error) {
	if len(b) == 0 || len(b)%pieceEntry != 0 || len(b) > maxPieces*pieceEntry {
		return nil, fmt.Errorf("%d bytes are no list of at most %d pieces", len(b), maxPieces)
	}
	out := make([]piece, 0, len(b)/pieceEntry)
	for e := range slices.Chunk(b, pieceEntry) {
		p := piece{chunk: int32(binary.LittleEndian.Uint32(e[len(piece{}.name):]))}
		copy(p.name[:], e)
		out = append(out, p)
	}
	return out, nil
}

// encoding is how a piece is sent.
type encoding byte

const (
	missing encoding = iota // not here, or not for this reader
	plain
	compressed
	coming // not here yet, but being fetched; another frame of the piece follows
)

// frame is a piece as it is sent: its encoding, the number of its bytes in 4 bytes, and the
// bytes. A piece that is missing has none.
type frame struct {
	enc  encoding
	data []byte
}

const frameHeader = 5

func (f *frame) appendHeader(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, byte(f.enc)), uint32(len(f.data)))
}

// coders compress and decompress pieces. They are shared, and safe for concurrent use.
var coders = sync.OnceValues(func() (*coder, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	dec, err := gear.NewFrameDecoder(nil)
	return &coder{enc, dec}, err
})

type coder struct {
	enc *zstd.Encoder
	dec *gear.FrameDecoder
}

// minCompressed is the size in bytes below which a piece is sent as it is.
const minCompressed = 128

// frameOf returns a piece in the form in which it is sent.
func frameOf(b []byte) *frame {
	if c, err := coders(); err == nil && len(b) >= minCompressed {
		if z := c.enc.EncodeAll(b, nil); len(z) < len(b)-len(b)/16 {
			return &frame{compressed, slices.Clip(z)}
		}
	}
	return &frame{plain, b}
}

// errLie is returned, wrapped, for bytes that are not what was asked for.
var errLie = gear.ErrContent

// open returns the bytes of a piece of the given size and SHA-256. Errors: errLie.
func (f *frame) open(size int, sum gear.Name) ([]byte, error) {
	b := f.data
	if f.enc == compressed {
		c, err := coders()
		if err != nil {
			return nil, err
		}
		if b, err = c.dec.Decode(nil, f.data, size); err != nil {
			return nil, fmt.Errorf("%w: %w", errLie, err)
		}
	}
	if len(b) != size || sha256.Sum256(b) != sum {
		return nil, fmt.Errorf("piece of file with other bytes: %w", errLie)
	}
	return b, nil
}

// readFrame reads a frame of a piece of the given size. Errors about what was sent wrap
// errLie.
func readFrame(r io.Reader, size int) (*frame, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	f := &frame{enc: encoding(head[0])}
	n := int64(binary.LittleEndian.Uint32(head[1:]))
	switch {
	case (f.enc == missing || f.enc == coming) && n == 0:
		return f, nil
	case f.enc == plain && n == int64(size), f.enc == compressed && n < int64(size):
	default:
		return nil, fmt.Errorf("frame of encoding %d with %d bytes for %d: %w", f.enc, n, size, errLie)
	}
	f.data = make([]byte, n)
	if _, err := io.ReadFull(r, f.data); err != nil {
		return nil, err
	}
	return f, nil
}
