package logs_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/logs/formats"
)

// titled is a line of docs/trace.md with its title, which is the line above it.
type titled struct{ title, text string }

// fromDocs reads the titled lines of the block below a heading of docs/trace.md.
func fromDocs(t testing.TB, heading string) []titled {
	t.Helper()
	page, err := os.ReadFile("../../../docs/trace.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n### "+heading+"\n")
	_, block, found := strings.Cut(section, "\n```text\n")
	block, _, ended := strings.Cut(block, "\n```\n")
	if !ok || !found || !ended {
		t.Fatalf("docs/trace.md has no block below %q", heading)
	}
	lines := strings.Split(block, "\n")
	var out []titled
	for i := 0; i+1 < len(lines); i += 2 {
		out = append(out, titled{strings.TrimPrefix(lines[i], "# "), lines[i+1]})
	}
	return out
}

// format returns the format of a line, as its title names it.
func (x titled) format() trace.Format {
	name, _, _ := strings.Cut(strings.ReplaceAll(x.title, ",", " "), " ")
	return trace.Format(name)
}

// behind returns the line behind a prefix, as a collector of logs writes it.
func (x titled) behind(prefix titled) string {
	text := x.text
	if strings.HasPrefix(prefix.text, "{") {
		quoted, _ := json.Marshal(text) // marshalling a string cannot fail
		text = strings.Trim(string(quoted[1:len(quoted)-1]), "")
	}
	return strings.Replace(prefix.text, "LINE", text, 1)
}

const layer = "sha256:5b0bcabd1ed22e9fb1310cf6c2dec7cdef19f0ad69efa1f392e94a4333501270"

// told returns the request of the examples, reduced to what the line's format records.
func (x titled) told() trace.Record {
	want := trace.Record{Method: "GET", RemoteAddr: "203.0.113.7", URI: "/v2/team/app/blobs/" + layer, UserAgent: "containerd/1.7.18",
		Status: 200, Written: 1834, Duration: time.Second, Time: time.Date(2024, 6, 12, 9, 45, 1, 0, time.UTC)}
	switch x.format() {
	case trace.FormatCLF:
		want.Duration = trace.Unknown
	case trace.FormatTrace:
		want.URI = want.URI[1:]
	case formats.HarborCore:
		want.UserAgent, want.Written = "", trace.Unknown
	case formats.URIs:
		return trace.Record{Method: "GET", URI: want.URI[1:], Duration: trace.Unknown, Written: trace.Unknown, Time: want.Time}
	}
	if strings.Contains(x.title, "Common Log Format") || strings.Contains(x.title, "before 7") {
		want.UserAgent = ""
	}
	return want
}

// docsInput returns an input that reads what the docs show.
func docsInput(format trace.Format) *logs.Input {
	at := time.Date(2024, 6, 12, 9, 45, 1, 0, time.UTC)
	return logs.NewInput(&logs.InputOptions{Format: format, Start: at, Now: at.AddDate(0, 2, 0)})
}

// plain returns a record without the fields that not every format has.
func plain(r trace.Record) trace.Record {
	r.Host, r.ID, r.Proto, r.User = "", "", "", ""
	return r
}

// checkDocs compares what was read with the request of an example. sizeLast says that the
// last line has no end, and so perhaps not all digits of a size that ends it.
func checkDocs(t *testing.T, x titled, in *logs.Input, got []trace.Record, n int, sizeLast bool) {
	t.Helper()
	if len(got) != n || len(in.Skipped()) > 0 {
		t.Fatalf("%s: read %d records, want %d; skipped %+v", x.title, len(got), n, in.Skipped())
	}
	for i, r := range got {
		if x.format() == formats.URIs {
			r.Time = x.told().Time
		}
		if i == n-1 && sizeLast && strings.HasSuffix(x.text, "1834") && r.Written == trace.Unknown { // a size that may lack digits is unknown
			r.Written = x.told().Written
		}
		if diff := cmp.Diff(x.told(), plain(r)); diff != "" {
			t.Fatalf("%s: the record differs (-want +got):\n%s", x.title, diff)
		}
	}
}

// TestDocumentedFormats reads the example of each format without a prefix, both with the
// format given and without.
func TestDocumentedFormats(t *testing.T) {
	examples := fromDocs(t, "A line of each")
	seen := map[string]bool{}
	for _, x := range examples {
		seen[string(x.format())] = true
		for _, format := range []trace.Format{x.format(), ""} {
			in := docsInput(format)
			checkDocs(t, x, in, read(t, in, x.text+"\n"), 1, false)
		}
	}
	for _, name := range formats.Names() {
		if !seen[name] {
			t.Errorf("docs/trace.md has no line of %s", name)
		}
	}
}

// TestDocumentedPrefixes reads each example behind each prefix, and behind two of them.
// The record must be the same.
func TestDocumentedPrefixes(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	prefixes := fromDocs(t, "What stands before a line")
	if len(prefixes) < 15 {
		t.Fatalf("docs/trace.md has %d prefixes", len(prefixes))
	}
	for _, x := range fromDocs(t, "A line of each") {
		for i, p := range prefixes {
			t.Run(x.title+" behind "+p.title, func(t *testing.T) {
				in := docsInput("")
				checkDocs(t, x, in, read(t, in, x.behind(p)+"\n"), 1, false)
				outer := prefixes[(i+7)%len(prefixes)]
				in = docsInput("")
				checkDocs(t, x, in, read(t, in, titled{x.title, x.behind(p)}.behind(outer)+"\n"), 1, false)
			})
		}
	}
}

// compress returns the input as the named program compresses it.
func compress(t testing.TB, name string, input []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch name {
	case "gz":
		w = gzip.NewWriter(&b)
	case "zst":
		w, err = zstd.NewWriter(&b)
	case "xz":
		w, err = xz.NewWriter(&b)
	case "tar":
		tw := tar.NewWriter(&b)
		err = tw.WriteHeader(&tar.Header{Name: "logs/access.log", Mode: 0o600, Size: int64(len(input))})
		w = tw
	case "bz2": // the standard library does not write bzip2
		cmd := exec.Command("bzip2", "-c")
		cmd.Stdin = bytes.NewReader(input)
		out, err := cmd.Output()
		if err != nil {
			t.Skipf("bzip2 is not here: %v", err)
		}
		return out
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(input); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDocumentedForms reads each example from files in each compression, with each kind
// of line end, and with the bytes that logs have where they were cut.
func TestDocumentedForms(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	wide := func(s string) string {
		var b strings.Builder
		b.WriteString("\xff\xfe")
		for _, c := range []byte(s) {
			b.WriteString(string([]byte{c, 0}))
		}
		return b.String()
	}
	for _, x := range fromDocs(t, "A line of each") {
		three := strings.Repeat(x.text+"\n", 3)
		for name, input := range map[string]string{
			"no end": three + x.text, "CRLF": strings.ReplaceAll(three+x.text+"\n", "\n", "\r\n"), "byte order mark": "\xef\xbb\xbf" + three + x.text + "\n",
			"hole": strings.Repeat("\x00", 3<<20) + three + x.text + "\n", "hole within": three + "\x00\x00" + x.text + "\n",
			"empty lines": "\n\n" + strings.ReplaceAll(three+x.text+"\n", "\n", "\n\n"), "UTF-16": wide(three + x.text + "\n"),
			"colours": strings.ReplaceAll(three+x.text+"\n", x.text, "\x1b[36m"+x.text+"\x1b[0m"),
		} {
			in := docsInput("")
			t.Run(x.title+", "+name, func(t *testing.T) { checkDocs(t, x, in, read(t, in, input), 4, name == "no end") })
		}
		for _, name := range []string{"gz", "zst", "xz", "bz2", "tar"} {
			t.Run(x.title+", "+name, func(t *testing.T) {
				packed := compress(t, name, []byte(three))
				in := docsInput("")
				checkDocs(t, x, in, read(t, in, string(packed)), 3, false)
				if name == "tar" {
					packed = compress(t, "xz", packed)
				} else { // two streams in a row, as in joined logs
					packed = append(packed, packed...)
				}
				in = docsInput("")
				got := read(t, in, string(packed))
				checkDocs(t, x, in, got, map[bool]int{true: 3, false: 6}[name == "tar"], false)
			})
		}
	}
}

// TestDocumentedCut cuts each example at any byte, at the beginning and at the end of a
// file. No record may have a client or a size that the example does not have, and the
// lines left out must be counted.
func TestDocumentedCut(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, x := range fromDocs(t, "A line of each") {
		if x.format() == formats.URIs {
			continue
		}
		want := x.told()
		for i, step := 1, 1; i < len(x.text); i += step {
			if i > 16 {
				step = 3
			}
			for name, input := range map[string]string{
				"cut first": x.text[i:] + "\n" + x.text + "\n" + x.text + "\n",
				"cut last":  x.text + "\n" + x.text + "\n" + x.text[:i],
			} {
				in := docsInput("")
				got := read(t, in, input)
				left := name == "cut last" && i <= strings.Index(x.text, "203.0.113.7") // a cut in the prefix of the last line leaves no line
				if n := len(got) + int(count(in)); n != 3 && (n != 2 || !left) || len(got) < 2 {
					t.Fatalf("%s, %s at %d: %d records, skipped %+v", x.title, name, i, len(got), in.Skipped())
				}
				for _, r := range got {
					if strings.Contains(x.title, "X-Forwarded-For") && r.RemoteAddr == "10.0.0.12" {
						continue // the rest of a list of clients is also a list
					}
					if r.RemoteAddr != want.RemoteAddr && r.RemoteAddr != "" || r.Written != want.Written && r.Written != trace.Unknown || r.Status != want.Status || r.URI != want.URI {
						t.Fatalf("%s, %s at %d: the record %+v", x.title, name, i, r)
					}
				}
			}
		}
	}
}

// count returns how much was skipped.
func count(in *logs.Input) (n int64) {
	for _, s := range in.Skipped() {
		n += s.Count
	}
	return n
}

// TestDocumentedDamage puts values into the fields of each example that are invalid
// there. The line must be skipped and shown.
func TestDocumentedDamage(t *testing.T) {
	for _, x := range fromDocs(t, "A line of each") {
		if x.format() == formats.URIs {
			continue
		}
		for _, d := range []struct{ name, what, by string }{
			{"client", "203.0.113.7", "203.0.113.777"}, {"client", "203.0.113.7", "!"}, {"size", "1834", "18x4"}, {"size", "1834", "-5"},
			{"size", "1834", "99999999999999999999"}, {"time", ":45:0", ":75:0"}, {"day", "12/Jun", "32/Jun"}, {"day", "-06-12", "-06-32"},
			{"month", "2024-06", "2024-13"}, {"status", "200", "2000"}, {"status", "200", "2o0"},
		} {
			text := strings.ReplaceAll(x.text, d.what, d.by)
			if text == x.text || x.format() == formats.HarborCore && d.name == "size" || x.format() == trace.FormatTrace && d.name == "client" {
				continue
			}
			in := docsInput(x.format())
			got := read(t, in, text+"\n"+x.text+"\n")
			s := in.Skipped()
			if len(got) != 1 || len(s) != 1 || s[0].Count != 1 {
				t.Errorf("%s with %s for %s: read %+v, skipped %+v", x.title, d.by, d.what, got, s)
				continue
			}
			if x.format() != trace.FormatTrace && (s[0].Kind != trace.BadLine && s[0].Kind != trace.BadOther || !shows(s[0].First[0].Why, text)) {
				t.Errorf("%s with %s for %s: skipped %+v", x.title, d.by, d.what, s)
			}
		}
	}
}

// shows reports whether a message contains part of a line.
func shows(why, text string) bool {
	for i := 0; i+40 <= len(text); i++ {
		if strings.Contains(why, text[i:i+40]) {
			return true
		}
	}
	return false
}

// TestEndsWithSizes reads uploads. The size is what came with the request, where the log
// states it. It is unknown when nothing came with the request that ends an upload.
func TestEndsWithSizes(t *testing.T) {
	for _, x := range fromDocs(t, "A line of each") {
		for _, size := range []int{0, 4096} {
			put := strings.NewReplacer(
				`"GET `, `"PUT `, `"GET"`, `"PUT"`, "=GET ", "=PUT ", "|GET|", "|PUT|", "| GET ", "| PUT ", "/blobs/"+layer, "/blobs/uploads/7?digest="+layer,
				`"bytes_received":0`, fmt.Sprintf(`"bytes_received":%d`, size), `"bytes_read":0`, fmt.Sprintf(`"bytes_read":%d`, size),
				"|-1|1834|", fmt.Sprintf("|%d|1834|", size), "|200|1834", fmt.Sprintf("|200|%d", size), "200 - 1834 1000", fmt.Sprintf("200 %d 1834 1000", size),
				" 200 - 0 1834", fmt.Sprintf(" 200 - %d 1834", size), ` "-" 0 1834`, fmt.Sprintf(` "-" %d 1834`, size),
				`"headers":{`, fmt.Sprintf(`"headers":{"Content-Length":["%d"],`, size), `"DownstreamStatus"`, fmt.Sprintf(`"RequestContentSize":%d,"DownstreamStatus"`, size),
			).Replace(x.text)
			if x.format() == trace.FormatTrace || x.format() == formats.URIs {
				continue
			}
			in := docsInput(x.format())
			got := read(t, in, put+"\n")
			if len(got) != 1 {
				t.Errorf("%s: %s is skipped: %+v", x.title, put, in.Skipped())
				continue
			}
			r := got[0]
			told := put != strings.ReplaceAll(put, fmt.Sprint(size), "") && size > 0 && strings.Contains(put, "4096")
			if r.Method != "PUT" || r.Written != trace.Unknown || r.Digest != layer || (r.Received == 4096) != told {
				t.Errorf("%s, %d bytes came: %+v", x.title, size, r)
			}
		}
	}
}
