package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// TestPushedBytesAreTraced pushes with each client, and takes the registry's access log through
// recording, import, analysis, planning and replay. A proxy that counts the bytes of uploads
// provides the expected figures.
func TestPushedBytesAreTraced(t *testing.T) {
	for name, pushes := range map[string]func(t *testing.T) func(t *testing.T, im *imagetest.Image, ref string){
		"docker": func(t *testing.T) func(*testing.T, *imagetest.Image, string) {
			return dockerClient(daemon.StartDocker(t)).push
		},
		"docker containerd": func(t *testing.T) func(*testing.T, *imagetest.Image, string) {
			return dockerClient(daemon.StartMoby(t)).push
		},
		"podman": func(t *testing.T) func(*testing.T, *imagetest.Image, string) { return podmanClient(t).push },
		"skopeo": func(t *testing.T) func(*testing.T, *imagetest.Image, string) { return newSkopeo(t).push },
		"crane": func(t *testing.T) func(*testing.T, *imagetest.Image, string) {
			c := newCrane(t)
			return func(t *testing.T, im *imagetest.Image, ref string) { c.run(t, "push", writeImage(t, &im.Bundle), ref) }
		},
	} {
		t.Run(name, func(t *testing.T) { testPushTrace(t, pushes(t)) })
	}
}

// tracedRegistry is a registry whose access log is a trace, together with a proxy that counts the
// bytes sent to the registry.
type tracedRegistry struct {
	*slipway.Server
	log, addr string
	sent      atomic.Int64
}

func startTraced(t *testing.T) *tracedRegistry {
	t.Helper()
	r := &tracedRegistry{log: filepath.Join(t.TempDir(), "access.log")}
	r.Server = slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf("version: 0.1\nlog: {level: warn, accesslog: {format: trace, file: %q}}\ngear: {convert: off}\n", r.log)})
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Server.Addr})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req.Body = countingBody{req.Body, &r.sent}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.addr = strings.TrimPrefix(srv.URL, "http://")
	return r
}

type countingBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// stored is what a registry holds.
type stored struct{ Contents, Bytes, Manifests int64 }

// end stops the server and returns what it holds.
func (r *tracedRegistry) end(t *testing.T) (s stored) {
	t.Helper()
	r.Stop()
	decode(t, r.Run("fsck", "--output", "json"), &s)
	return s
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
}

func testPushTrace(t *testing.T, push func(t *testing.T, im *imagetest.Image, ref string)) {
	from := startTraced(t)
	hello, repeated := imagetest.Hello(t), imagetest.Repetitive(t)
	push(t, hello, from.addr+"/team/app:v1")
	push(t, hello, from.addr+"/team/app:v2")
	push(t, hello, from.addr+"/other/app:v1")
	push(t, repeated, from.addr+"/team/app:r")
	newSkopeo(t).pull(t, from.addr+"/team/app:v1") // a plan is of what is pulled
	pushed, had := from.sent.Load(), from.end(t)

	dir := t.TempDir()
	b := &replayBed{t: t, bin: slipway.Binary(t), dir: dir, store: filepath.Join(dir, "store")}
	recorded := filepath.Join(dir, "recorded")
	b.run(0, "record", from.log, "-o", recorded, "--all", "--for", "300ms")
	b.run(0, "import", from.log, "-o", b.store)
	if one, other := b.run(0, "info", recorded), b.run(0, "info", b.store); one != other {
		t.Errorf("what was recorded is not what is imported:\n%s\n%s", one, other)
	}
	within := func(what string, got float64) {
		if math.Abs(got-float64(pushed)) > 0.01*float64(pushed) {
			t.Errorf("%s is %.0f bytes, want within 1 %% of the %d that were pushed", what, got, pushed)
		}
	}
	within("ingress of the analysis", b.ingress())
	var plan struct {
		Trace struct {
			Ingress float64 `json:"ingress_bytes"`
		}
	}
	out, err := slipway.Command(t, "plan", b.store, "--output", "json")
	if err != nil {
		t.Fatalf("slipway plan: %v\n%s", err, out)
	}
	decode(t, out[strings.IndexByte(out, '{'):], &plan)
	within("ingress of the plan", plan.Trace.Ingress)

	for _, level := range []string{"L1", "L2"} {
		to := startTraced(t)
		result := filepath.Join(dir, level)
		b.run(0, "replay", b.store, "-o", result, "--target", "http://"+to.addr, "--level", level, "--speed", "4x", "--max-lag", slack, "-q")
		if s := b.summary(result); s.Outcomes["ok"] != s.Requests || !s.Complete {
			t.Errorf("replay: %+v\n%s", s, b.run(0, "report", result))
		}
		within("what the replay at "+level+" sent", float64(to.sent.Load()))
		if has := to.end(t); has != had {
			t.Errorf("after the replay at %s the registry has %+v, want %+v", level, has, had)
		}
	}
}

// ingress returns the ingress of Table 1.
func (b *replayBed) ingress() float64 {
	b.t.Helper()
	var report struct {
		Figures []struct {
			ID    string
			Zones []struct {
				Values []struct {
					Name  string
					Value float64
				}
			}
		}
	}
	out := b.run(0, "analyze", b.store, "--output", "json")
	decode(b.t, out[strings.IndexByte(out, '{'):], &report)
	for _, f := range report.Figures {
		if f.ID != "table1" {
			continue
		}
		for _, v := range f.Zones[0].Values {
			if v.Name == "ingress" {
				return v.Value
			}
		}
	}
	b.t.Fatalf("no ingress in:\n%s", out)
	return 0
}
