package gear

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Encoding is how the bytes of a content are stored and sent.
type Encoding uint8

// These are the encodings. Their numbers are part of the formats of packs and streams.
const (
	// Plain is the content itself.
	Plain Encoding = 0
	// Zstd is one zstd frame.
	Zstd Encoding = 1
	// ZstdDict is one zstd frame that needs a dictionary.
	ZstdDict Encoding = 2
	// Chunked is a sequence of chunks of ChunkSize bytes, each either a separate zstd
	// frame or plain, and a table of the chunks.
	Chunked Encoding = 3
)

const (
	// MaxFile is the size in bytes of the largest content: 1 TiB.
	MaxFile = 1 << 40
	// MaxDict is the size in bytes of the largest dictionary, both stored and
	// decompressed.
	MaxDict = 1 << 20
	// ChunkEntry is the length in bytes of an entry of a chunk table.
	ChunkEntry = 36
)

// ErrFormat is returned, wrapped, for bytes that do not have the format.
var ErrFormat = errors.New("malformed Gear data")

// CheckStored returns an error unless the stored form of a content of size bytes may have
// the encoding e and stored bytes.
func CheckStored(size int64, e Encoding, stored int64) error {
	ok := false
	switch e {
	case Plain:
		ok = 0 <= size && size < LargeFile && stored == size
	case Zstd, ZstdDict:
		ok = 0 < stored && stored < size && size < LargeFile
	case Chunked:
		if LargeFile <= size && size <= MaxFile {
			n := int64(ChunkCount(size))
			ok = n*(ChunkEntry+1) <= stored && stored <= n*ChunkEntry+size
		}
	}
	if !ok {
		return fmt.Errorf("content of %d bytes in encoding %d with %d bytes: %w", size, e, stored, ErrFormat)
	}
	return nil
}

// ChunkCount returns how many chunks a content of size bytes has.
func ChunkCount(size int64) int { return int((size + ChunkSize - 1) / ChunkSize) }

// ChunkLen returns the length in bytes of chunk i of a content of size bytes.
func ChunkLen(size int64, i int) int { return int(min(ChunkSize, size-int64(i)*ChunkSize)) }

// Chunk is an entry of a chunk table.
type Chunk struct {
	// Stored is how many bytes the stored chunk takes. For a plain chunk that is its
	// length.
	Stored uint32
	// Name is the SHA-256 of the chunk.
	Name Name
}

// AppendChunkTable appends the encoded table.
func AppendChunkTable(dst []byte, chunks []Chunk) []byte {
	for _, c := range chunks {
		dst = binary.LittleEndian.AppendUint32(dst, c.Stored)
		dst = append(dst, c.Name[:]...)
	}
	return dst
}

// ParseChunkTable reads the table of a content of size bytes. stored is the stored size
// of the content including the table.
func ParseChunkTable(table []byte, size, stored int64) ([]Chunk, error) {
	if err := CheckStored(size, Chunked, stored); err != nil {
		return nil, err
	}
	n := ChunkCount(size)
	if len(table) != n*ChunkEntry {
		return nil, fmt.Errorf("chunk table of %d bytes for %d chunks: %w", len(table), n, ErrFormat)
	}
	chunks := make([]Chunk, n)
	sum := int64(len(table))
	for i := range chunks {
		c := &chunks[i]
		c.Stored = binary.LittleEndian.Uint32(table)
		table = table[4+copy(c.Name[:], table[4:]):]
		if c.Stored == 0 || int64(c.Stored) > int64(ChunkLen(size, i)) {
			return nil, fmt.Errorf("chunk %d is stored in %d bytes: %w", i, c.Stored, ErrFormat)
		}
		sum += int64(c.Stored)
	}
	if sum != stored {
		return nil, fmt.Errorf("chunks of %d bytes in %d: %w", sum, stored, ErrFormat)
	}
	return chunks, nil
}

// FrameDecoder decodes frames with or without one dictionary. It may be used
// concurrently.
type FrameDecoder struct{ z *zstd.Decoder }

// NewFrameDecoder returns a decoder for frames that need the dictionary dict, given in
// its stored form, which is one zstd frame. If dict is nil, the decoder has no
// dictionary. A decoder with a dictionary takes about twice the dictionary's size.
func NewFrameDecoder(dict []byte) (*FrameDecoder, error) {
	opts := []zstd.DOption{
		// 0 allows as many concurrent decodings as there are processors.
		zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(2 * LargeFile), zstd.WithDecoderMaxMemory(LargeFile),
	}
	if dict != nil {
		raw, err := unpackDict(dict)
		if err != nil {
			return nil, err
		}
		opts = append(opts, zstd.WithDecoderDicts(raw))
	}
	z, err := zstd.NewReader(nil, opts...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return &FrameDecoder{z}, nil
}

func unpackDict(stored []byte) ([]byte, error) {
	if len(stored) > MaxDict {
		return nil, fmt.Errorf("dictionary of %d bytes: %w", len(stored), ErrFormat)
	}
	var h zstd.Header
	if err := h.Decode(stored); err != nil || !h.HasFCS || h.FrameContentSize > MaxDict {
		return nil, fmt.Errorf("dictionary is not a frame of at most %d bytes: %w", MaxDict, ErrFormat)
	}
	d, err := NewFrameDecoder(nil)
	if err != nil {
		return nil, err
	}
	return d.Decode(nil, stored, int(h.FrameContentSize))
}

// Decode decodes one frame whose content has exactly size bytes, at most LargeFile. It
// decodes into buf if buf is large enough. A frame with more bytes is an error, which is
// returned before more memory is used.
func (d *FrameDecoder) Decode(buf, frame []byte, size int) ([]byte, error) {
	if size < 0 || size > LargeFile {
		return nil, fmt.Errorf("frame of %d bytes: %w", size, ErrFormat)
	}
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	out, err := d.z.DecodeAll(frame, buf[:0:size])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if len(out) != size {
		return nil, fmt.Errorf("frame of %d bytes instead of %d: %w", len(out), size, ErrFormat)
	}
	return out, nil
}

// appendRead appends n bytes read from r to dst. It grows dst only as the bytes arrive.
func appendRead(dst []byte, r io.Reader, n int) ([]byte, error) {
	const step = 256 << 10
	for n > 0 {
		k := min(n, step)
		at := len(dst)
		dst = append(dst, make([]byte, k)...)
		if _, err := io.ReadFull(r, dst[at:]); err != nil {
			return nil, unexpected(err)
		}
		n -= k
	}
	return dst, nil
}

// unexpected turns the end of the input into an error if more must follow.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
