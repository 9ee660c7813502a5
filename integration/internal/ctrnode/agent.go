package ctrnode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Used returns how an image came to the node (Plain, Gear, or Way for a volume) and what
// the agent reports about the image.
func (n *Node) Used(ctx context.Context, ref string) (way, said string, err error) {
	said, err = n.Slipway(ctx, "agent", "explain", ref)
	if err != nil {
		return "", said, err
	}
	text := strings.ToLower(said)
	for _, w := range []struct{ word, way string }{{"volume: used", n.o.Way}, {"gear: used", Gear}, {"plain: used", Plain}} {
		if strings.Contains(text, w.word) {
			return w.way, said, nil
		}
	}
	return "", said, fmt.Errorf("the agent does not say how %s came: %s", ref, said)
}

// CacheBytes returns the disk space that the agent's files of images take.
func (n *Node) CacheBytes() (total int64, err error) {
	seen := map[uint64]bool{}
	err = filepath.WalkDir(filepath.Join(n.Root(), "cache"), func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			if s := st.Sys().(*syscall.Stat_t); !seen[s.Ino] { // a file may have several names
				seen[s.Ino] = true
				total += s.Blocks * 512
			}
		}
		return err
	})
	return total, err
}

// AgentRSS returns how much memory the agent's processes have, in bytes.
func (n *Node) AgentRSS() (total int64, err error) {
	all, err := n.processes()
	if err != nil {
		return 0, err
	}
	for pid, args := range all {
		if role(args) == "" {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended
		}
		var size, resident int64
		if err == nil {
			_, err = fmt.Sscan(string(b), &size, &resident)
		}
		if err != nil {
			return 0, err
		}
		total += resident * int64(os.Getpagesize())
	}
	return total, nil
}

// AgentFiles returns how many files and directories there are in the agent's state directory.
func (n *Node) AgentFiles() (count int, err error) {
	err = filepath.WalkDir(n.Root(), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		count++
		return err
	})
	return count, err
}

// stepSum matches a line of the agent's metrics that gives the total time of one step of using
// volumes.
var stepSum = regexp.MustCompile(`(?m)^slipway_agent_volume_step_seconds_total\{step="([a-z]+)"\} (\S+)$`)

// Steps returns how long the agent took for each step of using volumes, in seconds. It returns nil
// if the agent serves no metrics.
func (n *Node) Steps(ctx context.Context) map[string]float64 {
	if n.o.Metrics == "" {
		return nil
	}
	out, err := n.metrics(ctx)
	if err != nil {
		return nil
	}
	steps := map[string]float64{}
	for _, m := range stepSum.FindAllStringSubmatch(out, -1) {
		if sec, err := strconv.ParseFloat(m[2], 64); err == nil {
			steps[m[1]] = sec
		}
	}
	return steps
}

// Metric returns the value of one of the agent's metrics, which must be served.
func (n *Node) Metric(ctx context.Context, name string) (float64, error) {
	out, err := n.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(out) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the agent has no metric %s", name)
}

func (n *Node) metrics(ctx context.Context) (string, error) {
	return n.run(ctx, "curl", []string{"-sf", "http://" + n.o.Metrics + "/metrics"})
}
