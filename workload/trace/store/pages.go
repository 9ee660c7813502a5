package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

const (
	// pageBytes bounds a page. A reader holds one page of each column in memory.
	pageBytes = 256 << 10
	// pageRows bounds the rows of a page, so that numbers of 8 bytes stay within
	// pageBytes.
	pageRows = pageBytes / 8
	// writeBytes is how many bytes are written to a file at once.
	writeBytes = 1 << 20
	// magic begins and ends a Parquet file.
	magic = "PAR1"
)

// pageWriter writes a Parquet file in complete column chunks. It collects rows by their
// symbols' numbers, which is several times as fast as letting the library look all
// strings up again. Schema, encodings and structures are the library's.
type pageWriter struct {
	out    *bufio.Writer
	off    int64
	header bytes.Buffer
	enc    *thrift.Encoder // to header
	// encoded and packed are the buffers for pages.
	encoded, packed []byte
	meta            format.FileMetaData
	index           []chunkIndex // of the columns of all row groups
}

// chunkIndex says where the pages of a column chunk are. For numbers it also holds the
// bounds of each page.
type chunkIndex struct {
	pages  format.OffsetIndex
	bounds format.ColumnIndex
}

// chunk is a column chunk that is being written.
type chunk struct {
	w     *pageWriter
	meta  format.ColumnMetaData
	index chunkIndex
	rows  int64
	// page is how data pages are encoded.
	page format.Encoding
}

func newPageWriter(out io.Writer) (*pageWriter, error) {
	// A file without rows describes itself in the same way as a file with rows.
	empty := parquet.NewGenericWriter[row](io.Discard, parquet.CreatedBy("slipway", version, ""))
	if err := empty.Close(); err != nil {
		return nil, err
	}
	like := empty.File().Metadata()
	w := &pageWriter{out: bufio.NewWriterSize(out, writeBytes)}
	w.enc = thrift.NewEncoder(new(thrift.CompactProtocol).NewWriter(&w.header))
	w.meta = format.FileMetaData{Version: like.Version, Schema: like.Schema, CreatedBy: like.CreatedBy, ColumnOrders: like.ColumnOrders}
	return w, w.write([]byte(magic))
}

func (w *pageWriter) write(b []byte) error {
	n, err := w.out.Write(b)
	w.off += int64(n)
	return err
}

// encode writes a structure and returns its length.
func (w *pageWriter) encode(v any) (int, error) {
	w.header.Reset()
	if err := w.enc.Encode(v); err != nil {
		return 0, err
	}
	return w.header.Len(), w.write(w.header.Bytes())
}

// beginGroup begins a row group. Its columns follow in the order of the schema.
func (w *pageWriter) beginGroup(rows int) {
	w.meta.NumRows += int64(rows)
	w.meta.RowGroups = append(w.meta.RowGroups, format.RowGroup{NumRows: int64(rows), FileOffset: w.off, Ordinal: int16(len(w.meta.RowGroups))})
}

// chunk begins the next column chunk of the row group.
func (w *pageWriter) chunk(t format.Type, codec format.CompressionCodec, page format.Encoding) *chunk {
	g := &w.meta.RowGroups[len(w.meta.RowGroups)-1]
	name := w.meta.Schema[1+len(g.Columns)].Name // the first is the root
	return &chunk{w: w, page: page, meta: format.ColumnMetaData{Type: t, Codec: codec, Encoding: thrift.Slice[format.Encoding]{page},
		PathInSchema: thrift.Slice[string]{name}}}
}

// end ends the column chunk.
func (c *chunk) end() {
	g := &c.w.meta.RowGroups[len(c.w.meta.RowGroups)-1]
	c.meta.NumValues = c.rows
	g.TotalByteSize += c.meta.TotalUncompressedSize
	g.TotalCompressedSize += c.meta.TotalCompressedSize
	g.Columns = append(g.Columns, format.ColumnChunk{MetaData: c.meta})
	c.w.index = append(c.w.index, c.index)
}

// dictionary writes the page with a column's n values, which comes before the data.
func (c *chunk) dictionary(n int, values []byte) error {
	c.meta.DictionaryPageOffset = c.w.off
	c.meta.Encoding = append(c.meta.Encoding, format.Plain)
	_, err := c.write(values, &format.PageHeader{Type: format.DictionaryPage,
		DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: int32(n), Encoding: format.Plain})})
	return err
}

// data writes a page with n rows.
func (c *chunk) data(n int, values []byte) error {
	if c.meta.DataPageOffset == 0 {
		c.meta.DataPageOffset = c.w.off
	}
	at := format.PageLocation{Offset: c.w.off, FirstRowIndex: c.rows}
	size, err := c.write(values, &format.PageHeader{Type: format.DataPageV2,
		DataPageHeaderV2: thrift.New(format.DataPageHeaderV2{NumValues: int32(n), NumRows: int32(n), Encoding: c.page,
			IsCompressed: thrift.New(c.meta.Codec != format.Uncompressed)})})
	at.CompressedPageSize = int32(size)
	c.index.pages.PageLocations = append(c.index.pages.PageLocations, at)
	c.rows += int64(n)
	return err
}

// write writes a page and returns its size with the header.
func (c *chunk) write(values []byte, h *format.PageHeader) (int, error) {
	page, encoding := values, c.page
	if h.Type == format.DictionaryPage {
		encoding = format.Plain
	}
	if c.meta.Codec == format.Snappy {
		var err error
		if c.w.packed, err = parquet.Snappy.Encode(c.w.packed, values); err != nil {
			return 0, err
		}
		page = c.w.packed
	}
	h.UncompressedPageSize, h.CompressedPageSize, h.CRC = int32(len(values)), int32(len(page)), int32(crc32.ChecksumIEEE(page))
	head, err := c.w.encode(h)
	if err != nil {
		return 0, err
	}
	c.meta.TotalUncompressedSize += int64(head + len(values))
	c.meta.TotalCompressedSize += int64(head + len(page))
	c.count(format.PageEncodingStats{PageType: h.Type, Encoding: encoding, Count: 1})
	return head + len(page), c.w.write(page)
}

// count counts a page under its encoding.
func (c *chunk) count(page format.PageEncodingStats) {
	stats := c.meta.EncodingStats
	if n := len(stats); n > 0 && stats[n-1].PageType == page.PageType {
		stats[n-1].Count++
		return
	}
	c.meta.EncodingStats = append(stats, page)
}

// bounds notes the least and the greatest number of a page, in the form of a file.
func (c *chunk) bounds(low, high int64, order format.BoundaryOrder) {
	b, s := &c.index.bounds, &c.meta.Statistics
	b.NullPages, b.NullCounts, b.BoundaryOrder = append(b.NullPages, false), append(b.NullCounts, 0), order
	b.MinValues, b.MaxValues = append(b.MinValues, c.number(low)), append(b.MaxValues, c.number(high))
	if s.MinValue == nil || low < c.value(s.MinValue) {
		s.MinValue = c.number(low)
	}
	if s.MaxValue == nil || high > c.value(s.MaxValue) {
		s.MaxValue = c.number(high)
	}
}

// number encodes a number as in a file. value is the inverse.
func (c *chunk) number(v int64) []byte {
	if c.meta.Type == format.Int32 {
		return binary.LittleEndian.AppendUint32(nil, uint32(v))
	}
	return binary.LittleEndian.AppendUint64(nil, uint64(v))
}

func (c *chunk) value(b []byte) int64 {
	if c.meta.Type == format.Int32 {
		return int64(int32(binary.LittleEndian.Uint32(b)))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// numbers writes the next column, of numbers.
func (w *pageWriter) numbers(values []int64, order format.BoundaryOrder) (err error) {
	c := w.chunk(format.Int64, format.Uncompressed, format.DeltaBinaryPacked)
	for part := range slices.Chunk(values, pageRows) {
		if w.encoded, err = parquet.DeltaBinaryPacked.EncodeInt64(w.encoded, part); err != nil {
			return err
		}
		if err := c.data(len(part), w.encoded); err != nil {
			return err
		}
		c.bounds(slices.Min(part), slices.Max(part), order)
	}
	c.end()
	return nil
}

// indexed writes the next column: n values in a dictionary, and an index for each row.
// bounds, if not nil, returns the bounds of the values at indexes.
func (w *pageWriter) indexed(t format.Type, n int, dictionary []byte, index []int32, bounds func(index []int32) (low, high int64)) (err error) {
	c := w.chunk(t, format.Snappy, format.RLEDictionary)
	if err := c.dictionary(n, dictionary); err != nil {
		return err
	}
	for part := range slices.Chunk(index, pageRows) {
		if w.encoded, err = parquet.RLEDictionary.EncodeInt32(w.encoded, part); err != nil {
			return err
		}
		if err := c.data(len(part), w.encoded); err != nil {
			return err
		}
		if bounds != nil {
			low, high := bounds(part)
			c.bounds(low, high, format.Unordered)
		}
	}
	c.end()
	return nil
}

// strings writes the next column, whose strings are hardly ever equal. String i is
// text[offsets[i]:offsets[i+1]].
func (w *pageWriter) strings(text []byte, offsets []uint32) (err error) {
	c := w.chunk(format.ByteArray, format.Uncompressed, format.DeltaLengthByteArray)
	for rows := len(offsets) - 1; rows > 0; {
		n := 1
		for n < min(rows, pageRows) && offsets[n+1]-offsets[0] <= pageBytes {
			n++
		}
		if w.encoded, err = parquet.DeltaLengthByteArray.EncodeByteArray(w.encoded, text[offsets[0]:offsets[n]], offsets[:n+1]); err != nil {
			return err
		}
		if err := c.data(n, w.encoded); err != nil {
			return err
		}
		offsets, rows = offsets[n:], rows-n
	}
	c.end()
	return nil
}

// finish writes the page index and the footer.
func (w *pageWriter) finish(about []format.KeyValue) error {
	columns := len(w.meta.Schema) - 1
	at := func(i int) *format.ColumnChunk { return &w.meta.RowGroups[i/columns].Columns[i%columns] }
	for i := range w.index {
		if x := &w.index[i].bounds; len(x.MinValues) > 0 {
			c, off := at(i), w.off
			n, err := w.encode(x)
			if err != nil {
				return err
			}
			c.ColumnIndexOffset, c.ColumnIndexLength = off, int32(n)
		}
	}
	for i := range w.index {
		c, off := at(i), w.off
		n, err := w.encode(&w.index[i].pages)
		if err != nil {
			return err
		}
		c.OffsetIndexOffset, c.OffsetIndexLength = off, int32(n)
	}
	w.meta.KeyValueMetadata = about
	n, err := w.encode(&w.meta)
	if err != nil {
		return err
	}
	if err := w.write(append(binary.LittleEndian.AppendUint32(nil, uint32(n)), magic...)); err != nil {
		return err
	}
	return w.out.Flush()
}
