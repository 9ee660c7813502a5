package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"example.org/slipway/integration/internal/tool"
)

// ServicePrograms are the programs that services need in addition to Programs.
var ServicePrograms = []string{"kube-proxy", "coredns"}

// StartServices gives the nodes that are started from now on what services need: a DNS server,
// kube-proxy, and pods that reach the pods of other nodes and this machine.
func (p *Plane) StartServices(ctx context.Context) error {
	host, _, err := net.SplitHostPort(p.addr)
	if err != nil {
		return err
	}
	names := fmt.Sprintf(".:53 {\n  bind %s\n  errors\n  kubernetes cluster.local {\n    kubeconfig %s\n  }\n}\n", host, p.Kubeconfig("admin"))
	if err := os.WriteFile(p.path("Corefile"), []byte(names), 0o600); err != nil {
		return err
	}
	server, err := p.launch("coredns", "-conf", p.path("Corefile"))
	if err != nil {
		return err
	}
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(host, "53"))
	}}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, err := r.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
		if err == nil {
			p.dns = host
			return nil
		}
		select {
		case <-server.Exited():
			return fmt.Errorf("coredns ended: %s\n%s", server.State(), server.Log(3000))
		case <-ctx.Done():
			return fmt.Errorf("coredns does not know the API server: %w\n%s", err, server.Log(3000))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// startProxy starts kube-proxy and lets the node's pods and those of all earlier nodes reach each
// other.
func (n *Node) startProxy(ctx context.Context) (err error) {
	for _, other := range n.plane.nodes {
		err = errors.Join(err, n.o.Net.Route(ctx, other.o.CRI.Pods, other.addr), other.o.Net.Route(ctx, n.o.CRI.Pods, n.addr))
	}
	if err != nil {
		return err
	}
	n.proxy, err = n.Launch("kube-proxy", exec.Command(filepath.Join(tool.Dir(), "kube-proxy"), "--kubeconfig", n.plane.Kubeconfig("proxy"), "--hostname-override", n.Name,
		"--proxy-mode", "iptables", "--masquerade-all", "--healthz-bind-address", "127.0.0.1:10256", "--metrics-bind-address", "127.0.0.1:10249",
		// The machine has one table of connections for all nodes.
		"--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0"))
	return err
}
