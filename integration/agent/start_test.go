package agent_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
)

// TestStartOnPage starts an image on a node, and checks that the registry's page of the image draws
// the start as the node itself does.
func TestStartOnPage(t *testing.T) {
	const files = 20
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	a := node.Start(t, quiet)
	dir := a.Mount(ref)
	if n, failed, wrong := check(t, dir); n != files || failed+wrong != 0 {
		t.Fatalf("%d files, %d failed, %d wrong", n, failed, wrong)
	}
	// The report follows within seconds, and again while the start is under way. Each file is a line
	// of the chart, which ends with the end of its axis.
	lines := func(s string) int { return strings.Count(s, "|\n") }
	var page, explained string
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		page, explained = get(t, "http://"+s.Addr+"/ui/image/team/app:v1"), a.Run("agent", "explain", ref)
		if lines(page) == lines(explained) && lines(page) >= files {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page draws %d files, and the node %d of at least %d:\n%s", lines(page), lines(explained), files, explained)
		}
	}
	for _, want := range []string{"Last starts on nodes", `<svg class="start"`, "(a asked for, h here, w wanted, = waited for)"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of the image lacks %q", want)
		}
	}
	a.Run("umount", dir)
}

// get returns a page.
func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, resp.StatusCode, err)
	}
	return string(b)
}
