package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
)

// order is the part of an order that tests need.
type order struct {
	ID       string
	State    string
	Matching int
	Counts   map[string]int
	Registry struct{ State, Reason string }
	Progress []struct {
		Node, State, Reason string
		Files               int64 `json:"files"`
		FilesTotal          int64 `json:"files_total"`
	}
}

func warmed(t testing.TB, args ...string) order {
	t.Helper()
	out, err := slipway.Command(t, append([]string{"warm", "--json"}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var o order
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return o
}

// named returns a configuration of a node that asks a registry for orders.
func named(s, name, more string) string {
	return quiet + fmt.Sprintf("node: {name: %s, labels: {zone: a}}\nregistries: [{host: %q, urls: [\"http://%s\"]}]\n", name, s, s) + more
}

// tallied starts an address in front of a registry that counts requests by method and path.
func tallied(t testing.TB, s *slipway.Server) (addr string, take func() map[string]int) {
	t.Helper()
	target, err := url.Parse("http://" + s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[string]int{}
	pass := httputil.NewSingleHostReverseProxy(target)
	srv := &http.Server{Addr: slipway.FreeAddr(t), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Method+" "+r.URL.Path]++
		mu.Unlock()
		pass.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ListenAndServe() }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return srv.Addr, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		was := seen
		seen = map[string]int{}
		return was
	}
}

// fetches returns the requests for content among those that were counted.
func fetches(seen map[string]int) (list []string) {
	for r, n := range seen {
		if strings.Contains(r, "/_slipway/gear/layers/") || strings.Contains(r, "/_slipway/gear/files") || strings.Contains(r, "/_slipway/gear/fetch") ||
			strings.HasPrefix(r, "GET") && strings.Contains(r, "/_slipway/gear/profiles/") {
			list = append(list, fmt.Sprintf("%dx %s", n, r))
		}
	}
	return list
}

// TestWarm orders an image for a node. When containerd pulls and starts it there, the node
// fetches nothing but what containerd itself reads: the manifest and the configuration.
func TestWarm(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	im := image(t, 1, files)
	push(t, s, "team/app:v1", im)
	at, take := tallied(t, s)
	a, c := withContainerd(t, named(at, "node-1", ""))
	o := warmed(t, at+"/team/app:v1", "--nodes", "zone=a,name=node-*", "--all", "--wait", "2m")
	if o.State != "done" || o.Counts["done"] != 1 || o.Progress[0].Node != "node-1" || o.Progress[0].Files != files+1 || o.Progress[0].FilesTotal != files+1 {
		t.Fatalf("the order is %+v", o)
	}
	if len(fetches(take())) == 0 {
		t.Fatal("nothing was fetched for the order, so nothing is counted")
	}
	ref := at + "/team/app:v1"
	pull(t, c, ref)
	if n := layers(t, c, im); n != 0 {
		t.Errorf("%d layers were pulled, want none", n)
	}
	if got := run(t, c, ref, "one"); got != good(files) {
		t.Errorf("the container prints %q, want %q", got, good(files))
	}
	if got := fetches(take()); len(got) > 0 {
		t.Errorf("a start of a warmed image fetched %q", got)
	}
	c.Run(t, "image", "rm", "--sync", ref)
	if img := a.Image(); img.LocalFiles != files+1 {
		t.Errorf("the image that is kept for the order has %d files", img.LocalFiles)
	}
	warmed(t, "--cancel", at, o.ID)
	proc.Poll(t, time.Minute, "the node forgets an image that nothing needs", func() bool { return len(a.Status().Images) == 0 })
	clean(t, a)
}

// TestWarmProfile orders only what containers open when they start.
func TestWarmProfile(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	first := node.Start(t, named(s.Addr, "first", "profiles: {duration: 2s}\n"))
	first.Run("run", ref, "--", "/bin/check", "one")
	proc.Poll(t, time.Minute, "a profile that containers made", func() bool {
		out, err := slipway.Command(t, "inspect", "--json", ref)
		return err == nil && strings.Contains(out, "profile")
	})
	a := node.Start(t, named(s.Addr, "second", ""))
	o := warmed(t, ref, "--nodes", "name=second", "--wait", "2m")
	if o.State != "done" || len(o.Progress) != 1 || o.Progress[0].Files != files/2+1 {
		t.Errorf("the order is %+v, want the %d files of the profile", o, files/2+1)
	}
	if img := a.Image(); img.LocalFiles != files/2+1 {
		t.Errorf("the node has %d files, want %d", img.LocalFiles, files/2+1)
	}
}
