package ctrnode

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/internal/proc"
)

// These are the agent's processes.
const (
	Keeper       = "keeper"
	Worker       = "worker"
	VolumeWorker = "volume-worker"
)

// processes returns, by id, the processes that have the node's directory in their command line.
func (n *Node) processes() (map[int][]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	found := map[int][]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(b), n.Dir+"/") && !proc.Gone(pid) {
			found[pid] = strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		}
	}
	return found, nil
}

// role returns which of the agent's processes a command line belongs to, or "" for any other.
func role(args []string) string {
	if len(args) < 2 || args[1] != "agent" {
		return ""
	}
	for _, a := range args[2:] {
		switch {
		case a == VolumeWorker:
			return VolumeWorker
		case a == "--worker" || strings.HasPrefix(a, "--worker="):
			return Worker
		case a == "status" || a == "explain" || a == "verify":
			return ""
		}
	}
	return Keeper
}

// Kill ends one of the agent's processes with SIGKILL and reports whether there was one.
func (n *Node) Kill(which string) bool {
	all, err := n.processes()
	if err != nil {
		return false
	}
	killed := false
	for pid, args := range all {
		if role(args) == which {
			killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
		}
	}
	return killed
}

// PID returns the id of one of the agent's processes, or 0 if it is not running.
func (n *Node) PID(which string) int {
	all, _ := n.processes()
	for pid, args := range all {
		if role(args) == which {
			return pid
		}
	}
	return 0
}

// KillAgent ends all of the agent's processes with SIGKILL.
func (n *Node) KillAgent() error {
	n.agent.Kill()
	for range 200 {
		left := 0
		all, err := n.processes()
		if err != nil {
			return err
		}
		for pid, args := range all {
			if role(args) != "" {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: just ended
			}
		}
		if left == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the agent's processes do not end")
}

// Reboot has the same effect on the node as pulling its plug: everything ends, nothing stays
// mounted or attached, and everything on a tmpfs is gone. Then it starts the node again.
func (n *Node) Reboot(ctx context.Context) error {
	n.containerd.Kill()
	if n.agent != nil {
		if err := n.KillAgent(); err != nil {
			return err
		}
	}
	if err := n.clear(); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(n.Root(), "run")), os.RemoveAll(n.path("state"))); err != nil {
		return err
	}
	if n.agent != nil {
		if err := n.StartAgent(ctx); err != nil {
			return err
		}
	}
	return n.startContainerd(ctx)
}

// end kills the processes that have the node's directory and the program in their command line, and
// waits until they have ended.
func (n *Node) end(program string) error {
	all, err := n.processes()
	if err != nil {
		return err
	}
	for pid, args := range all {
		if !strings.Contains(strings.Join(args, " "), program) {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has just ended by itself
		for end := time.Now().Add(stopTimeout); !proc.Gone(pid); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("process does not end: " + strings.Join(args, " "))
			}
		}
	}
	return nil
}
