package registries_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/warm"
)

// TestNamed checks that of several registries at one place exactly one has each repository there,
// under the name that images have.
func TestNamed(t *testing.T) {
	t.Parallel()
	const at = "http://127.0.0.1:1"
	set := newSet(t,
		config.AgentRegistry{Host: "own.example.com", URLs: []string{at}},
		config.AgentRegistry{Host: "docker.io", URLs: []string{at}, Prefix: "docker.io/"},
		config.AgentRegistry{Host: "quay.io", URLs: []string{at}, Prefix: "quay.io/"},
		config.AgentRegistry{Host: "other.example.com", URLs: []string{"http://127.0.0.1:2"}})
	hosts := set.Hosts()
	if len(hosts) != 4 {
		t.Fatalf("the hosts are %v", hosts)
	}
	for repo, want := range map[string]string{"docker.io/library/redis": "docker.io/library/redis", "quay.io/a": "quay.io/a", "team/app": "own.example.com/team/app",
		"docker.iox/a": "own.example.com/docker.iox/a"} {
		var got []string
		for _, host := range hosts[:3] {
			if name, ok := set.Named(host, repo); ok {
				got = append(got, name)
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s is %v, want %s alone", repo, got, want)
		}
	}
	if name, ok := set.Named("other.example.com", "docker.io/library/redis"); !ok || name != "other.example.com/docker.io/library/redis" {
		t.Errorf("at another place it is %q", name)
	}
	if name, ok := set.Named("docker.io", "docker.io/"); ok {
		t.Errorf("a prefix alone is %q", name)
	}
}

// TestAskStranger checks that a registry without Gear does not learn the node's name.
func TestAskStranger(t *testing.T) {
	t.Parallel()
	var told atomic.Bool
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body)+r.URL.String()+r.UserAgent(), "secret-node") {
			told.Store(true)
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(stranger.Close)
	host := strings.TrimPrefix(stranger.URL, "http://")
	set := newSet(t, config.AgentRegistry{Host: host, URLs: []string{stranger.URL}})
	if _, err := set.AskWarm(t.Context(), host, &warm.Poll{Node: "secret-node"}); !oci.HasCode(err, oci.CodeUnsupported) {
		t.Errorf("a registry without Gear: %v", err)
	}
	if told.Load() {
		t.Error("the registry was told the name of the node")
	}
}

func newSet(t *testing.T, list ...config.AgentRegistry) *registries.Set {
	t.Helper()
	keys, err := registries.OpenKeychain(filepath.Join(t.TempDir(), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	set := registries.New(&config.Agent{Registries: list}, keys, slog.New(slog.DiscardHandler))
	t.Cleanup(set.Close)
	return set
}
