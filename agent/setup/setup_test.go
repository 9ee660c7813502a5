package setup

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
)

func testConfig() *config.Agent {
	return &config.Agent{Root: "/var/lib/x", Address: "/run/x/s.sock", CRI: config.AgentCRI{Address: "/run/x/cri.sock", Containerd: "/run/containerd/containerd.sock"},
		Registries: []config.AgentRegistry{
			{Host: "docker.io", URLs: []string{"https://mirror.example"}},
			{Host: "r.example", URLs: []string{"https://r.example"}},
			{Host: "q.example", URLs: []string{"https://m.example/"}, Prefix: "q/", CA: "/ca.pem"},
		}}
}

// tree reads all files below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSetup(t *testing.T) {
	dir := t.TempDir()
	p := Paths{Root: dir, ContainerdDir: filepath.Join(dir, "conf.d"), Hosts: filepath.Join(dir, "certs.d"), Docker: filepath.Join(dir, "daemon.json"), KubeletDropIn: filepath.Join(dir, "kubelet.d", "10.conf")}
	const docker = `{"debug": true, "features": {"buildkit": false}, "log-opts": {"max-size": "1m"}}`
	if err := os.WriteFile(p.Docker, []byte(docker), 0o644); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	changes, err := Kubernetes(testConfig(), p)
	if err != nil {
		t.Fatal(err)
	}
	more, err := Docker(testConfig(), p)
	if err != nil {
		t.Fatal(err)
	}
	changes = append(changes, more...)
	for range 2 { // the second time changes nothing
		if err := Apply(changes); err != nil {
			t.Fatal(err)
		}
	}
	got := tree(t, dir)
	var settings map[string]any
	if err := json.Unmarshal([]byte(got["daemon.json"]), &settings); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"debug": true, "features": map[string]any{"buildkit": false, "containerd-snapshotter": true}, "log-opts": map[string]any{"max-size": "1m"},
		"storage-driver": "slipway", "registry-mirrors": []any{"https://mirror.example"}}
	if diff := cmp.Diff(want, settings); diff != "" {
		t.Errorf("Docker's settings (-want +got):\n%s", diff)
	}
	if got["daemon.json"+backupSuffix] != docker {
		t.Errorf("the settings before are kept as %q", got["daemon.json"+backupSuffix])
	}
	for file, has := range map[string]string{"conf.d/slipway.toml": `address = "/run/x/s.sock"`, "certs.d/docker.io/hosts.toml": `[host."https://mirror.example"]`,
		"certs.d/q.example/hosts.toml": `[host."https://m.example/v2/q"]`,
		"kubelet.d/10.conf":            "EnvironmentFile=" + dir + "/etc/slipway/kubelet.env", "etc/slipway/kubelet.env": "unix:///run/x/cri.sock"} {
		if !strings.Contains(got[file], has) {
			t.Errorf("%s holds\n%s, want %s in it", file, got[file], has)
		}
	}
	if n := strings.Count(got["conf.d/slipway.toml"], "config_path = "+strconv.Quote(p.Hosts)); n != 2 {
		t.Errorf("containerd is told %d times where the registries' settings are, of 2:\n%s", n, got["conf.d/slipway.toml"])
	}
	if _, ok := got["certs.d/r.example/hosts.toml"]; ok {
		t.Error("a registry that is where its name says has a file")
	}
	if err := Undo(changes); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("left after undoing (-want +got):\n%s", diff)
	}
	if err := Undo(changes); err == nil || !strings.Contains(err.Error(), "daemon.json") {
		t.Errorf("undoing twice: %v; the file of somebody else is left alone", err)
	}
}

func TestSetupChangedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	p := Paths{Docker: filepath.Join(dir, "daemon.json")}
	if err := os.WriteFile(p.Docker, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	changes, err := Docker(testConfig(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := Apply(changes); err != nil {
		t.Fatal(err)
	}
	const theirs = `{"storage-driver": "slipway", "debug": true}`
	if err := os.WriteFile(p.Docker, []byte(theirs), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Undo(changes); err == nil {
		t.Error("a file that was changed is undone")
	}
	if b, err := os.ReadFile(p.Docker); err != nil || string(b) != theirs {
		t.Errorf("the file holds %s, error %v", b, err)
	}
	if err := os.WriteFile(p.Docker, []byte("{ no JSON"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Docker(testConfig(), p); err == nil {
		t.Error("settings that cannot be read are replaced")
	}
	if _, err := Kubernetes(&config.Agent{}, p); err == nil {
		t.Error("kubelet is told of a socket that there is not")
	}
}

// TestPeersPort checks that a set-up names the port that other nodes use, and only if there is one.
func TestPeersPort(t *testing.T) {
	for listen, want := range map[string]string{"": "", ":5003": "port 5003", "[fd00::7]:7946": "port 7946"} {
		cfg := testConfig()
		cfg.Peers.Listen = listen
		var said []string
		for _, c := range Peers(cfg) {
			said = append(said, c.Say)
			if c.File != "" {
				t.Errorf("%q: writes %s", listen, c.File)
			}
		}
		if got := strings.Join(said, "\n"); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: says %q", listen, got)
		}
	}
	cfg := testConfig()
	cfg.Peers.Listen, cfg.Peers.Advertise = ":5003", "192.0.2.7:9000"
	if all := Peers(cfg); len(all) != 1 || !strings.Contains(all[0].Say, "192.0.2.7:9000") {
		t.Errorf("behind a NAT: %v", all)
	}
}
