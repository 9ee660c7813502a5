package config_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
)

func TestAgentExampleIsTheDefault(t *testing.T) {
	got, warnings, err := config.ParseAgent(strings.NewReader(config.AgentExample()), nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want, _, err := config.LoadAgent("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		t.Errorf("example (+) and default (-) differ:\n%s", diff)
	}
}

func TestAgent(t *testing.T) {
	a, _, err := config.ParseAgent(strings.NewReader(`
root: /srv/agent
registries:
  - host: docker.io
    urls: [https://mirror.example.com]
    prefix: docker.io/
    username: node
    password: hush
  - host: other.example.com
fetch: {open_timeout: 5s}
`), &config.Options{Overrides: []config.Override{{Key: "cache.max_bytes", Value: "1GiB", Source: "--cache"}}})
	if err != nil {
		t.Fatal(err)
	}
	if a.Run != "/srv/agent/run" || a.Address != "/srv/agent/run/snapshotter.sock" || a.Cache.MaxBytes != 1<<30 || a.Fetch.OpenTimeout != 5*time.Second {
		t.Errorf("got %v", a)
	}
	if diff := cmp.Diff([]string{"https://other.example.com"}, a.Registries[1].URLs); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(a.String(), "hush") {
		t.Errorf("the password is shown: %v", a)
	}
}

func TestAgentProblems(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"mistyped":     {"cashe: {max_bytes: 1}", "cache"},
		"relative":     {"root: state", "absolute"},
		"plain text":   {"registries: [{host: r.example.com, urls: ['http://r.example.com:5000']}]", "insecure_allow_plaintext"},
		"plain v6":     {"registries: [{host: r.example.com, urls: ['http://[2001:db8::1]']}]", "insecure_allow_plaintext"},
		"root's name":  {"root: '/srv/two words'", "options of mounts"},
		"root's mark":  {"root: '/srv/a:b'", "options of mounts"},
		"long run":     {"root: '/srv/" + strings.Repeat("x", 100) + "'", "sockets"},
		"scheme":       {"registries: [{host: 'https://r.example.com'}]", "without a scheme"},
		"twice":        {"registries: [{host: a.example.com}, {host: a.example.com}]", "already"},
		"half a login": {"registries: [{host: a.example.com, username: u}]", "together"},
		"half a pair":  {"registries: [{host: a.example.com, key: /k}]", "together"},
		"open metrics": {"metrics: {addr: '0.0.0.0:1'}", "password"},
		"word":         {"kernel: {tier: fastest}", "auto"},
		"way":          {"choice: {default: [volume, gears]}", "must be volume, gear or plain"},
		"after plain":  {"choice: {rules: [{use: [plain, gear]}]}", "put it last"},
		"no way":       {"choice: {rules: [{images: ['**']}]}", "is missing"},
		"pattern":      {"choice: {rules: [{images: ['a//b'], use: [gear]}]}", "matches no image"},
		"directory":    {"volumes: {file: {dir: volumes}}", "absolute"},
		"volume mode":  {"volumes: {mode: far}", "local"},
		"server's key": {"storage: {inmemory: true}", "storage"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := config.ParseAgent(strings.NewReader(tc.file), nil)
			var p config.Problems
			if !errors.As(err, &p) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a problem with %q", err, tc.want)
			}
		})
	}
}

func TestAgentChoice(t *testing.T) {
	a, _, err := config.ParseAgent(strings.NewReader(`
volumes: {mode: network, file: {dir: /mnt/volumes}}
choice:
  rules:
    - {images: ["registry.example.com:5000/team/**"], use: [volume, gear]}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := config.AgentChoice{Default: []string{"gear", "plain"}, Rules: []config.AgentChoiceRule{{Images: []string{"registry.example.com:5000/team/**"}, Use: []string{"volume", "gear"}}}}
	if diff := cmp.Diff(want, a.Choice); diff != "" {
		t.Error(diff)
	}
	if !a.Volumes.Configured() || a.Volumes.Outage != 5*time.Minute || a.Volumes.Mode != "network" {
		t.Errorf("got %+v", a.Volumes)
	}
}

func TestAgentOnLoopbackMayBePlain(t *testing.T) {
	_, _, err := config.ParseAgent(strings.NewReader("registries: [{host: a.example.com, urls: ['http://127.0.0.1:5000', 'http://localhost', 'http://[::1]']}]"), nil)
	if err != nil {
		t.Error(err)
	}
}

func FuzzParseAgent(f *testing.F) {
	f.Add(config.AgentExample())
	f.Add("registries: [{host: a}]")
	f.Fuzz(func(t *testing.T, text string) {
		a, _, err := config.ParseAgent(strings.NewReader(text), &config.Options{ReadFile: func(string) ([]byte, error) { return nil, errors.New("none") }})
		if err == nil && a.String() == "" {
			t.Error("good, and nothing to show")
		}
	})
}
