package store_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// row has the columns that docs/trace.md lists.
type row struct {
	Time     int64  `parquet:"time,timestamp(microsecond),delta,uncompressed"`
	Duration int64  `parquet:"duration,delta,uncompressed"`
	Host     string `parquet:"host,dict"`
	Client   string `parquet:"client,dict"`
	Method   string `parquet:"method,dict"`
	Kind     string `parquet:"kind,dict"`
	Repo     string `parquet:"repo,dict"`
	Ref      string `parquet:"ref,dict"`
	Digest   string `parquet:"digest,dict"`
	Size     int64  `parquet:"size,delta,uncompressed"`
	Status   int32  `parquet:"status,dict"`
	Agent    string `parquet:"agent,dict"`
	ID       string `parquet:"id,uncompressed"`
	URI      string `parquet:"uri,dict"`
}

// dayPath returns the path of the first day of zone a.
func dayPath(dir string) string { return filepath.Join(dir, "zone=a", "day=2017-06-20.parquet") }

// openFile opens a file with all its indexes, as any program would.
func openFile(t *testing.T, path string) *parquet.File {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// byLibrary writes the rows of a file with the Parquet library alone, in the same row
// groups.
func byLibrary(t *testing.T, path string, f *parquet.File) {
	t.Helper()
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := parquet.NewGenericWriter[row](out, parquet.Compression(&parquet.Snappy), parquet.DataPageStatistics(false), parquet.CreatedBy("slipway", "1", ""))
	for _, kv := range f.Metadata().KeyValueMetadata {
		w.SetKeyValueMetadata(kv.Key, kv.Value)
	}
	for _, g := range f.RowGroups() {
		rows := make([]row, g.NumRows())
		r := parquet.NewGenericRowGroupReader[row](g)
		if n, err := r.Read(rows); n != len(rows) || err != nil && err != io.EOF {
			t.Fatalf("%d of %d rows: %v", n, len(rows), err)
		}
		if _, err := w.Write(rows); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLikeLibrary compares the metadata of a file with the metadata that the library
// writes.
func TestLikeLibrary(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, nil, "a", tracetest.Records(2000, 5*time.Hour, 40))
	ours := openFile(t, dayPath(dir))
	other := filepath.Join(t.TempDir(), "day=2017-06-20.parquet")
	byLibrary(t, other, ours)
	theirs := openFile(t, other)
	opts := []cmp.Option{
		cmpopts.IgnoreUnexported(format.LogicalType{}), cmpopts.EquateEmpty(),
		cmpopts.IgnoreFields(format.RowGroup{}, "FileOffset", "TotalByteSize", "TotalCompressedSize"),
		cmpopts.IgnoreFields(format.ColumnChunk{}, "OffsetIndexOffset", "OffsetIndexLength", "ColumnIndexOffset", "ColumnIndexLength"),
		cmpopts.IgnoreFields(format.ColumnMetaData{}, "TotalUncompressedSize", "TotalCompressedSize", "DataPageOffset", "DictionaryPageOffset", "SizeStatistics"),
		cmp.Transformer("sorted", func(in []format.Encoding) []format.Encoding {
			out := slices.Clone(in)
			slices.Sort(out)
			return out
		}),
	}
	if diff := cmp.Diff(fmt.Sprintf("%+v", theirs.Schema()), fmt.Sprintf("%+v", ours.Schema())); diff != "" {
		t.Errorf("schema differs (-library +ours):\n%s", diff)
	}
	a, b := theirs.Metadata(), ours.Metadata()
	for i := range a.RowGroups {
		for j := range a.RowGroups[i].Columns {
			if c := &a.RowGroups[i].Columns[j].MetaData; c.Type == format.ByteArray { // we write no bounds for byte arrays
				c.Statistics.MinValue, c.Statistics.MaxValue = nil, nil
			}
		}
	}
	if diff := cmp.Diff(a.RowGroups, b.RowGroups, opts...); diff != "" {
		t.Errorf("row groups differ (-library +ours):\n%s", diff)
	}
	if diff := cmp.Diff(a.KeyValueMetadata, b.KeyValueMetadata, cmpopts.SortSlices(func(x, y format.KeyValue) bool { return x.Key < y.Key })); diff != "" || a.CreatedBy != b.CreatedBy || a.NumRows != b.NumRows || a.Version != b.Version {
		t.Errorf("footers differ: %s, %s: %s", a.CreatedBy, b.CreatedBy, diff)
	}
}

// TestOldFile reads a file that the library wrote, as earlier versions did, and adds
// records to it.
func TestOldFile(t *testing.T) {
	recs := tracetest.ByTime(tracetest.Records(3000, 5*time.Hour, 41))
	from, dir := t.TempDir(), t.TempDir()
	write(t, from, nil, "a", recs[:2000])
	if err := os.Mkdir(filepath.Dir(dayPath(dir)), 0o700); err != nil {
		t.Fatal(err)
	}
	byLibrary(t, dayPath(dir), openFile(t, dayPath(from)))
	if diff := cmp.Diff(recs[:2000], tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); diff != "" {
		t.Fatalf("records differ (-want +got):\n%s", diff)
	}
	got := write(t, dir, &store.WriterOptions{DropDuplicates: true}, "a", recs[1000:])
	if diff := cmp.Diff(store.Written{Files: 1, Records: 1000, Duplicates: 1000, Dropped: 1000}, got); diff != "" {
		t.Errorf("written differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(recs, tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

// TestPages writes an hour of several pages, some of them short because of long ids. The
// library then looks up rows through the page index.
func TestPages(t *testing.T) {
	const rows = 40_000
	recs := tracetest.ByTime(tracetest.Records(rows, time.Hour, 42))
	for i := range recs {
		if i%1000 == 0 {
			recs[i].ID = strings.Repeat(recs[i].ID, 3000+i%9*100)
		}
	}
	dir := t.TempDir()
	write(t, dir, nil, "a", recs)
	got := tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})
	if len(got) != rows {
		t.Fatalf("%d records, want %d", len(got), rows)
	}
	for i := range got {
		if got[i] != recs[i] {
			t.Fatalf("record %d differs (-want +got):\n%s", i, cmp.Diff(recs[i], got[i]))
		}
	}
	f := openFile(t, dayPath(dir))
	if n := len(f.RowGroups()); n != 1 {
		t.Fatalf("%d row groups", n)
	}
	columns := f.RowGroups()[0].ColumnChunks()
	value := func(column int, row int64) parquet.Value {
		pages := columns[column].Pages()
		defer pages.Close()
		if err := pages.SeekToRow(row); err != nil {
			t.Fatal(err)
		}
		p, err := pages.ReadPage()
		if err != nil {
			t.Fatal(err)
		}
		v := make([]parquet.Value, 1)
		if n, err := p.Values().ReadValues(v); n != 1 {
			t.Fatal(err)
		}
		return v[0].Clone()
	}
	const timeColumn, sizeColumn, idColumn = 0, 9, 12
	for _, n := range []int64{0, 1, 999, 1000, 1001, 32767, 32768, rows - 1} {
		if got, want := value(timeColumn, n).Int64(), recs[n].Time.UnixMicro(); got != want {
			t.Errorf("time of row %d: got %d, want %d", n, got, want)
		}
		if got, want := value(sizeColumn, n).Int64(), recs[n].Written; got != want {
			t.Errorf("size of row %d: got %d, want %d", n, got, want)
		}
		if got, want := value(idColumn, n).String(), recs[n].ID; got != want {
			t.Errorf("id of row %d: got %.20q, want %.20q", n, got, want)
		}
	}
	x, err := columns[timeColumn].ColumnIndex()
	if err != nil || x.NumPages() != 2 || !x.IsAscending() {
		t.Fatalf("index of times: %v, %v", x, err)
	}
	if got, want := x.MaxValue(0).Int64(), recs[32767].Time.UnixMicro(); got != want {
		t.Errorf("the last time of the first page is said to be %d, it is %d", got, want)
	}
	if ids, err := columns[idColumn].OffsetIndex(); err != nil || ids.NumPages() < 5 {
		t.Errorf("pages of ids: %v, %v", ids, err)
	}
}

// TestManyRows writes an hour with more rows than a row group holds.
func TestManyRows(t *testing.T) {
	const group, rows = 5000, 5100
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		o    store.WriterOptions
		add  int
	}{
		{"in memory", store.WriterOptions{}, rows - 10},
		{"added", store.WriterOptions{DropDuplicates: true}, 10},
	} {
		w, err := store.NewWriter(dir, &tc.o)
		if err != nil {
			t.Fatal(err)
		}
		w.SetMaxGroup(group)
		for i := range tc.add {
			// There are few different times, and most of them occur.
			r := trace.Record{Method: "GET", URI: "v2", Status: 200, Time: start.Add(time.Duration(i*7919%100) * time.Second)}
			if err := w.Add("a", &r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := tracetest.Open(t, dir)
	last, n := int64(0), 0
	err := s.Scan(context.Background(), store.Query{Zone: "a"}, func(b *store.Batch) error {
		if b.Len() > group {
			t.Errorf("a batch of %d", b.Len())
		}
		for _, us := range b.Time {
			if us < last {
				t.Errorf("row %d is not in order", n)
			}
			last = us
			n++
		}
		return nil
	})
	if err != nil || n != rows {
		t.Errorf("%d rows, %v; want %d", n, err, rows)
	}
	if groups := len(openFile(t, dayPath(dir)).RowGroups()); groups != 2 {
		t.Errorf("%d row groups", groups)
	}
}

// TestSameBytes imports the same files with different numbers of cores and expects the
// same bytes.
func TestSameBytes(t *testing.T) {
	from := t.TempDir()
	for i := range 6 {
		var out []byte
		for _, r := range tracetest.Records(4000, 6*time.Hour, uint64(50+i)) {
			r.Time = r.Time.Add(time.Duration(i) * 6 * time.Hour)
			out = r.AppendTrace(out)
		}
		out = append(out, "no record\n"...)
		if err := os.WriteFile(filepath.Join(from, fmt.Sprintf("prod-a-logstash-2017.06.20-%d.json", i)), out, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths, _, err := logs.Files([]string{from})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var files [][]byte
	var results []ingest.Imported
	for _, cores := range []int{1, 2, 4} {
		runtime.GOMAXPROCS(cores)
		dir := t.TempDir()
		w, err := store.NewWriter(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ingest.Import(context.Background(), logs.NewInput(nil), paths, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, day := range []string{"20", "21"} {
			b, err := os.ReadFile(filepath.Join(dir, "zone=a", "day=2017-06-"+day+".parquet"))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		files, results = append(files, all), append(results, *got)
	}
	for i := range files {
		if !bytes.Equal(files[0], files[i]) {
			t.Errorf("store %d is another", i)
		}
		if diff := cmp.Diff(results[0], results[i]); diff != "" {
			t.Errorf("result %d differs:\n%s", i, diff)
		}
	}
	if results[0].Records != 24_000 || len(results[0].Skipped) != 1 || results[0].Skipped[0].Count != 6 {
		t.Errorf("imported: %+v", results[0])
	}
}
