package systemd

import "testing"

// TestUnified runs containers on a machine whose control groups are of version 2, also while the
// agent is restarted and killed. TestSystemd does so with those that this machine has.
func TestUnified(t *testing.T) {
	m := boot(t, func(m *machine, t *testing.T) {
		m.Unified = true
		m.containerd(t)
	})
	if got := m.Run(t, "stat", "-f", "-c", "%T", "/sys/fs/cgroup"); got != "cgroup2fs" {
		t.Fatalf("the machine's control groups are %s", got)
	}
	m.testEnable(t)
	sums := m.push(t)
	m.Run(t, "slipway", "agent", "setup", "--containerd", "--apply")
	m.Run(t, "systemctl", "restart", "containerd")
	m.Run(t, "ctr", "image", "pull", "--plain-http", "--snapshotter", "slipway", image)
	l := m.startLoad(t, sums)
	l.check(t)
	m.testRestart(t, l)
	m.testWatchdog(t, l)
	m.testStop(t, l, sums)
}
