package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
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
	node.Start(t, named(s.Addr, "first", "")).Run("profile", "record", "--runtime", tool.Built(t, "runc"), ref, "--", "one")
	a := node.Start(t, named(s.Addr, "second", ""))
	o := warmed(t, ref, "--nodes", "name=second", "--wait", "2m")
	if o.State != "done" || len(o.Progress) != 1 || o.Progress[0].Files != files/2+1 {
		t.Errorf("the order is %+v, want the %d files of the profile", o, files/2+1)
	}
	if img := a.Image(); img.LocalFiles != files/2+1 {
		t.Errorf("the node has %d files, want %d", img.LocalFiles, files/2+1)
	}
}

// TestWarmFaults orders what cannot be had, and interrupts orders: an unknown image and nodes that
// nobody has, a cache that is too small, a cancellation and an end of the registry in the middle.
func TestWarmFaults(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	refuse := func(want string, args ...string) {
		t.Helper()
		out, err := slipway.Command(t, append([]string{"warm"}, args...)...)
		if err == nil || !strings.Contains(err.Error()+out, want) {
			t.Errorf("slipway warm %v: %v %s, want an error with %q", args, err, out, want)
		}
	}
	refuse("v2", s.Addr+"/team/app:v2", "--nodes", "")
	refuse("none", s.Addr+"/none:v1")
	refuse("condition", ref, "--nodes", "a b")
	refuse("exclude", ref, "--all", "--profile-only")
	refuse("no node", ref, "--nodes", "name=nobody", "--wait", "2s")
	refuse("no order", "--cancel", s.Addr, "nosuch")

	small := node.Start(t, named(s.Addr, "small", "cache: {max_bytes: 1MiB}\n"))
	o := warmed(t, ref, "--nodes", "name=small", "--all")
	state := func(id string) order { return warmed(t, "--status", s.Addr, id) }
	proc.Poll(t, time.Minute, "a failure for want of room", func() bool {
		o := state(o.ID)
		return o.State == "failed" && strings.Contains(o.Progress[0].Reason, "cache.max_bytes")
	})
	if small.Status().Cache.Bytes > 1<<20 {
		t.Error("the cache is larger than its limit")
	}

	g := behind(t, s)
	release := make(chan struct{})
	g.set(filesOnly(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		select {
		case <-release:
		case <-r.Context().Done():
			return
		}
		pass.ServeHTTP(w, r)
	}))
	slow := node.Start(t, named(g.addr, "slow", ""))
	o = warmed(t, ref, "--nodes", "name=slow", "--all")
	proc.Poll(t, time.Minute, "the middle of an order", func() bool {
		o := state(o.ID)
		return len(o.Progress) == 1 && o.Progress[0].State == "running" && o.Progress[0].FilesTotal > 0
	})
	if o := warmed(t, "--cancel", s.Addr, o.ID); o.State != "cancelled" {
		t.Errorf("the cancelled order is %+v", o)
	}
	proc.Poll(t, time.Minute, "the node has dropped the image", func() bool { return len(slow.Status().Images) == 0 })

	o = warmed(t, ref, "--nodes", "name=slow", "--all")
	proc.Poll(t, time.Minute, "the middle of another order", func() bool {
		o := state(o.ID)
		return len(o.Progress) == 1 && o.Progress[0].FilesTotal > 0
	})
	s.Kill()
	s.Restart()
	close(release)
	proc.Poll(t, 2*time.Minute, "the end of an order over a restart of the registry", func() bool { return state(o.ID).State == "done" })
	if img := slow.Image(); img.LocalFiles != files+1 {
		t.Errorf("the node has %d files, want %d", img.LocalFiles, files+1)
	}
	if !slow.KillWorker() {
		t.Fatal("the agent has no worker")
	}
	proc.Poll(t, time.Minute, "the next worker, which knows what it keeps", func() bool {
		st, err := slow.TryStatus()
		return err == nil && len(st.Images) == 1 && st.Images[0].LocalFiles == files+1
	})
	warmed(t, "--cancel", s.Addr, o.ID)
	proc.Poll(t, time.Minute, "the next worker drops what is no longer ordered", func() bool { return len(slow.Status().Images) == 0 })
}

// TestWarmRights orders an image of one tenant for all nodes. The other tenant's node gets nothing
// and hears nothing, and only a user who may manage the registry can order.
func TestWarmRights(t *testing.T) {
	const files = 20
	file := filepath.Join(t.TempDir(), "htpasswd")
	var lines []byte
	for _, user := range []string{"root", "one", "two"} {
		out, err := exec.CommandContext(t.Context(), tool.System(t, "htpasswd"), "-nbB", user, "secret").Output()
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, out...)
	}
	if err := os.WriteFile(file, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(`version: 0.1
auth:
  htpasswd: {path: %q}
  access:
    - {repositories: ["**"], subjects: [root], actions: ["*", admin]}
    - {repositories: ["one/**"], subjects: [one], actions: [pull, push]}
    - {repositories: ["two/**"], subjects: [two], actions: [pull]}
`, file)})
	credentials := func(user string) string {
		name := filepath.Join(t.TempDir(), user)
		if err := os.WriteFile(name, []byte(user+":secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if err := image(t, 1, files).Push(t.Context(), s.Client.As("root", "secret"), "one/app", "v1"); err != nil {
		t.Fatal(err)
	}
	ref := s.Addr + "/one/app:v1"
	as := func(user string) string {
		return quiet + fmt.Sprintf("node: {name: node-%s}\nregistries: [{host: %q, urls: [\"http://%s\"], username: %s, password: secret}]\n", user, s.Addr, s.Addr, user)
	}
	node.Start(t, as("one"))
	two := node.Start(t, as("two"))
	if out, err := slipway.Command(t, "warm", ref, "--nodes", "", "--credentials", credentials("one")); err == nil {
		t.Errorf("a user without the action admin orders: %s", out)
	}
	if out, err := slipway.Command(t, "warm", "--status", s.Addr, "--credentials", credentials("one")); err == nil {
		t.Errorf("a user without the action admin sees the orders: %s", out)
	}
	root := credentials("root")
	o := warmed(t, ref, "--nodes", "", "--all", "--wait", "3m", "--credentials", root)
	if o.State != "done" || len(o.Progress) != 1 || o.Progress[0].Node != "node-one" || o.Progress[0].Files != files+1 {
		t.Errorf("the order is %+v", o)
	}
	if st := two.Status(); len(st.Images) != 0 || st.Cache.Files != 0 {
		t.Errorf("the other tenant's node has %+v", st)
	}
	if log := two.Log(); strings.Contains(log, "one/app") {
		t.Errorf("the other tenant's node has heard of it:\n%s", log)
	}
}
