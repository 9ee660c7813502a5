// Package lan makes a small network on one machine. A bridge has an address on which
// servers listen, and rate-limited links join network namespaces to the bridge. The
// package counts what crosses a link.
//
// Servers run beside the caller and listen on the bridge's address. Everything that they
// send to the nodes goes through the uplink, whose rate is limited too. The package needs
// root.
package lan

import (
	"context"
	"errors"
	"fmt"
	"net"
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

	bridge, prefix string // name of the bridge; first three parts of its addresses
	nodes          []*Node
}

// Node is a network namespace with a link to the bridge.
type Node struct {
	// Addr is the node's address, and Name its namespace's name.
	Addr, Name string

	near string // the bridge's end of the link
}

var serial atomic.Int64

// New makes a bridge. The caller closes it.
func New(ctx context.Context) (*LAN, error) {
	l, err := claim(ctx)
	if err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"addr", "add", l.Addr + "/24", "dev", l.bridge},
		{"link", "set", l.bridge, "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// bridges is how many bridges there may be at the same time. The number of one is a part of its
// address.
const bridges = 250

// claim makes a bridge with a number that no other bridge of this machine has.
func claim(ctx context.Context) (*LAN, error) {
	var err error
	for range bridges {
		// Processes begin with different numbers.
		n := (int64(os.Getpid())*7 + serial.Add(1)) % bridges
		l := &LAN{bridge: fmt.Sprintf("swl%d", n), prefix: fmt.Sprintf("10.215.%d", n)}
		l.Addr = l.prefix + ".1"
		if err = run(ctx, "ip", "link", "add", l.bridge, "type", "bridge"); err == nil {
			return l, nil
		}
		if _, there := net.InterfaceByName(l.bridge); there != nil {
			return nil, err // not because another process has it
		}
	}
	return nil, err
}

// Join adds a node, whose link has no limit yet.
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

// Shape limits both directions of a node's link to a rate in Mbit/s; 0 means no limit.
func (n *Node) Shape(ctx context.Context, mbit int) error {
	return errors.Join(run(ctx, "tc", append([]string{"qdisc", "replace", "dev", n.near, "root"}, limit(mbit)...)...),
		run(ctx, "tc", append([]string{"-n", n.Name, "qdisc", "replace", "dev", "eth0", "root"}, limit(mbit)...)...))
}

// Cut takes the node's link down, or up again. While it is down, the node neither answers nor
// refuses.
func (n *Node) Cut(ctx context.Context, cut bool) error {
	state := "up"
	if cut {
		state = "down"
	}
	return run(ctx, "ip", "link", "set", n.near, state)
}

// Route makes the node send packets for a network through an address of the bridge.
func (n *Node) Route(ctx context.Context, network, through string) error {
	return run(ctx, "ip", "-n", n.Name, "route", "add", network, "via", through)
}

// Uplink limits the rate at which all nodes together receive data from the servers.
func (l *LAN) Uplink(ctx context.Context, mbit int) error {
	return run(ctx, "tc", append([]string{"qdisc", "replace", "dev", l.bridge, "root"}, limit(mbit)...)...)
}

// limit returns the settings of a queue. A burst is what the link carries in about 5 ms, but at
// least one large packet as it leaves TCP.
func limit(mbit int) []string {
	if mbit == 0 {
		return []string{"pfifo", "limit", "10000"}
	}
	return []string{"tbf", "rate", strconv.Itoa(mbit) + "mbit", "burst", strconv.Itoa(max(64<<10, mbit*625)), "latency", "400ms"}
}

// Received returns the number of bytes that have reached the node, headers included.
func (n *Node) Received() (int64, error) { return counter(n.near, "tx_bytes") }

// Sent returns the number of bytes that servers have sent to all nodes, headers included.
func (l *LAN) Sent() (int64, error) { return counter(l.bridge, "tx_bytes") }

func counter(device, name string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", device, "statistics", name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// Inside turns a command into one that runs in the node's network. Everything else, /sys included,
// stays this machine's: containers need its cgroups.
func (n *Node) Inside(cmd *exec.Cmd) (*exec.Cmd, error) {
	enter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, err
	}
	cmd.Args = append([]string{enter, "--net=/run/netns/" + n.Name, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = enter
	return cmd, nil
}

// Close removes the bridge and all nodes. Their processes must have ended.
func (l *LAN) Close() error {
	ctx := context.Background()
	var errs []error
	for _, n := range l.nodes {
		// The links go away with the namespaces, but not at once.
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
