package agent

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"example.org/slipway/agent/api"
	"example.org/slipway/config"
	"example.org/slipway/node/cachedir"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

func listenConfig(t *testing.T) *config.Agent {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "swl") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &config.Agent{Root: dir, Run: filepath.Join(dir, "run"), Address: filepath.Join(dir, "run", "s.sock")}
}

func TestListen(t *testing.T) {
	cfg := listenConfig(t)
	cfg.Metrics.Addr = "127.0.0.1:0"
	ls, err := listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Metrics.Addr = ls.Metrics.Addr().String()
	for _, name := range []string{cfg.Address, filepath.Join(cfg.Run, "agent.sock")} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, error %v", name, st.Mode(), err)
		}
	}
	if _, err := listen(cfg); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent listens: %v", err)
	}
	// A dead agent leaves its sockets, and a dying one still listens.
	for _, after := range []time.Duration{0, 200 * time.Millisecond} {
		for _, l := range []net.Listener{ls.Snapshots, ls.API} {
			l.(*net.UnixListener).SetUnlinkOnClose(false)
		}
		closed := make(chan error, 1)
		dead := ls
		time.AfterFunc(after, func() { closed <- dead.Close() })
		if after == 0 {
			closed <- <-closed
		}
		if ls, err = listen(cfg); err != nil {
			t.Fatalf("behind an agent that is gone: %v", err)
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	}
	if err := ls.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(cfg.Address, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(cfg); err == nil {
		t.Error("a file is replaced by a socket")
	}
	if _, err := api.NewCaller(cfg).Status(t.Context()); !errors.Is(err, api.ErrNoAgent) {
		t.Errorf("a call without an agent: %v", err)
	}
}

// TestMetrics checks every metric of an idle agent.
func TestMetrics(t *testing.T) {
	dir := t.TempDir()
	cache, err := cachedir.Open(filepath.Join(dir, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	files, err := gearfs.New(filepath.Join(dir, "images"), cache, func(gearfs.SourceRef) (gearfs.Source, error) { return nil, errors.New("none") }, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	at := filepath.Join(dir, "pool")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	dev, err := poolfs.Mount(at, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	defer func() {
		if err := poolfs.Teardown(at); err != nil {
			t.Error(err)
		}
	}()
	pool, err := poolfs.New(dev, files, files, &poolfs.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	a := &Agent{files: files, cache: cache, pool: pool, began: time.Unix(1, 0)}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(collector{a}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, error %v", problems, err)
	}
	var steps []string
	for _, s := range a.images.VolumeWork().Steps {
		steps = append(steps, s.Step)
	}
	closed := map[string]string{"state": "complete partial mounted unmounted busy leaving waiting running done failed", "step": strings.Join(steps, " "), "outcome": "passthrough cached failed", "priority": "demand profile background", "kind": "complete partial reserved late"}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !strings.Contains(" "+closed[l.GetName()]+" ", " "+l.GetValue()+" ") {
					t.Errorf("%s has label %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
	w := httptest.NewRecorder()
	a.metricsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), "slipway_agent_start_time_seconds 1") {
		t.Errorf("status %d:\n%s", w.Code, w.Body)
	}
}
