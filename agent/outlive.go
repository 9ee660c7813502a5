package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Outlive makes this process survive the end of its terminal and of whoever reads its log,
// and signals that mean nothing to an agent. All processes of an agent call it: the pool
// goes with its keeper, and with it what containers can open.
func Outlive() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
}

// SecondSignal returns a context that ends with the first signal to end after ctx did,
// which the first one ended. It takes signals from their defaults then, so that this one
// ends the process in order, too.
func SecondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	stop, ended := context.WithCancel(context.Background())
	context.AfterFunc(ctx, func() {
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		go func() {
			select {
			case <-again:
				ended()
			case <-stop.Done():
			}
		}()
	})
	return stop, ended
}

const oomScoreAdj = "/proc/%s/oom_score_adj"

// spareFromOOM has the kernel end almost anything else before this process when memory is
// short, and returns what gives a process that it starts the score that this one had. The
// keeper holds a few megabytes; what serves is started again.
func spareFromOOM(log *slog.Logger) func(child int) {
	before, err := os.ReadFile(fmt.Sprintf(oomScoreAdj, "self"))
	if err == nil {
		err = os.WriteFile(fmt.Sprintf(oomScoreAdj, "self"), []byte("-999"), 0)
	}
	if err != nil {
		log.Info("the kernel may end the keeper when memory is short", "err", err)
		return nil
	}
	return func(child int) {
		name := fmt.Sprintf(oomScoreAdj, fmt.Sprint(child))
		if err := os.WriteFile(name, []byte(strings.TrimSpace(string(before))), 0); err != nil {
			log.Info("a worker is spared when memory is short", "err", err)
		}
	}
}
