package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
)

// TestDaemonSet follows docs/kubernetes.md on a node with systemd: the DaemonSet installs the agent,
// upgrades it while a pod reads its files, and removes it.
func TestDaemonSet(t *testing.T) {
	const page, node = "kubernetes.md", "node0"
	c := newCluster(t, onDemand)
	c.push("public/app:1", imagetest.Summed(t, 1, files, fileBytes, largeBytes))
	c.versions(release, next)
	f := c.follower()
	f.charts()
	link, err := c.net.Join(t.Context())
	c.check(err)
	m := c.boot(node, link)

	values := fmt.Sprintf("agent: {config: {fetch: {background: false}, registries: [{host: %q, urls: [%q], insecure_allow_plaintext: true}]}}\n", c.registry.Addr, "http://"+c.registry.Addr)
	c.check(os.WriteFile(f.path("values.yaml"), []byte(values), 0o600))
	f.follow(page, "kubectl create namespace slipway-agent", "--set agent.enabled=true", "--set agent.enabled=true --values values.yaml", "rollout status", "rollout status --timeout 3m")
	if got := m.run("systemctl", "is-active", "slipway-agent", "containerd", "kubelet"); got != "active\nactive\nactive" {
		t.Errorf("after the installation services are %q", got)
	}
	c.namespace("open", "")
	c.apply(fmt.Sprintf(watcher, 1))
	c.ready("open")
	c.read("open")
	if said := m.run("/opt/slipway/bin/slipway", "agent", "explain", "--config", "/etc/slipway/agent.yml", c.ref("public/app:1")); !strings.Contains(said, "gear: used") {
		t.Errorf("the image did not come lazily: %s", said)
	}

	m.run("systemctl", "kill", "--signal=KILL", "slipway-agent")
	m.run("systemctl", "restart", "slipway-agent", "containerd", "kubelet")
	c.read("open")

	before := m.run("systemctl", "show", "--value", "-p", "MainPID", "slipway-agent")
	f.follow(page, "--version "+next+" --reset-then-reuse-values", "helm -n slipway upgrade", ": helm")
	c.kubectl("-n", "slipway-agent", "rollout", "status", "daemonset/slipway-agent", "--timeout", limit.String())
	if after := m.run("systemctl", "show", "--value", "-p", "MainPID", "slipway-agent"); after == before {
		t.Error("the upgrade did not start another agent")
	}
	c.read("open")
	pod := c.pods("-n", "open")[0].Metadata.Name
	c.kubectl("-n", "open", "exec", pod, "--", "sh", "-c", imagetest.VerifyLarge) // comes from the new agent

	c.kubectl("delete", "namespace", "open", "--wait")
	f.follow(page, "kubectl -n slipway delete pvc slipway-data", "helm -n slipway uninstall", ": helm", "kubectl -n slipway delete", ": kubectl",
		"rollout status", "rollout status --timeout 3m")
	if said, err := m.Try(t.Context(), "systemctl", "is-active", "slipway-agent"); err == nil {
		t.Errorf("after the removal the agent is %s", said)
	}
	for _, file := range []string{"/opt/slipway", "/etc/containerd/conf.d/slipway.toml"} {
		if _, err := os.Stat(m.Root + file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the removal %s is there, error %v", file, err)
		}
	}
	// Pods start without it.
	c.namespace("later", "")
	c.apply(strings.ReplaceAll(fmt.Sprintf(watcher, 1), "namespace: open", "namespace: later"))
	c.ready("later")
	c.read("later")
	c.kubectl("delete", "namespace", "later", "--wait")
}
