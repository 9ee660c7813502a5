package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/integration/replicas/faults"
	"example.org/slipway/internal/backendtest"
)

// inside is the name of the registry in the cluster: a port that kube-proxy opens on each node.
const inside = "127.0.0.1:30500"

// own has what the page leaves to the reader: addresses, access, and how the nodes reach the registry.
const own = `
service: {type: NodePort, nodePort: 30500}
test: {image: %q}
config:
  storage:
    s3: {bucket: %q, region: %q, regionendpoint: "http://%s", forcepathstyle: true}
    blob_cache: {ram: 16MiB, ssd: 64MiB}
  auth:
    access:
      - {repositories: ["**"], subjects: [root], actions: ["*"]}
      - {repositories: ["team/**"], subjects: [anonymous], actions: [pull]}
`

// TestReplicas installs the registry in the cluster as docs/kubernetes.md says: three replicas that
// share PostgreSQL and an object store. Pods on three nodes pull from it. Replicas are killed and
// upgraded meanwhile.
func TestReplicas(t *testing.T) {
	const page = "kubernetes.md"
	s3, postgres := backendtest.S3(t), backendtest.Postgres(t)
	c := bed{agent: onDemand, ways: []string{ctrnode.Gear, ctrnode.Gear, ctrnode.Gear}, services: true, registries: []string{inside}}.start(t)
	c.mark()
	c.push("public/busybox:1", imagetest.Summed(t, 0, 1, 1, 1))
	c.versions(release, next)
	f := c.follower()
	f.charts()

	c.namespace("slipway", "", "pod-security.kubernetes.io/enforce=restricted")
	for i, n := range c.nodes {
		c.volumes("/", filepath.Join(n.Dir, fmt.Sprintf("data%d", i)))
	}
	for name, values := range map[string][]string{
		"slipway-users":    {"htpasswd=" + users()},
		"slipway-s3":       {"accesskey=" + s3.AccessKey, "secretkey=" + s3.SecretKey},
		"slipway-postgres": {"url=" + postgres.DSNThrough(faults.NewLink(t, c.net.Addr, postgres.Addr).Addr, postgres.CreateDatabase(t))},
		"slipway-cluster":  {"secret=" + rand.Text()},
		"slipway-token":    {"token.key=" + privateKey(t)},
	} {
		args := []string{"-n", "slipway", "create", "secret", "generic", name}
		for _, v := range values {
			args = append(args, "--from-literal="+v)
		}
		c.kubectl(args...)
	}
	c.check(os.WriteFile(f.path("replicas.yaml"), []byte(f.text(page, "replicas: 3")), 0o600))
	c.check(os.WriteFile(f.path("values.yaml"), fmt.Appendf(nil, own, c.ref("public/busybox:1"), s3.Bucket(t), s3.Region, faults.NewLink(t, c.net.Addr, s3.Endpoint).Addr), 0o600))
	began := time.Now()
	f.env.Run(t, f.path("bin/helm"), "-n", "slipway", "install", "slipway", "oci://"+c.ref("public/charts/slipway"), "--version", release, "--set", "image.repository="+c.ref("public/slipway"),
		"--values", f.path("replicas.yaml"), "--values", f.path("values.yaml"), "--wait", "--timeout", limit.String())
	t.Logf("three replicas were ready after %s", time.Since(began).Round(1e8))
	f.env.Run(t, f.path("bin/helm"), "-n", "slipway", "test", "slipway", "--timeout", limit.String())

	addr := c.links[0].Addr + ":30500"
	root := wire.New(addr).As("root", "secret")
	t.Cleanup(root.Close)
	for tag, seed := range map[string]byte{"1": 1, "2": 2} {
		c.check(imagetest.Summed(t, seed, files, fileBytes, largeBytes).Push(t.Context(), root, "team/app", tag))
	}
	c.converted("slipway")
	c.namespace("open", "")

	// One replica's process is killed during the first roll-out, and another one's pod during the
	// second.
	buyer := newBuyer(t, addr)
	c.rollOut(inside+"/team/app:1", c.killServer)
	c.rollOut(inside+"/team/app:2", func() {
		c.kubectl("-n", "slipway", "delete", "pod", "slipway-1", "--grace-period=0", "--force")
	})
	c.kubectl("-n", "slipway", "rollout", "status", "statefulset/slipway", "--timeout", limit.String())
	pulls, failed := buyer.stop()
	t.Logf("while replicas were killed, %d of %d pulls through the service failed: %q", len(failed), pulls, failed)
	if pulls == 0 || len(failed) > pulls/2 {
		t.Error("killed replicas took the registry away")
	}
	c.read("open")

	// An upgrade is announced, so that nobody needs to notice.
	buyer = newBuyer(t, addr)
	began = time.Now()
	f.follow(page, "--version "+next+" --reset-then-reuse-values", "helm -n slipway-agent", ": helm")
	c.kubectl("-n", "slipway", "rollout", "status", "statefulset/slipway", "--timeout", rolling.String())
	t.Logf("the replicas were upgraded in %s", time.Since(began).Round(1e8))
	if pulls, failed = buyer.stop(); pulls == 0 || len(failed) > 0 {
		t.Errorf("during the upgrade %d of %d pulls through the service failed: %q", len(failed), pulls, failed)
	}
	for _, p := range c.pods("-n", "open") {
		c.kubectl("-n", "open", "exec", p.Metadata.Name, "--", "sh", "-c", imagetest.VerifyLarge) // comes now
	}
	c.read("open")
	for i, n := range c.nodes {
		if way, said, err := n.Used(t.Context(), inside+"/team/app:2"); err != nil || way != ctrnode.Gear {
			t.Errorf("on node %d the image came as %q, error %v: %s", i, way, err, said)
		}
	}
	f.env.Run(t, f.path("bin/helm"), "-n", "slipway", "uninstall", "slipway", "--wait", "--timeout", limit.String())
	c.leaks("open", "slipway")
}

// versions pushes the program under test as images of some versions.
func (c *cluster) versions(names ...string) {
	c.t.Helper()
	program, err := os.ReadFile(slipway.Binary(c.t))
	c.check(err)
	for _, name := range names {
		// The programs differ in what follows their end.
		c.push("public/slipway:"+name, serverImage(append(program[:len(program):len(program)], name...)))
	}
}

// serverImage returns an image like that of a release.
func serverImage(program []byte) *imagetest.Bundle {
	return imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/slipway"}, "User": "65532:65532"},
		[]imagetest.Layer{imagetest.NewLayer(imagetest.File{Name: "slipway", Mode: 0o755, Data: program})})
}

// privateKey returns a key that signs tokens.
func privateKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// converted waits until the servers in a namespace have nothing left to convert.
func (c *cluster) converted(namespace string) {
	c.t.Helper()
	for _, p := range c.pods("-n", namespace) {
		for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
			var st slipway.GearStatus
			c.check(json.Unmarshal([]byte(c.kubectl("-n", namespace, "exec", p.Metadata.Name, "--", "/slipway", "status", "--json", "--config", "/etc/slipway/config.yml")), &st))
			if st.Waiting == 0 && len(st.Active) == 0 {
				break
			}
			if time.Now().After(end) {
				c.t.Fatalf("%s does not end converting: %+v", p.Metadata.Name, st)
			}
		}
	}
}

// killServer kills the process of one of the replicas.
func (c *cluster) killServer() {
	c.t.Helper()
	for _, n := range c.nodes {
		for _, pid := range n.InCgroup() {
			b, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
			if strings.HasPrefix(string(b), "/slipway\x00serve\x00") {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					c.t.Errorf("kill a replica: %v", err)
				}
				return
			}
		}
	}
	c.t.Error("there is no replica to kill")
}

// buyer pulls an image again and again, each time over new connections.
type buyer struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	pulls  int
	failed []string
}

func newBuyer(t *testing.T, addr string) *buyer {
	ctx, cancel := context.WithCancel(t.Context())
	b := &buyer{cancel: cancel}
	t.Cleanup(func() { b.stop() })
	b.wg.Go(func() {
		for ctx.Err() == nil {
			client := wire.New(addr)
			_, err := client.CheckImage(ctx, "team/app", "1")
			client.Close()
			if ctx.Err() != nil {
				return
			}
			b.pulls++
			if err != nil {
				b.failed = append(b.failed, err.Error())
			}
		}
	})
	return b
}

// stop ends the pulls, and returns how many there were and what went wrong.
func (b *buyer) stop() (pulls int, failed []string) {
	b.cancel()
	b.wg.Wait()
	return b.pulls, b.failed
}
