package cider

import (
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/smoke"
	"example.org/slipway/integration/internal/ceph"
	"example.org/slipway/integration/internal/slipway"
)

// TestScenarios runs the scenarios on two small images and a separate Ceph.
func TestScenarios(t *testing.T) {
	if name := ceph.Missing(); name != "" {
		t.Skipf("tool not installed: %s (scripts/setup.sh test installs it)", name)
	}
	corpus, binary := smoke.Corpus(t), slipway.RBDBinary(t)
	out := filepath.Join(t.TempDir(), "results.json")
	scenarios := os.Getenv("SLIPWAY_CIDERBENCH_SCENARIOS")
	if scenarios == "" {
		scenarios = "equality,node10"
	}
	_, err := Suite().Run(t.Context(), []string{"-bin", binary, "-corpus", corpus, "-quick", "-dir", "/tmp", "-out", out,
		"-containers", "1,2", "-ways", "plain,local,network", "-scenario", scenarios})
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure.Load[Results](out)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range r.Parts() {
		for _, target := range part.Targets() {
			// Times and bytes of such small images mean nothing; equality does.
			if target.Scenario == "equality" && !target.Met() {
				t.Errorf("%s: %v", target.What, target.Figure)
			}
		}
	}
}
