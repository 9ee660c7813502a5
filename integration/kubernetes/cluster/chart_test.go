package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// TestChart pushes the chart and the image of Slipway to a Slipway. It installs them from there as
// a Deployment, in a namespace that restricts pods as much as possible.
func TestChart(t *testing.T) {
	c := newCluster(t, onDemand, ctrnode.Gear)
	c.mark()
	h := &helm{c: c, program: tool.Built(t, "helm"), env: tool.NewEnv(t.TempDir())}
	c.versions("v1")
	chart := h.push()

	const ns = "registry"
	c.namespace(ns, "", "pod-security.kubernetes.io/enforce=restricted")
	c.kubectl("-n", ns, "create", "secret", "generic", "slipway-users", "--from-literal=htpasswd="+users())
	values := []string{"--set", "image.repository=" + c.ref("public/slipway"), "--set", "image.tag=v1", "--set", "htpasswd.existingSecret=slipway-users", "--set", "persistence.enabled=false"}
	h.run(append([]string{"-n", ns, "install", "slipway", chart, "--plain-http", "--wait", "--timeout", limit.String()}, values...)...)
	c.kubectl("-n", ns, "exec", "deploy/slipway", "--", "/slipway", "gc", "--dry-run", "--config", "/etc/slipway/config.yml")
	h.used(ns)
	h.run(append([]string{"-n", ns, "upgrade", "slipway", chart, "--plain-http", "--wait", "--timeout", limit.String(), "--set", "config.log.level=debug"}, values...)...)
	h.used(ns)
	h.run("-n", ns, "uninstall", "slipway", "--wait", "--timeout", limit.String())
	c.leaks(ns)
}

// helm installs charts in a cluster.
type helm struct {
	c       *cluster
	program string
	env     *tool.Env
}

func (h *helm) run(args ...string) string {
	h.c.t.Helper()
	return h.env.Run(h.c.t, h.program, append([]string{"--kubeconfig", h.c.plane.Kubeconfig("admin")}, args...)...)
}

// push packs the chart, pushes it, and returns its reference.
func (h *helm) push() string {
	t := h.c.t
	t.Helper()
	source, err := filepath.Abs(filepath.Join("..", "..", "..", "deploy", "helm", "slipway"))
	if err != nil {
		t.Fatal(err)
	}
	h.run("package", source, "--destination", h.env.Dir())
	files, err := filepath.Glob(filepath.Join(h.env.Dir(), "slipway-*.tgz"))
	if err != nil || len(files) != 1 {
		t.Fatalf("packed charts: %v, error %v", files, err)
	}
	h.run("push", files[0], "oci://"+h.c.ref("public/charts"), "--plain-http", "--username", "root", "--password", "secret")
	return "oci://" + h.c.ref("public/charts/slipway")
}

// used pushes an image to the registry in the cluster and pulls it.
func (h *helm) used(namespace string) {
	t := h.c.t
	t.Helper()
	addr := slipway.FreeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	cmd := exec.Command(tool.Built(t, "kubectl"), "--kubeconfig", h.c.plane.Kubeconfig("admin"), "-n", namespace, "port-forward", "deploy/slipway", port+":5000")
	cmd.Env = h.env.Vars()
	forward := proc.Start(t, cmd, filepath.Join(t.TempDir(), "forward.log"))
	defer forward.Kill()
	client := wire.New(addr).As("root", "secret")
	defer client.Close()
	proc.Poll(t, limit, "the registry to answer", func() bool {
		r, err := client.Do(t.Context(), "GET", "/v2/", nil, nil)
		return err == nil && r.Status == 200
	})
	im := imagetest.Summed(t, 9, 3, 1000, 1000)
	if err := im.Push(t.Context(), client, "team/app", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CheckImage(t.Context(), "team/app", "1"); err != nil {
		t.Error(fmt.Errorf("pull from the registry in the cluster: %w", err))
	}
}
