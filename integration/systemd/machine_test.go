package systemd

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/nspawn"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/tool"
)

// patience bounds what takes seconds, on a machine that has other work.
const patience = 3 * time.Minute

// machine is a Debian that systemd has booted, with its own network.
type machine struct {
	*nspawn.Machine
	// booted is the time until everything was running.
	booted time.Duration
}

// boot unpacks the system that scripts/setup.sh made, gives it a containerd, and boots it.
func boot(t *testing.T, containerd func(*machine, *testing.T)) *machine {
	t.Helper()
	for _, name := range []string{"curl", "skopeo"} {
		tool.System(t, name)
	}
	m := &machine{Machine: nspawn.Unpack(t)}
	m.Write(t, "/etc/dpkg/dpkg.cfg.d/quick", "force-unsafe-io\n")
	containerd(m, t)
	began := time.Now()
	m.Launch(t, "--private-network")
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := m.Try(context.Background(), "journalctl", "--no-pager", "-n", "100", "-u", server, "-u", agent)
			t.Logf("the services of the machine have logged\n%s", said)
		}
	})
	m.await(t)
	m.booted = time.Since(began)
	return m
}

// await waits until everything has started, and fails the test if anything has failed to start.
func (m *machine) await(t *testing.T) {
	t.Helper()
	state := ""
	proc.Poll(t, patience, "a machine that runs", func() bool {
		m.Alive(t)
		state, _ = m.Try(t.Context(), "systemctl", "is-system-running")
		return state == "running" || strings.Contains(state, "degraded")
	})
	if state != "running" {
		t.Fatalf("the machine is %s:\n%s", state, m.Run(t, "systemctl", "--failed", "--no-pager"))
	}
}

// outside runs a program of the test's machine with the network of this one.
func (m *machine) outside(t *testing.T, args ...string) string {
	t.Helper()
	return m.Env.Run(t, "nsenter", append([]string{"-t", strconv.Itoa(m.PID), "-n", "--"}, args...)...)
}

// show returns a property of a unit.
func (m *machine) show(t *testing.T, unit, property string) string {
	t.Helper()
	return m.Run(t, "systemctl", "show", "--value", "-p", property, unit)
}

// count returns a property that is a number.
func (m *machine) count(t *testing.T, unit, property string) int {
	t.Helper()
	n, err := strconv.Atoi(m.show(t, unit, property))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// active fails the test unless units run.
func (m *machine) active(t *testing.T, units ...string) {
	t.Helper()
	for _, u := range units {
		if got := m.show(t, u, "ActiveState"); got != "active" {
			t.Fatalf("%s is %s:\n%s", u, got, m.journal(t, u))
		}
	}
}

// journal returns the end of a unit's log.
func (m *machine) journal(t *testing.T, unit string) string {
	t.Helper()
	return m.Run(t, "journalctl", "--no-pager", "-n", "40", "-u", unit)
}
