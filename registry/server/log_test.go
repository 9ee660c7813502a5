package server_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/registry/server"
	"example.org/slipway/workload/trace"
)

// families gathers the metrics of the server's collectors.
func (b *bed) families() map[string]*dto.MetricFamily {
	b.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range append(b.srv.Metrics(), b.reg.Metrics()...) {
		if err := reg.Register(c); err != nil {
			b.t.Fatal(err)
		}
	}
	list, err := reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range list {
		out[f.GetName()] = f
	}
	return out
}

func (b *bed) gauge(name string) float64 {
	b.t.Helper()
	f := b.families()[name]
	if f == nil || len(f.GetMetric()) != 1 {
		b.t.Fatalf("there is no gauge %s", name)
	}
	return f.GetMetric()[0].GetGauge().GetValue()
}

// TestMetricLabels checks that the set of series stays small whatever clients send. No repository,
// digest or header of theirs is in it, except the first part of the name of an existing repository.
func TestMetricLabels(t *testing.T) {
	b := newBed(t, setup{})
	d, _ := b.pushImage("secret/name", 1, "v1")
	for i := range 50 {
		for _, e := range [][2]string{
			{"GET", "/v2/secret/name/manifests/v1"}, {"GET", fmt.Sprintf("/v2/r%d/tags/list", i)}, {fmt.Sprintf("VERB%d", i), "/v2/"},
			{"GET", fmt.Sprintf("/%d", i)}, {"GET", fmt.Sprintf("/v2/r%d/_ext%d/x", i, i)}, {"PATCH", fmt.Sprintf("/v2/a/blobs/uploads/%d", i)},
		} {
			b.ask(e[0], e[1], nil)
		}
	}
	b.ask("GET", "/v2/secret/name/blobs/"+string(d), nil)
	allowed := map[string]*regexp.Regexp{
		"code":    regexp.MustCompile(`^([1-5][0-9][0-9]|[A-Z_]+)$`),
		"method":  regexp.MustCompile(`^(get|head|put|post|patch|delete|other)$`),
		"handler": regexp.MustCompile(`^(none|base|catalog|blob|manifest|blob_upload|blob_upload_chunk|tags|referrers|extension)$`),
		"result":  regexp.MustCompile(`^(ok|error)$`),
		"kind":    regexp.MustCompile(`^(manifest|blob)$`),
		// The value is that of a repository from which clients pulled.
		"namespace": regexp.MustCompile(`^(secret|-)$`),
	}
	series := 0
	for name, f := range b.families() {
		for _, m := range f.GetMetric() {
			series++
			for _, l := range m.GetLabel() {
				if re := allowed[l.GetName()]; re == nil || !re.MatchString(l.GetValue()) {
					t.Errorf("%s has the label %s=%q", name, l.GetName(), l.GetValue())
				}
			}
		}
	}
	if series > 85 {
		t.Errorf("300 requests made %d series", series)
	}
	var count float64
	for _, m := range b.families()["registry_http_requests_total"].GetMetric() {
		count += m.GetCounter().GetValue()
	}
	if count != 301 || b.srv.Served() != 301 {
		t.Errorf("counted %v requests, and %d, want 301", count, b.srv.Served())
	}
}

// clfLine matches a line of Combined Log Format in which nothing can be forged.
var clfLine = regexp.MustCompile(`^127\.0\.0\.1 - (\S+) \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+) "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"$`)

func TestAccessLog(t *testing.T) {
	for _, format := range []trace.Format{trace.FormatCLF, trace.FormatTrace} {
		t.Run(string(format), func(t *testing.T) {
			buf := &logtest.Buffer{}
			w := trace.NewWriter(buf, format)
			b := newBed(t, setup{server: server.Options{AccessLog: w, Name: "reg1"}})
			d := b.push("a", random(1, 5000))
			b.ask("GET", "/v2/a/blobs/"+string(d), nil, "User-Agent: docker/29.0")
			b.ask("POST", "/v2/a/blobs/uploads/?digest="+string(d), random(1, 5000), "X-Request-Id: id-1")
			b.ask("GET", `/v2/a/tags/list?last="\`, nil, `User-Agent: x" 200 0 "-" "forged`, `Referer: a"b\c`)
			b.ask("GET", "/v2/%0d%0aforged%22%20line", nil, "User-Agent: \x80\xfe\xffü\tx", "X-Request-Id: bad id\"")
			b.ask("VERB", "/v2/", nil)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n")
			if len(lines) != 5 {
				t.Fatalf("got %d lines, want 5:\n%s", len(lines), buf)
			}
			if format == trace.FormatCLF {
				checkCLF(t, lines, string(d))
			} else {
				checkTrace(t, lines, string(d))
			}
		})
	}
}

func checkCLF(t *testing.T, lines []string, d string) {
	want := [][]string{
		{"-", "GET /v2/a/blobs/" + d + " HTTP/1.1", "200", "5000", "-", "docker/29.0"},
		{"-", "POST /v2/a/blobs/uploads/?digest=" + d + " HTTP/1.1", "201", "0", "-", "-"},
		{"-", `GET /v2/a/tags/list?last=\"\\ HTTP/1.1`, "200", "", `a\"b\\c`, `x\" 200 0 \"-\" \"forged`},
		{"-", "GET /v2/%0d%0aforged%22%20line HTTP/1.1", "404", "", "-", `\x80\xfe\xff\xc3\xbc\x09x`},
		{"-", "VERB /v2/ HTTP/1.1", "405", "", "-", "-"},
	}
	for i, line := range lines {
		got := clfLine.FindStringSubmatch(line)
		if got == nil {
			t.Errorf("line %d is not in Combined Log Format: %q", i, line)
			continue
		}
		for j, w := range want[i] {
			if w != "" && got[j+1] != w {
				t.Errorf("line %d, field %d: got %q, want %q", i, j, got[j+1], w)
			}
		}
	}
}

func checkTrace(t *testing.T, lines []string, d string) {
	fields := []string{"host", "http.request.duration", "http.request.method", "http.request.remoteaddr", "http.request.uri",
		"http.request.useragent", "http.response.status", "http.response.written", "id", "timestamp"}
	var records []map[string]any
	for i, line := range lines {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %d: %v: %q", i, err, line)
		}
		var keys []string
		for k := range r {
			keys = append(keys, k)
		}
		want := fields
		if r["http.request.method"] == "POST" { // the digest of its content is logged for an upload, too
			want = append([]string{"digest"}, fields...)
			if r["digest"] != d {
				t.Errorf("line %d has the digest %v, want %s", i, r["digest"], d)
			}
		}
		if slices.Sort(keys); !slices.Equal(keys, want) {
			t.Errorf("line %d has the fields %q", i, keys)
		}
		if r["host"] != "reg1" || r["http.request.remoteaddr"] != "127.0.0.1" || r["id"] == "" {
			t.Errorf("line %d: %q", i, line)
		}
		records = append(records, r)
	}
	for i, uri := range []string{"v2/a/blobs/" + d, "v2/a/blobs/uploads/", "v2/a/tags/list"} {
		if records[i]["http.request.uri"] != uri {
			t.Errorf("line %d: got URI %q, want %q", i, records[i]["http.request.uri"], uri)
		}
	}
	if records[0]["http.response.written"] != 5000.0 || records[1]["http.response.written"] != 5000.0 || records[1]["id"] != "id-1" {
		t.Errorf("got %v and %v", records[0], records[1])
	}
	if records[2]["http.request.useragent"] != `x" 200 0 "-" "forged` {
		t.Errorf("got user agent %q", records[2]["http.request.useragent"])
	}
	if id := records[3]["id"].(string); strings.ContainsAny(id, " \"") {
		t.Errorf("a client's malformed request id is in the log: %q", id)
	}
}
