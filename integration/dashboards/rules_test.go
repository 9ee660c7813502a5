package dashboards

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// TestRules runs promtool on the delivered configuration, and runs the tests of the rules, in which
// the alerts fire.
func TestRules(t *testing.T) {
	promtool := tool.System(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"},
		{"test", "rules", "rules_test.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = delivered
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestObserve starts what `make observe` starts, finds it at the announced address, and stops it as
// Ctrl-C does.
func TestObserve(t *testing.T) {
	tool.System(t, "prometheus")
	addr := slipway.FreeAddr(t)
	cmd := exec.Command(filepath.Join("..", "..", "scripts", "observe.sh"))
	cmd.Env = append(cmd.Environ(), "SLIPWAY_PROMETHEUS_ADDR="+addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := proc.Start(t, cmd, filepath.Join(t.TempDir(), "log"))
	// A terminal sends Ctrl-C to everything that runs in it.
	t.Cleanup(func() { _ = syscall.Kill(-p.Pid(), syscall.SIGKILL) })
	printed := regexp.MustCompile(`http://` + regexp.QuoteMeta(addr))
	proc.Poll(t, time.Minute, "the address", func() bool {
		select {
		case <-p.Exited():
			t.Fatalf("it ended (%s):\n%s", p.State(), p.Log(4096))
		default:
		}
		return printed.MatchString(p.Log(4096)) && ready("http://"+addr)
	})
	resp, err := http.Get("http://" + addr + "/api/v1/rules")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("its rules: status %d", resp.StatusCode)
	}
	if err := syscall.Kill(-p.Pid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Fatal("it goes on after Ctrl-C")
	}
	if s := p.State(); s != "exited with status 0" {
		t.Errorf("after Ctrl-C: %s:\n%s", s, p.Log(4096))
	}
	if ready("http://" + addr) {
		t.Error("Prometheus runs on after Ctrl-C")
	}
}
