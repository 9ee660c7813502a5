package backendtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// RBDPool is the pool of the cluster that StartRBD starts.
const RBDPool = "rbd"

// StartRBD starts a cluster with a disk, which is a sparse file of 16 GB, and a pool for
// RBD images. It takes five seconds.
func StartRBD(t testing.TB) *Ceph {
	t.Helper()
	tool(t, "rbd")
	c := startCeph(t, true)
	c.step(func(ctx context.Context) error { return c.seed.MakePool(ctx, RBDPool) })
	return c
}

// RBD returns the cluster of the package. The first call starts it, as StartRBD does.
// Each test uses its own namespaces in the pool. A test that stops a part of the cluster
// must start it again.
func (s *Shared) RBD(t testing.TB) *Ceph {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ceph == nil {
		s.ceph = StartRBD(&packageTB{TB: t, shared: s})
	}
	return s.ceph
}

// Command runs a command of the ceph tool, which must succeed, and returns its output.
func (c *Ceph) Command(t testing.TB, args ...string) string {
	t.Helper()
	return c.Tool(t, "ceph", append([]string{"--connect-timeout", "20"}, args...)...)
}

// Tool runs a command of another tool of Ceph, such as rbd or rados.
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

// KillOSD ends the OSD as a crash of its machine would. If the cluster has a disk,
// everything acknowledged is still there after StartOSD.
func (c *Ceph) KillOSD() { c.OSD.Kill() }

// StartOSD starts the OSD again and returns when clients can use it.
func (c *Ceph) StartOSD(t testing.TB) {
	t.Helper()
	// The map still shows the old OSD as up. Without this, "up" would not mean the new
	// one.
	c.Command(t, "osd", "down", "0")
	c.OSD.Start(c.seed.OSDUp)
}

// HoldCommits keeps the OSD from writing to its disk until release is called. Requests of
// clients arrive, and are not completed. It stops the thread of the OSD that commits;
// there is only one.
func (c *Ceph) HoldCommits(t testing.TB) (release func()) {
	t.Helper()
	tid := thread(t, c.OSD.Pid(), "bstore_kv_sync")
	stopped, end, ended := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() { // the same OS thread must attach and detach
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := unix.PtraceSeize(tid)
		if err == nil {
			err = unix.PtraceInterrupt(tid)
		}
		if err == nil {
			_, err = unix.Wait4(tid, nil, unix.WALL, nil)
		}
		stopped <- err
		<-end
		ended <- unix.PtraceDetach(tid)
	}()
	if err := <-stopped; err != nil {
		close(end)
		t.Fatalf("stop thread %d of the OSD: %v", tid, err)
	}
	return sync.OnceFunc(func() {
		close(end)
		if err := <-ended; err != nil {
			t.Errorf("let thread %d of the OSD go on: %v", tid, err)
		}
	})
}

// thread returns the number of the thread of a process that has the name.
func thread(t testing.TB, pid int, name string) int {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range names {
		b, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(b)) != name {
			continue
		}
		tid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		return tid
	}
	t.Fatalf("process %d has no thread %s", pid, name)
	return 0
}

// Full makes the cluster refuse everything that would make it grow, or ends that. The OSD
// reports how full it is in its heartbeats.
func (c *Ceph) Full(t testing.TB, full bool) {
	t.Helper()
	ratios := [3]string{"0.85", "0.90", "0.95"} // Ceph's defaults; other ratios must be in order too
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
