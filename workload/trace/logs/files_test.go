package logs_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
)

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "logs")
	for _, d := range []string{"logs/.hidden", "logs/sub", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"logs/b", "logs/.c", "logs/.hidden/d", "logs/sub/a"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("v2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(tree, "pipe")
	if err := os.Symlink(tree, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		paths []string
		want  []string
		size  int64
	}{
		{"directory", []string{tree}, []string{"logs/b", "logs/sub/a"}, 6},
		{"link to a directory", []string{link}, []string{"link/b", "link/sub/a"}, 6},
		{"hidden, but named", []string{filepath.Join(tree, ".c"), filepath.Join(tree, ".hidden")}, []string{"logs/.c", "logs/.hidden/d"}, 6},
		{"pipe", []string{pipe}, []string{"logs/pipe"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, size, err := logs.Files(tc.paths)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], dir+"/")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || size != tc.size || err != nil {
				t.Errorf("%d bytes, %v, files differ (-want +got):\n%s", size, err, diff)
			}
		})
	}
	if files, _, err := logs.Files([]string{filepath.Join(dir, "empty")}); err == nil || !strings.Contains(err.Error(), "no files") {
		t.Errorf("an empty directory: %v, %v", files, err)
	}
}

// TestSameFile lists and reads a directory as Kubernetes has it: the logs of pods, and beside them
// links to these, some of which lead nowhere any more.
func TestSameFile(t *testing.T) {
	dir := t.TempDir()
	pods, containers := filepath.Join(dir, "pods"), filepath.Join(dir, "containers")
	for _, d := range []string{pods, containers} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a.log", "b.log"} {
		if err := os.WriteFile(filepath.Join(pods, name), []byte(combined("203.0.113.7")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"a.log": "../pods/a.log", "gone.log": "../pods/gone.log"} {
		if err := os.Symlink(target, filepath.Join(containers, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(pods, "b.log"), filepath.Join(dir, "hard.log")); err != nil {
		t.Fatal(err)
	}
	files, _, err := logs.Files([]string{dir, pods})
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []trace.Format{"", trace.FormatCLF} {
		in := logs.NewInput(&logs.InputOptions{Format: format})
		got := in.Choose(context.Background(), files)
		want := []string{filepath.Join(containers, "a.log"), filepath.Join(dir, "hard.log")}
		if diff := cmp.Diff(want, got); diff != "" || count(in) != 4 {
			t.Errorf("skipped %+v, files differ (-want +got):\n%s", in.Skipped(), diff)
		}
	}
}

// TestCutCompressed checks that the last line of a truncated compressed file is not taken
// for a complete one, since its numbers may lack digits.
func TestCutCompressed(t *testing.T) {
	const line = `10.0.0.7 - - [01/Mar/2024:11:00:02 +0100] "GET /v2/ HTTP/1.1" 200 1367`
	gz, zst := compressed(t, []byte(line+"\n"+line[:len(line)-2]))
	for name, b := range map[string][]byte{"gzip": gz[:len(gz)-4], "zstd": zst[:len(zst)-2]} {
		in := logs.NewInput(&logs.InputOptions{Format: trace.FormatCLF})
		for _, r := range read(t, in, string(b)) {
			if r.Written != 1367 {
				t.Errorf("%s: a record of %d bytes", name, r.Written)
			}
		}
		if s := in.Skipped(); len(s) != 1 || s[0].Kind != trace.BadFile {
			t.Errorf("%s: skipped %+v", name, s)
		}
	}
}

// TestSkippableFrame reads zstd files that begin with a skippable frame, as parallel
// compressors write them.
func TestSkippableFrame(t *testing.T) {
	_, zst := compressed(t, []byte(twoRecords))
	in := logs.NewInput(nil)
	got := read(t, in, "\x50\x2a\x4d\x18\x04\x00\x00\x00\x01\x02\x03\x04"+string(zst))
	if diff := cmp.Diff(golden(), got); diff != "" || len(in.Skipped()) != 0 {
		t.Errorf("skipped %v, records differ (-want +got):\n%s", in.Skipped(), diff)
	}
}

// TestEndlessLine reads a line without an end until it is told to stop.
func TestEndlessLine(t *testing.T) {
	for _, format := range []trace.Format{trace.FormatCLF, trace.FormatTrace} {
		ctx, cancel := context.WithCancel(context.Background())
		in := logs.NewInput(&logs.InputOptions{Format: format})
		ended := make(chan error, 1)
		go func() {
			ended <- in.ReadFrom(ctx, endless{}, "f", func(logs.Source, *trace.Record) error { return nil })
		}()
		tick := time.NewTicker(time.Millisecond)
		for in.Read() < 4<<20 {
			<-tick.C
		}
		tick.Stop()
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", format, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: it has not ended for 30 s", format)
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// TestFollowFromEnd begins while a line is being written. That line must be read
// completely.
func TestFollowFromEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for before, want := range map[string]string{"": "", "ONE": "", clf("ONE"): "", clf("ONE") + "10.0.": "10.0."} {
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		if want == "" && !strings.Contains(before, "\n") {
			want = before
		}
		f, err := logs.Follow(path, true)
		if err != nil {
			t.Fatal(err)
		}
		f.Stop()
		if got, err := io.ReadAll(f); err != nil || string(got) != want {
			t.Errorf("after %q: %q, %v, want %q", before, got, err, want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// follow records the methods of what a follower of a log in Combined Log Format reads.
func follow(t *testing.T, path string) (next func() string, stop func() []logs.Skipped) {
	t.Helper()
	f, err := logs.Follow(path, false)
	if err != nil {
		t.Fatal(err)
	}
	in := logs.NewInput(&logs.InputOptions{Format: trace.FormatCLF})
	methods, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- in.Follow(f, path, func(_ logs.Source, r *trace.Record) error { methods <- r.Method; return nil })
	}()
	next = func() string {
		t.Helper()
		select {
		case m := <-methods:
			return m
		case <-time.After(30 * time.Second):
			t.Fatal("nothing was read in 30 s")
			return ""
		}
	}
	return next, func() []logs.Skipped {
		t.Helper()
		f.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if len(methods) > 0 {
			t.Errorf("more was read: %s", <-methods)
		}
		return in.Skipped()
	}
}

func clf(method string) string {
	return `10.0.0.7 - - [01/Mar/2024:11:00:02 +0100] "` + method + ` /v2/ HTTP/1.1" 200 1367` + "\n"
}

// TestFollowRotated keeps writing to the old log after it was moved away and a new one
// was created, as every writer does until it is told to reopen.
func TestFollowRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	old, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	write := func(f *os.File, s string) {
		t.Helper()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	next, stop := follow(t, path)
	expect := func(want string) {
		t.Helper()
		if got := next(); got != want {
			t.Errorf("read %s, want %s", got, want)
		}
	}
	write(old, clf("ONE"))
	expect("ONE")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	now, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	// Long enough that a follower that does not wait would have gone on.
	for range 3 {
		write(old, clf("TWO"))
		expect("TWO")
		time.Sleep(250 * time.Millisecond)
	}
	write(old, clf("THREE"))
	write(now, clf("FOUR"))
	expect("THREE")
	expect("FOUR")
	write(now, strings.TrimSuffix(clf("FIVE"), "67\n"))
	if s := stop(); len(s) != 1 || s[0].Kind != trace.BadTruncated {
		t.Errorf("half a line: skipped %+v", s)
	}
}

// TestFollow reads a log while it is written, moved away and cut.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	line := func(id string) string {
		r := trace.Record{Method: "GET", URI: "/v2/", ID: id, Time: time.Date(2024, 3, 1, 10, 0, 2, 0, time.UTC)}
		return string(r.AppendTrace(nil))
	}
	put := func(flag int, s string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	put(os.O_APPEND, line("before"))
	f, err := logs.Follow(path, true)
	if err != nil {
		t.Fatal(err)
	}
	ids, done := make(chan string, 10), make(chan error, 1)
	go func() {
		done <- logs.NewInput(nil).Follow(f, "log", func(_ logs.Source, r *trace.Record) error { ids <- strings.Clone(r.ID); return nil })
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-ids:
			if got != want {
				t.Errorf("got record %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("record %q did not come", want)
		}
	}
	first := line("first")
	put(os.O_APPEND, first[:20])
	put(os.O_APPEND, first[20:])
	expect("first")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	put(os.O_APPEND, line("second")+line("third"))
	expect("second")
	expect("third")
	put(os.O_TRUNC, line("fourth"))
	expect("fourth")
	put(os.O_APPEND, line("fifth"))
	f.Stop() // what is there already is read
	expect("fifth")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
