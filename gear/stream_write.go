package gear

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// StreamFile describes a content in a stream.
type StreamFile struct {
	Name Name
	// Size is the size of the content in bytes.
	Size     int64
	Encoding Encoding
	// Stored is how many bytes are sent for it.
	Stored int64
	// Dict is the name of the dictionary that a content with the encoding ZstdDict needs.
	Dict Name
}

// StreamEncoder appends to buffers everything in a stream except the contents, which the
// owner of the buffers adds. A copy of a StreamEncoder is the state of the stream at that
// point, to which the owner can return. It may be used by one goroutine.
type StreamEncoder struct {
	begun bool
	count uint64
	// slots has the dictionaries that the reader holds. used says when each was needed
	// last.
	slots [StreamSlots]Name
	used  [StreamSlots]uint64
}

// begin appends the magic if nothing was written before.
func (e *StreamEncoder) begin(dst []byte) []byte {
	if e.begun {
		return dst
	}
	e.begun = true
	return append(dst, streamMagic...)
}

// slot returns the slot in which the reader has a dictionary.
func (e *StreamEncoder) slot(id Name) (slot int, ok bool) {
	for i := range e.slots {
		if e.used[i] > 0 && e.slots[i] == id {
			return i, true
		}
	}
	return 0, false
}

// HasDict reports whether the reader holds a dictionary.
func (e *StreamEncoder) HasDict(id Name) bool {
	_, ok := e.slot(id)
	return ok
}

// AppendDict sends the reader a dictionary, in the form that a pack stores. It replaces
// the dictionary that was not needed for the longest time.
func (e *StreamEncoder) AppendDict(dst []byte, id Name, dict []byte) ([]byte, error) {
	if len(dict) == 0 || len(dict) > MaxDict {
		return dst, fmt.Errorf("dictionary of %d bytes: %w", len(dict), ErrFormat)
	}
	oldest := 0
	for i := range e.used {
		if e.used[i] < e.used[oldest] {
			oldest = i
		}
	}
	dst = append(e.begin(dst), recordDict, byte(oldest))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(dict)))
	e.slots[oldest], e.used[oldest] = id, e.count+1
	return append(dst, dict...), nil
}

// ContentsLen returns how many bytes AppendContents appends for n contents.
func (e *StreamEncoder) ContentsLen(n int) int {
	magic := len(streamMagic)
	if e.begun {
		magic = 0
	}
	return magic + 3 + n*runEntry
}

// AppendContents announces 1 to StreamRun contents, which file describes one after the
// other. The bytes of all of them must follow. For a chunked content, the chunk table
// precedes the chunks. The reader must hold their dictionaries.
func (e *StreamEncoder) AppendContents(dst []byte, n int, file func(i int) StreamFile) ([]byte, error) {
	if n <= 0 || n > StreamRun {
		return dst, fmt.Errorf("stream record of %d contents: %w", n, ErrFormat)
	}
	dst = slices.Grow(dst, e.ContentsLen(n))
	dst = append(e.begin(dst), recordContents)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(n))
	slot := 0
	for i := range n {
		f := file(i)
		if err := CheckStored(f.Size, f.Encoding, f.Stored); err != nil {
			return dst, err
		}
		e.count++
		b := dst[len(dst) : len(dst)+runEntry]
		dst = dst[:len(dst)+runEntry]
		copy(b, f.Name[:])
		binary.LittleEndian.PutUint64(b[32:], uint64(f.Size))
		b[40], b[41] = byte(f.Encoding), 0
		binary.LittleEndian.PutUint64(b[42:], uint64(f.Stored))
		if f.Encoding != ZstdDict {
			continue
		}
		if e.used[slot] == 0 || e.slots[slot] != f.Dict { // mostly it is the same as for the content before
			var ok bool
			if slot, ok = e.slot(f.Dict); !ok {
				return dst, fmt.Errorf("the reader lacks the dictionary of content %x", f.Name)
			}
		}
		e.used[slot], b[41] = e.count, byte(slot)
	}
	return dst, nil
}

// AppendMissing says that there is no such content, or that the reader may not have it.
func (e *StreamEncoder) AppendMissing(dst []byte, name Name) []byte {
	e.count++
	return append(append(e.begin(dst), recordMissing), name[:]...)
}

// AppendFailure says why a content cannot be sent now. The text is shown to the reader,
// and cut to 1,024 bytes.
func (e *StreamEncoder) AppendFailure(dst []byte, name Name, text string) []byte {
	e.count++
	text = text[:min(len(text), maxFailure)]
	dst = append(append(e.begin(dst), recordFailure), name[:]...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}

// AppendEnd ends the stream. Without the end, the reader considers the stream cut off.
func (e *StreamEncoder) AppendEnd(dst []byte) []byte {
	return binary.LittleEndian.AppendUint64(append(e.begin(dst), recordEnd), e.count)
}

// StreamWriter writes a stream of contents one by one, in their stored form. It does not
// buffer. It may be used by one goroutine.
type StreamWriter struct {
	w    io.Writer
	enc  StreamEncoder
	buf  []byte
	left int64 // bytes of the current content still to be written
}

// NewStreamWriter begins a stream with the first record.
func NewStreamWriter(w io.Writer) *StreamWriter { return &StreamWriter{w: w} }

// write writes records.
func (s *StreamWriter) write(b []byte) error {
	s.buf = b
	if s.left > 0 {
		return fmt.Errorf("stream record while %d bytes of a content are missing", s.left)
	}
	_, err := s.w.Write(b)
	return err
}

// Begin announces a content. Its bytes follow through Write, with a chunk table before
// its chunks. A content with the encoding ZstdDict needs its dictionary, which is sent if
// the reader does not hold it.
func (s *StreamWriter) Begin(f StreamFile, dict []byte) error {
	b := s.buf[:0]
	var err error
	if f.Encoding == ZstdDict && !s.enc.HasDict(f.Dict) {
		if b, err = s.enc.AppendDict(b, f.Dict, dict); err != nil {
			return err
		}
	}
	if b, err = s.enc.AppendContents(b, 1, func(int) StreamFile { return f }); err != nil {
		return err
	}
	err = s.write(b)
	s.left = f.Stored
	return err
}

// Write sends bytes of the content announced by Begin.
func (s *StreamWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > s.left {
		return 0, fmt.Errorf("%d bytes too many for a content of the stream", int64(len(p))-s.left)
	}
	n, err := s.w.Write(p)
	s.left -= int64(n)
	return n, err
}

// Missing says that there is no such content, or that the reader may not have it.
func (s *StreamWriter) Missing(name Name) error {
	return s.write(s.enc.AppendMissing(s.buf[:0], name))
}

// Failure says why a content cannot be sent now; see AppendFailure.
func (s *StreamWriter) Failure(name Name, text string) error {
	return s.write(s.enc.AppendFailure(s.buf[:0], name, text))
}

// End ends the stream. Without the end, the reader considers the stream cut off.
func (s *StreamWriter) End() error { return s.write(s.enc.AppendEnd(s.buf[:0])) }
