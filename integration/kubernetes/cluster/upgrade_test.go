package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tool"
)

// TestUpgrade installs a server and an agent of release 0.1.0, and upgrades both to this version, as
// docs/kubernetes.md says, while a pod reads its files.
func TestUpgrade(t *testing.T) {
	const page, node = "kubernetes.md", "node0"
	released := filepath.Join(filepath.Dir(tool.Dir()), "slipway-0.1.0")
	old, err := os.ReadFile(filepath.Join(released, "slipway"))
	if err != nil {
		t.Skip("tool not installed: slipway-0.1.0 (scripts/setup.sh kubernetes makes it)")
	}
	c := newCluster(t, onDemand)
	for tag, seed := range map[string]byte{"1": 1, "2": 2} {
		c.push("public/app:"+tag, imagetest.Summed(t, seed, files, fileBytes, largeBytes))
	}
	c.push("public/slipway:0.1.0", serverImage(old))
	c.versions(next)
	f := c.follower()
	f.chart(filepath.Join(released, "chart"), "0.1.0")
	f.chart(ownChart(t), next)
	link, err := c.net.Join(t.Context())
	c.check(err)
	m := c.boot(node, link)
	m.run("mount", "-o", "remount,rw,bind", "/sys") // as on a real machine; 0.1.0 needs it
	c.volumes(m.Root, "/data")
	f.follow(page, "kubectl create namespace slipway\n", "rollout status", "rollout status --timeout 3m", "helm -n slipway test slipway\n", "") // it needs the cluster's DNS
	values := fmt.Sprintf("agent: {config: {fetch: {background: false}, registries: [{host: %q, urls: [%q], insecure_allow_plaintext: true}]}}\n", c.registry.Addr, "http://"+c.registry.Addr)
	c.check(os.WriteFile(f.path("values.yaml"), []byte(values), 0o600))
	f.follow(page, "kubectl create namespace slipway-agent", "--set agent.enabled=true", "--set agent.enabled=true --values values.yaml", "rollout status", "rollout status --timeout 3m")
	c.kubectl("-n", "slipway", "rollout", "status", "deploy/slipway", "--timeout", limit.String())
	team := imagetest.Summed(t, 9, 3, 1000, 1000)
	c.check(team.Push(t.Context(), f.client("alice", "a long password"), "team-a/app", "1"))
	c.namespace("open", "")
	c.apply(fmt.Sprintf(watcher, 1))
	c.ready("open")
	c.read("open")
	lazily := func(image string) {
		t.Helper()
		if said := m.run("/opt/slipway/bin/slipway", "agent", "explain", "--config", "/etc/slipway/agent.yml", c.ref(image)); !strings.Contains(said, "gear: used") {
			t.Errorf("%s did not come lazily: %s", image, said)
		}
	}
	lazily("public/app:1")

	f.follow(page, "--version "+next+" --reset-then-reuse-values")
	c.kubectl("-n", "slipway-agent", "rollout", "status", "daemonset/slipway-agent", "--timeout", limit.String())
	c.kubectl("-n", "slipway", "rollout", "status", "deploy/slipway", "--timeout", limit.String())
	if said := m.run("/opt/slipway/bin/slipway", "version"); strings.Contains(said, "slipway 0.1.0 ") {
		t.Errorf("after the upgrade the node has %s", said)
	}
	c.read("open")
	pod := c.pods("-n", "open")[0].Metadata.Name
	c.kubectl("-n", "open", "exec", pod, "--", "sh", "-c", imagetest.VerifyLarge) // comes from the new agent
	c.apply(strings.ReplaceAll(strings.ReplaceAll(fmt.Sprintf(watcher, 1), "app:1", "app:2"), "watchers", "later"))
	c.ready("open")
	c.read("open")
	lazily("public/app:2")
	alice := f.client("alice", "a long password")
	_, err = alice.CheckImage(t.Context(), "team-a/app", "1")
	c.check(err)
	c.check(imagetest.Summed(t, 8, 3, 1000, 1000).Push(t.Context(), alice, "team-a/app", "2"))

	c.kubectl("delete", "namespace", "open", "--wait")
	f.follow(page, "kubectl -n slipway delete pvc slipway-data", "rollout status", "rollout status --timeout 3m")
	if said, err := m.Try(t.Context(), "systemctl", "is-active", "slipway-agent"); err == nil {
		t.Errorf("after the removal the agent is %s", said)
	}
}
