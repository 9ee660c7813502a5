package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/mounttest"
)

// Processes that tests of whole agents start are this program again.
const (
	asProcess  = "SLIPWAY_TEST_AGENT"         // worker or volume-worker
	withConfig = "SLIPWAY_TEST_AGENT_CONFIG"  // its configuration
	withSocks  = "SLIPWAY_TEST_AGENT_SOCKETS" // what a worker was handed
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

// runProcess is what such a process does.
func runProcess(what string) error {
	cfg, _, err := config.LoadAgent(os.Getenv(withConfig), nil)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("process", what)
	if what == "volume-worker" {
		return RunVolumeWorker(ctx, cfg, log)
	}
	return RunWorker(ctx, cfg, strings.Split(os.Getenv(withSocks), ","), log, func() {})
}
