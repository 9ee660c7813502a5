package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// The Parquet library allocates by the numbers in a file before it reads what they count,
// and follows structures to any depth. Too large an allocation or too deep a stack ends
// the process, and is not a panic that [damaged] could turn into an error. So the numbers
// are checked before the library sees them.

const (
	// maxFooter bounds a footer, in bytes. One of the largest day of the IBM traces has 60 KB.
	maxFooter = 64 << 20
	// maxStructs bounds the structures in the lists of a footer. A row group has 43: itself, and a
	// column and two statistics of pages for each column.
	maxStructs = 1 << 18
	// maxDepth bounds structures within structures; Parquet's have 7 levels.
	maxDepth = 16
	// maxHeader bounds the header of a page, in bytes.
	maxHeader = 64 << 10
	// maxPage bounds a page of data, in bytes. Pages have pageBytes, and more only if a
	// single row needs it.
	maxPage = 16 << 20
	// maxDictionary bounds a dictionary, in bytes: maxGroupText, and more only if a
	// single row needs it.
	maxDictionary = 2 * maxGroupText
	// maxColumns bounds the columns of a file.
	maxColumns = 64
)

// checkFooter returns an error for a file with a footer that must not be decoded.
func checkFooter(r io.ReaderAt, size int64) error {
	const tail = 8
	if size < int64(len(magic))+tail {
		return errors.New("the file is too short")
	}
	end := make([]byte, tail)
	if _, err := r.ReadAt(end, size-tail); err != nil {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(end))
	if string(end[4:]) != magic || n > min(size-tail, maxFooter) {
		return errors.New("the file does not end as one of Parquet does")
	}
	footer := make([]byte, n)
	if _, err := r.ReadAt(footer, size-tail-n); err != nil {
		return err
	}
	if w := (thriftWalk{b: footer}); !w.structure(0) {
		return errors.New("the footer is malformed")
	}
	return nil
}

// checkMeta returns an error for a footer with numbers that cannot be right for a file of a size, or
// that a Writer does not write.
func checkMeta(meta *format.FileMetaData, size int64) error {
	if len(meta.Schema) < 2 || len(meta.Schema) > maxColumns+1 {
		return fmt.Errorf("the schema has %d elements", len(meta.Schema))
	}
	columns := meta.Schema[1:]
	for i := range columns {
		c := &columns[i]
		switch {
		case c.NumChildren.Valid && c.NumChildren.V != 0, c.RepetitionType.Valid && c.RepetitionType.V != format.Required:
			return fmt.Errorf("column %q is nested, or may have no value", c.Name)
		case !c.Type.Valid || c.Type.V != format.Int32 && c.Type.V != format.Int64 && c.Type.V != format.ByteArray:
			return fmt.Errorf("column %q has a type that no column of a trace has", c.Name)
		}
	}
	for i := range meta.RowGroups {
		g := &meta.RowGroups[i]
		if g.NumRows < 0 || g.NumRows > maxGroup || len(g.Columns) != len(columns) {
			return fmt.Errorf("row group %d has %d rows of %d columns", i, g.NumRows, len(g.Columns))
		}
		for j := range g.Columns {
			c := &g.Columns[j]
			within := func(off, n int64) bool { return off >= 0 && off <= size && n >= 0 && n <= size-off }
			if !within(chunkStart(&c.MetaData), c.MetaData.TotalCompressedSize) || !within(c.OffsetIndexOffset, int64(c.OffsetIndexLength)) ||
				!within(c.ColumnIndexOffset, int64(c.ColumnIndexLength)) {
				return fmt.Errorf("row group %d: column %d is not within the file", i, j)
			}
		}
	}
	return nil
}

// chunkStart returns where the first page of a column chunk is.
func chunkStart(m *format.ColumnMetaData) int64 {
	if m.DictionaryPageOffset != 0 {
		return m.DictionaryPageOffset
	}
	return m.DataPageOffset
}

// checkChunk returns an error for a column of a row group with a page that must not be decoded.
func checkChunk(r io.ReaderAt, meta *format.FileMetaData, group, column int) error {
	g := &meta.RowGroups[group]
	m := &g.Columns[column].MetaData
	if m.Codec != format.Snappy && m.Codec != format.Uncompressed {
		return fmt.Errorf("its compression is %v", m.Codec)
	}
	start := chunkStart(m)
	c := chunkCheck{r: bufio.NewReaderSize(io.NewSectionReader(r, start, m.TotalCompressedSize), maxHeader), left: m.TotalCompressedSize,
		snappy: m.Codec == format.Snappy, kind: meta.Schema[1+column].Type.V, rows: g.NumRows}
	for first := true; c.left > 0; {
		at := start + m.TotalCompressedSize - c.left
		h, err := c.header()
		if err != nil {
			return err
		}
		if h.Type == format.DictionaryPage {
			err = c.dictionary(h)
		} else {
			if first && at != m.DataPageOffset { // a reader may go to the place in the footer
				return errors.New("its first page is not where the footer says")
			}
			first = false
			err = c.data(h)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chunkCheck reads the pages of a column chunk.
type chunkCheck struct {
	r      *bufio.Reader
	left   int64 // bytes of the chunk
	snappy bool
	kind   format.Type
	rows   int64 // how many rows the pages that follow may have

	packed, page []byte
}

// header reads the header of the next page.
func (c *chunkCheck) header() (*format.PageHeader, error) {
	for n := 256; n <= maxHeader; n *= 4 {
		b, err := c.r.Peek(int(min(int64(n), c.left)))
		if err != nil {
			return nil, fmt.Errorf("the header of a page: %w", err)
		}
		w := thriftWalk{b: b}
		if !w.structure(0) {
			continue
		}
		h := &format.PageHeader{}
		if err := thrift.NewDecoder(new(thrift.CompactProtocol).NewReaderFromBytes(b[:w.at])).Decode(h); err != nil {
			return nil, fmt.Errorf("the header of a page: %w", err)
		}
		if _, err := c.r.Discard(w.at); err != nil {
			return nil, err
		}
		c.left -= int64(w.at)
		if n := int64(h.CompressedPageSize); n < 0 || n > c.left || h.UncompressedPageSize < 0 {
			return nil, fmt.Errorf("a page has %d of %d bytes", n, c.left)
		}
		c.left -= int64(h.CompressedPageSize)
		return h, nil
	}
	return nil, errors.New("the header of a page is malformed")
}

// plainDictionary is the encoding that older writers name both for Plain in a dictionary
// and for RLEDictionary in a data page.
const plainDictionary format.Encoding = 2

// dictionary checks a dictionary. Only its size counts.
func (c *chunkCheck) dictionary(h *format.PageHeader) error {
	d := &h.DictionaryPageHeader.V
	const leastValue = 4 // bytes
	if !h.DictionaryPageHeader.Valid || h.UncompressedPageSize > maxDictionary || d.NumValues < 0 || d.NumValues > h.UncompressedPageSize/leastValue ||
		d.Encoding != format.Plain && d.Encoding != plainDictionary {
		return fmt.Errorf("a dictionary has %d values in %d bytes", d.NumValues, h.UncompressedPageSize)
	}
	if c.snappy {
		b, err := c.r.Peek(int(min(h.CompressedPageSize, binary.MaxVarintLen32)))
		if err != nil {
			return err
		}
		if !snappyOf(b, h.UncompressedPageSize) {
			return errSnappy
		}
	}
	_, err := c.r.Discard(int(h.CompressedPageSize))
	return err
}

// errSnappy is returned for compressed data whose own size differs from its page's.
var errSnappy = errors.New("a page has another size than it says")

// snappyOf reports whether compressed data has the given size.
func snappyOf(b []byte, size int32) bool {
	n, k := binary.Uvarint(b)
	return k > 0 && n == uint64(size)
}

// data checks a page of data.
func (c *chunkCheck) data(h *format.PageHeader) error {
	n, encoding, packed := int64(h.DataPageHeader.V.NumValues), h.DataPageHeader.V.Encoding, c.snappy
	switch v2 := &h.DataPageHeaderV2.V; {
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		n, encoding = int64(v2.NumValues), v2.Encoding
		packed = packed && (!v2.IsCompressed.Valid || v2.IsCompressed.V)
		if v2.NumNulls != 0 || v2.DefinitionLevelsByteLength != 0 || v2.RepetitionLevelsByteLength != 0 {
			return errors.New("a page has levels, as only columns without a value have")
		}
	default:
		return fmt.Errorf("a page is of type %v", h.Type)
	}
	if c.rows -= n; n < 0 || c.rows < 0 {
		return errRows
	}
	if h.CompressedPageSize > maxPage || h.UncompressedPageSize > maxPage {
		return fmt.Errorf("a page has %d bytes", h.UncompressedPageSize)
	}
	c.packed = slices.Grow(c.packed[:0], int(h.CompressedPageSize))[:h.CompressedPageSize]
	if _, err := io.ReadFull(c.r, c.packed); err != nil {
		return err
	}
	page := c.packed
	if packed {
		if !snappyOf(c.packed, h.UncompressedPageSize) {
			return errSnappy
		}
		var err error
		if c.page, err = parquet.Snappy.Decode(c.page[:cap(c.page)], c.packed); err != nil {
			return err
		}
		page = c.page
	}
	if !c.values(encoding, uint64(n), page) {
		return fmt.Errorf("a page of %d values in encoding %v has others", n, encoding)
	}
	return nil
}

// values reports whether a page can have exactly n values in an encoding.
func (c *chunkCheck) values(encoding format.Encoding, n uint64, page []byte) bool {
	switch encoding {
	case format.RLEDictionary, plainDictionary:
		return checkRuns(page, n)
	case format.DeltaBinaryPacked, format.DeltaLengthByteArray:
		return checkDelta(page, n)
	case format.Plain:
		width := uint64(4) // of a number, or of a string's length
		if c.kind == format.Int64 {
			width = 8
		}
		return n*width <= uint64(len(page))
	}
	return false
}

// checkDelta reports whether a page begins with n numbers in DELTA_BINARY_PACKED.
func checkDelta(page []byte, n uint64) bool {
	for range 2 { // the size of a block, and the number of its parts
		_, k := binary.Uvarint(page)
		if k <= 0 {
			return false
		}
		page = page[k:]
	}
	total, k := binary.Uvarint(page)
	return k > 0 && total == n
}

// checkRuns reports whether the runs of a page have n indexes. The last run may have a
// few more, because eight are packed together.
func checkRuns(page []byte, n uint64) bool {
	if len(page) == 0 {
		return true
	}
	const packedTogether = 8
	width := uint64(page[0])
	for page = page[1:]; len(page) > 0; {
		head, k := binary.Uvarint(page)
		values, size := head>>1, (width+7)/8
		if k <= 0 || values > n+packedTogether {
			return false
		}
		if head&1 != 0 {
			values, size = values*packedTogether, values*width
		}
		if page = page[k:]; size > uint64(len(page)) || values >= n+packedTogether {
			return false
		}
		page, n = page[size:], n-min(n, values)
	}
	return true
}

// thriftWalk walks over a structure in Thrift's compact protocol, whatever its fields
// are.
type thriftWalk struct {
	b       []byte
	at      int
	structs int // in lists
}

// structure walks over a structure and reports whether all its lists and strings are
// complete.
func (w *thriftWalk) structure(depth int) bool {
	for depth <= maxDepth && w.at < len(w.b) {
		head := w.b[w.at]
		w.at++
		if head == 0 { // the end
			return true
		}
		if head>>4 == 0 { // the number of the field follows
			if _, ok := w.number(); !ok {
				return false
			}
		}
		kind := head & 0xf
		if kind != thriftTrue && kind != thriftFalse && !w.value(kind, depth) { // for a boolean, the kind is the value
			return false
		}
	}
	return false
}

// These are the types of Thrift.
const (
	thriftTrue = 1 + iota
	thriftFalse
	thriftByte
	thriftInt16
	thriftInt32
	thriftInt64
	thriftDouble
	thriftBinary
	thriftList
	thriftSet
	thriftMap
	thriftStruct
)

// value walks over a value. A value in a list has at least a byte, even a boolean.
func (w *thriftWalk) value(kind byte, depth int) bool {
	switch kind {
	case thriftTrue, thriftFalse, thriftByte:
		return w.skip(1)
	case thriftInt16, thriftInt32, thriftInt64:
		_, ok := w.number()
		return ok
	case thriftDouble:
		return w.skip(8)
	case thriftBinary:
		n, ok := w.number()
		return ok && w.skip(n)
	case thriftList, thriftSet:
		return w.list(depth)
	case thriftStruct:
		return w.structure(depth + 1)
	}
	return false // Parquet has no maps
}

func (w *thriftWalk) list(depth int) bool {
	if w.at >= len(w.b) || depth > maxDepth {
		return false
	}
	head := w.b[w.at]
	w.at++
	n, kind := uint64(head>>4), head&0xf
	if n == 0xf {
		var ok bool
		if n, ok = w.number(); !ok {
			return false
		}
	}
	if n > uint64(len(w.b)-w.at) {
		return false
	}
	if kind == thriftStruct {
		if w.structs += int(n); w.structs > maxStructs {
			return false
		}
	}
	for range n {
		if !w.value(kind, depth+1) {
			return false
		}
	}
	return true
}

// number walks over a number and returns it as it is written.
func (w *thriftWalk) number() (uint64, bool) {
	v, k := binary.Uvarint(w.b[w.at:])
	if k <= 0 {
		return 0, false
	}
	w.at += k
	return v, true
}

func (w *thriftWalk) skip(n uint64) bool {
	if n > uint64(len(w.b)-w.at) {
		return false
	}
	w.at += int(n)
	return true
}
