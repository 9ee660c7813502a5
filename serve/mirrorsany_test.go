package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/serve/mirrors"
)

// TestMirrorAny mirrors a registry that is not listed, under each of its names.
func TestMirrorAny(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	up := start(t, setup{})
	layer := mirrorLayer("unlisted")
	d := up.pushImage("team/app", "v1", layer)
	at := strings.TrimPrefix(up.url, "http://")
	name := strings.ReplaceAll(at, ":", "-")
	s := start(t, setup{yaml: fmt.Sprintf("proxy: {any: [%q, '*.test'], own_names: [own.test]}\n", at)})
	s.pull("team/app", "v1", "?ns="+at, layer)
	s.pull(name+"/team/app", "v1", "", layer)
	s.pull(name+"/team/app", d, "?ns="+at, layer)
	for _, ns := range []string{"elsewhere.example", "own.test", "127.0.0.1", "127.0.0.1:1"} {
		s.want(404, "GET", "/v2/team/app/manifests/v1?ns="+ns, "")
	}
	if a := s.do("POST", "/v2/"+name+"/team/app/blobs/uploads/", ""); a.status != 405 || !strings.Contains(a.body, "is a mirror of "+name) {
		t.Errorf("a push: %d %s", a.status, a.body)
	}
	s.pushImage("own.test/app", "v1", mirrorLayer("ours")) // this server's own name is not another registry
	s.pushImage("team/app", "v1", mirrorLayer("ours"))

	a, closeAdmin := openAdmin(t, s.cfg)
	var st mirrors.Status
	poll(t, "what was pulled is stored", func() (stored bool) {
		var err error
		if st, err = a.MirrorStatus(t.Context()); err != nil {
			t.Fatal(err)
		}
		return st.Usage.Repositories == 1 && st.Usage.Bytes >= int64(len(layer))
	})
	if len(st.Sources) != 1 || st.Sources[0].Name != name || !st.Sources[0].State.Works() {
		t.Errorf("status: %+v", st)
	}
	if list, err := a.ListMirrors(t.Context(), mirrors.ListArgs{}); err != nil || len(list.Images) != 1 || list.Images[0].Repository != name+"/team/app" {
		t.Errorf("list: %+v, %v", list, err)
	}
	metrics := s.want(200, "GET", s.debug+"/metrics", "").body
	for _, want := range []string{`registry_proxy_requests_total{result="miss",type="blob",upstream="` + name + `"} 1`, `slipway_upstream_endpoint_healthy{endpoint="` + up.url + `",upstream="` + name + `"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	closeAdmin()
	if err := up.stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, setup{root: s.root, change: func(c *config.Config) { c.Proxy = s.cfg.Proxy }})
	again.pull("team/app", d, "?ns="+at, layer)
	again.pull("team/app", "v1", "", mirrorLayer("ours"))
}

// TestMirrorAnyGuarded checks that a client which chooses the host cannot make this server look
// into private networks.
func TestMirrorAnyGuarded(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(inside.Close)
	port := inside.URL[strings.LastIndexByte(inside.URL, ':'):]
	s := start(t, setup{yaml: "proxy: {any: ['*', '*:*']}\n"})
	for _, host := range []string{"127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0", "127.1", "0x7f.0.0.1"} {
		for _, path := range []string{"/v2/app/manifests/v1?ns=" + host + port, "/v2/" + host + strings.Replace(port, ":", "-", 1) + "/app/manifests/v1"} {
			if a := s.do("GET", path, ""); a.status < 400 {
				t.Errorf("%s: got status %d", path, a.status)
			}
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the host inside was asked %d times", n)
	}
}

// TestMirrorAnyListed checks that the rules of a listed upstream cannot be evaded through another of
// its names.
func TestMirrorAnyListed(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	up := start(t, setup{})
	layer := mirrorLayer("listed")
	up.pushImage("team/app", "v1", layer)
	up.pushImage("team/app", "v2-rc1", layer)
	at := strings.TrimPrefix(up.url, "http://")
	s := start(t, setup{yaml: fmt.Sprintf("proxy: {any: ['127.0.0.1:*'], upstreams: [{name: corp, url: %q, deny: [{tags: ['.*-rc.*']}]}]}\n", up.url)})
	s.pull("corp/team/app", "v1", "", layer)
	s.pull("team/app", "v1", "?ns="+at, layer)
	s.want(403, "GET", "/v2/corp/team/app/manifests/v2-rc1", "")
	s.want(403, "GET", "/v2/team/app/manifests/v2-rc1?ns="+at, "")
	s.want(404, "GET", "/v2/"+strings.ReplaceAll(at, ":", "-")+"/team/app/manifests/v2-rc1", "")
}
