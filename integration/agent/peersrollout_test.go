package agent_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
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

// rollout is a registry and nodes, all with links of the same rate, and an image.
type rollout struct {
	t      *testing.T
	server *slipway.Server
	net    *lan.LAN
	ref    string
	image  *imagetest.Bundle
	mbytes int
	config string // of an agent without peers
	links  []*lan.Node
}

func newRollout(t *testing.T, nodes, mbytes int) *rollout {
	t.Helper()
	tool.NeedRoot(t)
	mbit := setting(t, "SLIPWAY_PEERS_MBIT", 100)
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
	r := &rollout{t: t, server: s, net: net, mbytes: mbytes, image: imagetest.Incompressible(mbytes, one())}
	r.ref = push(t, s, "team/app:v1", r.image)
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

// cpu returns the processor time that agents, the registry and this process have taken.
func (r *rollout) cpu(agents []*node.Agent) time.Duration {
	r.t.Helper()
	sum := time.Duration(0)
	for _, pid := range []int{os.Getpid(), r.server.Process.Pid()} {
		d, err := proc.CPU(pid)
		if err != nil {
			r.t.Error(err)
		}
		sum += d
	}
	for _, a := range agents {
		sum += a.CPU()
	}
	return sum
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
	idle := r.cpu(agents)
	all := time.Now()
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
	// The reads of this test count, too: they are the container's.
	cpu, wall := r.cpu(agents)-idle, time.Since(all)
	t.Logf("  %d nodes and the registry took %.2f s of processors in %.2f s, in which there were %.2f s", len(links), cpu.Seconds(), wall.Seconds(),
		float64(runtime.NumCPU())*wall.Seconds())
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

// part returns the names of one of so many files of an image of imagetest.Incompressible.
func part(t *testing.T, dir string, of int) (names []string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(dir, "files"))
	if err != nil {
		t.Error(err)
	}
	for i := 0; i < len(files); i += of {
		names = append(names, files[i].Name())
	}
	return names
}

// readPart reads one of so many files of an image of imagetest.Incompressible, and compares them
// with their names.
func readPart(t *testing.T, dir string, of int) {
	t.Helper()
	for _, name := range part(t, dir, of) {
		b, err := os.ReadFile(filepath.Join(dir, "files", name))
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(b)) != name {
			t.Errorf("%s has %d other bytes, error %v", name, len(b), err)
		}
	}
}

// ready has one node, and then all, start the image lazily and read a part of its files.
func (r *rollout) ready(what string) {
	t := r.t
	t.Helper()
	alone, one := r.run(what+", peers off", "", r.links[:1], start{part: 10})
	single, lone := r.run(what+", peers on", peersOn, r.links[:1], start{part: 10})
	together, all := r.run(what+", peers on", peersOn, r.links, start{part: 10})
	nodes := len(r.links)
	t.Logf("%s, %d nodes: %.2f times the time of one, and %.2f times its bytes of the registry; one node with peers on: %.2f and %.2f times", what, nodes,
		all.Seconds()/one.Seconds(), float64(together)/float64(alone), lone.Seconds()/one.Seconds(), float64(single)/float64(alone))
	if float64(together) > 0.9*float64(alone)*float64(nodes) {
		t.Errorf("%s: %d nodes took %d bytes of the registry, and one takes %d", what, nodes, together, alone)
	}
}

// TestPeersReady has nodes start one image lazily at the same moment. Each is ready when it has read a
// part of the files, one after the other, which nothing predicted.
func TestPeersReady(t *testing.T) {
	nodes := setting(t, "SLIPWAY_PEERS_NODES", 3)
	r := newRollout(t, nodes, setting(t, "SLIPWAY_PEERS_MB", 24))
	r.config = strings.Replace(r.config, "mode: eager", "mode: auto", 1)
	r.config += "profiles: {record: false}\n" // or the first node would make a profile for the others
	r.ready("nothing predicted")
}

// TestPeersProfiled is TestPeersReady with a profile that names what is read, as after the first
// roll-out of an image.
func TestPeersProfiled(t *testing.T) {
	r := newRollout(t, setting(t, "SLIPWAY_PEERS_NODES", 3), setting(t, "SLIPWAY_PEERS_MB", 24))
	r.config = strings.Replace(r.config, "mode: eager", "mode: auto", 1)
	r.profile(10)
	r.ready("a profile")
}

// profile reports to the registry that the image's start opens one of so many of its files.
func (r *rollout) profile(of int) {
	t := r.t
	t.Helper()
	a := node.Start(t, r.config)
	dir := a.Mount(r.ref)
	var list struct {
		Names []string `json:"names"`
	}
	for _, name := range part(t, dir, of) {
		list.Names = append(list.Names, "sha256:"+name)
	}
	a.Run("umount", dir)
	a.Stop()
	body, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.server.Client.Do(t.Context(), http.MethodPost, "/v2/team/app/_slipway/gear/profiles/"+r.image.Top.Digest,
		http.Header{"Content-Type": {"application/json"}}, body)
	if err != nil || resp.Status != http.StatusAccepted {
		t.Fatalf("the profile of %d files: %+v, error %v", len(list.Names), resp, err)
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
