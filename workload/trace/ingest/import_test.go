package ingest_test

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
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

var start = tracetest.Start

// importFiles imports files with a number of cores.
func importFiles(t *testing.T, cores int, files []string, dir string) (*ingest.Imported, error) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	w, err := store.NewWriter(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ingest.Import(context.Background(), logs.NewInput(&logs.InputOptions{Start: start, Rate: 8}), files, w, &ingest.ImportOptions{Zone: "a"})
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
		if diff := cmp.Diff(want, tracetest.ReadAll(t, tracetest.Open(t, to), store.Query{Zone: "a"})); diff != "" {
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
	recs := tracetest.ByTime(tracetest.Records(2000, 5*time.Hour, 60))
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
		if diff := cmp.Diff(recs[:1000], tracetest.ReadAll(t, tracetest.Open(t, to), store.Query{Zone: "a"})); diff != "" {
			t.Errorf("%d cores: records differ (-want +got):\n%s", cores, diff)
		}
	}
}

// TestImportEnds makes the store fail while files are read.
func TestImportEnds(t *testing.T) {
	dir := t.TempDir()
	var line []byte
	for _, r := range tracetest.Records(20_000, time.Hour, 61) {
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
	_, err = ingest.Import(ctx, logs.NewInput(nil), files, w, &ingest.ImportOptions{Progress: func(records int64) {
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
	if _, err := ingest.Import(context.Background(), logs.NewInput(nil), files, w, nil); err == nil {
		t.Error("a zone that is a part's was imported")
	}
}

// TestImportAgain imports a log without ids several times into one store: again, together with
// copies, behind a collector's prefix, and twice in one file. No request may be stored twice, except
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
		if _, err := ingest.Import(context.Background(), logs.NewInput(&logs.InputOptions{Identify: true}), these, w, &ingest.ImportOptions{Zone: "a"}); err != nil {
			t.Fatal(err)
		}
		if got := len(tracetest.ReadAll(t, tracetest.Open(t, to), store.Query{Zone: "a"})); got != requests {
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
		if !errors.Is(err, ingest.ErrNothing) || !strings.Contains(err.Error(), "--format") || len(strings.TrimSpace(content)) > 0 && len(got.Skipped) == 0 {
			t.Errorf("%s: %v, skipped %+v", name, err, got.Skipped)
		}
		w, err := store.NewWriter(filepath.Join(dir, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ingest.Record(logs.NewInput(nil), strings.NewReader(content), "log", w, nil)
		if want := len(strings.TrimSpace(content)) > 0; errors.Is(err, ingest.ErrNothing) != want { // nothing may have been asked
			t.Errorf("%s, recorded: %v", name, err)
		}
	}
}

// TestImportUnknown checks that what a client sent is shown in a form that does nothing to a
// terminal.
func TestImportUnknown(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	line := (&trace.Record{Method: "\x1b[2J", URI: "/x\x1b[2J", Time: start}).AppendTrace(nil)
	if err := os.WriteFile(file, line, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := store.NewWriter(filepath.Join(dir, "s"), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ingest.Import(context.Background(), logs.NewInput(nil), []string{file}, w, nil)
	if err != nil || len(got.Unknown) != 1 || got.Unknown[0].Why != `\x1b[2J "x\x1b[2J"` {
		t.Errorf("got %+v, %v", got, err)
	}
}
