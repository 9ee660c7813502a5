package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/kube"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// limit bounds what should take seconds.
const limit = 3 * time.Minute

// access lets everybody pull public images, and lets each of two users pull those of a namespace.
// The service accounts of two more namespaces may pull those of their namespace, with tokens of the
// cluster.
const access = `
version: 0.1
http: {insecure_open_to_network: true}
auth:
  htpasswd: {path: %q}
  oidc:
    - {name: prod, issuer: %q, jwks: %q, audience: registry.example.com, groups_claim: /kubernetes.io/namespace}
  access:
    - {repositories: ["**"], subjects: [root], actions: ["*"]}
    - {repositories: ["public/**"], subjects: [anonymous, "*"], actions: [pull]}
    - {repositories: ["one/**"], subjects: [alice], actions: [pull]}
    - {repositories: ["two/**"], subjects: [bob], actions: [pull]}
    - {repositories: ["three/**"], subjects: ["group:prod:three"], actions: [pull]}
    - {repositories: ["four/**"], subjects: ["group:prod:four"], actions: [pull]}
`

// providers is kubelet's configuration of slipway credential-provider.
const providers = `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: slipway
    args: [credential-provider]
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    matchImages: [%q]
    defaultCacheDuration: 5m
    tokenAttributes: {serviceAccountTokenAudience: registry.example.com, cacheType: Token, requireServiceAccount: true}
`

// tokens lets kubelets request tokens of service accounts for the registry.
const tokens = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: tokens-for-registry}
rules:
  - {apiGroups: [""], resources: ["registry.example.com"], verbs: ["request-serviceaccounts-token-audience"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: tokens-for-registry}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: tokens-for-registry}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:nodes}]
`

// onDemand makes agents fetch only what is read, so that tests can tell what was.
const onDemand = "fetch: {mode: lazy, background: false}\n"

// cluster is a registry and a cluster.
type cluster struct {
	t        *testing.T
	net      *lan.LAN
	registry *slipway.Server
	plane    *kube.Plane
	nodes    []*kube.Node
	links    []*lan.Node // of the nodes
	before   []ctrnode.Leftovers
}

// bed describes a cluster.
type bed struct {
	// agent is appended to the configuration of agents.
	agent string
	// ways has a node's way of getting images for each node.
	ways []string
	// services lets pods and nodes use services, as every real cluster does.
	services bool
	// registries are what nodes pull from in addition to the registry outside the cluster.
	registries []string
	// keepCredentials makes agents keep the credentials of pulls over a reboot.
	keepCredentials bool
	// diskBytes gives each node a disk of its own, and disk are the settings of kubelet for it.
	diskBytes int64
	disk      string
	// metrics makes agents serve metrics.
	metrics bool
}

// newCluster starts a cluster with a node for each of the given ways of getting images. At the end
// of the test it stops everything.
func newCluster(t *testing.T, agent string, ways ...string) *cluster {
	t.Helper()
	return bed{agent: agent, ways: ways}.start(t)
}

func (b bed) start(t *testing.T) *cluster {
	t.Helper()
	tool.NeedRoot(t)
	programs := append([]string{"containerd", "containerd-shim-runc-v2", "runc"}, kube.Programs...)
	if b.services {
		programs = append(programs, kube.ServicePrograms...)
		tool.System(t, "iptables")
	}
	for _, name := range programs {
		tool.Built(t, name)
	}
	dir := tool.ShortTempDir(t)
	c := &cluster{t: t}
	c.check(os.Chmod(dir, 0o711)) // pods with a user namespace open their files as nobody
	var err error
	c.net, err = lan.New(t.Context())
	c.check(err)
	t.Cleanup(func() {
		if err := c.net.Close(); err != nil {
			t.Error(err)
		}
	})
	c.plane, err = kube.StartPlane(t.Context(), filepath.Join(dir, "plane"), c.net.Addr)
	c.check(err)
	t.Cleanup(func() {
		if err := c.plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	c.registry = slipway.Start(t, t.TempDir(), &slipway.Options{Config: c.registryConfig(dir), Host: c.net.Addr})
	c.push("public/pause:1", imagetest.Summed(t, 0, 1, 1, 1))
	c.apply(tokens)
	c.plane.Providers, c.plane.Disk = fmt.Sprintf(providers, c.registry.Addr), b.disk
	if b.services {
		c.check(c.plane.StartServices(t.Context()))
	}
	metrics := ""
	if b.metrics {
		metrics = "127.0.0.1:9102" // of each node's own network
	}
	for i, way := range b.ways {
		link, err := c.net.Join(t.Context())
		c.check(err)
		c.links = append(c.links, link)
		n, err := c.plane.StartNode(t.Context(), i, ctrnode.Options{
			Dir: filepath.Join(dir, fmt.Sprintf("n%d", i)), Binary: slipway.Binary(t), Way: way, Net: link, Registries: append([]string{c.registry.Addr}, b.registries...),
			CRI: &ctrnode.CRI{Sandbox: c.ref("public/pause:1"), KeepCredentials: b.keepCredentials}, Agent: b.agent, NewDisk: b.diskBytes > 0, DiskBytes: b.diskBytes, Metrics: metrics,
		})
		c.check(err)
		c.nodes = append(c.nodes, n)
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(n.Logs())
			}
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

func (c *cluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// registryConfig writes the registry's users and the cluster's keys to files, and returns the
// registry's configuration.
func (c *cluster) registryConfig(dir string) string {
	c.t.Helper()
	var discovery struct{ Issuer string }
	c.check(json.Unmarshal([]byte(c.kubectl("get", "--raw", "/.well-known/openid-configuration")), &discovery))
	passwords, keys := filepath.Join(dir, "users"), filepath.Join(dir, "jwks.json")
	c.check(os.WriteFile(passwords, []byte(users()), 0o600))
	c.check(os.WriteFile(keys, []byte(c.kubectl("get", "--raw", "/openid/v1/jwks")), 0o600))
	return fmt.Sprintf(access, passwords, discovery.Issuer, keys)
}

// users are root, alice and bob, whose password is secret.
func users() string {
	var b strings.Builder
	for _, name := range []string{"root", "alice", "bob"} {
		fmt.Fprintf(&b, "%s:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n", name)
	}
	return b.String()
}

// ref returns the name of an image in the registry.
func (c *cluster) ref(name string) string { return c.registry.Addr + "/" + name }

// push pushes an image and waits until it is converted.
func (c *cluster) push(name string, im *imagetest.Bundle) (ref string) {
	c.t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	if err := im.Push(c.t.Context(), c.registry.Client.As("root", "secret"), repo, tag); err != nil {
		c.t.Fatal(err)
	}
	c.registry.Converted()
	return c.ref(name)
}

// kubectl runs a command that must work.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.plane.Kubectl(c.t.Context(), "", args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// apply makes objects from manifests, in which REGISTRY stands for the registry.
func (c *cluster) apply(manifests string) {
	c.t.Helper()
	manifests = strings.ReplaceAll(manifests, "REGISTRY", c.registry.Addr)
	if _, err := c.plane.Kubectl(c.t.Context(), manifests, "apply", "-f", "-"); err != nil {
		c.t.Fatalf("%v\n%s", err, manifests)
	}
}

// namespace makes a namespace and waits until it can have pods. The secret "pull" holds the
// password of a user.
func (c *cluster) namespace(name, user string, labels ...string) {
	c.t.Helper()
	c.kubectl("create", "namespace", name)
	for _, l := range labels {
		c.kubectl("label", "namespace", name, l)
	}
	if user != "" {
		c.kubectl("-n", name, "create", "secret", "docker-registry", "pull", "--docker-server", c.registry.Addr, "--docker-username", user, "--docker-password", "secret")
	}
	proc.Poll(c.t, limit, "the service account of namespace "+name, func() bool {
		_, err := c.plane.Kubectl(c.t.Context(), "", "-n", name, "get", "serviceaccount", "default")
		return err == nil
	})
}

// ready waits until the pods of a namespace are ready.
func (c *cluster) ready(namespace string) time.Duration {
	c.t.Helper()
	took, err := c.plane.Ready(c.t.Context(), namespace, limit)
	if err != nil {
		c.t.Fatal(err)
	}
	return took
}

// pod holds what tests need to know of a pod.
type pod struct {
	Metadata struct{ Name, Namespace string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase      string
		Conditions []struct {
			Type               string
			LastTransitionTime time.Time
		}
		ContainerStatuses []struct {
			Name         string
			RestartCount int
			State        struct {
				Waiting *struct{ Reason, Message string }
				Running *struct{ StartedAt string }
			}
		}
	}
}

func (c *cluster) pods(args ...string) []pod {
	c.t.Helper()
	var list struct{ Items []pod }
	if err := json.Unmarshal([]byte(c.kubectl(append([]string{"get", "pods", "-o", "json"}, args...)...)), &list); err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// logs returns what a pod's container has printed. A kubelet that has just started does not know
// its pods at once.
func (c *cluster) logs(p *pod) (out string) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		out, err = c.plane.Kubectl(c.t.Context(), "", "-n", p.Metadata.Namespace, "logs", p.Metadata.Name, "-c", "main")
		if err == nil {
			return out
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

// read waits until all running pods, or those of a namespace, have read their files once more,
// correctly and without a restart.
func (c *cluster) read(namespace ...string) {
	c.t.Helper()
	where := "--all-namespaces"
	if len(namespace) > 0 {
		where = "--namespace=" + namespace[0]
	}
	for _, p := range c.reads(where) {
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				c.t.Errorf("container %s of %s was restarted %d times", s.Name, p.Metadata.Name, s.RestartCount)
			}
		}
	}
}

// reads waits until all running pods that kubectl finds with some arguments have read their files
// once more, and correctly.
func (c *cluster) reads(which ...string) []pod {
	c.t.Helper()
	all := c.pods(append(which, "--field-selector", "status.phase=Running")...)
	if len(all) == 0 {
		c.t.Fatal("no pod runs")
	}
	before := make([]int, len(all))
	for i := range all {
		before[i] = strings.Count(c.logs(&all[i]), "good")
	}
	for i := range all {
		p := &all[i]
		proc.Poll(c.t, limit, p.Metadata.Name+" to go on reading", func() bool {
			out := c.logs(p)
			if strings.Contains(out, "bad") {
				c.t.Fatalf("%s read something wrong:\n%s", p.Metadata.Name, out)
			}
			return strings.Count(out, "good") > before[i]
		})
	}
	return all
}

// mark records which of the kernel's objects the nodes hold once a pod of the sandboxes' image has
// run.
func (c *cluster) mark() {
	c.t.Helper()
	for _, n := range c.nodes {
		c.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: first-%s}, spec: {nodeName: %[1]s, restartPolicy: Never, containers: [{name: main, image: "REGISTRY/public/pause:1", args: ["true"]}]}}`, n.Name))
	}
	proc.Poll(c.t, limit, "the first pods to end", func() bool {
		done := c.pods("--field-selector", "status.phase=Succeeded")
		return len(done) == len(c.nodes)
	})
	c.kubectl("delete", "pod", "--all", "--wait")
	for _, n := range c.nodes {
		c.before = append(c.before, c.quiet(n))
	}
}

// quiet waits until no container has anything mounted on a node.
func (c *cluster) quiet(n *kube.Node) (l ctrnode.Leftovers) {
	c.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(500 * time.Millisecond) {
		if err := n.Collect(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
		var err error
		if l, err = n.Leftovers(); err != nil {
			c.t.Fatal(err)
		}
		if !strings.Contains(l.String(), "overlay ") && len(n.InCgroup()) == 0 {
			return l
		}
		if time.Now().After(end) {
			c.t.Fatalf("%s has %s and processes %v", n.Name, l, n.InCgroup())
		}
	}
}

// leaks deletes namespaces and images, and compares what is left with what was there before.
func (c *cluster) leaks(namespaces ...string) {
	c.t.Helper()
	c.kubectl(append([]string{"delete", "namespace", "--wait", "--timeout", limit.String()}, namespaces...)...)
	for i, n := range c.nodes {
		if err := n.RemoveImages(c.t.Context(), "/pause:"); err != nil {
			c.t.Errorf("remove images: %v", err)
		}
		var after ctrnode.Leftovers
		end := time.Now().Add(limit)
		for after = c.quiet(n); !after.Equal(c.before[i]) && time.Now().Before(end); after = c.quiet(n) {
			time.Sleep(100 * time.Millisecond)
		}
		if !after.Equal(c.before[i]) {
			c.t.Errorf("%s has %s; before the first pod it had %s", n.Name, after, c.before[i])
		}
	}
}
