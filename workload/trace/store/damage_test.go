package store_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// TestWriteFails makes writing a file fail, as on a full disk. What was published before
// must stay, and the writer must report the error from then on.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	recs := tracetest.Records(500, time.Hour, 11)
	write(t, dir, nil, "a", recs)
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if err := w.Add("a", &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "zone=a", ".part-day=2017-06-20.parquet"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err == nil {
		t.Error("Close did not tell that the file could not be written")
	}
	if err := w.Add("a", &recs[0]); err == nil {
		t.Error("Add works after an error")
	}
	if diff := cmp.Diff(tracetest.ByTime(recs), tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); diff != "" {
		t.Errorf("what was there before has changed (-want +got):\n%s", diff)
	}
}

// TestLeftovers starts a writer among the files of one that was killed.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, nil, "a", tracetest.Records(500, time.Hour, 12))
	for _, name := range []string{".part-runs-1/x", "zone=a/.part-day=2017-06-20.parquet"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := tracetest.Open(t, dir).Zones()[0].Records; n != 500 {
		t.Errorf("the store has %d records, want 500", n)
	}
	write(t, dir, nil, "a", nil)
	for _, pattern := range []string{".part-*", "*/.part-*"} {
		if left, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// TestFlush publishes twice, both times with records for the same day.
func TestFlush(t *testing.T) {
	dir := t.TempDir()
	recs := tracetest.Records(600, time.Hour, 13)
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if err := w.Add("a", &recs[i]); err != nil {
			t.Fatal(err)
		}
		if i%200 == 199 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if n := tracetest.Open(t, dir).Zones()[0].Records; n != int64(i+1) {
				t.Errorf("after %d records the store has %d", i+1, n)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(store.Written{Files: 3, Records: 600}, w.Written()); diff != "" {
		t.Errorf("written differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(tracetest.ByTime(recs), tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

func TestCopy(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	recs := tracetest.ByTime(tracetest.Records(3000, 60*time.Hour, 14))
	write(t, dir, nil, "a", recs)
	write(t, dir, nil, "b", recs[:10])
	repo := trace.ParseURI(recs[len(recs)-1].URI).Repo
	for _, r := range recs {
		if t := trace.ParseURI(r.URI); t.Repo != "" {
			repo = t.Repo
		}
	}
	from, to := start.Add(20*time.Hour), start.Add(50*time.Hour)
	w, err := store.NewWriter(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	_, err = tracetest.Open(t, dir).Copy(context.Background(), w, &store.CopyOptions{Zones: []string{"a"}, From: from, To: to,
		Repos: []string{repo, "none/*"}, Change: func(r *trace.Record) { changed++ }})
	if err != nil {
		t.Fatal(err)
	}
	var want []trace.Record
	for _, r := range recs {
		if !r.Time.Before(from) && r.Time.Before(to) && trace.ParseURI(r.URI).Repo == repo {
			want = append(want, r)
		}
	}
	var got []trace.Record
	if len(want) > 0 {
		got = tracetest.ReadAll(t, tracetest.Open(t, out), store.Query{Zone: "a"})
	}
	if diff := cmp.Diff(want, got); diff != "" || changed != len(want) {
		t.Errorf("%d changed, records differ (-want +got):\n%s", changed, diff)
	}
}

// FuzzOpen damages a file of a store. Reading it may fail but must not panic.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	write(f, dir, nil, "a", tracetest.Records(50, 2*time.Hour, 15))
	whole, err := os.ReadFile(filepath.Join(dir, "zone=a", "day=2017-06-20.parquet"))
	if err != nil {
		f.Fatal(err)
	}
	for _, at := range []int{4, 40, len(whole) / 3, len(whole) / 2, len(whole) - 900, len(whole) - 300, len(whole) - 9} {
		f.Add(at, byte(0xff))
		f.Add(at, byte(1))
	}
	f.Fuzz(func(t *testing.T, at int, x byte) {
		bad := append([]byte(nil), whole...)
		bad[uint(at)%uint(len(bad))] ^= x
		readDamaged(t, bad)
	})
}

// readDamaged reads a file of 50 requests that may be damaged. Any error is acceptable. A panic is
// not, nor the use of much more memory than the file takes: a process that does not get so much
// memory ends.
func readDamaged(t *testing.T, file []byte) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "zone=a", "day=2017-06-20.parquet")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer func() {
		const most = 64 << 20
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > most {
			t.Errorf("reading a file of %d bytes took %d MiB", len(file), n>>20)
		}
	}()
	s, err := store.Open(dir)
	if err != nil {
		return
	}
	defer s.Close()
	n := 0
	err = s.Scan(context.Background(), store.Query{Zone: "a"}, func(b *store.Batch) error { n += b.Len(); return nil })
	if err == nil && n != 50 {
		t.Errorf("a scan gave %d of 50 requests and no error", n)
	}
	_ = s.Records(context.Background(), store.Query{Zone: "a"}, func(*trace.Record) error { return nil })
}

// TestDamagedBytes changes bytes of a file one after another, as [FuzzOpen] does by chance.
func TestDamagedBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	dir := t.TempDir()
	write(t, dir, nil, "a", tracetest.Records(50, 2*time.Hour, 15))
	whole, err := os.ReadFile(dayPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	const step = 7
	for at := 0; at < len(whole); at += step {
		x := []byte{0x80, 0xff, 0x0f, 0xf0, 1}[at/step%5]
		bad := bytes.Clone(whole)
		bad[at] ^= x
		readDamaged(t, bad)
		if t.Failed() {
			t.Fatalf("byte %d of %d, changed by %#x", at, len(whole), x)
		}
	}
}
