package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

// Node is a node of a cluster.
type Node struct {
	*ctrnode.Node
	// Name is the name of the Kubernetes object.
	Name string

	plane          *Plane
	o              ctrnode.Options
	addr           string
	kubelet, proxy *proc.Process
}

// StartNode starts node i of a cluster, counted from 0, and waits until it is ready. The options
// need a network; pods get their own. The caller stops the node.
func (p *Plane) StartNode(ctx context.Context, i int, o ctrnode.Options) (n *Node, err error) {
	if i >= maxNodes {
		return nil, fmt.Errorf("there are accounts for %d nodes", maxNodes)
	}
	o.CRI.Pods, o.CRI.Masquerade = fmt.Sprintf("10.88.%d.0/24", i), p.dns != ""
	n = &Node{Name: nodeName(i), plane: p, o: o, addr: o.Net.Addr}
	if n.Node, err = ctrnode.Start(ctx, o); err != nil {
		return nil, err
	}
	if p.dns != "" {
		err = n.startProxy(ctx)
	}
	if err == nil {
		err = n.StartKubelet(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	p.nodes = append(p.nodes, n)
	return n, nil
}

func (n *Node) path(name string) string { return filepath.Join(n.Dir, name) }

// StartKubelet starts kubelet, or restarts it if it has ended, and waits until the node is ready.
func (n *Node) StartKubelet(ctx context.Context) (err error) {
	if err := errors.Join(n.MakeCgroup(), os.MkdirAll(n.path("kubelet"), 0o755), os.WriteFile(n.path("kubelet.yaml"), []byte(n.config()), 0o600)); err != nil {
		return err
	}
	args := []string{"--config", n.path("kubelet.yaml"), "--kubeconfig", n.plane.Kubeconfig(n.Name),
		"--hostname-override", n.Name, "--node-ip", n.addr, "--root-dir", n.path("kubelet"), "--cert-dir", n.path("kubelet/pki")}
	if n.plane.Providers != "" {
		if err := n.writeProviders(); err != nil {
			return err
		}
		args = append(args, "--image-credential-provider-config", n.path("providers.yml"), "--image-credential-provider-bin-dir", n.path("providers"))
	}
	n.kubelet, err = n.Launch("kubelet", exec.Command(filepath.Join(tool.Dir(), "kubelet"), args...))
	if err != nil {
		return err
	}
	if err := n.plane.await(ctx, n.kubelet, "get", "node", n.Name); err != nil {
		return fmt.Errorf("%w\n%s", err, n.kubelet.Log(4000))
	}
	if _, err := n.plane.Kubectl(ctx, "", "wait", "--for=condition=Ready", "node/"+n.Name, "--timeout", readyTimeout.String()); err != nil {
		return fmt.Errorf("%w\n%s", err, n.kubelet.Log(4000))
	}
	return nil
}

// writeProviders writes the configuration of credential providers and links slipway into their
// directory.
func (n *Node) writeProviders() error {
	if err := errors.Join(os.MkdirAll(n.path("providers"), 0o755), os.WriteFile(n.path("providers.yml"), []byte(n.plane.Providers), 0o600)); err != nil {
		return err
	}
	if err := os.Symlink(n.o.Binary, n.path("providers/slipway")); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil // from an earlier start
}

// roomy makes kubelet regard no disk as full.
const roomy = `evictionHard: {nodefs.available: "50Mi", imagefs.available: "50Mi", memory.available: "50Mi"}
imageGCHighThresholdPercent: 100
`

// config returns kubelet's configuration. Nodes share a machine, so no node may clean up
// outside its own cgroup.
func (n *Node) config() string {
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %q
failSwapOn: false
containerRuntimeEndpoint: "unix://%s"
imageServiceEndpoint: "unix://%s"
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
makeIPTablesUtilChains: false
resolvConf: ""
readOnlyPort: 0
healthzPort: 0
podLogsDir: %q
volumePluginDir: %q
nodeStatusUpdateFrequency: 5s
maxPods: 250
kubeAPIQPS: 100
kubeAPIBurst: 200
`, n.Cgroup(), n.RuntimeSocket(), n.ImageSocket(), n.path("podlogs"), n.path("plugins"))
	text += cmp.Or(n.plane.Disk, roomy)
	if n.plane.dns != "" {
		text += fmt.Sprintf("clusterDomain: cluster.local\nclusterDNS: [%q]\n", n.plane.dns)
	}
	return text
}

// Collect makes containerd collect its garbage. Containerd keeps what removed containers had
// written until more of it has piled up or an image is removed.
func (n *Node) Collect(ctx context.Context) error {
	const id = "collect"
	if _, err := n.Ctr(ctx, "-n", "k8s.io", "leases", "create", "--id", id); err != nil {
		return err
	}
	_, err := n.Ctr(ctx, "-n", "k8s.io", "leases", "delete", "--sync", id)
	return err
}

// KillKubelet ends kubelet with SIGKILL.
func (n *Node) KillKubelet() { n.kubelet.Kill() }

// Reboot has the same effect on the node as pulling its plug. It waits until the node is ready
// again.
func (n *Node) Reboot(ctx context.Context) error {
	n.kubelet.Kill()
	if err := n.Node.Reboot(ctx); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

// Logs returns the end of the output of each of the node's processes.
func (n *Node) Logs() string {
	if n.kubelet == nil {
		return n.Node.Logs()
	}
	return fmt.Sprintf("kubelet of %s (%s) printed last:\n%s\n%s", n.Name, n.kubelet.State(), n.kubelet.Log(6000), n.Node.Logs())
}

// Stop ends everything that belongs to the node.
func (n *Node) Stop() error {
	for _, p := range []*proc.Process{n.kubelet, n.proxy} {
		if p != nil {
			_ = p.Stop(stopTimeout) // how it ends does not matter
		}
	}
	return n.Node.Stop()
}

// Ready waits until all pods of a namespace are ready and returns how long that took.
func (p *Plane) Ready(ctx context.Context, namespace string, limit time.Duration) (time.Duration, error) {
	began := time.Now()
	_, err := p.Kubectl(ctx, "", "-n", namespace, "wait", "--for=condition=Ready", "pod", "--all", "--timeout", limit.String())
	if err != nil {
		pods, _ := p.Kubectl(ctx, "", "-n", namespace, "get", "pods,events", "-o", "wide")
		err = fmt.Errorf("%w\n%s", err, pods)
	}
	return time.Since(began), err
}

// RemoveImages removes kubelet's images in the way that kubelet removes them. It keeps an
// image whose name contains one of the texts.
func (n *Node) RemoveImages(ctx context.Context, keep ...string) error {
	conn, err := grpc.NewClient("unix://"+n.ImageSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	images := cri.NewImageServiceClient(conn)
	list, err := images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, im := range list.Images {
		names := strings.Join(im.RepoTags, " ")
		if slices.ContainsFunc(keep, func(text string) bool { return strings.Contains(names, text) }) {
			continue
		}
		_, err := images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: im.Id}})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
