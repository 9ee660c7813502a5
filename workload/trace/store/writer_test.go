package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// TestOneWriter opens a second writer while the first has temporary files.
func TestOneWriter(t *testing.T) {
	dir := t.TempDir()
	recs := tracetest.Records(20_000, 10*time.Hour, 20)
	w, err := store.NewWriter(dir, &store.WriterOptions{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if err := w.Add("a", &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if other, err := store.NewWriter(dir, nil); !errors.Is(err, store.ErrBusy) {
		t.Fatalf("a second writer: %v, %v", other, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := w.Written(); got.Records != 20_000 || got.Spilled == 0 {
		t.Errorf("written: %+v", got)
	}
	write(t, dir, nil, "a", recs[:1]) // the lock ended with the writer
}

// TestParts writes two zones at the same time.
func TestParts(t *testing.T) {
	dir := t.TempDir()
	w, err := store.NewWriter(dir, &store.WriterOptions{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	recs := tracetest.ByTime(tracetest.Records(10_000, 10*time.Hour, 21))
	var wg sync.WaitGroup
	for _, zone := range []string{"a", "b"} {
		part, err := w.Part(zone)
		if err != nil {
			t.Fatal(err)
		}
		if err := part.Add("c", &recs[0]); err == nil {
			t.Errorf("the part for %s took a record of zone c", zone)
		}
		if err := w.Add(zone, &recs[0]); err == nil {
			t.Errorf("the writer took a record of zone %s, which is a part's", zone)
		}
		wg.Go(func() {
			for i := range recs {
				if err := part.Add(zone, &recs[i]); err != nil {
					t.Error(err)
					return
				}
			}
			if err := part.Close(); err != nil {
				t.Error(err)
			}
			if n := part.Written().Records; n != 10_000 {
				t.Errorf("zone %s: %d records", zone, n)
			}
		})
	}
	if _, err := w.Part("a"); err == nil {
		t.Error("two parts have one zone")
	}
	if err := w.Add("c", &recs[0]); err != nil {
		t.Error(err)
	}
	if _, err := w.Part("c"); err == nil {
		t.Error("a part has a zone that the writer has records of")
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	s := tracetest.Open(t, dir)
	for _, zone := range []string{"a", "b"} {
		if diff := cmp.Diff(recs, tracetest.ReadAll(t, s, store.Query{Zone: zone})); diff != "" {
			t.Errorf("zone %s differs (-want +got):\n%s", zone, diff)
		}
	}
	w, err = store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Part("d"); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err == nil {
		t.Error("a writer was closed before its part and did not complain")
	}
}

// TestManyRuns spills more runs of a day than the writer merges at once.
func TestManyRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	dir := t.TempDir()
	recs := tracetest.Records(60_000, 2*time.Hour, 22)
	w, err := store.NewWriter(dir, &store.WriterOptions{Memory: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	w.SetMaxRuns(3)
	for i := range recs {
		if err := w.Add("a", &recs[i]); err != nil {
			t.Fatal(err)
		}
		if i%5000 > 0 {
			continue
		}
		if runs, err := filepath.Glob(filepath.Join(dir, ".part-runs-*", "*")); err != nil || len(runs) >= 3 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := w.Written(); got.Spilled != 7 || got.Records != 60_000 || got.Files != 1 {
		t.Errorf("written: %+v", got)
	}
	if diff := cmp.Diff(tracetest.ByTime(recs), tracetest.ReadAll(t, tracetest.Open(t, dir), store.Query{Zone: "a"})); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

// TestDropKeepsOld checks that only new duplicates are dropped, not those stored before.
func TestDropKeepsOld(t *testing.T) {
	dir := t.TempDir()
	recs := tracetest.Records(100, time.Hour, 23)
	write(t, dir, nil, "a", append(slices.Clone(recs), recs[:7]...))
	fresh := tracetest.Records(10, time.Hour, 24)
	got := write(t, dir, &store.WriterOptions{DropDuplicates: true}, "a", append(fresh, recs[:5]...))
	if diff := cmp.Diff(store.Written{Files: 1, Records: 10, Duplicates: 5, Dropped: 5}, got); diff != "" {
		t.Errorf("written differs (-want +got):\n%s", diff)
	}
	if n := tracetest.Open(t, dir).Zones()[0].Records; n != 117 {
		t.Errorf("the store has %d records, want 117", n)
	}
}

// TestNotUTF8 writes invalid UTF-8. A client may send any bytes, but readers of Parquet
// expect text.
func TestNotUTF8(t *testing.T) {
	dir := t.TempDir()
	r := trace.Record{Host: "h\xff", Method: "G\xff", RemoteAddr: "c\xff", URI: "v2/a\xff/blobs/b\xff", UserAgent: "caf\xe9 \xff", ID: "\xffi",
		Status: 200, Written: 1, Time: start}
	other := trace.Record{Method: "GET", URI: "x\xff", ID: "\xff", Time: start.Add(time.Second)}
	write(t, dir, nil, "a", []trace.Record{r, r, other})
	s := tracetest.Open(t, dir)
	for _, r := range tracetest.ReadAll(t, s, store.Query{Zone: "a"}) {
		for _, v := range []string{r.Host, r.Method, r.RemoteAddr, r.URI, r.UserAgent, r.ID} {
			if !utf8.ValidString(v) {
				t.Errorf("%q is in the store", v)
			}
		}
	}
	if got := tracetest.ReadAll(t, s, store.Query{Zone: "a"}); got[0].UserAgent != "caf\uFFFD \uFFFD" || got[0] != got[1] {
		t.Errorf("got %+v", got[:2])
	}
}

// TestManyDays checks that a day with few records takes little memory beyond these
// records. A broken log may have times from a whole century.
func TestManyDays(t *testing.T) {
	dir := t.TempDir()
	w, err := store.NewWriter(dir, &store.WriterOptions{Memory: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8400 { // enough for the writer to add up its memory once
		r := trace.Record{Method: "GET", URI: "v2", Time: start.AddDate(0, 0, i%200)}
		if err := w.Add("a", &r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := w.Written(); got.Files != 200 || got.Records != 8400 || got.Spilled != 0 {
		t.Errorf("written: %+v", got)
	}
}

// TestDigestOfAnonymised checks that a manifest by digest still has a digest after names
// were replaced, and after the result is copied.
func TestDigestOfAnonymised(t *testing.T) {
	a, err := ingest.NewAnonymiser(make([]byte, ingest.MinKey), nil)
	if err != nil {
		t.Fatal(err)
	}
	from := t.TempDir()
	write(t, from, nil, "a", []trace.Record{
		{Method: "GET", URI: "v2/a/manifests/sha256:ab", Time: start},
		{Method: "GET", URI: "v2/a/manifests/latest", Time: start.Add(1000)},
		{Method: "PUT", URI: "v2/a/manifests/latest", Digest: "sha256:ab", Time: start.Add(2000)},
	})
	want := a.Pseudonym("sha256:ab")
	for i, change := range []func(*trace.Record){a.Anonymise, nil} {
		to := t.TempDir()
		w, err := store.NewWriter(to, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tracetest.Open(t, from).Copy(context.Background(), w, &store.CopyOptions{Change: change}); err != nil {
			t.Fatal(err)
		}
		var got []string
		s := tracetest.Open(t, to)
		err = s.Scan(context.Background(), store.Query{Zone: "a"}, func(b *store.Batch) error {
			for _, d := range b.Digest {
				got = append(got, s.Name(store.Refs, d))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{want, "", want}, got); diff != "" {
			t.Errorf("copy %d: digests differ (-want +got):\n%s", i, diff)
		}
		from = to
	}
}

// TestOpenHostileZone opens zones with hostile names, since names go to terminals and
// into reports.
func TestOpenHostileZone(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, nil, "a", tracetest.Records(10, time.Hour, 25))
	if err := os.Rename(filepath.Join(dir, "zone=a"), filepath.Join(dir, "zone=\x1b[2J<b>")); err != nil {
		t.Fatal(err)
	}
	if s, err := store.Open(dir); err == nil || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("got %v, %q", s, fmt.Sprint(err))
	}
}
