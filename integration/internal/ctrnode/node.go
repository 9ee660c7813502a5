// Package ctrnode runs machines that start containers. Each machine has its own
// containerd and its own directory. It has the node agent unless images are pulled in the
// ordinary way, and a network namespace if it has a network. The package also finds what
// such a machine leaves behind: mounts, loop devices and processes.
//
// It serves tests and benchmarks alike, so it returns errors. It needs root.
package ctrnode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

const (
	readyTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
	// pullTimeout bounds a pull.
	pullTimeout = 10 * time.Minute
)

// These are the ways in which a node gets its images.
const (
	Plain         = "plain"   // containerd's own pull and overlayfs
	Gear          = "gear"    // the agent, file by file
	VolumeLocal   = "local"   // the agent, one volume per image
	VolumeNetwork = "network" // the agent, one clone per container
)

// agentName is containerd's name for the agent.
const agentName = "slipway"

// Options are the options of a node.
type Options struct {
	// Dir is the node's directory, which Start makes. Its path must be short, because it holds
	// sockets, and it must not be on overlayfs.
	Dir string
	// NewDisk makes a file system for the directory and removes it with the node. DiskBytes is its
	// size; default 24 GiB. Only what is written takes space.
	NewDisk   bool
	DiskBytes int64
	// Limits bound the node. If it is nil, the node has no cgroup of its own.
	Limits *Limits
	// Binary is the path of slipway.
	Binary string
	// Containerd is the directory of containerd, its shim and its client; default [tool.Dir].
	Containerd string
	// Way is how the node gets its images; default Plain.
	Way string
	// Net is the node's network. If it is nil, the node uses this machine's network.
	Net *lan.Node
	// Registries lists the host:port of each registry that the node uses. CA is the file of their
	// certificate; if it is "", they speak HTTP.
	Registries []string
	CA         string
	// Mirror is the URL of a registry on this machine that containerd asks before each of the
	// registries. It is for the way Plain, without a CA. Default none.
	Mirror string
	// Ceph is a configuration that names a cluster's monitors. Shared is the directory of the file
	// driver. Volumes need one of them.
	Ceph, Shared string
	// Outage is how long I/O waits for unreachable storage; default the agent's own.
	Outage time.Duration
	// Only restricts the agent to Way and the plain way.
	Only bool
	// Before is prepended to the agent's command line: a program that runs the rest.
	Before []string
	// Metrics is the loopback address on which the agent serves its metrics; default
	// none.
	Metrics string
	// Agent is appended to the agent's configuration.
	Agent string
	// CRI makes the node run pods. If it is nil, the node runs containers only.
	CRI *CRI
}

// Node is a running machine. Its methods may be called concurrently, except the methods
// that start, stop and kill.
type Node struct {
	// Dir holds everything that belongs to the node.
	Dir string

	o                 Options
	env               []string
	agent, containerd *proc.Process
}

// Start starts a node on an empty directory.
func Start(ctx context.Context, o Options) (n *Node, err error) {
	o.Way, o.Containerd = cmp.Or(o.Way, Plain), cmp.Or(o.Containerd, tool.Dir())
	n = &Node{Dir: o.Dir, o: o, env: []string{"PATH=" + o.Containerd + ":" + tool.Dir() + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + o.Dir, "LANG=C.UTF-8", "TMPDIR=" + o.Dir}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start node: %w\n%s", err, n.Logs()), n.Stop())
		}
	}()
	if o.NewDisk {
		if err := NewDisk(ctx, o.Dir, o.DiskBytes); err != nil {
			return n, err
		}
	}
	if err := errors.Join(n.limit(), os.MkdirAll(n.path("runs"), 0o700), n.writeHosts()); err != nil {
		return n, err
	}
	if o.Way != Plain {
		if err := n.StartAgent(ctx); err != nil {
			return n, err
		}
	}
	return n, n.startContainerd(ctx)
}

func (n *Node) path(name string) string { return filepath.Join(n.Dir, name) }

// Root returns the agent's state directory.
func (n *Node) Root() string { return n.path("agent") }

// ContentDir returns the directory in which containerd keeps blobs.
func (n *Node) ContentDir() string { return n.path("root/io.containerd.content.v1.content") }

func (n *Node) socket() string { return n.path("s.sock") }

// StartAgent starts the agent, or restarts it if it has ended, and waits until it answers.
func (n *Node) StartAgent(ctx context.Context) (err error) {
	if err := os.WriteFile(n.path("agent.yml"), []byte(n.o.agentConfig()), 0o600); err != nil {
		return err
	}
	line := append(slices.Clone(n.o.Before), n.o.Binary, "agent", "--root", n.Root(), "--address", n.socket(), "--config", n.path("agent.yml"))
	n.agent, err = n.launch("agent", exec.Command(line[0], line[1:]...))
	if err != nil {
		return err
	}
	return waitFor(ctx, n.agent, func(ctx context.Context) error {
		if err := listens(n.socket()); err != nil {
			return err
		}
		_, err := n.Slipway(ctx, "agent", "status", "--json")
		return err
	})
}

func listens(socket string) error {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func (n *Node) startContainerd(ctx context.Context) (err error) {
	if n.o.CRI != nil {
		err = n.setUpCRI(ctx)
	} else {
		err = os.WriteFile(n.path("containerd.toml"), []byte(n.containerdConfig()), 0o600)
	}
	if err != nil {
		return err
	}
	n.containerd, err = n.launch("containerd", exec.Command(filepath.Join(n.o.Containerd, "containerd"), "--config", n.path("containerd.toml")))
	if err != nil {
		return err
	}
	return waitFor(ctx, n.containerd, func(ctx context.Context) error {
		_, err := n.Ctr(ctx, "version")
		return err
	})
}

// launch starts a program of the node.
func (n *Node) launch(name string, cmd *exec.Cmd) (*proc.Process, error) {
	if n.o.Net != nil {
		inside, err := n.o.Net.Inside(cmd)
		if err != nil {
			return nil, err
		}
		cmd = inside
	}
	cmd = n.enclose(cmd)
	cmd.Env, cmd.Dir = n.env, n.Dir
	return proc.Launch(cmd, n.path(name+".log"))
}

// waitFor calls ready until it returns no error, the process ends, or half a minute has passed.
func waitFor(ctx context.Context, p *proc.Process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("%s ended (%s) before it was ready", p.Name, p.State())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time: %w", p.Name, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Snapshotter returns containerd's name for the snapshotter that holds the node's images.
func (n *Node) Snapshotter() string {
	if n.o.Way == Plain {
		return "overlayfs"
	}
	return agentName
}

// Ctr runs a command of containerd's client and returns what it printed.
func (n *Node) Ctr(ctx context.Context, args ...string) (string, error) {
	return n.run(ctx, filepath.Join(n.o.Containerd, "ctr"), append([]string{"-a", n.path("c.sock")}, args...))
}

// Slipway runs a subcommand on the node's agent. Arguments after -- are not the subcommand's own.
func (n *Node) Slipway(ctx context.Context, args ...string) (string, error) {
	at := slices.Index(args, "--")
	if at < 0 {
		at = len(args)
	}
	all := slices.Concat(args[:at], []string{"--root", n.Root(), "--config", n.path("agent.yml")}, args[at:])
	return n.run(ctx, n.o.Binary, all)
}

func (n *Node) run(ctx context.Context, program string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	if n.o.Net != nil {
		inside, err := n.o.Net.Inside(cmd)
		if err != nil {
			return "", err
		}
		cmd = inside
	}
	cmd = n.enclose(cmd)
	cmd.Env, cmd.Dir, cmd.WaitDelay = n.env, n.Dir, 5*time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w; it printed:\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stderr.Bytes(), stdout.Bytes())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// Pull pulls an image in the node's way.
func (n *Node) Pull(ctx context.Context, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	how := "--plain-http"
	if n.o.CA != "" || n.o.Mirror != "" {
		how = "--hosts-dir=" + n.path("hosts")
	}
	_, err := n.Ctr(ctx, "image", "pull", how, "--snapshotter", n.Snapshotter(), ref)
	return err
}

// Remove removes an image from containerd, and waits until its snapshots are gone.
func (n *Node) Remove(ctx context.Context, ref string) error {
	_, err := n.Ctr(ctx, "image", "rm", "--sync", ref)
	return err
}

// RunContainer runs a container to its end and returns what it printed.
func (n *Node) RunContainer(ctx context.Context, ref, id string, args ...string) (string, error) {
	return n.Ctr(ctx, append([]string{"run", "--rm", "--snapshotter", n.Snapshotter(), ref, id}, args...)...)
}

// Tasks runs tasks on the node, one after the other.
func (n *Node) Tasks() *tasks.Ctr {
	dir := n.path("runs")
	if own, err := os.MkdirTemp(dir, ""); err == nil { // otherwise the run fails
		dir = own
	}
	return &tasks.Ctr{Program: filepath.Join(n.o.Containerd, "ctr"), Socket: n.path("c.sock"), Snapshotter: n.Snapshotter(), Env: n.env, Dir: dir}
}

// Logs returns the end of the output of each of the node's processes.
func (n *Node) Logs() string {
	var b strings.Builder
	for name, p := range map[string]*proc.Process{"containerd": n.containerd, "agent": n.agent} {
		if p != nil {
			fmt.Fprintf(&b, "%s of %s (%s) printed last:\n%s\n", name, n.Dir, p.State(), p.Log(4000))
		}
	}
	return b.String()
}

// Stop ends everything that belongs to the node, unmounts what it mounted, detaches its loop
// devices and removes its directory. It removes leftovers without reporting them: call
// [Node.Leftovers] first.
func (n *Node) Stop() error {
	if n.containerd != nil {
		_ = n.containerd.Stop(stopTimeout) // how it ends does not matter
	}
	var errs []error
	if n.o.CRI != nil {
		errs = append(errs, n.endPods())
	}
	errs = append(errs, n.end("containerd-shim"), unmountBelow(n.path("state")))
	if n.agent != nil {
		n.agent.Signal(syscall.SIGTERM)
		select {
		case <-n.agent.Exited():
		case <-time.After(2 * time.Second): // it waits for users of its files; a second signal makes it stop waiting
			_ = n.agent.Stop(stopTimeout)
		}
	}
	errs = append(errs, n.lift(), n.clear())
	if err := errors.Join(errs...); err != nil {
		return err // the directory may hold another user's mount, so it stays
	}
	return DropDisk(n.Dir)
}

// clear kills everything that still runs, and removes mounts and loop devices.
func (n *Node) clear() error {
	return errors.Join(n.end(""), n.endPods(), abortBelow(n.Dir), unmountBelow(n.Dir), detachBelow(n.Dir))
}
