package cluster

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
)

const (
	// replicas are spread over the nodes.
	replicas = 50
	// rolling bounds a roll-out of all replicas on a busy machine.
	rolling = 10 * time.Minute
)

// deployment reads its files now and then, so that fifty replicas leave the machine some room.
const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: many, namespace: open}
spec:
  replicas: %d
  selector: {matchLabels: {app: many}}
  strategy: {rollingUpdate: {maxSurge: 25%%, maxUnavailable: 25%%}}
  template:
    metadata: {labels: {app: many}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: many}}}]
      containers:
        - name: main
          image: %q
          args: ["while true; do if ` + imagetest.Verify + `; then echo good; else echo bad; fi; sleep 10; done"]
`

// job reads every file of its image, ten times.
const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: "job%d", namespace: open}
spec:
  completions: 10
  parallelism: 5
  backoffLimit: 0
  template:
    metadata: {labels: {app: job}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "REGISTRY/public/app:%s", args: ["` + imagetest.Verify + ` && ` + imagetest.VerifyLarge + ` && echo good"]}]
`

// TestThreeNodes rolls fifty pods out over three nodes, runs jobs while parts of the nodes are
// killed, and takes one node through drain and reboot.
func TestThreeNodes(t *testing.T) {
	c := newCluster(t, onDemand, ctrnode.Gear, ctrnode.Gear, ctrnode.Gear)
	c.mark()
	for tag, seed := range map[string]byte{"1": 1, "2": 2} {
		c.push("public/app:"+tag, imagetest.Summed(t, seed, files, fileBytes, largeBytes))
	}
	c.namespace("open", "")
	c.rollOut("REGISTRY/public/app:1")
	c.jobs(number(t, "SLIPWAY_KUBERNETES_ROUNDS", 6))
	c.rollOut("REGISTRY/public/app:2")
	c.read()

	n := c.nodes[0]
	c.kubectl("drain", n.Name, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout", rolling.String())
	if err := n.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.kubectl("uncordon", n.Name)
	c.kubectl("-n", "open", "rollout", "restart", "deployment/many")
	c.kubectl("-n", "open", "rollout", "status", "deployment/many", "--timeout", rolling.String())
	c.settled()
	c.read()
	c.leaks("open")
}

// number returns a number that a variable of the environment may set.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// rollOut rolls an image out to all replicas. Other things happen as soon as the first of them is
// being replaced.
func (c *cluster) rollOut(image string, meanwhile ...func()) {
	c.t.Helper()
	began := time.Now()
	c.apply(fmt.Sprintf(deployment, replicas, image))
	c.kubectl("-n", "open", "wait", "--for=jsonpath={.status.updatedReplicas}", "deployment/many", "--timeout", rolling.String())
	for _, f := range meanwhile {
		f()
	}
	c.kubectl("-n", "open", "rollout", "status", "deployment/many", "--timeout", rolling.String())
	c.t.Logf("%d pods of %s on %d nodes after %s", replicas, image, len(c.nodes), time.Since(began).Round(time.Second/10))
	c.settled()
	for _, n := range c.nodes {
		if pods := c.pods("-n", "open", "-l", "app=many", "--field-selector", "spec.nodeName="+n.Name); len(pods) < replicas/len(c.nodes)/2 {
			c.t.Errorf("%s has %d of %d pods", n.Name, len(pods), replicas)
		}
	}
}

// settled waits until no pod of an earlier version is left.
func (c *cluster) settled() {
	c.t.Helper()
	for end := time.Now().Add(rolling); ; time.Sleep(200 * time.Millisecond) {
		if n := len(c.pods("-n", "open", "-l", "app=many")); n == replicas {
			return
		} else if time.Now().After(end) {
			c.t.Fatalf("there are %d pods, want %d", n, replicas)
		}
	}
}

// jobs runs jobs one after the other.
func (c *cluster) jobs(rounds int) {
	c.t.Helper()
	began := time.Now()
	for i := range rounds {
		c.job(i, "2")
	}
	c.t.Logf("%d jobs of ten pods took %s", rounds, time.Since(began).Round(time.Second))
}

// job runs job i to its end. Meanwhile it kills the agent's worker on the first node, containerd on
// the second, or kubelet on the third. No pod may fail.
func (c *cluster) job(i int, tag string) {
	c.t.Helper()
	c.apply(fmt.Sprintf(job, i, tag))
	n := c.nodes[i%len(c.nodes)]
	switch i % 3 {
	case 0:
		n.Kill(ctrnode.Worker)
	case 1:
		c.check(n.RestartContainerd(c.t.Context(), true))
	case 2:
		n.KillKubelet()
		c.check(n.StartKubelet(c.t.Context()))
	}
	name := fmt.Sprintf("job/job%d", i)
	if _, err := c.plane.Kubectl(c.t.Context(), "", "-n", "open", "wait", "--for=condition=Complete", name, "--timeout", rolling.String()); err != nil {
		c.t.Errorf("%v\n%s", err, c.kubectl("-n", "open", "describe", name))
	}
	c.kubectl("-n", "open", "delete", name, "--wait")
}
