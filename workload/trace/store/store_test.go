package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

var start = tracetest.Start

func write(t testing.TB, dir string, o *store.WriterOptions, zone string, recs []trace.Record) store.Written {
	t.Helper()
	w, err := store.NewWriter(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if err := w.Add(zone, &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Written()
}

func TestRoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, tc := range []struct {
		name    string
		over    time.Duration
		o       store.WriterOptions
		files   int
		spilled bool
	}{
		{"in memory", 60 * time.Hour, store.WriterOptions{}, 3, false},
		{"an hour", time.Hour, store.WriterOptions{}, 1, false},
		{"the same moments", 300 * time.Millisecond, store.WriterOptions{}, 1, false},
		{"spilled", 60 * time.Hour, store.WriterOptions{Memory: 1 << 20}, 3, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			recs := tracetest.Records(20_000, tc.over, 1)
			dir := t.TempDir()
			got := write(t, dir, &tc.o, "dal09", recs)
			if got.Records != 20_000 || got.Files != tc.files || (got.Spilled > 0) != tc.spilled {
				t.Errorf("written: %+v", got)
			}
			s := tracetest.Open(t, dir)
			if diff := cmp.Diff(tracetest.ByTime(recs), tracetest.ReadAll(t, s, store.Query{Zone: "dal09"})); diff != "" {
				t.Errorf("records differ (-want +got):\n%s", diff)
			}
			left, err := filepath.Glob(filepath.Join(dir, ".*"))
			if err != nil || len(left) != 0 {
				t.Errorf("left in the directory: %v, %v", left, err)
			}
		})
	}
}

func TestScan(t *testing.T) {
	recs := tracetest.ByTime(tracetest.Records(30_000, 50*time.Hour, 2))
	dir := t.TempDir()
	write(t, dir, nil, "dal09", recs)
	s := tracetest.Open(t, dir)
	from, to := start.Add(90*time.Minute), start.Add(40*time.Hour+30*time.Minute)
	var got []trace.Record
	batches := 0
	err := s.Scan(context.Background(), store.Query{Zone: "dal09", From: from, To: to}, func(b *store.Batch) error {
		batches++
		for i := range b.Len() {
			repo := s.Name(store.Repos, b.Repo[i])
			if ns, _, _ := strings.Cut(repo, "/"); ns != s.Name(store.Repos, b.Namespace[i]) {
				t.Fatalf("namespace of %q is %q", repo, s.Name(store.Repos, b.Namespace[i]))
			}
			r := trace.Record{Host: s.Name(store.Hosts, b.Host[i]), RemoteAddr: s.Name(store.Clients, b.Client[i]),
				UserAgent: s.Name(store.Agents, b.Agent[i]), Method: b.Method[i].String(), Status: int(b.Status[i]),
				Duration: time.Duration(b.Duration[i]) * time.Microsecond, Written: b.Size[i], Time: b.At(i),
				URI: trace.Target{Kind: b.Kind[i], Repo: repo, Ref: s.Name(store.Refs, b.Ref[i])}.URI()}
			if b.Kind[i] == trace.Upload {
				r.Digest = s.Name(store.Refs, b.Digest[i])
			}
			got = append(got, r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var want []trace.Record
	for _, r := range recs {
		if r.Time.Before(from) || !r.Time.Before(to) {
			continue
		}
		r.ID = ""
		if r.URI == "healthz" {
			r.URI = ""
		}
		want = append(want, r)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
	if batches != 40 {
		t.Errorf("got %d batches, want one for each of the 40 hours", batches)
	}
	if sym, ok := s.Lookup(store.Agents, recs[0].UserAgent); !ok || s.Name(store.Agents, sym) != recs[0].UserAgent {
		t.Errorf("Lookup of an agent: %d, %v", sym, ok)
	}
	if n := s.Symbols(store.Hosts); n != 7 {
		t.Errorf("there are %d symbols of hosts, want 6 and the empty one", n)
	}
}

func TestScanColumns(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, nil, "a", tracetest.Records(100, time.Hour, 3))
	err := tracetest.Open(t, dir).Scan(context.Background(), store.Query{Zone: "a", Columns: store.ColSize | store.ColRepo}, func(b *store.Batch) error {
		if len(b.Size) != 100 || len(b.Repo) != 100 || len(b.Time) != 100 {
			t.Errorf("lengths %d, %d, %d", len(b.Size), len(b.Repo), len(b.Time))
		}
		if b.Duration != nil || b.Ref != nil || b.Kind != nil || b.Namespace != nil {
			t.Errorf("columns that were not asked for are there: %+v", b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestZones(t *testing.T) {
	dir := t.TempDir()
	a, b := tracetest.Records(1000, 30*time.Hour, 4), tracetest.Records(500, time.Hour, 5)
	write(t, dir, nil, "lon02", a)
	for i := range b {
		b[i].Time = b[i].Time.Add(72 * time.Hour)
	}
	write(t, dir, nil, "lon02", b)
	write(t, dir, nil, "dal09", b)
	a, b = tracetest.ByTime(a), tracetest.ByTime(b)
	day := func(n int) time.Time { return start.AddDate(0, 0, n) }
	want := []store.Zone{
		{Name: "dal09", Days: []time.Time{day(3)}, Records: 500, First: b[0].Time, Last: b[499].Time},
		{Name: "lon02", Days: []time.Time{day(0), day(1), day(3)}, Records: 1500, First: a[0].Time, Last: b[499].Time},
	}
	if diff := cmp.Diff(want, tracetest.Open(t, dir).Zones()); diff != "" {
		t.Errorf("zones differ (-want +got):\n%s", diff)
	}
}

func TestDuplicates(t *testing.T) {
	recs := tracetest.Records(1000, time.Hour, 6)
	for i := range 10 { // no duplicates: they differ in time or URI and have no id
		r := recs[i]
		r.Time = r.Time.Add(time.Millisecond)
		s := recs[i]
		s.URI += "/x"
		recs = append(recs, r, s)
	}
	anonymous := recs[0]
	anonymous.ID = ""
	recs = append(recs, anonymous, anonymous)
	twice := append(slices.Clone(recs), recs[:7]...)
	for _, drop := range []bool{false, true} {
		dir := t.TempDir()
		got := write(t, dir, &store.WriterOptions{DropDuplicates: drop}, "a", twice)
		want := store.Written{Files: 1, Records: int64(len(twice)), Duplicates: 7}
		if drop {
			want.Records, want.Dropped = int64(len(recs)), 7
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("drop %v: written differs (-want +got):\n%s", drop, diff)
		}
		if n := len(tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); int64(n) != want.Records {
			t.Errorf("drop %v: the store has %d records, want %d", drop, n, want.Records)
		}
	}
}

func TestImportTwice(t *testing.T) {
	recs := tracetest.Records(3000, 30*time.Hour, 7)
	dir := t.TempDir()
	write(t, dir, nil, "a", recs)
	got := write(t, dir, &store.WriterOptions{DropDuplicates: true}, "a", recs)
	want := store.Written{Files: 2, Duplicates: 3000, Dropped: 3000}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("written differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(tracetest.ByTime(recs), tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

func TestBadRecords(t *testing.T) {
	w, err := store.NewWriter(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, when := range []time.Time{{}, time.Unix(-1, 0), time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if err := w.Add("a", &trace.Record{Time: when}); !errors.Is(err, store.ErrTime) {
			t.Errorf("time %v: error %v", when, err)
		}
	}
	for _, zone := range []string{"", "..", "a/b", "_a", "a b", strings.Repeat("a", 65)} {
		if err := w.Add(zone, &trace.Record{Time: start}); err == nil {
			t.Errorf("zone %q was taken", zone)
		}
	}
}

func TestOpenBad(t *testing.T) {
	dir := t.TempDir()
	if _, err := store.Open(dir); !errors.Is(err, store.ErrNotStore) {
		t.Errorf("empty directory: %v", err)
	}
	if _, err := store.Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	write(t, dir, nil, "a", tracetest.Records(100, time.Hour, 8))
	path := filepath.Join(dir, "zone=a", "day=2017-06-20.parquet")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{0, 3, len(whole) / 2, len(whole) - 1} {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Open(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("cut to %d bytes: error %v", cut, err)
		}
	}
}

func TestScanEnds(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, nil, "a", tracetest.Records(1000, 10*time.Hour, 9))
	s := tracetest.Open(t, dir)
	stop := errors.New("stop")
	calls := 0
	err := s.Scan(context.Background(), store.Query{Zone: "a"}, func(*store.Batch) error { calls++; return stop })
	if err != stop || calls != 1 {
		t.Errorf("error %v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Scan(ctx, store.Query{Zone: "a"}, func(*store.Batch) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("scan after cancel: %v", err)
	}
	if err := s.Scan(context.Background(), store.Query{Zone: "b"}, nil); err == nil {
		t.Error("there is no zone b")
	}
}

// benchRecords is the number of requests in a day of dal09: 285 thousand.
const benchRecords = 285_000

func BenchmarkWrite(b *testing.B) {
	recs := tracetest.Records(benchRecords, 24*time.Hour, 10)
	b.ReportAllocs()
	for b.Loop() {
		write(b, b.TempDir(), nil, "a", recs)
	}
	b.ReportMetric(float64(b.N)*benchRecords/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkScan(b *testing.B) {
	dir := b.TempDir()
	write(b, dir, nil, "a", tracetest.Records(benchRecords, 24*time.Hour, 10))
	info, err := os.Stat(filepath.Join(dir, "zone=a", "day=2017-06-20.parquet"))
	if err != nil {
		b.Fatal(err)
	}
	s := tracetest.Open(b, dir)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := s.Scan(context.Background(), store.Query{Zone: "a"}, func(bt *store.Batch) error { n += bt.Len(); return nil }); err != nil || n != benchRecords {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.N)*benchRecords/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(info.Size())/benchRecords, "B/record")
}

// BenchmarkImport imports two days in the form of the IBM traces: four files a day, with
// the records of each file in no order.
func BenchmarkImport(b *testing.B) {
	dir := b.TempDir()
	const files, each = 8, 62_500
	for i := range files {
		out := []byte{'['}
		for j, r := range tracetest.Records(each, 6*time.Hour, uint64(i)) {
			if j > 0 {
				out = append(out, ',')
			}
			r.Time = r.Time.Add(time.Duration(i) * 6 * time.Hour)
			out = r.AppendTrace(out)
		}
		name := fmt.Sprintf("prod-dal09-logstash-2017.06.%02d-%d.json", 20+i/4, i%4)
		if err := os.WriteFile(filepath.Join(dir, name), append(out, ']'), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	paths, _, err := logs.Files([]string{dir})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w, err := store.NewWriter(b.TempDir(), nil)
		if err != nil {
			b.Fatal(err)
		}
		got, err := ingest.Import(context.Background(), logs.NewInput(nil), paths, w, nil)
		if err != nil || got.Records != files*each || len(got.Skipped) > 0 {
			b.Fatal(got, err)
		}
	}
	b.ReportMetric(float64(b.N)*files*each/b.Elapsed().Seconds(), "records/s")
}
