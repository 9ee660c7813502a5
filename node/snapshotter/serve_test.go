package snapshotter_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/node/snapshotter"
)

// callSocket is the environment variable that makes the test program a caller of the snapshotter
// that is served there.
const callSocket = "SNAPSHOTTER_CALL_SOCKET"

// call asks for a snapshot that does not exist.
func call(socket string) error {
	remote, end, err := dial(socket)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := remote.Stat(ctx, "nothing"); !errdefs.IsNotFound(err) {
		return errors.Join(errors.New("stat of nothing"), err)
	}
	return nil
}

func dial(socket string) (snapshots.Snapshotter, func() error, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "slipway"), conn.Close, nil
}

func TestServe(t *testing.T) {
	b := newBed(t)
	socket := filepath.Join(b.dir, "s.sock")
	served := serve(t, b.Snapshotter, socket)
	remote, end, err := dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	first := layerNamed("", "one")
	if _, err := remote.Prepare(t.Context(), "ns/1/x", "", snapshots.WithLabels(first.labels())); !errdefs.IsAlreadyExists(err) {
		t.Errorf("claim over the socket: %v, want already exists", err)
	}
	m, err := remote.Prepare(t.Context(), "ns/2/c", first.chain())
	if err != nil {
		t.Fatal(err)
	}
	b.in(m, func(dir string) { b.read(filepath.Join(dir, "chain"), first.chain()) })
	if err := remote.Remove(t.Context(), first.chain()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removing a layer in use over the socket: %v, want a failed precondition", err)
	}
	var names []string
	if err := remote.Walk(t.Context(), func(_ context.Context, i snapshots.Info) error { names = append(names, i.Name); return nil }); err != nil || len(names) != 2 {
		t.Errorf("walk over the socket: %q, error %v", names, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve after Close: %v, want nil", err)
	}
	if err := <-serve(t, b.Snapshotter, socket); err != nil {
		t.Errorf("Serve of a closed snapshotter: %v, want nil", err)
	}
}

func serve(t testing.TB, s *snapshotter.Snapshotter, socket string) <-chan error {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	return served
}

// TestMountNamespaces uses callers that will not see the mounts.
func TestMountNamespaces(t *testing.T) {
	for _, c := range []struct {
		name        string
		propagation uintptr
		unshare     uintptr
		warned      bool
	}{
		{"same namespace", unix.MS_PRIVATE, 0, false},
		{"another without sharing", unix.MS_PRIVATE, syscall.CLONE_NEWNS, true},
		{"another with sharing", unix.MS_SHARED, syscall.CLONE_NEWNS, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			root := filepath.Join(b.dir, "other")
			if err := errors.Join(os.Mkdir(root, 0o700), unix.Mount(root, root, "", unix.MS_BIND, ""), unix.Mount("", root, "", c.propagation, "")); err != nil {
				t.Fatal(err)
			}
			var log logtest.Buffer
			s, err := snapshotter.New(root, nil, &snapshotter.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(b.dir, "n.sock")
			served := serve(t, s, socket)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), callSocket+"="+socket)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: c.unshare}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("caller: %v: %s", err, out)
			}
			if err := errors.Join(s.Close(), <-served); err != nil {
				t.Error(err)
			}
			if got := strings.Contains(log.String(), "will not see the mounts"); got != c.warned {
				t.Errorf("warned: %t, want %t; the log:\n%s", got, c.warned, log.String())
			}
		})
	}
}
