package examples_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNodeMetrics compares the dashboards and the alerts of node agents with the metrics
// that an agent has. Otherwise the panel of a metric that was renamed would stay empty
// without a sign.
func TestNodeMetrics(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "..", "agent", "metrics.go"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`family\("([a-z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		known["slipway_agent_"+m[1]] = true
	}
	peers, err := os.ReadFile(filepath.Join("..", "..", "agent", "peers", "peers.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"(slipway_agent_[a-z_]+)"`).FindAllStringSubmatch(string(peers), -1) {
		known[m[1]] = true
	}
	var dashboard []byte
	for _, name := range []string{"slipway-gear.json", "slipway-volumes.json"} {
		board, err := os.ReadFile(filepath.Join("..", "grafana", name))
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(board) {
			t.Errorf("the dashboard %s is not JSON", name)
		}
		dashboard = append(dashboard, board...)
	}
	alerts, err := os.ReadFile(filepath.Join("..", "prometheus", "agent-alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(known) == 0 {
		t.Fatal("no metrics of the agent were found")
	}
	for what, text := range map[string]string{"dashboard": string(dashboard), "alerts": string(alerts)} {
		// What follows a colon is the name of a recording rule.
		for _, m := range regexp.MustCompile(`(?:^|[^:a-z_])(slipway_agent_[a-z_]+)`).FindAllStringSubmatch(text, -1) {
			if !known[m[1]] {
				t.Errorf("%s: the agent has no metric %s", what, m[1])
			}
		}
	}
	for name := range known {
		if !strings.Contains(string(dashboard), name) {
			t.Errorf("the dashboard has no panel of %s", name)
		}
	}
}
