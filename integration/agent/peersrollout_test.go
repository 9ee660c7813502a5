package agent_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
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

// one reports whether the image of a roll-out is to be one file. SLIPWAY_PEERS_ONE says so.
func one() bool { return os.Getenv("SLIPWAY_PEERS_ONE") != "" }

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

// rollout is a registry and nodes, all with links of 100 Mbit/s, and an image.
type rollout struct {
	t      *testing.T
	net    *lan.LAN
	ref    string
	mbytes int
	config string // of an agent without peers
	links  []*lan.Node
}

func newRollout(t *testing.T, nodes, mbytes int) *rollout {
	t.Helper()
	tool.NeedRoot(t)
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
	r := &rollout{t: t, net: net, mbytes: mbytes, ref: push(t, s, "team/app:v1", imagetest.Incompressible(mbytes, one()))}
	for range nodes {
		n, err := net.Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Shape(ctx, mbit); err != nil {
			t.Fatal(err)
		}
		r.links = append(r.links, n)
	}
	r.config = fmt.Sprintf("registries: [{host: %q, urls: [\"http://%[1]s\"], insecure_allow_plaintext: true}]\n", s.Addr) +
		"fetch: {mode: eager, profile_timeout: 10m, open_timeout: 60s}\n"
	return r
}

const peersOn = "peers: {listen: \":5003\"}\n"

// start says how the nodes of a roll-out start, beyond all at once.
type start struct {
	group int           // so many at a time, if it is not 0
	every time.Duration // between groups
	stop  int           // so many are killed when they have about half of the image
	part  int           // a node is ready when it has read one of so many files, if it is not 0
}

// patience bounds a roll-out.
const patience = 20 * time.Minute

// ask returns the state of an agent, or none if it does not answer.
func ask(t *testing.T, a *node.Agent) (s node.Status) {
	s, err := node.Ask(t.Context(), a.Root)
	if err != nil {
		t.Error(err)
	}
	return s
}

// run starts the image on nodes until all that are not stopped have it. It returns what the registry
// sent, and how long the slowest node took from its own start.
func (r *rollout) run(what, config string, links []*lan.Node, how start) (egress int64, slowest time.Duration) {
	t := r.t
	t.Helper()
	agents := make([]*node.Agent, len(links))
	for i, l := range links {
		agents[i] = node.New(t, r.config+config+fmt.Sprintf("metrics: {addr: \"%s:9102\", insecure_open_to_network: true}\n", l.Addr))
		agents[i].Allow(patience)
		agents[i].Inside = l.Inside
		agents[i].Start()
	}
	before, err := r.net.Sent()
	if err != nil {
		t.Fatal(err)
	}
	times := make([]time.Duration, len(agents))
	dirs := make([]string, len(agents))
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			if how.group > 0 {
				time.Sleep(time.Duration(i/how.group) * how.every)
			}
			began := time.Now()
			dirs[i] = a.Mount(r.ref)
			if i < how.stop {
				proc.Poll(t, patience, "half of the image", func() bool {
					st := ask(t, a)
					return len(st.Images) == 1 && 2*st.Images[0].LocalFiles >= st.Images[0].Files
				})
				a.Kill()
				return
			}
			if how.part > 0 {
				readPart(t, dirs[i], how.part)
				times[i] = time.Since(began)
				return
			}
			proc.Poll(t, patience, "whole image", func() bool { st := ask(t, a); return st.Complete() })
			times[i] = time.Since(began)
		})
	}
	wg.Wait()
	after, err := r.net.Sent()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for i, a := range agents {
		if i < how.stop {
			continue
		}
		slowest = max(slowest, times[i])
		for k, v := range peersMetrics(t, links[i].Addr+":9102") {
			got[k] += v
		}
		if how.stop > 0 {
			if n, failed, wrong := check(t, dirs[i]); n == 0 || failed+wrong > 0 {
				t.Errorf("node %d: %d files, %d failed, %d wrong", i, n, failed, wrong)
			}
		}
		// It leaves. Otherwise the nodes of the next run know one with its address that is gone.
		a.Run("umount", dirs[i])
		a.Stop()
		a.Reboot()
		if err := os.RemoveAll(a.Root); err != nil { // the next run needs the space
			t.Error(err)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		t.Logf("  %s %.0f", k, got[k])
	}
	t.Logf("%s: %d nodes, image of %d MB: the registry sent %.1f MB, the slowest node was ready after %.1f s", what, len(links), r.mbytes,
		float64(after-before)/1e6, slowest.Seconds())
	return after - before, slowest
}

// TestPeersRollout has nodes with links of 100 Mbit/s start one image at the same moment, from a
// registry whose link has 100 Mbit/s, too.
func TestPeersRollout(t *testing.T) {
	nodes := setting(t, "SLIPWAY_PEERS_NODES", 3)
	r := newRollout(t, nodes, setting(t, "SLIPWAY_PEERS_MB", 24))
	alone, _ := r.run("peers off", "", r.links[:1], start{})
	single, _ := r.run("peers on", peersOn, r.links[:1], start{})
	together, _ := r.run("peers on", peersOn, r.links, start{})
	t.Logf("egress for %d nodes: %.2f times that for one", nodes, float64(together)/float64(alone))
	if float64(single) > 1.1*float64(alone) {
		t.Errorf("a single node with peers on took %d bytes, and %d with peers off", single, alone)
	}
	if float64(together) > 0.8*float64(alone)*float64(nodes) {
		t.Errorf("%d nodes took %d bytes of the registry, and one takes %d", nodes, together, alone)
	}
}

// readPart reads one of so many files of an image of imagetest.Incompressible, and compares them
// with their names.
func readPart(t *testing.T, dir string, of int) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dir, "files"))
	if err != nil {
		t.Error(err)
		return
	}
	for i := 0; i < len(files); i += of {
		b, err := os.ReadFile(filepath.Join(dir, "files", files[i].Name()))
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(b)) != files[i].Name() {
			t.Errorf("%s has %d other bytes, error %v", files[i].Name(), len(b), err)
		}
	}
}

// TestPeersReady has nodes start one image lazily at the same moment. Each is ready when it has read a
// part of the files, one after the other, which nothing predicted.
func TestPeersReady(t *testing.T) {
	nodes := setting(t, "SLIPWAY_PEERS_NODES", 3)
	r := newRollout(t, nodes, setting(t, "SLIPWAY_PEERS_MB", 24))
	r.config = strings.Replace(r.config, "mode: eager", "mode: auto", 1)
	alone, one := r.run("peers off", "", r.links[:1], start{part: 10})
	together, all := r.run("peers on", peersOn, r.links, start{part: 10})
	t.Logf("%d nodes: %.2f times the time of one, and %.2f times its bytes of the registry", nodes, all.Seconds()/one.Seconds(), float64(together)/float64(alone))
	if float64(together) > 0.9*float64(alone)*float64(nodes) {
		t.Errorf("%d nodes took %d bytes of the registry, and one takes %d", nodes, together, alone)
	}
}

// TestPeersStopped kills some of the nodes of a roll-out when they have half of the image. The others
// must get right bytes, and none of them may hang on those that are gone.
func TestPeersStopped(t *testing.T) {
	nodes, stop := setting(t, "SLIPWAY_PEERS_NODES", 4), setting(t, "SLIPWAY_PEERS_STOP", 1)
	r := newRollout(t, nodes, setting(t, "SLIPWAY_PEERS_MB", 24))
	whole, without := r.run("nobody is stopped", peersOn, r.links, start{})
	some, with := r.run(fmt.Sprintf("%d are stopped", stop), peersOn, r.links, start{stop: stop})
	t.Logf("the others took %.1f s longer, and %.2f times the bytes of the registry", (with - without).Seconds(), float64(some)/float64(whole))
	if with > 3*without+10*time.Second {
		t.Errorf("after %d of %d nodes were stopped, the slowest took %v instead of %v", stop, nodes, with, without)
	}
}

// TestPeersStaggered has groups of nodes start one after the other.
func TestPeersStaggered(t *testing.T) {
	nodes, group := setting(t, "SLIPWAY_PEERS_NODES", 4), setting(t, "SLIPWAY_PEERS_GROUP", 2)
	r := newRollout(t, nodes, setting(t, "SLIPWAY_PEERS_MB", 24))
	alone, _ := r.run("peers off", "", r.links[:1], start{})
	all, _ := r.run(fmt.Sprintf("%d at a time", group), peersOn, r.links, start{group: group, every: time.Duration(setting(t, "SLIPWAY_PEERS_EVERY", 3)) * time.Second})
	t.Logf("egress for %d nodes: %.2f times that for one", nodes, float64(all)/float64(alone))
	// Only those that start together take bytes more than once.
	if float64(all) > float64(alone)*float64(group+1) {
		t.Errorf("%d nodes in groups of %d took %d bytes of the registry, and one takes %d", nodes, group, all, alone)
	}
}
