package tiers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/workload/simulate"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-bin", "x", "-quick", "-scenario", "crowd,start", "-dir", "/elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	if o.Rounds != 1 || o.Command != "scripts/bench-tiers.sh -quick -scenario crowd,start" {
		t.Errorf("%d rounds, command %q", o.Rounds, o.Command)
	}
	if _, err := measure.Choose(scenarios(), o.Scenarios); err != nil {
		t.Error(err)
	}
	t.Setenv("SLIPWAY_BIN", "")
	for _, bad := range [][]string{{}, {"-bin", "x", "more"}, {"-bin", "x", "-rounds", "0"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics(strings.NewReader("# HELP slipway_a b\nslipway_a{tier=\"ram\"} 3\nslipway_b 1.5e+06\ngo_threads 9\n"), "slipway_")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{`slipway_a{tier="ram"}`: 3, "slipway_b": 1.5e6}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := parseMetrics(strings.NewReader("slipway_a many\n"), "slipway_"); err == nil {
		t.Error("what is no number: no error")
	}
}

// TestReadRequests checks that only whole GETs of objects count, and that a layer is the same in
// every repository.
func TestReadRequests(t *testing.T) {
	line := func(method, uri string, status int, written int64) string {
		return fmt.Sprintf(`{"http.request.method":%q,"http.request.uri":%q,"http.response.status":%d,"http.response.written":%d}`+"\n", method, uri, status, written)
	}
	path := filepath.Join(t.TempDir(), "log")
	text := line("GET", "v2/a/blobs/sha256:aa", 200, 20_000) + line("GET", "v2/b/c/blobs/sha256:aa", 200, 20_000) + line("GET", "v2/a/blobs/sha256:bb", 200, 30_000) +
		line("GET", "v2/a/blobs/sha256:cc", 200, inlineMax) + line("GET", "v2/a/blobs/sha256:dd", 404, 20_000) +
		line("HEAD", "v2/a/blobs/sha256:ee", 200, 20_000) + line("GET", "v2/a/manifests/latest", 200, 20_000)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readRequests(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&simulate.Requests{Layer: []uint32{0, 0, 1}, Size: []int64{20_000, 30_000}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBins(t *testing.T) {
	var ms []float64
	for i := range 200 {
		ms = append(ms, float64(200-i))
	}
	if diff := cmp.Diff(Bin{Name: "x", N: 200, Mean: 100.5, Median: 100.5, P99: 198}, binOf("x", ms), cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p := Place{Bins: []Bin{{N: 5, Mean: 1000}, {N: 1, Mean: 2}, {N: 3, Mean: 6}, {N: 7, Mean: 90}}}
	if got := p.below(); got != 5 {
		t.Errorf("objects below 1 MB take %g ms, want 5: the first bin is none", got)
	}
	if got := p.mean(5, 6); got != 0 {
		t.Errorf("without any layer the mean is %g, want 0", got)
	}
}

// verdicts returns what Check prints for each target: PASS, FAIL or ----.
func verdicts(p measure.Part) string {
	var w strings.Builder
	measure.Check(&w, p.Targets())
	var out []string
	for line := range strings.Lines(w.String()) {
		out = append(out, line[:4])
	}
	return strings.Join(out, " ")
}

func TestTargets(t *testing.T) {
	bins := func(small, large float64) []Bin {
		return []Bin{{N: 1, Mean: 1}, {N: 2, Mean: small}, {}, {N: 1, Mean: large}, {N: 1, Mean: 2 * large}, {}}
	}
	for _, c := range []struct {
		name string
		part measure.Part
		want string
	}{
		{"as published", &Fig16{Places: []Place{{Name: swiftName, Bins: bins(70, 300)}, {Name: ramName, Bins: bins(8, 40)}, {Name: localName, Bins: bins(13, 60)},
			{Name: redirectName, Bins: bins(110, 290)}}}, "PASS PASS PASS PASS PASS PASS"},
		{"a slow cache", &Fig16{Places: []Place{{Name: swiftName, Bins: bins(70, 300)}, {Name: ramName, Bins: bins(9, 400), Errors: 1}}}, "FAIL ---- ---- FAIL ---- FAIL"},
		{"cheap hits", &Hits{RAM: []HitCase{{Cache: HitRounds{CPU: []float64{1.1, 1.2}, Hits: 1}, Floor: HitRounds{CPU: []float64{1, 1}}}},
			SSD: []HitCase{{Cache: HitRounds{Rate: []float64{96}, Hits: 1}, Floor: HitRounds{Rate: []float64{100}}}}}, "PASS PASS PASS"},
		{"no hits", &Hits{RAM: []HitCase{{Cache: HitRounds{CPU: []float64{3}, Hits: 0.5}, Floor: HitRounds{CPU: []float64{1}}}}}, "FAIL FAIL"},
		{"ratios agree", &Ratios{Policies: []LiveRatios{{LiveRAM: 0.5, SimulatedRAM: 0.509, LiveAll: 0.7, SimulatedAll: 0.691}},
			Sample: &SampleRatios{LRU2: simulated{RAM: 0.4}, GDSF2: simulated{RAM: 0.57}, GDSF10: simulated{Object: 0.66}, Ceiling: 0.68}}, "PASS PASS PASS"},
		{"ratios do not", &Ratios{Policies: []LiveRatios{{LiveRAM: 0.5, SimulatedRAM: 0.511}}}, "FAIL ---- ----"},
		{"prefetching pays", &Prefetch{Modes: []PrefetchMode{{Name: "off", Latency: Bin{Mean: 100}}, {Name: "algorithm1", Latency: Bin{Mean: 60}},
			{Name: "manifest", Latency: Bin{Mean: 44}, Fetched: 10, Used: 7, Wasted: 5, Backend: 100}}}, "PASS PASS PASS PASS PASS"},
		{"and does not", &Prefetch{Modes: []PrefetchMode{{Name: "off", Latency: Bin{Mean: 100}, Errors: 1}, {Name: "algorithm1", Latency: Bin{Mean: 60}},
			{Name: "manifest", Latency: Bin{Mean: 60}, Fetched: 10, Used: 5, Wasted: 11, Backend: 100}}}, "FAIL FAIL FAIL FAIL FAIL"},
		{"a calm crowd", &Crowd{Crowded: measure.Crowded{Size: 10, Reads: 1, ReadBytes: 10, First: []float64{5, 10}, Peak: 1 << 20}}, "PASS PASS PASS PASS"},
		{"a wild one", &Crowd{Crowded: measure.Crowded{Size: 10, Reads: 2, ReadBytes: 20, First: []float64{5, 11}, Peak: 65 << 20}}, "FAIL FAIL FAIL FAIL"},
		{"a quick start", &Start{Blobs: 9, Ready: []float64{100, 1999}}, "PASS"},
		{"the slowest counts", &Start{Blobs: 9, Ready: []float64{100, 100, 2001}}, "FAIL"},
	} {
		if got := verdicts(c.part); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		var w strings.Builder
		c.part.Write(&w)
		if c.part.Title() == "" || c.part.About() == "" || !strings.Contains(w.String(), "|---") {
			t.Errorf("%s: the report has no title, text or table", c.name)
		}
	}
}

// TestFill checks that results of an earlier run are kept if this run has none.
func TestFill(t *testing.T) {
	r := &Results{Crowd: &Crowd{Crowded: measure.Crowded{Clients: 1}}}
	r.Fill(&Results{Crowd: &Crowd{Crowded: measure.Crowded{Clients: 2}}, Start: &Start{Blobs: 3}})
	if r.Crowd.Clients != 1 || r.Start == nil || r.Start.Blobs != 3 || len(r.Parts()) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestDocumentHasMarks(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench-tiers.md"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := marks().Replace(string(doc), "x"); err != nil {
		t.Error(err)
	}
}

func TestContent(t *testing.T) {
	c := measure.NewContent(7, 100_000)
	b, err := io.ReadAll(c.Reader())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(b)); got != c.Digest || len(b) != 100_000 {
		t.Errorf("%d bytes with digest %s, want 100000 with %s", len(b), got, c.Digest)
	}
	if measure.NewContent(8, 100_000).Digest == c.Digest {
		t.Error("two numbers have one content")
	}
}

// TestCounter checks that the proxy counts only reads of blobs, and leaves the Host header as it
// was signed.
func TestCounter(t *testing.T) {
	var host string
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host = r.Host
		fmt.Fprint(w, "twelve bytes")
	}))
	defer store.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := newCounter()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Serve(ctx, l, strings.TrimPrefix(store.URL, "http://"))
	}()
	for _, path := range []string{"/bucket/ab/data", "/bucket/list", "/bucket/cd/data"} {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	cancel()
	<-done
	if c.Reads.Load() != 2 || c.Bytes.Load() != 24 || host != l.Addr().String() {
		t.Errorf("%d reads of %d bytes for host %s, want 2 of 24 for %s", c.Reads.Load(), c.Bytes.Load(), host, l.Addr())
	}
}

// TestHost checks that a server made for tests can be started here. What would end or skip the test
// is an error, and what would end with the test ends with the host.
func TestHost(t *testing.T) {
	b := &bench{Bench: &measure.Bench{Log: io.Discard, Dir: t.TempDir()}}
	h := newHost(b)
	ended := 0
	v, err := started(h, func(t testing.TB) int {
		t.Cleanup(func() { ended++ })
		return 5
	})
	if v != 5 || err != nil || ended != 0 {
		t.Errorf("%d, %v, ended %d times; want 5", v, err, ended)
	}
	if _, err := started(h, func(t testing.TB) int { t.Skipf("%s is not there", "it"); return 0 }); !errors.Is(err, errMissing) || missing(err) == "" || unlessMissing(err) != nil {
		t.Errorf("a server that is missing: %v", err)
	}
	if _, err := started(h, func(t testing.TB) int { t.Fatal("broken"); return 0 }); err == nil || errors.Is(err, errMissing) || unlessMissing(err) == nil || !h.Failed() {
		t.Errorf("a server that fails: %v", err)
	}
	dir := h.TempDir()
	h.close()
	if _, err := os.Stat(dir); ended != 1 || !os.IsNotExist(err) {
		t.Errorf("after close: ended %d times, directory: %v", ended, err)
	}
}

// TestSmoke measures a small crowd before a real store.
func TestSmoke(t *testing.T) {
	tool.Built(t, "versitygw")
	dir := t.TempDir()
	o, err := parse([]string{"-quick", "-bin", slipway.Binary(t), "-dir", dir, "-traces", "", "-scenario", "crowd"})
	if err != nil {
		t.Fatal(err)
	}
	o.clients, o.size = 5, 20<<20 // more than the memory cache of the scenario takes
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Crowd; c.Reads != 1 || c.ReadBytes != o.size || len(c.First) != 5 || len(c.All) != 5 || c.Peak < c.Idle || c.CPU <= 0 {
		t.Errorf("crowd: %+v", c)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
