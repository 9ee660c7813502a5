package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"

	"example.org/slipway/config"
	"example.org/slipway/node/poolfs"
)

// RunWorker runs the worker of a keeper, which handed over the sockets with these names.
// It serves until ctx ends.
func RunWorker(ctx context.Context, cfg *config.Agent, sockets []string, log *slog.Logger, ready func()) error {
	ender := keeperEnder() // its keeper is its parent now
	if len(sockets) == 0 {
		return errors.New("a worker is started by slipway agent only")
	}
	dev, err := poolfs.Inherited(poolName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dev = nil // the keeper has none
	case err != nil:
		return err
	default:
		defer dev.Close()
	}
	ls, err := inheritListeners(sockets)
	if err != nil {
		return err
	}
	a, err := New(ctx, cfg, dev, ls, log)
	if err != nil {
		return errors.Join(err, ls.Close())
	}
	a.ender = ender
	return a.Run(ctx, ready)
}

// RunStored runs an agent of one process under systemd, which keeps the descriptor of the
// pool when the agent dies or is restarted. When again is closed, the agent ends and
// leaves the descriptors to the program that this process executes next. The volume
// worker is nevertheless a second process, and ends with the first.
func RunStored(ctx context.Context, cfg *config.Agent, volumeWorker func() *exec.Cmd, again <-chan struct{}, log *slog.Logger, ready func()) error {
	// The owner of the sockets owns the pool, so another agent's pool is not touched.
	ls, err := listen(cfg)
	if err != nil {
		return err
	}
	dev := poolOrNone(cfg, true, log)
	var vols *volumeKeeper
	if dev != nil {
		defer dev.Close()
		if vols, err = keepVolumes(cfg, true, volumeWorker, nil, log); err != nil {
			return errors.Join(err, ls.Close())
		}
	}
	a, err := New(ctx, cfg, dev, ls, log)
	if err != nil {
		return errors.Join(err, vols.close(), ls.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-again:
			cancel()
		case <-ctx.Done():
		}
	}()
	err = a.Run(ctx, ready)
	select {
	case <-again:
		err = errors.Join(err, passOn(dev, vols))
	default:
	}
	return errors.Join(err, vols.close())
}

// passOn leaves the descriptors to the program that this process executes next.
func passOn(dev *os.File, vols *volumeKeeper) error {
	if dev == nil {
		return nil
	}
	all := map[string]*os.File{poolName: dev}
	if vols != nil {
		all[volumesName] = vols.dev
	}
	return poolfs.PassOn(all)
}
