package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"example.org/slipway/workload/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clfLine splits a line of Combined Log Format as analysers do.
var clfLine = regexp.MustCompile(`^(\S+) - (\S+) \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d+) (-?\d+) "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"\n$`)

var hexEscape = regexp.MustCompile(`\\x[0-9a-f]{2}|\\.`)

// unescape reverses Apache's escapes.
func unescape(s string) string {
	return hexEscape.ReplaceAllStringFunc(s, func(e string) string {
		if e[1] != 'x' {
			return e[1:]
		}
		var c byte
		fmt.Sscanf(e[2:], "%02x", &c)
		return string([]byte{c})
	})
}

var arrived = time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.FixedZone("", 3600))

// FuzzAppendCLF checks that a client cannot forge a line or a field, and that every byte
// it sent can be read back.
func FuzzAppendCLF(f *testing.F) {
	f.Add("127.0.0.1", "me", "GET", "/v2/", "HTTP/1.1", "docker", "")
	f.Add("::1", "a b", "GET", "/\n127.0.0.1 - - [x] \"GET /\"", "HTTP/1.1", "x\" \"y", "\\")
	f.Add("", "", "", "", "", "\\\"", "\x00\xff\x7f")
	f.Add(" ", "\" - -", "G\"", "a\\", "H", "-", "-")
	f.Fuzz(func(t *testing.T, addr, user, method, uri, proto, agent, referer string) {
		r := trace.Record{RemoteAddr: addr, User: user, Method: method, URI: uri, Proto: proto, UserAgent: agent, Referer: referer,
			Status: 200, Written: 5, Time: arrived}
		line := string(r.AppendCLF([]byte("before")))
		line, ok := strings.CutPrefix(line, "before")
		if !ok || strings.Count(line, "\n") != 1 {
			t.Fatalf("got %q", line)
		}
		for i := 0; i < len(line)-1; i++ {
			if line[i] < 0x20 || line[i] >= 0x7f {
				t.Errorf("byte %#x in %q", line[i], line)
			}
		}
		m := clfLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not in Combined Log Format: %q", line)
		}
		dash := func(s string) string {
			if s == "" {
				return "-"
			}
			return s
		}
		want := []string{dash(addr), dash(user), "03/Feb/2026:04:05:06 +0100", method + " " + uri + " " + proto, "200", "5", dash(referer), dash(agent)}
		for i, w := range want {
			if got := unescape(m[i+1]); got != w {
				t.Errorf("field %d: got %q, want %q, line %q", i, got, w, line)
			}
		}
	})
}

// FuzzAppendTrace checks that a record becomes one line of JSON, from which every valid
// value can be read back.
func FuzzAppendTrace(f *testing.F) {
	f.Add("docker", "/v2/a/b?x=y", "id")
	f.Add("\"}\n{\"host\":\"x", "//", "\u2028<&>")
	f.Add("\xff", "?", "")
	f.Fuzz(func(t *testing.T, agent, uri, id string) {
		r := trace.Record{Host: "h", Duration: 1500 * time.Millisecond, Method: "GET", RemoteAddr: "a", URI: uri, UserAgent: agent, Status: 200, Written: 7, ID: id, Time: arrived}
		line := r.AppendTrace(nil)
		if bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' {
			t.Fatalf("got %q", line)
		}
		var got map[string]any
		if err := json.Unmarshal(line, &got); err != nil || len(got) != 10 {
			t.Fatalf("%q: %d fields, %v", line, len(got), err)
		}
		if got["http.request.duration"] != 1.5 || got["http.response.status"] != 200.0 || got["http.response.written"] != 7.0 || got["timestamp"] != "2026-02-03T03:05:06.789Z" {
			t.Errorf("got %q", line)
		}
		path, _, _ := strings.Cut(uri, "?")
		path = strings.TrimPrefix(path, "/")
		for k, v := range map[string]string{"http.request.useragent": agent, "http.request.uri": path, "id": id} {
			if utf8.ValidString(v) && got[k] != v {
				t.Errorf("%s: got %q, want %q", k, got[k], v)
			}
		}
	})
}

// sink is a log that can fail.
type sink struct {
	mu     sync.Mutex
	b      bytes.Buffer
	err    error
	closed int
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	return s.b.Write(p)
}

func (s *sink) Close() error {
	s.closed++
	return nil
}

func (s *sink) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Len()
}

func TestWriter(t *testing.T) {
	s := &sink{}
	w := trace.NewWriter(s, trace.FormatTrace)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				w.Write(&trace.Record{ID: fmt.Sprintf("%d-%d", i, j), UserAgent: strings.Repeat("x", j), Time: arrived})
			}
		})
	}
	wg.Wait()
	for range 2 {
		if err := w.Close(); err != nil || s.closed != 1 {
			t.Errorf("close: %v, closed %d times", err, s.closed)
		}
	}
	ids := map[string]bool{}
	for line := range strings.Lines(s.b.String()) {
		var r struct{ ID string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		ids[r.ID] = true
	}
	if len(ids) != 4000 {
		t.Errorf("got %d records, want 4000", len(ids))
	}
}

// TestWriterFlushes checks that a record does not wait in the buffer for the next one.
func TestWriterFlushes(t *testing.T) {
	s := &sink{}
	w := trace.NewWriter(s, trace.FormatCLF)
	defer w.Close()
	w.Write(&trace.Record{Time: arrived})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); s.len() == 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the record was not written in 10 s")
		}
	}
}

// TestWriterErrors checks that a writer goes on when its log cannot be written, and that
// it reports the error.
func TestWriterErrors(t *testing.T) {
	s := &sink{err: errors.New("disk full")}
	w := trace.NewWriter(s, trace.FormatCLF)
	for range 2000 {
		w.Write(&trace.Record{UserAgent: "long enough to fill the buffer", Time: arrived})
	}
	if err := w.Err(); !errors.Is(err, s.err) {
		t.Errorf("got %v", err)
	}
	if err := w.Close(); !errors.Is(err, s.err) || s.closed != 1 {
		t.Errorf("close: %v", err)
	}
}

func TestParseFormat(t *testing.T) {
	for s, want := range map[string]trace.Format{"": trace.FormatCLF, "clf": trace.FormatCLF, "combined": trace.FormatCLF, "trace": trace.FormatTrace, "json": trace.FormatTrace} {
		if got, err := trace.ParseFormat(s); got != want || err != nil {
			t.Errorf("ParseFormat(%q) = %q, %v", s, got, err)
		}
	}
	if _, err := trace.ParseFormat("xml"); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("got %v", err)
	}
}

// FuzzAppendTraceJSON compares the line with what encoding/json makes of the fields.
func FuzzAppendTraceJSON(f *testing.F) {
	f.Add("docker/17.03 (linux)", "v2/a", int64(256753663), int64(1367), 200)
	f.Add("\"\\<&>\u2028\xff\x00", "é", int64(1), int64(-1), 0)
	f.Add("", "", int64(-1), int64(0), 999)
	f.Add("x", "y", int64(1e18), int64(1<<62), 404)
	f.Fuzz(func(t *testing.T, agent, id string, nanos, size int64, status int) {
		r := trace.Record{UserAgent: agent, ID: id, Duration: time.Duration(nanos), Written: size, Status: status, Method: "GET", URI: "/v2/", Time: arrived}
		want := map[string]any{"host": "", "http.request.duration": nil, "http.request.method": "GET", "http.request.remoteaddr": "",
			"http.request.uri": "v2/", "http.request.useragent": agent, "http.response.status": nil, "http.response.written": nil, "id": id,
			"timestamp": "2026-02-03T03:05:06.789Z"}
		if nanos >= 0 {
			delete(want, "http.request.duration") // compared below
		}
		if status != 0 {
			want["http.response.status"] = status
		}
		if size >= 0 {
			want["http.response.written"] = size
		}
		var got map[string]any
		if err := json.Unmarshal(r.AppendTrace(nil), &got); err != nil {
			t.Fatal(err)
		}
		if nanos >= 0 {
			s, ok := got["http.request.duration"].(float64)
			if d := s - time.Duration(nanos).Seconds(); !ok || d > s*1e-15 || d < -s*1e-15 {
				t.Errorf("%d ns are %v", nanos, s)
			}
			delete(got, "http.request.duration")
		}
		plain, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var again map[string]any
		if err := json.Unmarshal(plain, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(again, got); diff != "" {
			t.Errorf("fields differ (-want +got):\n%s", diff)
		}
	})
}
