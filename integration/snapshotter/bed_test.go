package snapshotter_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/node/snapshotter"
)

// name is containerd's name for the snapshotter.
const name = "slipway"

// bed is a registry, and a snapshotter that a containerd uses.
type bed struct {
	t      testing.TB
	root   string // the snapshotter's
	socket string
	lower  snapshotter.Lower
	sn     *snapshotter.Snapshotter
	served chan error
	ctr    *daemon.Containerd
	reg    *slipway.Server
}

func newBed(t testing.TB, lower snapshotter.Lower) *bed {
	t.Helper()
	tool.NeedRoot(t)
	dir := tool.ShortTempDir(t)
	b := &bed{t: t, root: filepath.Join(dir, "root"), socket: filepath.Join(dir, "s.sock"), lower: lower}
	t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
	b.start()
	t.Cleanup(b.stop)
	b.ctr = daemon.StartContainerd(t, daemon.Proxy{Name: name, Address: b.socket})
	b.reg = slipway.Start(t, t.TempDir(), nil)
	return b
}

func (b *bed) start() {
	b.t.Helper()
	sn, err := snapshotter.New(b.root, b.lower, &snapshotter.Options{Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil))})
	if err != nil {
		b.t.Fatal(err)
	}
	l, err := net.Listen("unix", b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	b.sn, b.served = sn, make(chan error, 1)
	go func() { b.served <- sn.Serve(l) }()
}

func (b *bed) stop() {
	b.t.Helper()
	if err := b.sn.Close(); err != nil {
		b.t.Error(err)
	}
	if err := <-b.served; err != nil {
		b.t.Error(err)
	}
}

// push pushes an image to the registry and returns its reference.
func (b *bed) push(repo string, im *imagetest.Bundle) string {
	b.t.Helper()
	if err := im.Push(b.t.Context(), b.reg.Client, repo, "v1"); err != nil {
		b.t.Fatal(err)
	}
	return b.reg.Addr + "/" + repo + ":v1"
}

func (b *bed) pull(snapshotter, ref string) {
	b.t.Helper()
	b.ctr.Run(b.t, "image", "pull", "--plain-http", "--snapshotter", snapshotter, ref)
}

// count returns the number of snapshots.
func (b *bed) count() (n int) {
	b.t.Helper()
	if err := b.sn.Walk(b.t.Context(), func(context.Context, snapshots.Info) error { n++; return nil }); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// claimed returns the number of claimed layers. Their names are chain IDs; containerd puts a
// namespace and a number in front of all other names.
func (b *bed) claimed() (n int) {
	b.t.Helper()
	if err := b.sn.Walk(b.t.Context(), func(_ context.Context, i snapshots.Info) error {
		if strings.HasPrefix(i.Name, "sha256:") {
			n++
		}
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// within makes a subtest report failures until the returned function is called.
func (b *bed) within(t testing.TB) (end func()) {
	old := b.t
	b.t = t
	return func() { b.t = old }
}

// client returns a snapshotter of containerd, as containerd offers it.
func (b *bed) client(snapshotter string) snapshots.Snapshotter {
	b.t.Helper()
	conn, err := grpc.NewClient("unix://"+b.ctr.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), snapshotter)
}

// ctx returns a context with ctr's namespace.
func (b *bed) ctx() context.Context { return namespaces.WithNamespace(b.t.Context(), "default") }

// mounted mounts a snapshot and calls f with the mount point.
func (b *bed) mounted(mounts []mount.Mount, f func(dir string)) {
	b.t.Helper()
	dir := b.t.TempDir()
	if err := mount.All(mounts, dir); err != nil {
		b.t.Fatalf("mount %v: %v", mounts, err)
	}
	defer blockfs.UnmountBelow(b.t, dir)
	f(dir)
}

// empty fails the test if anything of a snapshot is left.
func (b *bed) empty() {
	b.t.Helper()
	if n := b.count(); n != 0 {
		b.t.Errorf("%d snapshots are left", n)
	}
	entries, err := os.ReadDir(filepath.Join(b.root, "snapshots"))
	if err != nil || len(entries) != 0 {
		b.t.Errorf("directories left: %v, error %v", entries, err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(table), b.root) {
		b.t.Errorf("mounts left below %s (error %v):\n%s", b.root, err, table)
	}
}

// eventuallyEmpty waits for containerd's garbage collection, which Docker does
// not wait for.
func eventuallyEmpty(t testing.TB, b *bed) {
	t.Helper()
	proc.Poll(t, time.Minute, "garbage collection", func() bool { return b.count() == 0 })
	if err := b.sn.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
}
