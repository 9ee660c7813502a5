package gear

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// streamMagic begins a stream; its last byte is the version.
const streamMagic = "SLGSTRM\x01"

// StreamSlots is the number of dictionaries that a stream has at the same time.
const StreamSlots = 16

// maxFailure is the maximum length in bytes of the text of a failure.
const maxFailure = 1 << 10

// These are the types of records.
const (
	recordDict     = 1
	recordContents = 2
	recordMissing  = 3
	recordFailure  = 4
	recordEnd      = 5
)

// StreamRun is the maximum number of contents in a record.
const StreamRun = 1024

// runEntry is the length in bytes of a content's entry in a record: name, size,
// encoding, slot, stored length.
const runEntry = 32 + 8 + 1 + 1 + 8

// StreamItem is one answer of a stream.
type StreamItem struct {
	Name Name
	// Missing says that there is no such content, or that the reader may not have it.
	Missing bool
	// Failure, if not empty, says why the content could not be sent.
	Failure string
	// Size is the size of the content in bytes.
	Size int64
	// Chunks has the SHA-256 of each chunk of a content of LargeFile bytes or more, as
	// the sender states them. A reader that has the layer's index compares them.
	Chunks []Name

	s      *StreamReader
	small  []byte
	chunks []Chunk
}

// StreamReader reads a stream and verifies the contents. It holds at most one content, or
// chunk, and StreamSlots dictionaries. It may be used by one goroutine.
type StreamReader struct {
	r     *bufio.Reader
	begun bool
	done  bool
	count uint64
	plain *FrameDecoder
	dicts [StreamSlots]*FrameDecoder
	item  *StreamItem
	// run has the entries of the current record whose contents come next.
	run []byte
	// in and out are reused: what Next returned is valid until the next call.
	in, out []byte
	left    int64 // unread bytes of the current item's chunks
}

// NewStreamReader returns a reader of the stream.
func NewStreamReader(r io.Reader) *StreamReader {
	return &StreamReader{r: bufio.NewReaderSize(r, 64<<10)}
}

// Next returns the next answer, in the order of the request. A content smaller than
// LargeFile is already verified; WriteTo verifies a larger one. The item is valid until
// the next call. After the last item, Next returns io.EOF. It returns io.ErrUnexpectedEOF
// if the stream is cut off, ErrFormat if it is malformed, and ErrContent if a content
// does not match its name.
func (s *StreamReader) Next() (*StreamItem, error) {
	if s.done {
		return nil, io.EOF
	}
	if s.left > 0 { // the caller did not read the rest of the content
		n, err := io.CopyN(io.Discard, s.r, s.left)
		if s.left -= n; err != nil {
			return nil, unexpected(err)
		}
	}
	if !s.begun {
		var magic [len(streamMagic)]byte
		if _, err := io.ReadFull(s.r, magic[:]); err != nil {
			return nil, unexpected(err)
		}
		if string(magic[:]) != streamMagic {
			return nil, fmt.Errorf("not a Gear stream of version 1: %w", ErrFormat)
		}
		s.begun = true
	}
	if len(s.run) > 0 {
		return s.content()
	}
	for range StreamSlots + 1 {
		kind, err := s.r.ReadByte()
		if err != nil {
			return nil, unexpected(err)
		}
		if kind != recordDict {
			return s.record(kind)
		}
		if err := s.readDict(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("a stream of more than %d dictionaries for one record: %w", StreamSlots, ErrFormat)
}

func (s *StreamReader) record(kind byte) (*StreamItem, error) {
	if kind == recordEnd {
		b, err := s.fixed(8)
		if err != nil {
			return nil, err
		}
		if n := binary.LittleEndian.Uint64(b); n != s.count {
			return nil, fmt.Errorf("stream of %d answers ends after %d: %w", n, s.count, ErrFormat)
		}
		s.done = true
		return nil, io.EOF
	}
	if kind == recordContents {
		if err := s.readRun(); err != nil {
			return nil, err
		}
		return s.content()
	}
	s.count++
	it := &StreamItem{s: s}
	s.item = it
	var err error
	switch kind {
	case recordMissing:
		it.Missing = true
		err = s.readName(it)
	case recordFailure:
		if err = s.readName(it); err == nil {
			it.Failure, err = s.readFailure()
		}
	default:
		err = fmt.Errorf("stream record of type %d: %w", kind, ErrFormat)
	}
	if err != nil {
		return nil, err
	}
	return it, nil
}

// readRun reads the entries of a record of contents.
func (s *StreamReader) readRun() error {
	b, err := s.fixed(2)
	if err != nil {
		return err
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n == 0 || n > StreamRun {
		return fmt.Errorf("stream record of %d contents: %w", n, ErrFormat)
	}
	if b, err = s.fixed(n * runEntry); err != nil {
		return err
	}
	s.run = append(s.run[:0], b...)
	return nil
}

// content reads the next content of the current record.
func (s *StreamReader) content() (*StreamItem, error) {
	s.count++
	it := &StreamItem{s: s}
	s.item = it
	entry := s.run[:runEntry]
	s.run = s.run[runEntry:]
	if err := s.readFile(it, entry); err != nil {
		s.run = nil
		return nil, err
	}
	return it, nil
}

// fixed reads n bytes. n is at most the size of the reader's buffer.
func (s *StreamReader) fixed(n int) ([]byte, error) {
	b, err := s.r.Peek(n)
	if err != nil {
		return nil, unexpected(err)
	}
	_, err = s.r.Discard(n)
	return b, err
}

func (s *StreamReader) readName(it *StreamItem) error {
	b, err := s.fixed(len(it.Name))
	copy(it.Name[:], b)
	return err
}

func (s *StreamReader) readFailure() (string, error) {
	b, err := s.fixed(2)
	if err != nil {
		return "", err
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n > maxFailure {
		return "", fmt.Errorf("failure of %d bytes: %w", n, ErrFormat)
	}
	b, err = s.fixed(n)
	if n == 0 {
		return "unknown", err
	}
	return string(b), err
}

func (s *StreamReader) readDict() error {
	b, err := s.fixed(5)
	if err != nil {
		return err
	}
	slot, n := int(b[0]), binary.LittleEndian.Uint32(b[1:])
	if slot >= StreamSlots || n == 0 || n > MaxDict {
		return fmt.Errorf("dictionary %d of %d bytes: %w", slot, n, ErrFormat)
	}
	dict, err := appendRead(nil, s.r, int(n))
	if err != nil {
		return err
	}
	s.dicts[slot], err = NewFrameDecoder(dict)
	return err
}

func (s *StreamReader) readFile(it *StreamItem, b []byte) error {
	b = b[copy(it.Name[:], b):]
	size, stored := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[10:])
	encoding, slot := Encoding(b[8]), int(b[9])
	if size > MaxFile || stored > 2*MaxFile {
		return fmt.Errorf("content of %d bytes in %d: %w", size, stored, ErrFormat)
	}
	it.Size = int64(size)
	if err := CheckStored(it.Size, encoding, int64(stored)); err != nil {
		return err
	}
	if slot >= StreamSlots || (slot != 0 && encoding != ZstdDict) || (encoding == ZstdDict && s.dicts[slot] == nil) {
		return fmt.Errorf("content with dictionary %d, which was not sent: %w", slot, ErrFormat)
	}
	if encoding == Chunked {
		return s.readTable(it, int64(stored))
	}
	var err error
	if s.in, err = appendRead(s.in[:0], s.r, int(stored)); err != nil {
		return err
	}
	it.small = s.in
	switch encoding {
	case Zstd:
		it.small, err = s.decode(s.in, int(size))
	case ZstdDict:
		it.small, err = s.dicts[slot].Decode(s.out, s.in, int(size))
		s.keep(it.small)
	}
	if errors.Is(err, ErrFormat) { // an invalid frame
		err = fmt.Errorf("content %x: %w: %w", it.Name, ErrContent, err)
	}
	if err == nil && sha256.Sum256(it.small) != it.Name {
		err = fmt.Errorf("content %x: %w", it.Name, ErrContent)
	}
	return err
}

// ErrContent is returned, wrapped, for bytes whose SHA-256 is not their name.
var ErrContent = errors.New("content does not match its name")

func (s *StreamReader) decode(frame []byte, size int) (out []byte, err error) {
	if s.plain == nil {
		if s.plain, err = NewFrameDecoder(nil); err != nil {
			return nil, err
		}
	}
	out, err = s.plain.Decode(s.out, frame, size)
	s.keep(out)
	return out, err
}

// keep reuses the larger buffer.
func (s *StreamReader) keep(out []byte) {
	if cap(out) > cap(s.out) {
		s.out = out
	}
}

func (s *StreamReader) readTable(it *StreamItem, stored int64) error {
	n := ChunkCount(it.Size) * ChunkEntry
	table, err := appendRead(nil, s.r, n)
	if err != nil {
		return err
	}
	if it.chunks, err = ParseChunkTable(table, it.Size, stored); err != nil {
		return err
	}
	it.Chunks = make([]Name, len(it.chunks))
	for i, c := range it.chunks {
		it.Chunks[i] = c.Name
	}
	s.left = stored - int64(n)
	return nil
}

// Bytes returns the verified content of an item smaller than LargeFile. It is valid until
// the next call of Next. For a larger item, Bytes returns nil.
func (it *StreamItem) Bytes() []byte { return it.small }

// WriteTo writes the content. A content of LargeFile bytes or more can be written only
// once. WriteTo writes each chunk after it was verified against the table, and verifies
// the whole content against its name at the end. So after an error, the written bytes
// must not be used.
func (it *StreamItem) WriteTo(w io.Writer) (int64, error) {
	if it.chunks == nil {
		n, err := w.Write(it.small)
		return int64(n), err
	}
	s := it.s
	if s.item != it {
		return 0, errors.New("stream item is used after the next one was read")
	}
	whole := sha256.New()
	var done int64
	for i, c := range it.chunks {
		chunk, err := s.readChunk(c, ChunkLen(it.Size, i))
		if err != nil {
			return done, fmt.Errorf("chunk %d of content %x: %w", i, it.Name, err)
		}
		whole.Write(chunk)
		n, err := w.Write(chunk)
		done += int64(n)
		if err != nil {
			return done, err
		}
	}
	if Name(whole.Sum(nil)) != it.Name {
		return done, fmt.Errorf("content %x: %w", it.Name, ErrContent)
	}
	return done, nil
}

func (s *StreamReader) readChunk(c Chunk, size int) ([]byte, error) {
	if s.left < int64(c.Stored) {
		return nil, errors.New("read before")
	}
	var err error
	s.left -= int64(c.Stored)
	if s.in, err = appendRead(s.in[:0], s.r, int(c.Stored)); err != nil {
		return nil, err
	}
	chunk := s.in
	if len(chunk) < size {
		if chunk, err = s.decode(chunk, size); err != nil {
			return nil, err
		}
	}
	if sha256.Sum256(chunk) != c.Name {
		return nil, ErrContent
	}
	return chunk, nil
}
