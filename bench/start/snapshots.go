package start

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// snapshots makes writable trees of pulled images in the way that containerd does for a container:
// it prepares a snapshot on top of the image's chain, and mounts it.
type snapshots struct {
	conn        *grpc.ClientConn
	client      snapshotsapi.SnapshotsClient
	snapshotter string
	dir         string // where trees are mounted
}

func newSnapshots(socket, snapshotter, dir string) (*snapshots, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &snapshots{conn, snapshotsapi.NewSnapshotsClient(conn), snapshotter, dir}, nil
}

// close ends the connection. Trees that are still mounted go away with the node.
func (s *snapshots) close() error { return s.conn.Close() }

// answers returns an error unless a snapshotter answers on its own socket. The existence of the
// socket says little: containerd gives up on a snapshotter that does not answer at once.
func answers(ctx context.Context, socket, snapshotter string) error {
	if _, err := os.Stat(socket); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(inNamespace(ctx), 5*time.Second)
	defer cancel()
	_, err = snapshotsapi.NewSnapshotsClient(conn).Stat(ctx, &snapshotsapi.StatSnapshotRequest{Snapshotter: snapshotter, Key: "none"})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

func inNamespace(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", "default")
}

// mount prepares a snapshot named key and mounts it.
func (s *snapshots) mount(ctx context.Context, key, chain string) (string, error) {
	// Without the label the next garbage collection would remove the snapshot.
	resp, err := s.client.Prepare(inNamespace(ctx), &snapshotsapi.PrepareSnapshotRequest{Snapshotter: s.snapshotter, Key: key, Parent: chain,
		Labels: map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)}})
	if err != nil {
		return "", fmt.Errorf("prepare a snapshot of %s: %w", chain, err)
	}
	at := filepath.Join(s.dir, key)
	if err := os.Mkdir(at, 0o755); err != nil {
		return "", err
	}
	for _, m := range resp.Mounts {
		if err := mountAs(m.Type, m.Source, at, m.Options); err != nil {
			return "", fmt.Errorf("mount %s from %s: %w", m.Type, m.Source, err)
		}
	}
	return at, nil
}

// mountAs mounts with containerd's options, some of which are flags.
func mountAs(kind, source, at string, options []string) error {
	var flags uintptr
	var data []string
	for _, o := range options {
		switch o {
		case "bind":
			flags |= unix.MS_BIND
		case "rbind":
			flags |= unix.MS_BIND | unix.MS_REC
		case "ro":
			flags |= unix.MS_RDONLY
		case "rw":
		default:
			data = append(data, o)
		}
	}
	return unix.Mount(source, at, kind, flags, strings.Join(data, ","))
}

// unmount unmounts a tree and removes its snapshot.
func (s *snapshots) unmount(ctx context.Context, key string) error {
	at := filepath.Join(s.dir, key)
	if err := unmountBelow(at); err != nil {
		return err
	}
	_, err := s.client.Remove(inNamespace(ctx), &snapshotsapi.RemoveSnapshotRequest{Snapshotter: s.snapshotter, Key: key})
	return errors.Join(err, os.Remove(at))
}
