package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"example.org/slipway/workload/trace"
)

// lies are files of a store, by name, with a number that claims much more than there is. page
// writes the pages of column.
var lies = map[string]struct {
	column int
	page   func(w *pageWriter) error
}{
	"none": {-1, nil},
	"numbers of a page": {0, func(w *pageWriter) error {
		return w.only(format.Int64, format.Uncompressed, format.DeltaBinaryPacked, rowsOfLies, uvarints(128, 4, math.MaxInt32, 0))
	}},
	"values of a page": {9, func(w *pageWriter) error {
		return w.only(format.Int64, format.Uncompressed, format.DeltaBinaryPacked, math.MaxInt32, uvarints(128, 4, rowsOfLies, 0))
	}},
	"strings of a page": {12, func(w *pageWriter) error {
		return w.only(format.ByteArray, format.Uncompressed, format.DeltaLengthByteArray, rowsOfLies, uvarints(128, 4, math.MaxInt32, 0))
	}},
	"run of an index": {2, func(w *pageWriter) error {
		return w.indexedBy(1, append([]byte{1}, append(uvarints(math.MaxInt32<<1), 0)...))
	}},
	"packed run of an index": {3, func(w *pageWriter) error { return w.indexedBy(1, append([]byte{0}, uvarints(math.MaxInt32/8<<1|1)...)) }},
	"many runs of an index": {4, func(w *pageWriter) error {
		return w.indexedBy(1, append([]byte{0}, bytes.Repeat(uvarints(rowsOfLies<<1), 1<<20)...))
	}},
	"values of a dictionary": {5, func(w *pageWriter) error {
		return w.indexedBy(math.MaxInt32, append([]byte{0}, uvarints(rowsOfLies<<1)...))
	}},
	"size of a page": {6, func(w *pageWriter) error {
		return w.raw(&format.PageHeader{Type: format.DataPageV2, UncompressedPageSize: math.MaxInt32,
			DataPageHeaderV2: thrift.New(format.DataPageHeaderV2{NumValues: rowsOfLies, NumRows: rowsOfLies, Encoding: format.Plain})}, uvarints(math.MaxInt32))
	}},
	"size of compressed data": {7, func(w *pageWriter) error {
		return w.raw(&format.PageHeader{Type: format.DataPageV2, UncompressedPageSize: 4 * rowsOfLies,
			DataPageHeaderV2: thrift.New(format.DataPageHeaderV2{NumValues: rowsOfLies, NumRows: rowsOfLies, Encoding: format.Plain})}, uvarints(math.MaxUint32))
	}},
	"size of a compressed dictionary": {8, func(w *pageWriter) error {
		return w.raw(&format.PageHeader{Type: format.DictionaryPage, UncompressedPageSize: 5,
			DictionaryPageHeader: thrift.New(format.DictionaryPageHeader{NumValues: 1, Encoding: format.Plain})}, uvarints(math.MaxUint32))
	}},
}

const rowsOfLies = 40

func uvarints(values ...uint64) (b []byte) {
	for _, v := range values {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// only writes the next column with one page.
func (w *pageWriter) only(t format.Type, codec format.CompressionCodec, encoding format.Encoding, n int, page []byte) error {
	c := w.chunk(t, codec, encoding)
	err := c.data(n, page)
	c.rows = rowsOfLies
	c.end()
	return err
}

// indexedBy writes the next column with a dictionary of one value that is said to have n.
func (w *pageWriter) indexedBy(n int, index []byte) error {
	c := w.chunk(format.ByteArray, format.Snappy, format.RLEDictionary)
	if err := c.dictionary(n, []byte("\x01\x00\x00\x00x")); err != nil {
		return err
	}
	err := c.data(rowsOfLies, index)
	c.end()
	return err
}

// raw writes the next column with a page as it is.
func (w *pageWriter) raw(h *format.PageHeader, page []byte) error {
	c := w.chunk(format.ByteArray, format.Snappy, format.Plain)
	c.meta.DataPageOffset = w.off
	h.CompressedPageSize = int32(len(page))
	n, err := w.encode(h)
	if err != nil {
		return err
	}
	c.meta.TotalCompressedSize = int64(n + len(page))
	c.rows = rowsOfLies
	c.end()
	return w.write(page)
}

// writeLie writes a day of a store.
func writeLie(t *testing.T, dir string, column int, page func(w *pageWriter) error) string {
	t.Helper()
	path := filepath.Join(dir, "zone=a", "day=2017-06-20.parquet")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, err := newPageWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	day, err := openDayTime("2017-06-20")
	if err != nil {
		t.Fatal(err)
	}
	times, zeros := make([]int64, rowsOfLies), make([]int32, rowsOfLies)
	for i := range times {
		times[i] = day + int64(i)
	}
	w.beginGroup(rowsOfLies)
	for i, name := range rowSchema().Columns() {
		switch {
		case i == column:
			err = page(w)
		case name[0] == "time" || name[0] == "duration" || name[0] == "size":
			err = w.numbers(times, format.Unordered)
		case name[0] == "status":
			err = w.indexed(format.Int32, 1, binary.LittleEndian.AppendUint32(nil, 200), zeros, nil)
		case name[0] == "id":
			err = w.strings(nil, make([]uint32, rowsOfLies+1))
		default:
			err = w.indexed(format.ByteArray, 1, []byte("\x01\x00\x00\x00x"), zeros, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	err = w.finish([]format.KeyValue{{Key: metaVersion, Value: version},
		{Key: metaHours, Value: fmt.Sprintf(`[{"rows":%d,"first":%d,"last":%d}]`, rowsOfLies, times[0], times[rowsOfLies-1])}})
	if err == nil {
		err = os.WriteFile(path, out.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// openDayTime is the beginning of a day in microseconds.
func openDayTime(day string) (int64, error) {
	d, err := openDay(dayPrefix + day + fileSuffix)
	if os.IsNotExist(err) { // the name alone counts
		err = nil
	}
	return d.day, err
}

// readLie reads a store in both ways, and returns how many bytes it has allocated and the errors.
func readLie(dir string) (allocated uint64, scan, records error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := Open(dir)
	scan, records = err, err
	if err == nil {
		scan = s.Scan(context.Background(), Query{Zone: "a"}, func(*Batch) error { return nil })
		records = s.Records(context.Background(), Query{Zone: "a"}, func(*trace.Record) error { return nil })
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, scan, records
}

// mostForALie is how many bytes a small file may take to read.
const mostForALie = 64 << 20

// TestPagesThatLie reads files with pages that say that they have far more than they have. Reading
// them must be an error, and must not allocate the memory that they claim: a process that does not
// get it ends.
func TestPagesThatLie(t *testing.T) {
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeLie(t, dir, lie.column, lie.page)
			allocated, scan, records := readLie(dir)
			const id = 12 // which no scan reads
			if right := lie.column < 0; (scan == nil) != (right || lie.column == id) || (records == nil) != right {
				t.Errorf("scan: %v; records: %v", scan, records)
			}
			if allocated > mostForALie {
				t.Errorf("it took %d MiB", allocated>>20)
			}
		})
	}
}

// TestFootersThatLie reads files whose footers have lists that are longer than the file, or
// structures that are deeper than a stack.
func TestFootersThatLie(t *testing.T) {
	long := uvarints(math.MaxInt32)
	for name, footer := range map[string][]byte{
		"elements":       append([]byte{0x15, 2, 0x19, 0xfc}, long...),
		"row groups":     append([]byte{0x15, 2, 0x29, 0xfc}, long...),
		"pairs":          append([]byte{0x15, 2, 0x49, 0xfc}, long...),
		"list elsewhere": append([]byte{0x15, 2, 0xc9, 0xfc}, long...),
		"string":         append([]byte{0x15, 2, 0x58}, long...),
		"many elements":  append(append([]byte{0x15, 2, 0x19, 0xfc}, uvarints(8<<20)...), make([]byte, 8<<20)...),
		"deep":           bytes.Repeat([]byte{0x1c}, 16<<20),
		"deep elsewhere": bytes.Repeat([]byte{0xfc}, 16<<20),
		"deep lists":     append([]byte{0xf9}, bytes.Repeat([]byte{0x19}, 16<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := writeLie(t, dir, -1, nil)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			n := len(b) - 8 - int(binary.LittleEndian.Uint32(b[len(b)-8:]))
			b = append(append(b[:n:n], footer...), append(binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), magic...)...)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if allocated, _, err := readLie(dir); err == nil || !strings.Contains(err.Error(), path) || allocated > mostForALie {
				t.Errorf("%v, %d MiB", err, allocated>>20)
			}
		})
	}
}

// TestSoundFooter checks that the walk takes what the library writes.
func TestSoundFooter(t *testing.T) {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b)
	if _, err := w.Write(make([]row, 10)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkFooter(bytes.NewReader(b.Bytes()), int64(b.Len())); err != nil {
		t.Error(err)
	}
}
