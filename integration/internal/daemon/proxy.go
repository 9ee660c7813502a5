package daemon

import (
	"fmt"
	"testing"

	"example.org/slipway/integration/internal/tool"
)

// Proxy is a snapshotter that containerd reaches over a socket.
type Proxy struct {
	Name    string // the name in containerd and its clients
	Address string // path of the socket
}

// config returns the part of containerd's configuration that adds the snapshotter and makes pulls
// unpack for it.
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

// unpackOverlayfs keeps containerd's own snapshotter among the snapshotters for which
// pulls can unpack. Otherwise an entry for another snapshotter would replace this
// default.
const unpackOverlayfs = `[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "overlayfs"
`

// StartMobyOn starts the dockerd of [StartMoby] on a containerd that already runs and listens on a socket,
// with one of its snapshotters as the storage driver. args are added to its command line.
func StartMobyOn(t testing.TB, socket, snapshotter string, args ...string) *Docker {
	t.Helper()
	tool.NeedRoot(t)
	dockerd := tool.Built(t, "dockerd")
	tool.Built(t, "runc")
	env := tool.NewEnv(newDir(t), "PATH="+tool.Dir()+":/usr/sbin:/usr/bin:/sbin:/bin", "DOCKER_MIN_API_VERSION=1.24")
	return startDocker(t, dockerd, env, append([]string{"--containerd", socket, "--storage-driver", snapshotter,
		"--feature", "containerd-snapshotter=true"}, args...)...)
}
