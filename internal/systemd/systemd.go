// Package systemd sends a service's messages to systemd: that it is ready, that it is
// alive, and the priority of each line of its log. Without systemd it does nothing, which
// is not an error.
package systemd

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/journal"
)

// These are messages for [Notify].
const (
	Ready     = daemon.SdNotifyReady
	Reloading = daemon.SdNotifyReloading
	Stopping  = daemon.SdNotifyStopping
)

// IsManager reports whether systemd started this process and waits for messages.
func IsManager() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Notify sends a message.
func Notify(message string) {
	if message == Reloading { // systemd accepts it only with the time
		message += "\n" + daemon.SdNotifyMonotonicUsec()
	}
	_, _ = daemon.SdNotify(false, message)
}

// FeedWatchdog reports to systemd that this process is alive, three times per
// WatchdogSec= of the unit, until stop is called. It does nothing if WatchdogSec= is not
// set. A process that is stopped, or that gets no CPU time for that long, sends no
// message. systemd then ends it and starts it again.
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
