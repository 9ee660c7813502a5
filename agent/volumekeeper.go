package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"

	"example.org/slipway/agent/volumeworker"
	"example.org/slipway/config"
	"example.org/slipway/internal/footprint"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/view"
	"example.org/slipway/volume/volfs"
)

// volumeKeeper keeps the descriptor of the file system of volumes, the socket of its
// server, and the process that serves it: the volume worker. The volume worker is
// separate from the worker, which mounts what the volume worker serves. A process that is
// killed while it waits for itself would never end.
type volumeKeeper struct {
	dev    *os.File
	socket *os.File
	end    context.CancelFunc
	ended  chan error
}

// keepVolumes starts to keep the volumes of an agent. It returns nil if the agent has
// none. stored says that systemd keeps the descriptor. command makes the command of a volume
// worker, and started is called with its process id.
func keepVolumes(cfg *config.Agent, stored bool, command func() *exec.Cmd,
	started func(pid int), log *slog.Logger) (_ *volumeKeeper, err error) {
	if !cfg.Volumes.Configured() {
		return nil, nil
	}
	lay := layoutOf(cfg)
	if err := lay.makeDirs(); err != nil {
		return nil, err
	}
	k := &volumeKeeper{ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.closeFiles())
		}
	}()
	l, err := listenUnix(lay.VolumeSocket)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener) // listenUnix returns no other type
	u.SetUnlinkOnClose(false)
	k.socket, err = u.File()
	if err = errors.Join(err, u.Close()); err != nil {
		return nil, err
	}
	if k.dev, err = lay.volumesMount().open(stored, log); err != nil {
		return nil, err
	}
	h := poolfs.NewHolder(k.dev, func() *exec.Cmd {
		cmd := command()
		cmd.ExtraFiles = []*os.File{k.socket}
		return cmd
	}, &poolfs.HolderOptions{Bound: cfg.Volumes.Outage, Started: started, Log: log.With("of", "volumes"),
		Refuse: func(ctx context.Context) error { return volfs.Refuse(ctx, k.dev, lay.volumeState) }})
	var ctx context.Context
	ctx, k.end = context.WithCancel(context.Background())
	go func() { k.ended <- h.Run(ctx) }()
	return k, nil
}

// close ends the volume worker. Mounts of its volumes keep what they have in memory, and
// other accesses fail until an agent runs again.
func (k *volumeKeeper) close() error {
	if k == nil {
		return nil
	}
	k.end()
	err := <-k.ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, k.closeFiles())
}

func (k *volumeKeeper) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{k.dev, k.socket} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// releaseVolumes unmounts the mounts of volumes if no container uses them. The volume
// worker must still run, because changes are written to the storage now.
func releaseVolumes(cfg *config.Agent, log *slog.Logger) (free bool, err error) {
	if !cfg.Volumes.Configured() {
		return false, nil
	}
	lay := layoutOf(cfg)
	if n := volumeUsers(lay.VolumeMounts); n > 0 {
		log.Warn("volumes stay mounted, as containers use them; they fail when they are read", "containers", n)
		return false, nil
	}
	if err := view.UnmountBelow(lay.VolumeMounts); err != nil {
		return false, err
	}
	return true, nil
}

// volumeUsers counts the root file systems of containers on volumes that are mounted
// below a directory: overlays over volumes, and mounts of clones elsewhere.
func volumeUsers(dir string) int {
	list, err := view.Mounts("/")
	if err != nil {
		return 1 // unknown, so it assumes a user
	}
	below := func(d string) bool { return strings.HasPrefix(d, dir+"/") }
	var sources []string
	for i := range list {
		if below(list[i].Dir) {
			sources = append(sources, list[i].Source)
		}
	}
	n := 0
	for i := range list {
		m := &list[i]
		switch {
		case below(m.Dir):
		case m.Type == "overlay" && slices.ContainsFunc(m.Layers().Lower, below), m.Type != "overlay" && slices.Contains(sources, m.Source):
			n++
		}
	}
	return n
}

// RunVolumeWorker runs the volume worker of a keeper, which handed over a descriptor and
// a socket. It serves until ctx ends. Requests that still wait are left to the next
// worker.
func RunVolumeWorker(ctx context.Context, cfg *config.Agent, log *slog.Logger) (err error) {
	dev, err := poolfs.Inherited(volumesName)
	if err != nil {
		return fmt.Errorf("a volume worker is started by slipway agent only: %w", err)
	}
	defer dev.Close()
	l, err := inheritListener(poolfs.WorkerFD+1, volumesName)
	if err != nil {
		return err
	}
	go footprint.Keep(ctx)
	return volumeworker.Run(ctx, &cfg.Volumes, dev, l, layoutOf(cfg).volumeState, log)
}
