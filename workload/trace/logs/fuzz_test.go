package logs_test

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/logs/formats"
)

// FuzzInput reads any input in each format. It must not panic or loop forever, and must
// return only records that can be stored.
func FuzzInput(f *testing.F) {
	names := []trace.Format{""}
	for _, name := range formats.Names() {
		names = append(names, trace.Format(name))
	}
	for i, seed := range []string{
		twoRecords, twoRecords[:200], `{"{"{"`, "[[[]", "v2\nv2/a/blobs/b\n",
		`1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "GET / HTTP/1.1" 200 1 "-" "\x22" 0.1`,
		`1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "GET  HTTP/1.1" 200 1`, "\xff\xfe1\x00\x00\xd8", "\x00\x00\n\x00",
		"\x1f\x8b\x08\x00", "\x28\xb5\x2f\xfd\x00", "\xfd7zXZ\x00", "BZh91AY&SY",
	} {
		f.Add([]byte(seed), i%len(names))
	}
	prefixes := fromDocs(f, "What stands before a line")
	for i, x := range fromDocs(f, "A line of each") {
		f.Add([]byte(x.text+"\n"+x.text), 0)
		f.Add([]byte(x.behind(prefixes[i%len(prefixes)])), 0)
		f.Add([]byte(x.text), 1+i%(len(names)-1))
	}
	f.Fuzz(func(t *testing.T, b []byte, format int) {
		in := logs.NewInput(&logs.InputOptions{Format: names[uint(format)%uint(len(names))], Now: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC), Identify: true})
		records := 0
		err := in.ReadFrom(context.Background(), strings.NewReader(string(b)), "f", func(src logs.Source, r *trace.Record) error {
			records++
			if r.Method == "" || r.URI == "" || r.Written < trace.Unknown || r.Duration < trace.Unknown || r.Received < 0 || r.Status < 0 || r.Status > 999 || r.ID == "" {
				t.Errorf("record %+v", r)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if records > len(b) {
			t.Errorf("%d records in %d bytes", records, len(b))
		}
	})
}

// FuzzLine reads anything as a line behind each prefix. A line that can be read bare must
// also be read behind a prefix. The reverse need not hold, because a bare line may lack
// the time.
func FuzzLine(f *testing.F) {
	prefixes := fromDocs(f, "What stands before a line")
	for i, x := range fromDocs(f, "A line of each") {
		f.Add(x.text, i)
	}
	f.Fuzz(func(t *testing.T, text string, i int) {
		if strings.ContainsAny(text, "\r\n\x00\x1b") || !utf8.ValidString(text) || len(text) > 8<<10 || strings.Contains(text, "#033[") {
			return
		}
		if text != strings.TrimSpace(text) || strings.HasPrefix(text, "\xef\xbb\xbf") || strings.HasPrefix(text, "[") {
			return
		}
		bare := read(t, docsInput(""), text+"\n")
		if len(bare) == 0 {
			return
		}
		p := prefixes[uint(i)%uint(len(prefixes))]
		got := read(t, docsInput(""), titled{"", text}.behind(p)+"\n")
		if len(got) == 0 && len(bare) > 0 {
			t.Errorf("%s: %q is read, but not behind %q", p.title, text, p.text)
		}
	})
}

// FuzzTraceLine writes records and reads them back.
func FuzzTraceLine(f *testing.F) {
	f.Add("h", "GET", "1.2.3.4", "v2/a/b/manifests/c", "docker \"x\" \\ é", "id", "sha256:ab", int64(1367), int64(256753663), 200)
	f.Fuzz(func(t *testing.T, host, method, client, uri, agent, id, digest string, size, nanos int64, status int) {
		if method == "" || strings.TrimLeft(uri, "/") == "" || strings.HasPrefix(uri, "?") || strings.HasPrefix(uri, "/?") || size < 0 || nanos < 0 || nanos > 1e15 || status < 0 || status > 999 {
			return
		}
		want := trace.Record{Host: host, Method: method, RemoteAddr: client, URI: uri, UserAgent: agent, ID: id, Digest: digest,
			Written: size, Duration: time.Duration(nanos), Status: status, Time: time.Date(2017, 6, 20, 1, 28, 15, 962e6, time.UTC)}
		line := want.AppendTrace(nil)
		got := read(t, logs.NewInput(&logs.InputOptions{Format: trace.FormatTrace}), string(line))
		if len(got) != 1 {
			t.Fatalf("%q was not read", line)
		}
		// Invalid UTF-8 is replaced. The leading slash and the query are left out.
		for _, s := range []*string{&want.Host, &want.Method, &want.RemoteAddr, &want.URI, &want.UserAgent, &want.ID, &want.Digest} {
			*s = strings.Map(func(r rune) rune { return r }, *s)
		}
		want.URI, _, _ = strings.Cut(strings.TrimPrefix(want.URI, "/"), "?")
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("%q: (-want +got):\n%s", line, diff)
		}
	})
}
