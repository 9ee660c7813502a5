package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/agent/api"
)

// errService says that a service manager controls the agent.
var errService = errors.New("the agent is a service of systemd, which would start it again: use systemctl stop slipway-agent")

// againAfter is the time between two signals to a keeper, so that it can recognise the
// first one.
const againAfter = 300 * time.Millisecond

// Stop implements api.Service. It refuses if the agent's files are in use, unless Now is set.
func (a *Agent) Stop(req api.StopRequest) error {
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
	if n := volumeUsers(a.lay.VolumeMounts); n > 0 {
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
