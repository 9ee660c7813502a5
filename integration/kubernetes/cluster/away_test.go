package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
)

// scaled is a Deployment of a private image, which kubelet pulls with a secret.
const scaled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: one}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      imagePullSecrets: [{name: pull}]
      %[3]s
      containers: [{name: main, image: "REGISTRY/one/%[4]s", args: [` + loop + `]}]
`

// TestRegistryAway scales Deployments up, rolls one out and reboots a node while there is no
// registry. Pods of images that a node has run. The others run when the registry is back.
func TestRegistryAway(t *testing.T) {
	c := bed{agent: onDemand, ways: []string{ctrnode.Gear, ctrnode.Gear}, keepCredentials: true}.start(t)
	c.mark()
	for name, seed := range map[string]byte{"one/app:1": 1, "one/app:2": 2, "one/other:1": 3} {
		c.push(name, imagetest.Summed(t, seed, files, fileBytes, largeBytes))
	}
	c.namespace("one", "alice")
	const first = "nodeSelector: {kubernetes.io/hostname: node0}"
	c.apply(fmt.Sprintf(scaled, "here", 3, first, "app:1"))
	c.apply(fmt.Sprintf(scaled, "spread", 2, "", "other:1"))
	for _, d := range []string{"here", "spread"} {
		c.kubectl("-n", "one", "rollout", "status", "deployment/"+d, "--timeout", limit.String())
	}
	c.read("one") // all files but the large one are there

	c.registry.Stop()
	began := time.Now()
	c.kubectl("-n", "one", "scale", "deployment/here", "--replicas=12")
	c.kubectl("-n", "one", "rollout", "status", "deployment/here", "--timeout", limit.String())
	t.Logf("without a registry nine more pods of a node that has the image were ready after %s", time.Since(began).Round(1e8))
	c.read("one")

	// An image that no node has, and a node that does not have the image of the other.
	c.apply(fmt.Sprintf(scaled, "spread", 2, "", "app:2"))
	c.apply(fmt.Sprintf(scaled, "there", 2, "nodeSelector: {kubernetes.io/hostname: node1}", "app:1"))
	var waits []string
	proc.Poll(t, limit, "pods to wait for their image", func() bool {
		waits = waits[:0]
		for _, p := range c.pods("-n", "one") {
			for _, s := range p.Status.ContainerStatuses {
				if w := s.State.Waiting; w != nil && strings.Contains(w.Reason, "Image") {
					waits = append(waits, p.Metadata.Name)
				}
			}
		}
		return len(waits) >= 3
	})
	c.read("one") // of the roll-out, the old pods
	c.check(c.nodes[0].Reboot(t.Context()))
	began = time.Now()
	proc.Poll(t, limit, "the pods to run again after a reboot without a registry", func() bool {
		running := 0
		for _, p := range c.pods("-n", "one", "-l", "app=here") {
			for _, s := range p.Status.ContainerStatuses {
				if s.RestartCount > 0 && s.State.Running != nil {
					running++
				}
			}
		}
		return running == 12
	})
	t.Logf("after a reboot without a registry twelve pods ran again in %s", time.Since(began).Round(1e8))
	c.reads("-n", "one", "-l", "app=here")
	// A file that nobody has read cannot come. It is an error or a wait, and never wrong bytes.
	pod := c.pods("-n", "one", "-l", "app=here")[0].Metadata.Name
	if out, err := c.plane.Kubectl(t.Context(), "", "-n", "one", "exec", pod, "--", "sh", "-c", "timeout 5 head -c 1000 /large | wc -c"); err == nil && strings.TrimSpace(out) != "0" {
		t.Errorf("without a registry %s bytes came of a file that the node does not have", out)
	}

	c.registry.Restart()
	began = time.Now()
	for _, d := range []string{"here", "spread", "there"} {
		c.kubectl("-n", "one", "rollout", "status", "deployment/"+d, "--timeout", rolling.String())
	}
	t.Logf("%s after the registry was back, all pods were ready", time.Since(began).Round(1e8))
	c.kubectl("-n", "one", "exec", pod, "--", "sh", "-c", imagetest.VerifyLarge)
	for _, d := range []string{"here", "spread", "there"} {
		c.reads("-n", "one", "-l", "app="+d)
	}
	c.leaks("one")
}
