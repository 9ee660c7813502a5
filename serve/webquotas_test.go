package serve_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestQuotasPage checks that the pages show what a quota has, and warn those who may push, at each
// step on the way to its limit.
func TestQuotasPage(t *testing.T) {
	t.Parallel()
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd(t, "alice", "a", "bob", "b", "root", "r"))
	s := start(t, setup{yaml: "auth: {htpasswd: {path: " + users + "}, access: [{repositories: ['**'], subjects: [alice], actions: [pull]}, {repositories: ['**'], subjects: [bob], actions: [pull, push]}," +
		" {repositories: ['**'], subjects: [root], actions: ['*', admin]}]}\nstorage: {quotas: [{repositories: ['team/**'], bytes: 1MiB, tags: 5, warn: 0.6}, {repositories: [other], tags: 100}]}"})
	alice, bob, root := basic("alice", "a"), basic("bob", "b"), basic("root", "r")
	s.pushImage("other", "v1", "one", root)
	for i := 1; i <= 5; i++ {
		s.pushImage("team/app", fmt.Sprint("v", i), fmt.Sprint("layer ", i), bob)
		note, state := "", "ok"
		switch {
		case i == 5:
			note, state = "is reached, so pushes are refused", "reached"
		case i >= 3:
			note, state = "is nearly reached", "warning"
		}
		body := s.page("storage", root)
		if !strings.Contains(body, fmt.Sprintf(`<td class="number">%d of 5</td>`, i)) || !strings.Contains(body, "of 1.0 MiB") || !strings.Contains(body, `<td class="number">1 of 100</td>`) {
			t.Fatalf("with %d tags, the page of the storage is\n%s", i, body)
		}
		m := regexp.MustCompile(`<meter class="(\w+)" min="0" max="1" value="([0-9.]+)" aria-label="Tags of the quota of team/\*\*"`).FindStringSubmatch(body)
		if m == nil || m[1] != state {
			t.Fatalf("with %d tags, the meter is %q, want %s", i, m, state)
		}
		if v, err := strconv.ParseFloat(m[2], 64); err != nil || v < float64(i)/5-1e-9 || v > float64(i)/5+1e-9 {
			t.Errorf("with %d tags, the meter is at %s", i, m[2])
		}
		for who, as := range map[string]func(*http.Request){"alice": alice, "bob": bob, "root": root} {
			body := s.page("repo/team/app", as)
			if got := strings.Contains(body, "The quota of team/** is"); got != (note != "" && who != "alice") {
				t.Errorf("with %d tags, %s is warned: %v", i, who, got)
			}
			if who != "alice" && !strings.Contains(body, note) {
				t.Errorf("with %d tags, %s is not told that the quota %s:\n%s", i, who, note, body)
			}
		}
		if strings.Contains(s.page("repo/other", bob), "The quota of") {
			t.Error("a repository warns of another's quota")
		}
	}
	s.want(http.StatusForbidden, "PUT", "/v2/team/app/manifests/v6", imageOf("layer 1"), bob, isManifest)
	s.want(http.StatusForbidden, "POST", "/v2/team/app/_slipway/deleted/"+digestOf(imageOf("layer 1"))+"/restore?tag=v6", "", bob)
}
