package daemon

import (
	"fmt"
	"testing"

	"example.org/slipway/integration/internal/tool"
)

// Proxy is a snapshotter that containerd reaches over a socket.
type Proxy struct {
	Name    string // what containerd and its clients call it
	Address string // path of the socket
}

// config is the part of containerd's configuration that makes the snapshotter
// known and has pulls unpack for it.
func (p Proxy) config() string {
	return fmt.Sprintf(`[proxy_plugins.%[1]s]
  type = "snapshot"
  address = %[2]q
  [proxy_plugins.%[1]s.exports]
    enable_remote_snapshot_annotations = "true"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = %[1]q
  differ = "walking"
`, p.Name, p.Address)
}

// unpackOverlayfs keeps containerd's own snapshotter among those that pulls
// can unpack for: an entry for another replaces the default.
const unpackOverlayfs = `[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "overlayfs"
`

// StartMobyOn starts the dockerd of [StartMoby] on a containerd that runs
// already, with a snapshotter of it as storage driver.
func StartMobyOn(t testing.TB, c *Containerd, snapshotter string) *Docker {
	t.Helper()
	tool.NeedRoot(t)
	dockerd := tool.Built(t, "dockerd")
	tool.Built(t, "runc")
	env := tool.NewEnv(newDir(t), "PATH="+tool.Dir()+":/usr/sbin:/usr/bin:/sbin:/bin", "DOCKER_MIN_API_VERSION=1.24")
	return startDocker(t, dockerd, env, "--containerd", c.socket(), "--storage-driver", snapshotter,
		"--feature", "containerd-snapshotter=true")
}
