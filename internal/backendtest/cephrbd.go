package backendtest

import (
	"context"
	"strings"
	"testing"
	"time"
)

// RBDPool is the pool of the cluster that StartRBD starts.
const RBDPool = "rbd"

// StartRBD starts a cluster with a disk, a sparse file of 16 GB, and a pool for RBD
// images. It takes five seconds.
func StartRBD(t testing.TB) *Ceph {
	t.Helper()
	tool(t, "rbd")
	c := startCeph(t, true)
	c.Command(t, "osd", "pool", "create", RBDPool, "8", "8")
	c.Command(t, "osd", "pool", "application", "enable", RBDPool, "rbd")
	c.run("rbd", "pool", "init", RBDPool)
	return c
}

// RBD returns the cluster of the package, which the first call starts as StartRBD
// does. Tests have namespaces of their own in its pool; who stops a part of it starts
// it again.
func (s *Shared) RBD(t testing.TB) *Ceph {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ceph == nil {
		s.ceph = StartRBD(&packageTB{TB: t, shared: s})
	}
	return s.ceph
}

// Command is a command of the ceph tool that must succeed, and what it prints.
func (c *Ceph) Command(t testing.TB, args ...string) string {
	t.Helper()
	return c.Tool(t, "ceph", append([]string{"--connect-timeout", "20"}, args...)...)
}

// Tool is a command of another tool of Ceph, such as rbd or rados.
func (c *Ceph) Tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cephStep)
	defer cancel()
	out, err := c.command(ctx, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// KillOSD ends the OSD as a crash of its machine would. Everything that was
// acknowledged is there when StartOSD has started it again, if the cluster has a
// disk.
func (c *Ceph) KillOSD() { c.OSD.Kill() }

// StartOSD starts the OSD again, and returns when clients can use it.
func (c *Ceph) StartOSD(t testing.TB) {
	t.Helper()
	// The map still has the old one as up: without this, "up" would not mean the new.
	c.Command(t, "osd", "down", "0")
	c.OSD.Start(c.osdUp)
}

// Full makes the cluster refuse whatever would make it grow, or ends that. The OSD
// reports how full it is with its heartbeats.
func (c *Ceph) Full(t testing.TB, full bool) {
	t.Helper()
	ratios := [3]string{"0.85", "0.90", "0.95"} // Ceph's own; any others must be in order, too
	if full {
		ratios = [3]string{"0.000001", "0.000002", "0.000003"}
	}
	for i, which := range []string{"nearfull", "backfillfull", "full"} {
		c.Command(t, "osd", "set-"+which+"-ratio", ratios[i])
	}
	deadline := time.Now().Add(cephStep)
	for strings.Contains(c.Command(t, "health", "detail"), "POOL_FULL") != full {
		if time.Now().After(deadline) {
			t.Fatalf("the pool's being full is not %v:\n%s", full, c.Command(t, "health", "detail"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}
