package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/internal/mounttest"
)

// The tests of whole agents start this program again as a child process.
const (
	asProcess  = "SLIPWAY_TEST_AGENT"         // worker or volume-worker
	withConfig = "SLIPWAY_TEST_AGENT_CONFIG"  // its configuration
	withSocks  = "SLIPWAY_TEST_AGENT_SOCKETS" // the sockets that a worker inherits
)

func TestMain(m *testing.M) {
	if what := os.Getenv(asProcess); what != "" {
		if err := runProcess(what); err != nil {
			fmt.Fprintln(os.Stderr, what+":", err)
			os.Exit(1)
		}
		return
	}
	mounttest.Main(m)
}

// testProcess returns such a process, which ends with this one.
func testProcess(what, config string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// The race detector sleeps for a second at the end of a process by default.
	cmd.Env = append(os.Environ(), asProcess+"="+what, withConfig+"="+config, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func workerProcess(config string) func(sockets []string) *exec.Cmd {
	return func(sockets []string) *exec.Cmd {
		cmd := testProcess("worker", config)
		cmd.Env = append(cmd.Env, withSocks+"="+strings.Join(sockets, ","))
		return cmd
	}
}

// runProcess does the work of such a process.
func runProcess(what string) error {
	cfg, _, err := config.LoadAgent(os.Getenv(withConfig), nil)
	if err != nil {
		return err
	}
	Outlive()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("process", what)
	switch what {
	case "volume-worker":
		return RunVolumeWorker(ctx, cfg, log)
	case "keeper":
		again, ended := SecondSignal(ctx)
		defer ended()
		return Keep(ctx, again, cfg, workerProcess(os.Getenv(withConfig)), func() *exec.Cmd { return testProcess("volume-worker", os.Getenv(withConfig)) }, log)
	}
	return RunWorker(ctx, cfg, strings.Split(os.Getenv(withSocks), ","), log, func() {})
}
