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

// StopRequest is a request to end an agent.
type StopRequest struct {
	// Now ends the agent even if containers or mounts use its files.
	Now bool `json:"now,omitempty"`
}

// errService says that a service manager controls the agent.
var errService = errors.New("the agent is a service of systemd, which would start it again: use systemctl stop slipway-agent")

// againAfter is the time between two signals to a keeper, so that it can recognise the
// first one.
const againAfter = 300 * time.Millisecond

// stop ends the agent. It refuses if the agent's files are in use, unless Now is set.
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

// keeperEnder returns a function that ends the keeper of this worker, or the worker
// itself if its keeper is gone.
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

// Stop ends the agent and waits until it has ended. Errors: ErrNoAgent if none runs; the
// error of ctx; an error if the agent's files are in use.
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
