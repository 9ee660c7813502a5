package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// importFiles imports files with the given number of cores.
func importFiles(t *testing.T, cores int, files []string, dir string) (*store.Imported, error) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return store.Import(context.Background(), trace.NewInput(&trace.InputOptions{Start: start, Rate: 8}), files, w, &store.ImportOptions{Zone: "a"})
}

// TestImportInOrder imports several files at once. The times of some records depend on
// all files before them, so the order must be kept.
func TestImportInOrder(t *testing.T) {
	dir := t.TempDir()
	var files []string
	var want []trace.Record
	for i := range 5 {
		var lines strings.Builder
		for j := range 3000 {
			r := trace.Record{Method: "GET", URI: fmt.Sprintf("v2/a/blobs/%d-%d", i, j), Duration: trace.Unknown, Written: trace.Unknown,
				Time: start.Add(time.Duration(len(want)) * time.Second / 8)}
			want = append(want, r)
			fmt.Fprintln(&lines, r.URI)
		}
		name := filepath.Join(dir, fmt.Sprintf("uris-%d", i))
		if err := os.WriteFile(name, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		empty := filepath.Join(dir, fmt.Sprintf("unknown-%d", i))
		if err := os.WriteFile(empty, []byte("of no format"), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, name, empty)
	}
	for _, cores := range []int{1, 4} {
		to := filepath.Join(dir, fmt.Sprint("store", cores))
		got, err := importFiles(t, cores, files, to)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, readAll(t, open(t, to), store.Query{Zone: "a"})); diff != "" {
			t.Errorf("%d cores: records differ (-want +got):\n%s", cores, diff)
		}
		if len(got.Skipped) != 1 || got.Skipped[0].Count != 5 || len(got.Skipped[0].First) != 5 {
			t.Fatalf("%d cores: skipped %+v", cores, got.Skipped)
		}
		for i, p := range got.Skipped[0].First {
			if want := files[2*i+1]; p.File != want {
				t.Errorf("%d cores: skipped %s, want %s", cores, p.File, want)
			}
		}
	}
}

// TestImportMissing imports files of which one is missing. The files before it are
// imported. Those after it are not, although they were read.
func TestImportMissing(t *testing.T) {
	dir := t.TempDir()
	recs := byTime(someRecords(2000, 5*time.Hour, 60))
	files := []string{filepath.Join(dir, "1"), filepath.Join(dir, "missing"), filepath.Join(dir, "2")}
	for i, part := range [][]trace.Record{recs[:1000], nil, recs[1000:]} {
		if part == nil {
			continue
		}
		var out []byte
		for _, r := range part {
			out = r.AppendTrace(out)
		}
		if err := os.WriteFile(files[i], out, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, cores := range []int{1, 4} {
		to := filepath.Join(dir, fmt.Sprint("store", cores))
		got, err := importFiles(t, cores, files, to)
		if !errors.Is(err, fs.ErrNotExist) || got.Records != 1000 {
			t.Errorf("%d cores: %d records, %v", cores, got.Records, err)
		}
		if diff := cmp.Diff(recs[:1000], readAll(t, open(t, to), store.Query{Zone: "a"})); diff != "" {
			t.Errorf("%d cores: records differ (-want +got):\n%s", cores, diff)
		}
	}
}

// TestImportEnds makes the store fail while files are read.
func TestImportEnds(t *testing.T) {
	dir := t.TempDir()
	var line []byte
	for _, r := range someRecords(20_000, time.Hour, 61) {
		line = r.AppendTrace(line)
	}
	var files []string
	for i := range 6 {
		files = append(files, filepath.Join(dir, fmt.Sprint(i)))
		if err := os.WriteFile(files[i], line, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := store.NewWriter(filepath.Join(dir, "store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err = store.Import(ctx, trace.NewInput(nil), files, w, &store.ImportOptions{Progress: func(records int64) {
		if records > 1000 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	w, err = store.NewWriter(filepath.Join(dir, "store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Part("default"); err != nil { // the writer now takes no records of this zone
		t.Fatal(err)
	}
	if _, err := store.Import(context.Background(), trace.NewInput(nil), files, w, nil); err == nil {
		t.Error("a zone that is a part's was imported")
	}
}

// TestNames writes names of all lengths that differ in one byte.
func TestNames(t *testing.T) {
	var recs []trace.Record
	for n := 1; n <= 12; n++ {
		for i := range n {
			for _, c := range []string{"a", "b", "\x01", "é"} {
				name := strings.Repeat("x", i) + c + strings.Repeat("x", n-1-i)
				recs = append(recs, trace.Record{Method: "GET", URI: "v2/" + name + "/manifests/" + name, UserAgent: name, ID: name,
					Time: start.Add(time.Duration(len(recs)) * time.Millisecond)})
			}
		}
	}
	dir := t.TempDir()
	write(t, dir, nil, "a", append(recs, recs...)) // the second half repeats known names
	var want []trace.Record
	for _, r := range recs {
		want = append(want, r, r)
	}
	s := open(t, dir)
	if diff := cmp.Diff(want, readAll(t, s, store.Query{Zone: "a"})); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
	n := 0
	err := s.Scan(context.Background(), store.Query{Zone: "a"}, func(b *store.Batch) error {
		for i := range b.Ref {
			if got := s.Name(store.Refs, b.Ref[i]); got != want[n].UserAgent {
				t.Errorf("row %d: reference %q, want %q", n, got, want[n].UserAgent)
			}
			if sym, ok := s.Lookup(store.Agents, want[n].UserAgent); !ok || sym != b.Agent[i] {
				t.Errorf("row %d: agent %d, want %d", n, b.Agent[i], sym)
			}
			n++
		}
		return nil
	})
	if err != nil || n != len(want) {
		t.Errorf("%d rows, %v", n, err)
	}
	if _, ok := s.Lookup(store.Agents, "none"); ok {
		t.Error("there is a name that nobody wrote")
	}
	if sym, ok := s.Lookup(store.Agents, ""); !ok || sym != store.None {
		t.Errorf("the empty name is %d, %v", sym, ok)
	}
}

// TestImportAgain imports a log without ids again, both the same file and copies of it,
// compressed and behind the prefix of a collector. No request may be stored twice, except
// those that a client sent twice within a second.
func TestImportAgain(t *testing.T) {
	dir := t.TempDir()
	var plain, prefixed strings.Builder
	const requests = 200
	for i := range requests {
		line := fmt.Sprintf("10.0.0.%d - - [12/Jun/2024:09:%02d:%02d +0000] \"GET /v2/app/blobs/%d HTTP/1.1\" 200 1834 \"-\" \"x\"\n", i%3, i/60, i/4%60, i%4/3)
		plain.WriteString(line)
		prefixed.WriteString("2024-06-12T12:00:00.5Z stdout F " + line)
	}
	files := []string{filepath.Join(dir, "a.log"), filepath.Join(dir, "b.log"), filepath.Join(dir, "c.log")}
	for i, content := range []string{plain.String(), prefixed.String(), plain.String() + plain.String()} {
		if err := os.WriteFile(files[i], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(dir, "store")
	for _, these := range [][]string{files[:1], files[1:2], files} {
		w, err := store.NewWriter(to, &store.WriterOptions{DropDuplicates: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Import(context.Background(), trace.NewInput(&trace.InputOptions{Identify: true}), these, w, &store.ImportOptions{Zone: "a"}); err != nil {
			t.Fatal(err)
		}
		if got := len(readAll(t, open(t, to), store.Query{Zone: "a"})); got != requests {
			t.Fatalf("after %v there are %d records of %d requests", these, got, requests)
		}
	}
}

// TestImportNothing imports and records logs without a readable line. The error must say
// what to do and what the log contained.
func TestImportNothing(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty": "", "blank": "\n\n", "of no format": "hello\nworld\n", "of something else": `time="2024-06-12T09:44:00Z" level=info msg="listening"` + "\n",
		"not understood": `10.0.0.777 - - [12/Jun/2024:09:45:01 +0000] "GET /v2/ HTTP/1.1" 200 2` + "\n", "binary": "\x7fELF\x02\x01\x01\x00\x00",
	} {
		file := filepath.Join(dir, "log")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := importFiles(t, 1, []string{file}, filepath.Join(dir, name))
		if !errors.Is(err, store.ErrNothing) || !strings.Contains(err.Error(), "--format") || len(strings.TrimSpace(content)) > 0 && len(got.Skipped) == 0 {
			t.Errorf("%s: %v, skipped %+v", name, err, got.Skipped)
		}
		w, err := store.NewWriter(filepath.Join(dir, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = store.Record(trace.NewInput(nil), strings.NewReader(content), "log", w, nil)
		if want := len(strings.TrimSpace(content)) > 0; errors.Is(err, store.ErrNothing) != want { // an empty log is fine here: there may have been no request
			t.Errorf("%s, recorded: %v", name, err)
		}
	}
}
