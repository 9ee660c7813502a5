package logs_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/logs/formats"
)

// twoRecords is two records with the framing and the quirks of the IBM traces.
const twoRecords = `[{"host": "579633fd", "http.request.duration": 0.256753663, "http.request.method": "GET", "http.request.remoteaddr": "1c6fe6d6", "http.request.uri": "v2/ca64105a/8b31ac2f/manifests/817c8a39", "http.request.useragent": "docker/17.03.1-ce go/go1.7.5 git-commit/c6d412e kernel/4.4.0-78-generic os/linux arch/amd64 UpstreamClient(Docker-Client/17.03.1-ce \\(linux\\))", "http.response.status": 200, "http.response.written": 1367, "id": "dc3ba3e77a", "timestamp": "2017-06-20T01:28:15.962Z"}, {"host":"579633fd","http.request.duration":2.5,"http.request.method":"PUT","http.request.remoteaddr":"1c6fe6d6","http.request.uri":"v2/ca64105a/8b31ac2f/blobs/uploads/0a1b2c3d","http.request.useragent":"docker/1.12.6","http.response.status":201,"http.response.written":4096,"id":"dc3ba3e77b","timestamp":"2017-06-20T01:28:16Z","digest":"83d6821d"}]`

func golden() []trace.Record {
	return []trace.Record{
		{Host: "579633fd", Duration: 256753663, Method: "GET", RemoteAddr: "1c6fe6d6", URI: "v2/ca64105a/8b31ac2f/manifests/817c8a39",
			UserAgent: `docker/17.03.1-ce go/go1.7.5 git-commit/c6d412e kernel/4.4.0-78-generic os/linux arch/amd64 UpstreamClient(Docker-Client/17.03.1-ce \(linux\))`,
			Status:    200, Written: 1367, ID: "dc3ba3e77a", Time: time.Date(2017, 6, 20, 1, 28, 15, 962e6, time.UTC)},
		{Host: "579633fd", Duration: 2500 * time.Millisecond, Method: "PUT", RemoteAddr: "1c6fe6d6", URI: "v2/ca64105a/8b31ac2f/blobs/uploads/0a1b2c3d",
			UserAgent: "docker/1.12.6", Status: 201, Written: 4096, ID: "dc3ba3e77b", Time: time.Date(2017, 6, 20, 1, 28, 16, 0, time.UTC), Digest: "83d6821d"},
	}
}

// read reads an input as a whole.
func read(t testing.TB, in *logs.Input, input string) []trace.Record {
	t.Helper()
	var out []trace.Record
	err := in.ReadFrom(context.Background(), strings.NewReader(input), "f", func(_ logs.Source, r *trace.Record) error {
		out = append(out, *r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInputFraming(t *testing.T) {
	two := golden()
	lines := strings.ReplaceAll(strings.Trim(twoRecords, "[]"), "}, {", "}\n{")
	for _, tc := range []struct {
		name, input string
		want        []trace.Record
		skipped     []logs.Skipped
	}{
		{"array", twoRecords, two, nil},
		{"arrays", twoRecords + "\n" + twoRecords, append(golden(), two...), nil},
		{"arrays without anything between", twoRecords + twoRecords, append(golden(), two...), nil},
		{"lines", lines + "\n", two, nil},
		{"byte order mark", "\xef\xbb\xbf" + twoRecords, two, nil},
		{"empty", "", nil, nil},
		{"empty array", "[]", nil, nil},
		{"cut", twoRecords[:len(twoRecords)-30], two[:1], []logs.Skipped{{Kind: trace.BadTruncated, Count: 1, First: []logs.Place{{File: "f", Record: 2}}}}},
		{"cut, then another", twoRecords[:len(twoRecords)-30] + "\n" + twoRecords, append(golden()[:1], two...), []logs.Skipped{{Kind: trace.BadSyntax, Count: 1, First: []logs.Place{{File: "f", Record: 2}}}}},
		{"wrong type", strings.Replace(twoRecords, "1367", `"1367"`, 1), two[1:], []logs.Skipped{{Kind: trace.BadType, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
		{"negative size", strings.Replace(twoRecords, "1367", "-1", 1), two[1:], []logs.Skipped{{Kind: trace.BadNumber, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
		{"negative duration", strings.Replace(twoRecords, "0.256753663", "-0.5", 1), two[1:], []logs.Skipped{{Kind: trace.BadNumber, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
		{"no such day", strings.Replace(twoRecords, "2017-06-20", "2017-02-29", 1), two[1:], []logs.Skipped{{Kind: trace.BadTime, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
		{"no method", strings.Replace(twoRecords, "http.request.method", "method", 1), two[1:], []logs.Skipped{{Kind: trace.BadMissing, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
		{"a bare word", strings.Replace(twoRecords, `"GET"`, `GET`, 1), two[1:], []logs.Skipped{{Kind: trace.BadSyntax, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
		{"garbage between", strings.Replace(twoRecords, "}, {", "}, xyz {", 1), two, []logs.Skipped{{Kind: trace.BadSyntax, Count: 1, First: []logs.Place{{File: "f", Record: 2}}}}},
		{"10 MB in a field", strings.Replace(twoRecords, "docker/17", strings.Repeat("x", 10<<20), 1), two[1:], []logs.Skipped{{Kind: trace.BadLength, Count: 1, First: []logs.Place{{File: "f", Record: 1}}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := logs.NewInput(&logs.InputOptions{Format: trace.FormatTrace})
			got := read(t, in, tc.input)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("records differ (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.skipped, in.Skipped(), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(logs.Place{}, "Why")); diff != "" {
				t.Errorf("skipped differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInputUnknown(t *testing.T) {
	in := logs.NewInput(nil)
	got := read(t, in, `{"http.request.method":"GET","http.request.uri":"v2","timestamp":"2017-06-20T01:28:16+02:00","http.response.written":null}`)
	want := []trace.Record{{Method: "GET", URI: "v2", Time: time.Date(2017, 6, 19, 23, 28, 16, 0, time.UTC), Duration: trace.Unknown, Written: trace.Unknown}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
	again := read(t, in, string(want[0].AppendTrace(nil)))
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("what is unknown does not survive AppendTrace (-want +got):\n%s", diff)
	}
}

func TestInputFormats(t *testing.T) {
	const agent = "docker/24.0.7 go/go1.20.10"
	end := time.Date(2024, 3, 1, 10, 0, 2, 0, time.UTC)
	for _, tc := range []struct {
		name  string
		f     trace.Format
		input string
		want  trace.Record
	}{
		{"distribution", formats.Distribution, `{"go.version":"go1.20.8","http.request.host":"registry:5000","http.request.id":"6e1d","http.request.method":"PUT","http.request.remoteaddr":"172.17.0.1:45678","http.request.uri":"/v2/library/app/blobs/uploads/0d5c?_state=x\u0026digest=sha256%3Aab","http.request.useragent":"` + agent + `","http.response.duration":"2.5s","http.response.status":201,"http.response.written":0,"level":"info","msg":"response completed","time":"2024-03-01T11:00:02+01:00"}`,
			trace.Record{Host: "registry:5000", Duration: 2500 * time.Millisecond, Method: "PUT", RemoteAddr: "172.17.0.1", URI: "/v2/library/app/blobs/uploads/0d5c?_state=x&digest=sha256%3Aab",
				UserAgent: agent, Status: 201, Written: trace.Unknown, Digest: "sha256:ab", ID: "6e1d", Time: end.Add(-2500 * time.Millisecond)}},
		{"common log", trace.FormatCLF, `10.0.0.7 - - [01/Mar/2024:11:00:02 +0100] "GET /v2/ HTTP/1.1" 200 2`,
			trace.Record{Duration: trace.Unknown, Method: "GET", RemoteAddr: "10.0.0.7", URI: "/v2/", Proto: "HTTP/1.1", Status: 200, Written: 2, Time: end}},
		{"combined", trace.FormatCLF, `::1 - jo\x20e [01/Mar/2024:10:00:02 +0000] "GET /v2/a/blobs/sha256:ab HTTP/1.1" 200 77 "-" "a \"b\" \\ \x7f"`,
			trace.Record{Duration: trace.Unknown, Method: "GET", RemoteAddr: "::1", User: "jo e", URI: "/v2/a/blobs/sha256:ab", Proto: "HTTP/1.1", UserAgent: "a \"b\" \\ \x7f", Status: 200, Written: 77, Time: end}},
		{"nginx", formats.Nginx, `10.0.0.7 - joe [01/Mar/2024:10:00:02 +0000] "GET /v2/a/b/manifests/latest HTTP/2.0" 200 1367 "-" "` + agent + `" "10.1.1.1" rt=0.512 0.510`,
			trace.Record{Duration: 512 * time.Millisecond, Method: "GET", RemoteAddr: "10.0.0.7", User: "joe", URI: "/v2/a/b/manifests/latest", Proto: "HTTP/2.0", UserAgent: agent, Status: 200, Written: 1367, Time: end.Add(-512 * time.Millisecond)}},
		{"harbor by syslog", formats.Harbor, `Mar  1 10:00:02 172.18.0.1 proxy[1234]: 10.0.0.7 - "PATCH /v2/lib/app/blobs/uploads/0d5c?_state=x HTTP/1.1" 202 0 "-" "` + agent + `" 1.250 1.249 .`,
			trace.Record{Duration: 1250 * time.Millisecond, Method: "PATCH", RemoteAddr: "10.0.0.7", URI: "/v2/lib/app/blobs/uploads/0d5c?_state=x", Proto: "HTTP/1.1", UserAgent: agent, Status: 202, Written: trace.Unknown, Time: end.Add(-1250 * time.Millisecond)}},
		{"harbor with RFC 3339", formats.Harbor, `2024-03-01T10:00:02.000Z 10.0.0.7 - "HEAD /v2/lib/app/manifests/v1 HTTP/1.1" 404 0 "-" "` + agent + `" 0.001 - .`,
			trace.Record{Duration: time.Millisecond, Method: "HEAD", RemoteAddr: "10.0.0.7", URI: "/v2/lib/app/manifests/v1", Proto: "HTTP/1.1", UserAgent: agent, Status: 404, Time: end.Add(-time.Millisecond)}},
		{"uri", formats.URIs, "v2/a7e6b589/manifests/817c8a39",
			trace.Record{Duration: trace.Unknown, Method: "GET", URI: "v2/a7e6b589/manifests/817c8a39", Written: trace.Unknown, Time: end}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, format := range []trace.Format{tc.f, ""} { // as told, and found out
				in := logs.NewInput(&logs.InputOptions{Format: format, Start: end, Rate: 2, Now: end.AddDate(0, 6, 0)})
				if diff := cmp.Diff([]trace.Record{tc.want}, read(t, in, tc.input+"\n")); diff != "" {
					t.Errorf("format %q: records differ (-want +got):\n%s", format, diff)
				}
				if s := in.Skipped(); len(s) != 0 {
					t.Errorf("format %q: skipped %+v", format, s)
				}
			}
		})
	}
}

func TestInputSkipsLines(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	for _, tc := range []struct {
		f     trace.Format
		input string
		want  map[trace.Bad]int64
	}{
		{formats.Distribution, `starting up` + "\n" + `{"msg":"authorized request","level":"info"}` + "\n" + `{"msg":1}` + "\n" + `{"msg":` + "\n" + long + "\n" +
			`{"msg":"response completed","http.request.method":"GET","http.request.uri":"/v2/","time":"now"}`,
			map[trace.Bad]int64{trace.BadOther: 2, trace.BadLine: 3, trace.BadLength: 1}},
		{trace.FormatCLF, "hello\n" + `1.1.1.1 - - [x] "GET / HTTP/1.1" 200 1` + "\n" + `1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "-" 400 1` + "\n" +
			`1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "GET / HTTP/1.1" 200 -5` + "\n" + `1.1.1.1 - - [01/Mar/2024:10:00:02 +0000] "GET /` + long,
			map[trace.Bad]int64{trace.BadLine: 4, trace.BadLength: 1}},
		{formats.Harbor, `10.0.0.7 - "GET /v2/ HTTP/1.1" 401 0 "-" "-" 0.001 0.001 .` + "\n" + `Mar  1 10:00:02 172.18.0.1 proxy[1]: 2024/03/01 [error] 7#0: upstream timed out`,
			map[trace.Bad]int64{trace.BadLine: 1, trace.BadOther: 1}},
		{formats.URIs, "v2 x\n", map[trace.Bad]int64{trace.BadLine: 1}},
		{"", "hello world\n", map[trace.Bad]int64{trace.BadFile: 1}},
	} {
		in := logs.NewInput(&logs.InputOptions{Format: tc.f})
		if recs := read(t, in, tc.input); len(recs) != 0 {
			t.Errorf("%s: records %+v", tc.f, recs)
		}
		got := map[trace.Bad]int64{}
		for _, s := range in.Skipped() {
			got[s.Kind] = s.Count
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: skipped differs (-want +got):\n%s", tc.f, diff)
		}
	}
}

func compressed(t testing.TB, input []byte) (gz, zst []byte) {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(input); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), z.EncodeAll(input, nil)
}

func TestInputContainers(t *testing.T) {
	gz, zst := compressed(t, []byte(twoRecords))
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	for i, content := range [][]byte{[]byte(twoRecords), gz, zst} {
		name := fmt.Sprintf("data_centers/dal09/prod-dal09-logstash-2017.06.20-%d.json", i)
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	tgz, _ := compressed(t, archive.Bytes())
	dir := t.TempDir()
	for name, content := range map[string][]byte{"a.gz": gz, "b.zst": zst, "c/d.tar.gz": tgz, "e": []byte(twoRecords), ".hidden": gz, "f.gz": gz[:len(gz)-20]} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, size, err := logs.Files([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	in := logs.NewInput(nil)
	got := map[string]int{}
	for _, f := range files {
		err := in.ReadFile(context.Background(), f, func(src logs.Source, r *trace.Record) error {
			rel, err := filepath.Rel(dir, src.File)
			got[rel+" "+logs.ZoneOf(src.File)]++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const in0 = "c/d.tar.gz:data_centers/dal09/prod-dal09-logstash-2017.06.20-"
	want := map[string]int{"a.gz ": 2, "b.zst ": 2, in0 + "0.json dal09": 2, in0 + "1.json dal09": 2, in0 + "2.json dal09": 2, "e ": 2, "f.gz ": got["f.gz "]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
	if s := in.Skipped(); len(s) == 0 || got["f.gz "] > 2 {
		t.Errorf("the damaged file gave %d records and nothing was skipped: %v", got["f.gz "], s)
	}
	if in.Read() != size {
		t.Errorf("read %d bytes of %d", in.Read(), size)
	}
}

func TestZoneOf(t *testing.T) {
	for file, want := range map[string]string{
		"data_centers/dal09/prod-dal09-logstash-2017.06.20-0.json": "dal09",
		"x.tar.gz:stage-dal09-logstash-2017.07.01-3.json.gz":       "stage-dal09",
		"dev-mon01-logstash-2017.07.01-3.json":                     "dev-mon01",
		"access.log":                                               "",
		"logstash-2017.07.01-3.json":                               "",
	} {
		if got := logs.ZoneOf(file); got != want {
			t.Errorf("ZoneOf(%q) = %q, want %q", file, got, want)
		}
	}
}

// sharedTraces returns the directory with data of a real registry. Tests that need it are
// skipped without it.
func sharedTraces(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SLIPWAY_TRACES")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "traces")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("real traces are not here: %v", err)
	}
	return dir
}

func TestRealRecords(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(sharedTraces(t), "ibm_sample_real_records.json"))
	if err != nil {
		t.Fatal(err)
	}
	in := logs.NewInput(nil)
	got := read(t, in, string(raw))
	if len(got) != 2 || len(in.Skipped()) != 0 {
		t.Fatalf("got %d records, skipped %v", len(got), in.Skipped())
	}
	first, kinds := got[0], []trace.Kind{trace.ParseURI(got[0].URI).Kind, trace.ParseURI(got[1].URI).Kind}
	if want := time.Date(2017, 6, 20, 1, 28, 15, 962e6, time.UTC); !first.Time.Equal(want) {
		t.Errorf("the first record is of %v, want %v", first.Time, want)
	}
	if diff := cmp.Diff([]trace.Kind{trace.Manifest, trace.Blob}, kinds); diff != "" {
		t.Errorf("kinds differ (-want +got):\n%s", diff)
	}
	for _, r := range got {
		if len(r.Host) != 8 || len(r.RemoteAddr) != 8 || len(r.ID) != 10 || r.Method != "GET" || r.Status != 200 || r.Written <= 0 || r.Duration <= 0 {
			t.Errorf("record %+v", r)
		}
	}
}
