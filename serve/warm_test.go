package serve_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// warm orders an image, and waits until the order has ended in a state.
func (s *instance) warm(repo, body, want string) {
	s.t.Helper()
	var o struct {
		ID, State string
		Registry  struct{ Reason string }
	}
	read := func(a answer) {
		s.t.Helper()
		if err := json.Unmarshal([]byte(a.body), &o); err != nil {
			s.t.Fatal(err)
		}
	}
	read(s.want(http.StatusOK, "POST", "/v2/"+repo+"/_slipway/warm", body))
	poll(s.t, "the end of an order", func() bool {
		read(s.want(http.StatusOK, "GET", "/v2/_slipway/warm/"+o.ID, ""))
		return o.State == want
	})
}

// TestWarmMirror orders an image of a mirror. The mirror gets all of it, so that clients get it
// after the upstream has gone, and the cache of blobs has its layer before anybody asks.
func TestWarmMirror(t *testing.T) {
	t.Parallel()
	layer := mirrorLayer("warm")
	up := start(t, setup{})
	up.pushImage("team/app", "v1", layer)
	s := start(t, setup{yaml: fmt.Sprintf("storage: {blob_cache: {ram: 64MiB}}\nproxy: {upstreams: [{name: pub, url: %q}]}\n", up.url)})
	s.want(http.StatusNotFound, "POST", "/v2/pub/team/app/_slipway/warm", `{"reference":"none"}`)
	s.warm("pub/team/app", `{"reference":"v1"}`, "done")
	a, closeAdmin := openAdmin(t, s.cfg)
	defer closeAdmin()
	if st, err := a.CacheStatus(t.Context()); err != nil || st.RAM.Bytes < int64(len(layer)) {
		t.Errorf("the cache has %d bytes, want the layer of %d: %v", st.RAM.Bytes, len(layer), err)
	}
	if err := up.stop(); err != nil {
		t.Fatal(err)
	}
	s.pull("pub/team/app", "v1", "", layer)
	s.want(http.StatusOK, "GET", "/v2/_slipway/warm", "")
	if m := s.want(http.StatusOK, "GET", s.debug+"/metrics", "").body; !strings.Contains(m, `slipway_warming_orders{state="done"} 1`) {
		t.Error("the metrics do not count the order")
	}
}

// TestWarmOffered checks what the extension refuses: other methods and paths, and bodies that are no
// orders.
func TestWarmOffered(t *testing.T) {
	t.Parallel()
	s := start(t, setup{})
	s.pushImage("team/app", "v1", "one")
	for _, c := range []struct {
		status             int
		method, path, body string
	}{
		{405, "GET", "/v2/team/app/_slipway/warm", ""}, {405, "POST", "/v2/_slipway/warm", "{}"}, {405, "GET", "/v2/_slipway/warm/poll", ""},
		{404, "GET", "/v2/team/app/_slipway/warm/poll", ""}, {404, "GET", "/v2/_slipway/warm/a/b", ""}, {404, "GET", "/v2/_slipway/warmer", ""}, {404, "GET", "/v2/_slipway/warm/", ""},
		{400, "POST", "/v2/team/app/_slipway/warm", ""}, {400, "POST", "/v2/team/app/_slipway/warm", "[]"}, {400, "POST", "/v2/team/app/_slipway/warm", `{"reference":"v1","seconds":-1}`},
		{404, "POST", "/v2/team/app/_slipway/warm", `{"reference":"none"}`}, {404, "POST", "/v2/none/_slipway/warm", `{}`},
		{413, "POST", "/v2/_slipway/warm/poll", `{"node":"` + strings.Repeat("n", 300<<10) + `"}`}, {400, "POST", "/v2/_slipway/warm/poll", `{"node":"a\nb"}`},
	} {
		if a := s.want(c.status, c.method, c.path, c.body); !strings.Contains(a.body, "errors") {
			t.Errorf("%s %s %.40s: %s", c.method, c.path, c.body, a.body)
		}
	}
}
