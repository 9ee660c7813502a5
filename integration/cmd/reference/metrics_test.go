package main

import "testing"

// TestProgramOf checks that metrics of packages below a program's package belong to that program.
func TestProgramOf(t *testing.T) {
	for pkg, want := range map[string]string{
		"agent": "Node agent", "agent/pull": "Node agent", "agents": "Registry", "workload/replay": "Replay", "workload/replay/x": "Replay",
		"registry/cache/tier": "Registry", "": "Registry"} {
		if got := programOf(pkg); got != want {
			t.Errorf("metrics of %q are of %q, want %q", pkg, got, want)
		}
	}
}
