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

// These are the images: files of fileBytes that are read all the time, and one file that is not.
const (
	files      = 40
	fileBytes  = 64 << 10
	largeBytes = 16 << 20
)

// loop is a container's script: it reads all files again and again.
const loop = `"while true; do if ` + imagetest.Verify + `; then echo good; else echo bad; fi; sleep 1; done"`

// watcher is a Deployment whose pods print what they read.
const watcher = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: watchers, namespace: open}
spec:
  replicas: %d
  selector: {matchLabels: {app: watchers}}
  template:
    metadata: {labels: {app: watchers}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: watchers}}}]
      containers: [{name: main, image: "REGISTRY/public/app:1", args: [` + loop + `]}]
`

// kinds has a pod of each kind that matters to whoever serves the pods' files. The pods of
// namespaces three and four pull with the tokens of their service accounts.
const kinds = `
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: open}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/public/app:1", args: [` + loop + `]}]
---
apiVersion: v1
kind: Pod
metadata: {name: always, namespace: open}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/public/app:1", imagePullPolicy: Always, args: [` + loop + `]}]
---
apiVersion: v1
kind: Pod
metadata: {name: init, namespace: open}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: made, emptyDir: {}}]
  initContainers:
    - {name: init, image: "REGISTRY/public/app:1", args: ["` + imagetest.Verify + ` && mkdir -p /made/sub && cat sums > /made/sub/sums"], volumeMounts: [{name: made, mountPath: /made}]}
  containers:
    - {name: main, image: "REGISTRY/public/app:1", args: [` + loop + `], volumeMounts: [{name: made, mountPath: /sums, subPath: sub/sums}]}
---
apiVersion: v1
kind: Pod
metadata: {name: users, namespace: open}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/public/app:1", args: [` + loop + `]}]
---
apiVersion: v1
kind: Pod
metadata: {name: model, namespace: open}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: model, image: {reference: "REGISTRY/public/model:1"}}]
  containers: [{name: main, image: "REGISTRY/public/app:1", args: ["while true; do if cd /model && sha256sum -c -s sums; then echo good; else echo bad; fi; sleep 1; done"], volumeMounts: [{name: model, mountPath: /model}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: restricted, namespace: strict}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
    - {name: main, image: "REGISTRY/public/app:1", args: [` + loop + `], securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: secret, namespace: one}
spec:
  terminationGracePeriodSeconds: 0
  imagePullSecrets: [{name: pull}]
  containers: [{name: main, image: "REGISTRY/one/app:1", args: [` + loop + `]}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: puller, namespace: two}
imagePullSecrets: [{name: pull}]
---
apiVersion: v1
kind: Pod
metadata: {name: account, namespace: two}
spec:
  serviceAccountName: puller
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/two/app:1", args: [` + loop + `]}]
---
apiVersion: v1
kind: Pod
metadata: {name: token, namespace: three}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/three/app:1", args: [` + loop + `]}]
---
apiVersion: v1
kind: Pod
metadata: {name: volume, namespace: four}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: model, image: {reference: "REGISTRY/four/app:1"}}]
  containers: [{name: main, image: "REGISTRY/public/app:1", args: ["while true; do if cd /model && sha256sum -c -s sums; then echo good; else echo bad; fi; sleep 1; done"], volumeMounts: [{name: model, mountPath: /model}]}]
`

// never is a pod with an image that the node already has.
const never = `
apiVersion: v1
kind: Pod
metadata: {name: never, namespace: open}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/public/app:1", imagePullPolicy: Never, args: [` + loop + `]}]
`

// foreign returns a pod that wants an image of another namespace, as its root or as a volume.
func foreign(namespace, name, image, policy string, volume bool) string {
	own, volumes, mounts := image, "", ""
	if volume {
		own = "REGISTRY/public/app:1"
		volumes = fmt.Sprintf(`volumes: [{name: v, image: {reference: %q, pullPolicy: %s}}]`, image, policy)
		mounts = ", volumeMounts: [{name: v, mountPath: /v}]"
		policy = "IfNotPresent"
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  imagePullSecrets: [{name: pull}]
  %s
  containers: [{name: main, image: %q, imagePullPolicy: %s%s}]
---`, name, namespace, volumes, own, policy, mounts)
}

// namespaces are those of TestOneNode.
var namespaces = []string{"open", "strict", "one", "two", "three", "four"}

// TestOneNode runs eleven pods on a node, restarts everything below them, and checks that nothing is
// left when they are gone.
func TestOneNode(t *testing.T) {
	c := newCluster(t, onDemand, ctrnode.Gear)
	n := c.nodes[0]
	c.mark()
	for name, seed := range map[string]byte{"public/app:1": 1, "public/model:1": 2, "one/app:1": 3, "two/app:1": 4, "three/app:1": 5, "four/app:1": 6} {
		c.push(name, imagetest.Summed(t, seed, files, fileBytes, largeBytes))
	}
	c.namespace("open", "")
	c.namespace("strict", "", "pod-security.kubernetes.io/enforce=restricted")
	c.namespace("one", "alice")
	c.namespace("two", "bob")
	c.namespace("three", "")
	c.namespace("four", "")

	began := time.Now()
	c.apply(kinds)
	for _, ns := range namespaces {
		c.ready(ns)
	}
	t.Logf("the first pods were ready after %s", time.Since(began).Round(1e8))
	c.apply(never)
	t.Logf("the pod of an image that is there was ready after %s", c.ready("open").Round(1e6))
	c.foreigners()
	c.read()
	for _, image := range []string{"public/app:1", "public/model:1", "one/app:1", "two/app:1", "three/app:1", "four/app:1"} {
		if way, said, err := n.Used(t.Context(), c.ref(image)); err != nil || way != ctrnode.Gear {
			t.Errorf("%s came as %q, error %v: %s", image, way, err, said)
		}
	}
	if _, err := c.plane.Kubectl(t.Context(), strings.ReplaceAll(strings.ReplaceAll(never, "name: never, namespace: open", "name: refused, namespace: strict"), "REGISTRY", c.registry.Addr), "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "PodSecurity") {
		t.Errorf("a pod that the namespace forbids: %v", err)
	}

	if !n.Kill(ctrnode.Worker) {
		t.Error("there is no worker to kill")
	}
	c.kubectl("-n", "open", "exec", "plain", "--", "sh", "-c", imagetest.VerifyLarge) // comes now
	c.read()
	if err := n.RestartContainerd(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n.KillKubelet()
	if err := n.StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.read()

	c.registry.Stop()
	c.kubectl("-n", "open", "delete", "pod", "never", "--wait")
	c.apply(never)
	t.Logf("without a registry the pod was ready after %s", c.ready("open").Round(1e6))
	c.read()
	c.registry.Restart()

	if err := n.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.rebooted(namespaces...)
	c.leaks(namespaces...)
}

// foreigners starts pods that want the private images of other namespaces, all of which the node
// has. None may run, whichever way the images' owners pull them, and whatever the policy is.
func (c *cluster) foreigners() {
	c.t.Helper()
	for namespace, image := range map[string]string{"one": "two/app:1", "three": "four/app:1", "four": "one/app:1"} {
		var manifests strings.Builder
		var names []string
		for _, volume := range []bool{false, true} {
			for _, policy := range []string{"Always", "IfNotPresent", "Never"} {
				name := fmt.Sprintf("foreign-%s-%t", strings.ToLower(policy), volume)
				manifests.WriteString(foreign(namespace, name, "REGISTRY/"+image, policy, volume))
				names = append(names, name)
			}
		}
		c.apply(manifests.String())
		c.waiting(namespace, names...)
	}
}

// waiting waits until pods are refused their image, and checks that they do not run.
func (c *cluster) waiting(namespace string, names ...string) {
	c.t.Helper()
	for _, name := range names {
		proc.Poll(c.t, limit, name+" to be refused its image", func() bool {
			for _, p := range c.pods("-n", namespace, "--field-selector", "metadata.name="+name) {
				for _, s := range p.Status.ContainerStatuses {
					if p.Status.Phase == "Running" {
						c.t.Fatalf("%s runs an image that its namespace may not have", name)
					}
					if w := s.State.Waiting; w != nil && strings.Contains(w.Reason, "Image") {
						return true
					}
				}
			}
			return false
		})
	}
	c.kubectl(append([]string{"-n", namespace, "delete", "pod", "--wait", "--grace-period=0", "--force"}, names...)...)
}

// rebooted waits until all pods of namespaces run again after a reboot.
func (c *cluster) rebooted(namespaces ...string) {
	c.t.Helper()
	for _, ns := range namespaces {
		proc.Poll(c.t, limit, "pods of "+ns+" to run again", func() bool {
			for _, p := range c.pods("-n", ns) {
				for _, s := range p.Status.ContainerStatuses {
					if s.RestartCount == 0 {
						return false
					}
				}
			}
			return true
		})
		c.ready(ns)
	}
}
