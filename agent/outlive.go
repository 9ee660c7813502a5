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

// Outlive makes this process survive the end of its terminal and of its log reader, and
// signals that mean nothing to an agent. All processes of an agent call it: the pool ends
// with its keeper, and then containers cannot open files.
func Outlive() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
}

// SecondSignal returns a context that ends with the next termination signal after the end
// of ctx. The first termination signal has ended ctx. From then on the signals do not
// have their default effect, so that the second one ends the process in order, too.
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

// spareFromOOM makes the kernel end almost any other process before this one when memory
// is short. It returns a function that gives a child process the score that this process
// had before. The keeper holds a few megabytes, and the serving processes are restarted.
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
