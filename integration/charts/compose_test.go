package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads a file of deploy/compose as docker compose does: schema, variables, anchors.
func compose(t *testing.T, file string, env map[string]string) (*types.Project, error) {
	t.Helper()
	dir := source(t, "deploy", "compose")
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, file)}}, Environment: env,
	})
}

func TestCompose(t *testing.T) {
	if _, err := compose(t, "compose.yml", nil); err == nil || !strings.Contains(err.Error(), "name the image of the release") {
		t.Errorf("without an image: %v, want words that say what to set", err)
	}
	p, err := compose(t, "compose.yml", map[string]string{"SLIPWAY_IMAGE": "registry.example.com/slipway:1"})
	if err != nil {
		t.Fatal(err)
	}
	serves(t, p, "slipway")
	p, err = compose(t, "replicas.yml", map[string]string{
		"SLIPWAY_IMAGE": "registry.example.com/slipway:1", "S3_ENDPOINT": "https://s3.example.com", "S3_BUCKET": "images",
		"S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "b", "POSTGRES_PASSWORD": "p", "CLUSTER_SECRET": strings.Repeat("5", 64),
	})
	if err != nil {
		t.Fatal(err)
	}
	balancer, err := os.ReadFile(source(t, "deploy", "haproxy", "haproxy.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
		serves(t, p, name)
		s := p.Services[name]
		addr := s.Networks["registry"].Ipv4Address
		if !strings.Contains(string(balancer), "server "+name+" "+addr+":5000 port 5001") {
			t.Errorf("haproxy.cfg does not send requests to %s at %s", name, addr)
		}
		if got := *s.Environment["SLIPWAY_CLUSTER_ADDR"]; got != addr+":5002" {
			t.Errorf("%s is at %s, and its cluster.addr is %s", name, addr, got)
		}
	}
	for _, m := range p.Services["haproxy"].Volumes {
		if _, err := os.Stat(m.Source); err != nil && filepath.Base(m.Source) != "registry.pem" {
			t.Error(err)
		}
	}
}

// serves checks the configuration of a service with its variables, and checks that the service may
// do no more than it must.
func serves(t *testing.T, p *types.Project, name string) {
	t.Helper()
	s, ok := p.Services[name]
	if !ok {
		t.Fatalf("no service %s", name)
	}
	if !s.ReadOnly || s.User != "65532:65532" || len(s.CapDrop) != 1 || s.StopGracePeriod == nil {
		t.Errorf("%s may do more than it must, or is ended too soon", name)
	}
	var env []string
	for k, v := range s.Environment {
		env = append(env, k+"="+*v)
	}
	for _, m := range s.Volumes {
		if m.Target == "/etc/slipway/config.yml" {
			b, err := os.ReadFile(m.Source)
			if err != nil {
				t.Fatal(err)
			}
			checkConfig(t, string(b), env...)
			return
		}
	}
	t.Errorf("%s has no configuration", name)
}
