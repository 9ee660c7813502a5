package ctrnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// agentConfig returns the text of the agent's configuration. It holds everything that this package
// knows about that format.
func (o *Options) agentConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "log: {level: info}\nprofiles: {record: false}\nmetrics: {addr: %q}\nregistries:\n", o.Metrics)
	user := ""
	if o.Ceph != "" {
		user = fmt.Sprintf(", username: %s, password: %s", nodeUser, nodePassword)
	}
	for _, r := range o.Registries {
		if o.CA != "" {
			fmt.Fprintf(&b, "  - {host: %q, ca: %q%s}\n", r, o.CA, user)
			continue
		}
		fmt.Fprintf(&b, "  - {host: %q, urls: [%q], insecure_allow_plaintext: true%s}\n", r, "http://"+r, user)
	}
	if o.Way == VolumeLocal || o.Way == VolumeNetwork {
		use := []string{"volume", Gear, Plain}
		fmt.Fprintf(&b, "volumes:\n  mode: %s\n", o.Way)
		if o.Ceph != "" {
			fmt.Fprintf(&b, "  rbd: {conf: %q}\n", o.Ceph)
		}
		if o.Shared != "" {
			fmt.Fprintf(&b, "  file: {dir: %q}\n", o.Shared)
		}
		if o.Outage > 0 {
			fmt.Fprintf(&b, "  outage: %s\n", o.Outage)
		}
		if o.Only {
			use = use[:1]
		}
		fmt.Fprintf(&b, "choice: {default: [%s]}\n", strings.Join(use, ", "))
	}
	if o.CRI != nil {
		keep := ""
		if o.CRI.KeepCredentials {
			keep = ", keep_credentials: true"
		}
		fmt.Fprintf(&b, "address: %q\ncri: {address: %q, containerd: %q%s}\n", filepath.Join(o.Dir, "s.sock"), filepath.Join(o.Dir, "i.sock"), filepath.Join(o.Dir, "c.sock"), keep)
	}
	b.WriteString(o.Agent)
	return b.String()
}

// writeHosts configures how containerd reaches its registries: which certificate it
// accepts from them, or that they speak HTTP. For nodes with an agent that run pods, the
// agent writes that they speak HTTP, and ctr has a flag for it.
func (n *Node) writeHosts() error {
	scheme, ca, mirror := "https://", fmt.Sprintf("  ca = %q\n", n.o.CA), ""
	if n.o.CA == "" {
		if (n.o.CRI == nil || n.o.Way != Plain) && n.o.Mirror == "" {
			return nil
		}
		scheme, ca = "http://", ""
	}
	if n.o.Mirror != "" {
		mirror = fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", n.o.Mirror)
	}
	for _, r := range n.o.Registries {
		dir := filepath.Join(n.path("hosts"), r)
		text := fmt.Sprintf("server = %q\n%s[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n%s", scheme+r, mirror, scheme+r, ca)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) containerdConfig() string {
	s := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
[ttrpc]
  address = %q
[debug]
  level = "warn"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "overlayfs"
`, n.path("root"), n.path("state"), n.path("c.sock"), n.path("c.sock.ttrpc"))
	if n.o.Way == Plain {
		return s
	}
	return s + fmt.Sprintf(`[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = %[1]q
  differ = "walking"
[proxy_plugins.%[1]s]
  type = "snapshot"
  address = %[2]q
  [proxy_plugins.%[1]s.exports]
    enable_remote_snapshot_annotations = "true"
`, agentName, n.socket())
}
