package docs

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// TestMetrics compares docs/reference/metrics.md, which is generated from the sources, with the
// metrics that a server and an agent serve.
func TestMetrics(t *testing.T) {
	tool.NeedRoot(t)
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	server := slipway.Start(t, t.TempDir(), nil)
	if err := imagetest.NewImage("amd64", imagetest.NewLayer()).Push(t.Context(), server.Client, repo, "1"); err != nil {
		t.Fatal(err)
	}
	agent := slipway.FreeAddr(t)
	node.Start(t, "metrics: {addr: '"+agent+"'}\n")
	for name, addr := range map[string]string{"server": server.DebugAddr, "agent": agent} {
		t.Run(name, func(t *testing.T) { compareMetrics(t, addr, string(page)) })
	}
}

// compareMetrics looks for each metric served at addr in the page, with its type.
func compareMetrics(t *testing.T, addr, page string) {
	c := wire.New(addr)
	defer c.Close()
	resp, err := c.Do(t.Context(), http.MethodGet, "/metrics", nil, nil)
	if err != nil || resp.Status != http.StatusOK {
		t.Fatalf("metrics: %v, %v", err, resp)
	}
	seen := 0
	for line := range strings.Lines(string(resp.Body)) {
		rest, ok := strings.CutPrefix(line, "# TYPE ")
		name, kind, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if !ok || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		seen++
		if !strings.Contains(page, "| `"+name+"` | "+kind+" |") {
			t.Errorf("the page has no %s %s; scripts/gen-docs.sh makes it", kind, name)
		}
	}
	if seen < 10 {
		t.Errorf("%d metrics, want more", seen)
	}
	t.Logf("%d metrics", seen)
}
