package agent_test

import (
	"archive/tar"
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// setting returns a number from the environment.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number", name, v)
	}
	return n
}

// incompressible returns an image of one layer of about so many megabytes, in files of up to 1 MiB
// and, at every tenth place, of 10 MiB.
func incompressible(mbytes int) *imagetest.Bundle {
	rng, size := rand.NewChaCha8([32]byte{91}), rand.New(rand.NewPCG(91, 1))
	a := new(imagetest.Archive).Dir("./").Dir("files/")
	for i, left := 0, mbytes<<20; left > 0; i++ {
		n := 1 + size.IntN(1<<20)
		if i%10 == 9 {
			n = 10 << 20
		}
		n = min(n, left)
		name, data := content(rng, n)
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "files/" + name}, data)
		left -= n
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{}, []imagetest.Layer{a.Layer()})
}

// peersMetrics returns an agent's metrics of the exchange.
func peersMetrics(t *testing.T, addr string) map[string]float64 {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	out := map[string]float64{}
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		name, value, ok := strings.Cut(in.Text(), " ")
		if name, ours := strings.CutPrefix(name, "slipway_agent_peers_"); ok && ours {
			if out[name], err = strconv.ParseFloat(value, 64); err != nil {
				t.Error(err)
			}
		}
	}
	return out
}

// TestPeersRollout has nodes with links of 100 Mbit/s start one image at the same moment, from a
// registry whose link has 100 Mbit/s, too.
func TestPeersRollout(t *testing.T) {
	tool.NeedRoot(t)
	nodes, mbytes := setting(t, "SLIPWAY_PEERS_NODES", 3), setting(t, "SLIPWAY_PEERS_MB", 24)
	const mbit = 100
	ctx := t.Context()
	net, err := lan.New(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := net.Uplink(ctx, mbit); err != nil {
		t.Fatal(err)
	}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Host: net.Addr, Config: "version: 0.1\nhttp: {insecure_open_to_network: true}\n"})
	ref := push(t, s, "team/app:v1", incompressible(mbytes))
	var links []*lan.Node
	for range nodes {
		n, err := net.Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Shape(ctx, mbit); err != nil {
			t.Fatal(err)
		}
		links = append(links, n)
	}
	registry := fmt.Sprintf("registries: [{host: %q, urls: [\"http://%[1]s\"], insecure_allow_plaintext: true}]\n", s.Addr)
	config := registry + "fetch: {mode: eager, profile_timeout: 10m, open_timeout: 60s}\n"
	run := func(what, config string, links []*lan.Node) (egress int64, slowest time.Duration) {
		agents := make([]*node.Agent, len(links))
		for i, l := range links {
			agents[i] = node.New(t, config+fmt.Sprintf("metrics: {addr: \"%s:9102\", insecure_open_to_network: true}\n", l.Addr))
			agents[i].Allow(10 * time.Minute)
			agents[i].Inside = l.Inside
			agents[i].Start()
		}
		before, err := net.Sent()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		times := make([]time.Duration, len(agents))
		var wg sync.WaitGroup
		for i, a := range agents {
			wg.Go(func() {
				a.Mount(ref)
				proc.Poll(t, 10*time.Minute, "whole image", func() bool { return a.Image().LocalFiles == a.Image().Files })
				times[i] = time.Since(began)
			})
		}
		wg.Wait()
		after, err := net.Sent()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for i, a := range agents {
			slowest = max(slowest, times[i])
			for k, v := range peersMetrics(t, links[i].Addr+":9102") {
				got[k] += v
			}
			a.Kill()
		}
		for _, k := range slices.Sorted(maps.Keys(got)) {
			t.Logf("  %s %.0f", k, got[k])
		}
		t.Logf("%s: %d nodes, image of %d MB: the registry sent %.1f MB, the slowest node had all after %.1f s", what, len(links), mbytes,
			float64(after-before)/1e6, slowest.Seconds())
		return after - before, slowest
	}
	alone, _ := run("peers off", config, links[:1])
	single, _ := run("peers on", config+"peers: {listen: \":5003\"}\n", links[:1])
	together, _ := run("peers on", config+"peers: {listen: \":5003\"}\n", links)
	t.Logf("egress for %d nodes: %.2f times that for one", nodes, float64(together)/float64(alone))
	if float64(single) > 1.1*float64(alone) {
		t.Errorf("a single node with peers on took %d bytes, and %d with peers off", single, alone)
	}
	if float64(together) > 0.8*float64(alone)*float64(nodes) {
		t.Errorf("%d nodes took %d bytes of the registry, and one takes %d", nodes, together, alone)
	}
}
