package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const apiStop = "/v1/stop"

// StopRequest asks an agent to end.
type StopRequest struct {
	// Now ends it although containers or mounts use its files.
	Now bool `json:"now,omitempty"`
}

// errService says that somebody else looks after the agent.
var errService = errors.New("the agent is a service of systemd, which would start it again: use systemctl stop slipway-agent")

// againAfter is the time between two signals to a keeper. The first is to be known as
// the first.
const againAfter = 300 * time.Millisecond

// stop has the agent end. It refuses while its files are in use, unless it is to end now.
func (a *Agent) stop(req StopRequest) error {
	if a.ender == nil {
		return errService
	}
	list, err := overlaysOf(a.cfg.Root)
	if err != nil {
		return err
	}
	used := make([]string, 0, len(list))
	for i := range list {
		used = append(used, list[i].Dir)
	}
	if n := len(used) - mostNamed; n > 0 {
		used = append(used[:mostNamed], fmt.Sprintf("%d more", n))
	}
	if n := volumeUsers(a.lay.volumeMounts); n > 0 {
		used = append(used, fmt.Sprintf("%d on volumes", n))
	}
	if len(used) == 0 || req.Now {
		return a.ender(len(used) > 0)
	}
	return fmt.Errorf("containers or mounts use files of the agent: %s; unmount them or end the containers first, "+
		"or end the agent at once with --now, after which they can open only what is here", strings.Join(used, ", "))
}

// keeperEnder returns what ends the keeper of this worker, or the worker where its keeper
// is gone.
func keeperEnder() func(twice bool) error {
	keeper := os.Getppid()
	return func(twice bool) error {
		pid := keeper
		if os.Getppid() != keeper {
			pid, twice = os.Getpid(), false
		}
		err := unix.Kill(pid, unix.SIGTERM)
		if err == nil && twice {
			time.Sleep(againAfter)
			err = unix.Kill(pid, unix.SIGTERM)
		}
		return err
	}
}

// Stop has the agent end, and waits until it has. Errors: ErrNoAgent if none runs; that
// of ctx, and that its files are in use.
func (c *Caller) Stop(ctx context.Context, now bool) error {
	if err := c.call(ctx, http.MethodPost, apiStop, StopRequest{now}, nil); err != nil {
		return err
	}
	for {
		try, cancel := context.WithTimeout(ctx, time.Second) // a keeper without a worker does not answer
		_, err := c.Status(try)
		cancel()
		if errors.Is(err, ErrNoAgent) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent does not end: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
