package serve_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
	"example.org/slipway/serve/dataroot"
)

func TestHealth(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "out-of-rotation")
	var status atomic.Int64
	status.Store(200)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead || r.Header.Get("X-Probe") != "yes" {
			t.Errorf("check sent %s with %v", r.Method, r.Header)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer backend.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := start(t, setup{
		yaml: `
health:
  storagedriver: {enabled: true}
  file: [{file: ` + flag + `}]
  http: [{uri: "` + backend.URL + `", headers: {X-Probe: ["yes"]}, threshold: 2}]
  tcp: [{addr: "` + ln.Addr().String() + `"}]
`,
		change: func(c *config.Config) {
			c.Health.File[0].Interval, c.Health.HTTP[0].Interval, c.Health.TCP[0].Interval = time.Millisecond, time.Millisecond, time.Millisecond
		},
	})
	ready := func(want int, about string) {
		t.Helper()
		for _, path := range []string{"/readyz", "/debug/health"} {
			poll(t, path+" for "+about, func() bool {
				a := s.do("GET", s.debug+path, "")
				return a.status == want && strings.Contains(a.body, about)
			})
		}
		if a := s.do("GET", s.debug+"/livez", ""); a.status != 200 {
			t.Errorf("livez: got %d", a.status)
		}
	}
	ready(200, "ok")
	writeFile(t, flag, "")
	ready(503, flag)
	if a := s.do("GET", "/v2/", ""); a.status != 200 {
		t.Errorf("an unready server answers %d, want 200", a.status)
	}
	remove(t, flag)
	ready(200, "ok")
	status.Store(500)
	ready(503, backend.URL)
	status.Store(200)
	ready(200, "ok")
	ln.Close()
	ready(503, "tcp "+ln.Addr().String())
}

func TestMetrics(t *testing.T) {
	hook := newReceiver(t)
	hook.up.Store(true)
	s := start(t, setup{yaml: "notifications:\n  endpoints:\n" + hook.endpoint("hook", "docker", "")})
	s.pushImage("a", "v1", "layer")
	s.want(404, "GET", "/v2/a/manifests/none", "")
	s.do("BREW", "/v2/", "")
	poll(t, "the webhook has the events", func() bool { return len(hook.got()) == 2 }) // and its answers have a status
	a, _ := openAdmin(t, s.cfg)
	if _, err := a.Collect(t.Context(), dataroot.GCArgs{}, nil); err != nil { // counts runs from the first on
		t.Fatal(err)
	}
	page := s.want(200, "GET", s.debug+"/metrics", "").body
	for _, want := range []string{
		`registry_http_requests_total{code="201",handler="manifest",method="put"} 1`,
		`registry_http_requests_total{code="404",handler="manifest",method="get"} 1`,
		`method="other"`,
		`registry_http_request_duration_seconds_bucket{handler="manifest",method="put",le="0.0005"}`,
		`registry_http_response_bytes_total{handler="manifest"}`,
		`registry_http_request_bytes_total{handler="blob_upload"} 5`,
		`registry_http_in_flight_requests 0`,
		`registry_notifications_pending_total{`,
		`slipway_registry_gc_deleted_total 0`,
		`slipway_registry_gc_deleted_bytes_total 0`,
		`slipway_registry_gc_duration_seconds_count 1`,
		`slipway_registry_uploads_in_memory 0`,
		`slipway_cache_ram_hits_total`, `slipway_cache_ram_misses_total`, `slipway_cache_ram_evictions_total`, `slipway_cache_ram_bytes`,
		`go_goroutines`, `process_resident_memory_bytes`, `slipway_build_info{goversion="go`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	documented(t, page, ofNamespaces, "operating.md")
	if strings.Contains(page, "BREW") {
		t.Error("a client's word is in a label")
	}
	if a := s.do("GET", s.debug+"/debug/pprof/cmdline", ""); a.status != 200 {
		t.Errorf("pprof: got %d", a.status)
	}
	for _, path := range []string{"/metrics", "/readyz", "/debug/pprof/"} {
		s.want(404, "GET", path, "")
	}
}

// ofNamespaces are the metrics of servers with storage.namespaces.
var ofNamespaces = []string{"slipway_stored_bytes", "slipway_stored_tags"}

// documented compares the metrics with the tables that operators read. The metrics in late appear
// only when there is something to report.
func documented(t *testing.T, page string, late []string, docs ...string) {
	t.Helper()
	inDocs := map[string]bool{}
	var doc string
	for _, name := range docs {
		doc += readFile(t, "../docs/"+name) + "\n"
	}
	name := regexp.MustCompile("`((?:registry|slipway)_[a-z_]+)(?:{([a-z_,]+)}([a-z_]*))?[`{]")
	for _, row := range strings.Split(doc, "\n") {
		if !strings.HasPrefix(row, "| `") {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(row, -1) {
			if !strings.HasSuffix(m[1], "_") { // labels follow
				inDocs[m[1]] = true
				continue
			}
			for _, part := range strings.Split(m[2], ",") { // a_{b,c}_total
				inDocs[m[1]+part+m[3]] = true
			}
		}
	}
	served := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:registry|slipway)_[a-z_]+) `).FindAllStringSubmatch(page, -1) {
		served[m[1]] = true
	}
	for _, name := range late {
		served[name] = true
	}
	if d := cmp.Diff(inDocs, served); d != "" {
		t.Errorf("metrics (-docs +served):\n%s", d)
	}
}

func TestNoDebugServer(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	s := start(t, setup{keep: true, yaml: `http: {addr: "127.0.0.1:0"}`})
	if s.DebugAddr() != nil {
		t.Errorf("a configuration without http.debug.addr listens on %s", s.DebugAddr())
	}
	s.want(200, "GET", "/v2/", "")
	s = start(t, setup{yaml: `http: {debug: {prometheus: {enabled: false}}}`})
	s.want(404, "GET", s.debug+"/metrics", "")
	s.want(200, "GET", s.debug+"/readyz", "")
	s = start(t, setup{yaml: `http: {debug: {prometheus: {path: /m}}}`})
	s.want(200, "GET", s.debug+"/m", "")
}
