package agent_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
)

// withPeers is an agent that gives files to other nodes.
const withPeers = "peers: {listen: \"127.0.0.1:0\"}\n"

// counted counts what a registry sends of files.
type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// Unwrap lets the proxy flush.
func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// TestPeerInsteadOfRegistry has one node fetch an image, and then takes the files away from the
// registry. Another node must get all of them, small and large, from the first.
func TestPeerInsteadOfRegistry(t *testing.T) {
	const files = 80
	for _, background := range []bool{true, false} {
		s := slipway.Start(t, t.TempDir(), nil)
		g := behind(t, s)
		ref := g.ref(push(t, s, "team/app:v1", image(t, 31, files)))
		config := fmt.Sprintf("fetch: {background: %v, background_delay: 100ms, open_timeout: 20s, mode: lazy}\n", background) + withPeers
		first := node.Start(t, config)
		dir := first.Mount(ref)
		if n, failed, wrong := check(t, dir); n != files || failed+wrong > 0 {
			t.Fatalf("%d files, %d failed, %d wrong", n, failed, wrong)
		}
		if background {
			first.Complete()
		}
		asked := atomic.Int64{}
		g.set(filesOnly(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			asked.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		second := node.Start(t, config)
		dir = second.Mount(ref)
		if n, failed, wrong := check(t, dir); n != files || failed+wrong > 0 {
			t.Errorf("background %v: without the registry's files: %d files, %d failed, %d wrong\n%s", background, n, failed, wrong, second.Log())
		}
		t.Logf("background %v: the registry was asked for files %d times", background, asked.Load())
		// The first node goes away. The second has everything, and serves a third.
		first.Kill()
		third := node.Start(t, config)
		dir = third.Mount(ref)
		if n, failed, wrong := check(t, dir); n != files || failed+wrong > 0 {
			t.Errorf("background %v: after the first node died: %d files, %d failed, %d wrong\n%s", background, n, failed, wrong, third.Log())
		}
	}
}

// TestPeersTogether has several nodes start the same image at once. The registry must send it
// far fewer times than there are nodes.
func TestPeersTogether(t *testing.T) {
	const files, nodes = 600, 6
	s := slipway.Start(t, t.TempDir(), nil)
	g := behind(t, s)
	ref := g.ref(push(t, s, "team/app:v1", image(t, 32, files)))
	var sent atomic.Int64
	g.set(filesOnly(func(w http.ResponseWriter, r *http.Request, pass http.Handler) { pass.ServeHTTP(counted{w, &sent}, r) }))
	run := func(config string, n int) int64 {
		sent.Store(0)
		agents := make([]*node.Agent, n)
		for i := range agents {
			agents[i] = node.Start(t, config)
		}
		var wg sync.WaitGroup
		for _, a := range agents {
			wg.Go(func() {
				dir := a.Mount(ref)
				if n, failed, wrong := check(t, dir); n != files || failed+wrong > 0 {
					t.Errorf("%d files, %d failed, %d wrong\n%s", n, failed, wrong, a.Log())
				}
			})
		}
		wg.Wait()
		for _, a := range agents {
			proc.Poll(t, time.Minute, "whole image", func() bool { return a.Image().LocalFiles == a.Image().Files })

			a.Kill()
		}
		return sent.Load()
	}
	const eager = "fetch: {mode: eager, open_timeout: 20s}\n"
	alone := run(eager, 1)
	together := run(eager+withPeers, nodes)
	t.Logf("one node without others: %d bytes; %d nodes: %d bytes, %.2f times as many", alone, nodes, together, float64(together)/float64(alone))
	// Nodes that do not know each other yet fetch some files twice, and on a busy machine they ask
	// the registry for what another node does not send in time.
	if together > alone*nodes*4/5 {
		t.Errorf("the registry sent %d bytes to %d nodes, and %d to one", together, nodes, alone)
	}
}
