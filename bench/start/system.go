package start

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// system is a way to bring images onto a node.
type system struct {
	name        string // the name in results and on the command line
	title       string // the name in reports
	snapshotter string
	// suffix is appended to the tags of the images made for the system.
	suffix string
	// daemon returns the snapshotter's process, which listens on the node's socket. If it is nil,
	// the snapshotter is part of containerd.
	daemon func(*node) (*exec.Cmd, error)
	pull   func(ctx context.Context, n *node, ref string) *exec.Cmd
	// held says that one connection of each start is held to heldRate.
	held bool
	// transfer are lines of the configuration of containerd's transfer service.
	transfer string
}

// These are the systems that are compared. parallelName takes part if it is asked for, and in
// the scenario touch. newName is the agent with images of which the registry knows only
// earlier versions.
const (
	plainName    = "plain"
	parallelName = "parallel"
	stargzName   = "stargz"
	slipwayName  = "slipway"
	newName      = "slipway-new"
)

// allSystems lists the names in the order of reports.
func allSystems() []string {
	return []string{plainName, parallelName, stargzName, slipwayName, newName}
}

func plain() *system {
	return &system{name: plainName, title: "containerd, overlayfs", snapshotter: "overlayfs", pull: ctrPull}
}

// parallel is a plain pull that fetches more layers at the same time than containerd does by
// default, each of them in parts of 4 MiB over several connections, and unpacks them at the
// same time.
func parallel() *system {
	s := plain()
	s.name, s.title = parallelName, "containerd, overlayfs, parallel pull"
	s.transfer = "max_concurrent_downloads = 8\nconcurrent_layer_fetch_buffer = 4194304\nmax_concurrent_unpacks = 4\n"
	return s
}

func ctrPull(ctx context.Context, n *node, ref string) *exec.Cmd {
	return n.ctr(ctx, "image", "pull", "--plain-http", "--snapshotter", n.system.snapshotter, ref)
}

// stargz returns the stargz snapshotter of the containerd project, with its programs in a
// directory. Its images were optimised for their first task.
func stargz(bin string) *system {
	return &system{name: stargzName, title: "stargz snapshotter", snapshotter: "stargz", suffix: "-esgz",
		daemon: func(n *node) (*exec.Cmd, error) {
			var config strings.Builder
			for _, r := range n.registries {
				fmt.Fprintf(&config, "[[resolver.host.%q.mirrors]]\n  host = %q\n  insecure = true\n", r, r)
			}
			if err := os.WriteFile(n.path("stargz.toml"), []byte(config.String()), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(filepath.Join(bin, "containerd-stargz-grpc"), "--address", n.socket(),
				"--root", n.path("snapshotter"), "--config", n.path("stargz.toml")), nil
		},
		pull: func(ctx context.Context, n *node, ref string) *exec.Cmd {
			return n.command(ctx, filepath.Join(bin, "ctr-remote"), "image", "rpull", "--plain-http", "--use-containerd-labels", ref)
		},
	}
}

// agentSettings are the settings of the agent that differ from its defaults and that vary
// between scenarios.
type agentSettings struct {
	// record makes the agent report to the registry what containers open first.
	record bool
	// watch is how long the agent watches a container to record its profile. If it is 0,
	// profileDuration applies.
	watch time.Duration
	// background makes the agent fetch the rest of the image by itself.
	background bool
}

// slipway returns this project's node agent, which needs no special images.
func slipway(binary string, set agentSettings) *system {
	return &system{name: slipwayName, title: "slipway agent", snapshotter: "slipway", pull: ctrPull,
		daemon: func(n *node) (*exec.Cmd, error) { return agentCommand(binary, n, set) }}
}

// agentCommand returns the command line of the node agent. It holds everything that the benchmark
// knows of the agent.
func agentCommand(binary string, n *node, set agentSettings) (*exec.Cmd, error) {
	var config strings.Builder
	fmt.Fprintf(&config, "log: {level: warn}\nprofiles: {record: %t, duration: %ds}\nfetch: {background: %t}\nregistries:\n",
		set.record, int(cmp.Or(set.watch, profileDuration).Seconds()), set.background)
	for _, r := range n.registries {
		fmt.Fprintf(&config, "  - {host: %q, urls: [%q], insecure_allow_plaintext: true}\n", r, "http://"+r)
	}
	if err := os.WriteFile(n.path("agent.yml"), []byte(config.String()), 0o600); err != nil {
		return nil, err
	}
	return exec.Command(binary, "agent", "--root", n.path("agent"), "--address", n.socket(), "--config", n.path("agent.yml")), nil
}

// hasAgent reports whether a binary contains the agent.
func hasAgent(ctx context.Context, binary string) bool {
	out, err := exec.CommandContext(ctx, binary, "agent", "--help").CombinedOutput()
	return err == nil && strings.Contains(string(out), "--address")
}
