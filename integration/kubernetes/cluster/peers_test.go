package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
)

// These are the pods of TestPeers and their image of about 150 MB. It has small files, which nodes
// give each other whole, and a large one, which they give each other in parts.
const (
	crowdPods      = 30
	crowdFiles     = 160
	crowdFileBytes = 256 << 10
	crowdLarge     = 104 * mib
	crowdBytes     = crowdFiles*crowdFileBytes + crowdLarge
)

// crowd is a Deployment whose pods are ready when they have read every file of their image. They then
// listen, because kubelet can ask for that without starting a process in each pod every second.
const crowd = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd, namespace: open}
spec:
  replicas: %d
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: crowd}}}]
      containers:
        - name: main
          image: "REGISTRY/public/crowd:1"
          args: ["if ` + imagetest.Verify + ` && ` + imagetest.VerifyLarge + `; then echo good; exec busybox httpd -f -p 8080; else echo bad; exit 1; fi"]
          readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}
`

// rolled is what a roll-out took.
type rolled struct {
	// registry counts the bytes that this machine sent to the nodes at its link, so with headers and
	// with what the API server told kubelets.
	registry int64
	// between counts bytes of contents that agents sent to each other, and bans how often one was
	// left out for a while.
	between, bans float64
	// middle is how long it took until half of the pods were ready, and slowest until all were.
	middle, slowest time.Duration
}

func (r rolled) String() string {
	return fmt.Sprintf("the registry sent %.1f MB, nodes sent each other %.1f MB and left each other out %.0f times; half of the pods were ready after %s, all after %s",
		float64(r.registry)/1e6, r.between/1e6, r.bans, r.middle.Round(time.Second/10), r.slowest.Round(time.Second/10))
}

// TestPeers rolls an image out to three nodes that do not have it, whose links have 100 Mbit/s, once
// with agents that get files from each other and once without. SLIPWAY_KUBERNETES_UPLINK limits the
// registry's own link, too, to a rate in Mbit/s.
func TestPeers(t *testing.T) {
	uplink := number(t, "SLIPWAY_KUBERNETES_UPLINK", 0)
	var off, on rolled
	t.Run("Off", func(t *testing.T) { off = rollOut(t, false, uplink) })
	t.Run("On", func(t *testing.T) { on = rollOut(t, true, uplink) })
	if t.Failed() {
		return
	}
	if off.registry < 3*crowdBytes {
		t.Errorf("without peers, the registry sent %d bytes to three nodes that need %d each", off.registry, crowdBytes)
	}
	// One node needs a third. What nodes fetch before they know each other comes several times.
	if on.registry > off.registry*3/4 || on.between < crowdBytes/2 {
		t.Errorf("the registry sent %d bytes with peers and %d without, nodes sent each other %.0f", on.registry, off.registry, on.between)
	}
	// Most of the time goes to computing sums, and on a busy machine no two runs take the same.
	if most := off.slowest*6/5 + 20*time.Second; on.slowest > most {
		t.Errorf("all pods were ready after %s with peers, want at most %s", on.slowest, most)
	}
}

// rollOut rolls an image out on a cluster of its own.
func rollOut(t *testing.T, peers bool, uplink int) rolled {
	t.Helper()
	agent := ""
	if peers {
		agent = "peers: {listen: \":5003\"}\n"
	}
	c := bed{agent: agent, ways: []string{ctrnode.Gear, ctrnode.Gear, ctrnode.Gear}, metrics: true}.start(t)
	c.mark()
	c.namespace("open", "")
	c.push("public/crowd:1", imagetest.Summed(t, 1, crowdFiles, crowdFileBytes, crowdLarge))
	for _, l := range c.links {
		c.check(l.Shape(t.Context(), mbit))
	}
	c.check(c.net.Uplink(t.Context(), uplink))
	r := c.crowd()
	if peers {
		for _, n := range c.nodes {
			for name, sum := range map[string]*float64{"slipway_agent_peers_sent_bytes_total": &r.between, "slipway_agent_peers_bans_total": &r.bans} {
				v, err := n.Metric(t.Context(), name)
				c.check(err)
				*sum += v
			}
		}
	}
	t.Log(r)
	c.leaks("open")
	return r
}

// crowd rolls an image out and waits until all pods have read it. None may have read a wrong byte.
func (c *cluster) crowd() (r rolled) {
	c.t.Helper()
	sent, err := c.net.Sent()
	c.check(err)
	began := time.Now()
	c.apply(fmt.Sprintf(crowd, crowdPods))
	c.kubectl("-n", "open", "rollout", "status", "deployment/crowd", "--timeout", rolling.String())
	r.slowest = time.Since(began)
	now, err := c.net.Sent()
	c.check(err)
	r.registry = now - sent

	pods := c.pods("-n", "open", "-l", "app=crowd")
	if len(pods) != crowdPods {
		c.t.Fatalf("there are %d pods, want %d", len(pods), crowdPods)
	}
	var ready []time.Duration
	on := map[string]int{}
	for i := range pods {
		p := &pods[i]
		on[p.Spec.NodeName]++
		if out := strings.TrimSpace(c.logs(p)); out != "good" {
			c.t.Errorf("%s on %s printed %q", p.Metadata.Name, p.Spec.NodeName, out)
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				c.t.Errorf("container %s of %s was restarted %d times", s.Name, p.Metadata.Name, s.RestartCount)
			}
		}
		for _, s := range p.Status.Conditions {
			if s.Type == "Ready" {
				ready = append(ready, s.LastTransitionTime.Sub(began))
			}
		}
	}
	if len(on) != len(c.nodes) {
		c.t.Errorf("the pods are on nodes %v, want all %d", on, len(c.nodes))
	}
	slices.Sort(ready)
	r.middle = max(0, ready[len(ready)/2])
	return r
}
