// Package lan is a small network on one machine: a bridge that servers listen on, and
// network namespaces that are joined to it by links of a limited rate. What crosses a
// link is counted.
//
// Servers run beside the caller and listen on the bridge's address. Everything that
// leaves them for the nodes goes through the uplink, which is shaped, too. It needs
// root.
package lan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// LAN is a bridge. Close removes it with all its nodes.
type LAN struct {
	// Addr is the address that servers listen on.
	Addr string

	bridge, prefix string // name of the bridge; the first three parts of addresses
	nodes          []*Node
}

// Node is a network namespace with a link to the bridge.
type Node struct {
	// Addr is its address, Name that of its namespace.
	Addr, Name string

	near string // the bridge's end of the link
}

var serial atomic.Int64

// New makes a bridge. The caller closes it.
func New(ctx context.Context) (*LAN, error) {
	// Two processes of one machine, or two bridges of one process, must not meet.
	n := (int64(os.Getpid())*7 + serial.Add(1)) % 250
	l := &LAN{bridge: fmt.Sprintf("swl%d", n), prefix: fmt.Sprintf("10.215.%d", n)}
	l.Addr = l.prefix + ".1"
	for _, args := range [][]string{
		{"link", "add", l.bridge, "type", "bridge"},
		{"addr", "add", l.Addr + "/24", "dev", l.bridge},
		{"link", "set", l.bridge, "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// Join adds a node, whose link is not limited yet.
func (l *LAN) Join(ctx context.Context) (*Node, error) {
	i := len(l.nodes) + 2
	n := &Node{Addr: fmt.Sprintf("%s.%d", l.prefix, i), Name: fmt.Sprintf("%s-%d", l.bridge, i), near: fmt.Sprintf("%sn%d", l.bridge, i)}
	l.nodes = append(l.nodes, n)
	far := "eth0"
	for _, args := range [][]string{
		{"netns", "add", n.Name},
		{"link", "add", n.near, "type", "veth", "peer", "name", far, "netns", n.Name},
		{"link", "set", n.near, "master", l.bridge, "up"},
		{"-n", n.Name, "addr", "add", n.Addr + "/24", "dev", far},
		{"-n", n.Name, "link", "set", far, "up"},
		{"-n", n.Name, "link", "set", "lo", "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Shape limits both directions of a node's link to so many Mbit/s; 0: no limit.
func (n *Node) Shape(ctx context.Context, mbit int) error {
	return errors.Join(run(ctx, "tc", append([]string{"qdisc", "replace", "dev", n.near, "root"}, limit(mbit)...)...),
		run(ctx, "tc", append([]string{"-n", n.Name, "qdisc", "replace", "dev", "eth0", "root"}, limit(mbit)...)...))
}

// Cut takes the node's link down, or up again: it neither answers nor refuses.
func (n *Node) Cut(ctx context.Context, cut bool) error {
	state := "up"
	if cut {
		state = "down"
	}
	return run(ctx, "ip", "link", "set", n.near, state)
}

// Uplink limits what all nodes together get from the servers.
func (l *LAN) Uplink(ctx context.Context, mbit int) error {
	return run(ctx, "tc", append([]string{"qdisc", "replace", "dev", l.bridge, "root"}, limit(mbit)...)...)
}

// limit is a queue: the bursts are what the link carries in some 5 ms, at least a large
// packet as it leaves TCP.
func limit(mbit int) []string {
	if mbit == 0 {
		return []string{"pfifo", "limit", "10000"}
	}
	return []string{"tbf", "rate", strconv.Itoa(mbit) + "mbit", "burst", strconv.Itoa(max(64<<10, mbit*625)), "latency", "400ms"}
}

// Received is how many bytes have reached the node, with headers.
func (n *Node) Received() (int64, error) { return counter(n.near, "tx_bytes") }

// Sent is how many bytes servers have sent to all nodes, with headers.
func (l *LAN) Sent() (int64, error) { return counter(l.bridge, "tx_bytes") }

func counter(device, name string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", device, "statistics", name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Inside makes a command one that runs in the node's network. Everything else, /sys
// too, stays this machine's: containers need its cgroups.
func (n *Node) Inside(cmd *exec.Cmd) (*exec.Cmd, error) {
	enter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, err
	}
	cmd.Args = append([]string{enter, "--net=/run/netns/" + n.Name, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = enter
	return cmd, nil
}

// Close removes the bridge and all nodes. What runs in them must have ended.
func (l *LAN) Close() error {
	ctx := context.Background()
	var errs []error
	for _, n := range l.nodes {
		// The links go with the namespaces, but not at once.
		if _, err := os.Stat(filepath.Join("/sys/class/net", n.near)); err == nil {
			errs = append(errs, run(ctx, "ip", "link", "del", n.near))
		}
		if _, err := os.Stat(filepath.Join("/run/netns", n.Name)); err == nil {
			errs = append(errs, run(ctx, "ip", "netns", "del", n.Name))
		}
	}
	l.nodes = nil
	if _, err := os.Stat(filepath.Join("/sys/class/net", l.bridge)); err == nil {
		errs = append(errs, run(ctx, "ip", "link", "del", l.bridge))
	}
	return errors.Join(errs...)
}

// run runs a program that prints nothing of interest.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
