// Package systemd is what a service tells systemd: that it is ready, that it is alive, and
// how grave each line of its log is. Without systemd there is nobody to tell, which is no
// error.
package systemd

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/journal"
)

// Messages of [Notify].
const (
	Ready     = daemon.SdNotifyReady
	Reloading = daemon.SdNotifyReloading
	Stopping  = daemon.SdNotifyStopping
)

// IsManager reports whether systemd started this process and waits for messages.
func IsManager() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Notify sends a message.
func Notify(message string) {
	if message == Reloading { // which systemd takes with the time alone
		message += "\n" + daemon.SdNotifyMonotonicUsec()
	}
	_, _ = daemon.SdNotify(false, message)
}

// FeedWatchdog tells systemd that this process is alive, three times in WatchdogSec= of the
// unit, until stop is called. Where none is set it does nothing. A process that is stopped,
// or that gets no time for so long, does not tell it: systemd ends it and starts it again.
func FeedWatchdog(log *slog.Logger) (stop func()) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("systemd's watchdog is not understood, and may end this process", "err", err)
	}
	if limit <= 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(limit / 3)
		defer t.Stop()
		for {
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
			select {
			case <-end:
				return
			case <-t.C:
			}
		}
	}()
	return sync.OnceFunc(func() { close(end); <-ended })
}

// ToJournal reports whether standard error goes to the journal.
func ToJournal() bool {
	ok, err := journal.StderrIsJournalStream()
	return ok && err == nil
}
