package snapshotter

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// stopTimeout bounds how long Close waits for requests that are being answered. Close
// does not wait for a pull that waits for a registry, because containerd repeats the
// pull.
const stopTimeout = 5 * time.Second

// Serve answers containerd on l until Close is called. It closes l and returns nil after
// Close.
func (s *Snapshotter) Serve(l net.Listener) error {
	g := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(g, snapshotservice.FromSnapshotter(s))
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return l.Close()
	}
	s.servers[g] = struct{}{}
	s.mu.Unlock()
	if err := g.Serve(&callers{Listener: l, s: s}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve snapshots on %s: %w", l.Addr(), err)
	}
	return nil
}

func (s *Snapshotter) stopServing() {
	s.mu.Lock()
	s.ended = true
	servers := s.servers
	s.servers = map[*grpc.Server]struct{}{}
	s.mu.Unlock()
	for g := range servers {
		timer := time.AfterFunc(stopTimeout, g.Stop)
		g.GracefulStop()
		timer.Stop()
	}
}

// checkPropagation determines whether mounts made here are visible in other mount
// namespaces. It warns if they are not and this process is not in the machine's mount
// namespace.
func (s *Snapshotter) checkPropagation() error {
	table, err := readMounts()
	if err != nil {
		return err
	}
	m := table.over(s.root)
	s.shared = m != nil && strings.Contains(" "+m.Optional, " shared:")
	here, err := mountNamespace("self")
	if err != nil {
		return err
	}
	// Some containers hide process 1 from their processes. Callers are checked later.
	if host, err := mountNamespace("1"); err == nil && host != here && !s.shared {
		s.log.Warn("containers will not see the mounts made here: this process has a mount namespace of its own and does not share mounts; "+
			"run it in the machine's, or bind-mount the directory with shared propagation (rshared)", "dir", s.root)
	}
	return nil
}

func mountNamespace(pid string) (string, error) { return os.Readlink("/proc/" + pid + "/ns/mnt") }

// callers is a listener that checks the connecting processes: containerd must see the
// mounts made here.
type callers struct {
	net.Listener
	s    *Snapshotter
	once sync.Once
}

func (c *callers) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if u, ok := conn.(*net.UnixConn); ok && !c.s.shared {
		c.check(u)
	}
	return conn, err
}

func (c *callers) check(conn *net.UnixConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return
	}
	here, err := mountNamespace("self")
	if err != nil {
		return
	}
	if there, err := mountNamespace(fmt.Sprint(cred.Pid)); err == nil && there != here {
		c.once.Do(func() {
			c.s.log.Warn("the caller has another mount namespace and will not see the mounts made here; "+
				"run both in one, or share the mounts of the directory (mount --make-rshared)", "dir", c.s.root, "pid", cred.Pid)
		})
	}
}
