package trace_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/trace"
)

// FuzzInput reads anything in each format: no panic, no endless loop, and only
// records that can be stored.
func FuzzInput(f *testing.F) {
	formats := []trace.Format{"", trace.FormatTrace, trace.FormatDistribution, trace.FormatCLF, trace.FormatNginx, trace.FormatHarbor, trace.FormatURIs}
	for i, seed := range []string{
		twoRecords, twoRecords[:200], `{"{"{"`, "[[[]", "v2\nv2/a/blobs/b\n",
		`{"http.request.method":"GET","http.request.uri":"/v2/","msg":"response completed","time":"2024-03-01T11:00:02+01:00","http.response.duration":"1ms"}`,
		`1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "GET / HTTP/1.1" 200 1 "-" "\x22" 0.1`,
		`Mar  1 10:00:02 172.18.0.1 proxy[1234]: 10.0.0.7 - "GET /v2/ HTTP/1.1" 401 76 "-" "x" 1.250 1.249 .`,
		`1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "GET  HTTP/1.1" 200 1`,
		"\x1f\x8b\x08\x00", "\x28\xb5\x2f\xfd\x00",
	} {
		f.Add([]byte(seed), i%len(formats))
	}
	f.Fuzz(func(t *testing.T, b []byte, format int) {
		in := trace.NewInput(&trace.InputOptions{Format: formats[uint(format)%uint(len(formats))], Now: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)})
		records := 0
		err := in.ReadFrom(context.Background(), strings.NewReader(string(b)), "f", func(src trace.Source, r *trace.Record) error {
			records++
			if r.Method == "" || r.URI == "" || r.Written < trace.Unknown || r.Duration < trace.Unknown || r.Status < 0 || r.Status > 999 {
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

// FuzzTraceLine writes records and reads them again.
func FuzzTraceLine(f *testing.F) {
	f.Add("h", "GET", "1.2.3.4", "v2/a/b/manifests/c", "docker \"x\" \\ é", "id", "sha256:ab", int64(1367), int64(256753663), 200)
	f.Fuzz(func(t *testing.T, host, method, client, uri, agent, id, digest string, size, nanos int64, status int) {
		if method == "" || strings.TrimLeft(uri, "/") == "" || strings.HasPrefix(uri, "?") || strings.HasPrefix(uri, "/?") || size < 0 || nanos < 0 || nanos > 1e15 || status < 0 || status > 999 {
			return
		}
		want := trace.Record{Host: host, Method: method, RemoteAddr: client, URI: uri, UserAgent: agent, ID: id, Digest: digest,
			Written: size, Duration: time.Duration(nanos), Status: status, Time: time.Date(2017, 6, 20, 1, 28, 15, 962e6, time.UTC)}
		line := want.AppendTrace(nil)
		got := read(t, trace.NewInput(&trace.InputOptions{Format: trace.FormatTrace}), string(line))
		if len(got) != 1 {
			t.Fatalf("%q was not read", line)
		}
		// What is no UTF-8 is replaced, the slash and the query are left out.
		for _, s := range []*string{&want.Host, &want.Method, &want.RemoteAddr, &want.URI, &want.UserAgent, &want.ID, &want.Digest} {
			*s = strings.Map(func(r rune) rune { return r }, *s)
		}
		want.URI, _, _ = strings.Cut(strings.TrimPrefix(want.URI, "/"), "?")
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("%q: (-want +got):\n%s", line, diff)
		}
	})
}
