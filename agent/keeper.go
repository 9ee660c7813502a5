package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/internal/footprint"
	"example.org/slipway/node/poolfs"
	"example.org/slipway/node/view"
)

// Listeners are the sockets of an agent. A socket that is not configured is nil.
type Listeners struct {
	Snapshots, API, CRI, Metrics, Peers net.Listener
}

// socketNames are the sockets in the order in which a keeper hands them over.
var socketNames = []string{"snapshots", "api", "cri", "metrics", "peers"}

func (l *Listeners) all() []*net.Listener {
	return []*net.Listener{&l.Snapshots, &l.API, &l.CRI, &l.Metrics, &l.Peers}
}

// Close closes all sockets.
func (l *Listeners) Close() error {
	var errs []error
	for _, ln := range l.all() {
		if *ln != nil {
			errs = append(errs, (*ln).Close())
		}
	}
	return errors.Join(errs...)
}

// listen opens the sockets of an agent. Only root has access to them.
func listen(cfg *config.Agent) (_ Listeners, err error) {
	var ls Listeners
	defer func() {
		if err != nil {
			err = errors.Join(err, ls.Close())
		}
	}()
	lay := layoutOf(cfg)
	if err := lay.makeDirs(); err != nil {
		return ls, err
	}
	for i, path := range []string{cfg.Address, lay.api, cfg.CRI.Address} {
		if path == "" {
			continue
		}
		if *ls.all()[i], err = whenFree(func() (net.Listener, error) { return listenUnix(path) }); err != nil {
			return ls, err
		}
	}
	if cfg.Metrics.Addr != "" {
		if ls.Metrics, err = whenFree(func() (net.Listener, error) { return net.Listen("tcp", cfg.Metrics.Addr) }); err != nil {
			return ls, fmt.Errorf("metrics.addr: %w", err)
		}
	}
	if cfg.Peers.Listen != "" {
		if ls.Peers, err = whenFree(func() (net.Listener, error) { return net.Listen("tcp", cfg.Peers.Listen) }); err != nil {
			return ls, fmt.Errorf("peers.listen: %w", err)
		}
	}
	return ls, nil
}

// errServed says that another process listens on a socket.
var errServed = errors.New("is served already: is another agent running?")

// dying is how long a socket may outlive a killed agent. A dying process first releases
// its memory, which may be large, and then its sockets.
const dying = 3 * time.Second

// whenFree listens as soon as nobody else listens. It returns the error of the last
// attempt if that does not succeed.
func whenFree(listen func() (net.Listener, error)) (net.Listener, error) {
	for end := time.Now().Add(dying); ; time.Sleep(20 * time.Millisecond) {
		l, err := listen()
		if !errors.Is(err, errServed) && !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}

// listenUnix listens on a socket. It replaces a socket on which nobody answers. Errors:
// errServed.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case st.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("%s %w", path, errServed)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// files returns copies of the descriptors for another process.
func (l *Listeners) files() (fds []*os.File, names []string, err error) {
	for i, ln := range l.all() {
		f, ok := (*ln).(interface{ File() (*os.File, error) })
		if !ok {
			continue
		}
		fd, err := f.File()
		if err != nil {
			return fds, names, err
		}
		fds, names = append(fds, fd), append(names, socketNames[i])
	}
	return fds, names, nil
}

// inheritListeners takes over the sockets that a keeper handed to this process.
func inheritListeners(names []string) (_ Listeners, err error) {
	var ls Listeners
	defer func() {
		if err != nil {
			err = errors.Join(err, ls.Close())
		}
	}()
	for i, name := range names {
		l, err := inheritListener(poolfs.WorkerFD+1+i, name)
		if err != nil {
			return ls, err
		}
		placed := false
		for k, known := range socketNames {
			if known == name {
				*ls.all()[k], placed = l, true
			}
		}
		if !placed {
			return ls, errors.Join(fmt.Errorf("socket %q has no use", name), l.Close())
		}
	}
	return ls, nil
}

// inheritListener takes over one socket.
func inheritListener(fd int, name string) (net.Listener, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), name)
	if f == nil {
		return nil, fmt.Errorf("descriptor %d is not there", fd)
	}
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("socket for %s: %w", name, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the next worker continues to use it
	}
	return l, nil
}

// Keep mounts the pool, opens the sockets, and keeps a worker running until ctx ends.
// worker returns the command of a worker that gets the sockets with these names, and
// volumeWorker returns the command of a volume worker. While containers use files of the
// agent, Keep continues after the end of ctx until stop ends, too, because the containers
// would get errors.
func Keep(ctx, stop context.Context, cfg *config.Agent, worker func(sockets []string) *exec.Cmd, volumeWorker func() *exec.Cmd, log *slog.Logger) error {
	ls, err := listen(cfg)
	if err != nil {
		return err
	}
	defer ls.Close()
	fds, names, err := ls.files()
	defer func() {
		for _, f := range fds {
			_ = f.Close()
		}
	}()
	if err != nil {
		return err
	}
	dev := poolOrNone(cfg, false, log)
	started := spareFromOOM(log)
	var vols *volumeKeeper
	if dev != nil {
		defer func() { _ = dev.Close() }() // of the last worker; a nil file returns an error
		if vols, err = keepVolumes(cfg, false, volumeWorker, started, log); err != nil {
			return err
		}
	}
	go footprint.Keep(ctx)
	lay := layoutOf(cfg)
	busy := busyUntil(stop, cfg, log)
	for {
		err = poolfs.NewHolder(dev, func() *exec.Cmd {
			cmd := worker(names)
			cmd.ExtraFiles = fds
			return cmd
		}, &poolfs.HolderOptions{State: lay.state, Bound: cfg.Fetch.OpenTimeout, Started: started, Log: log, Busy: busy}).Run(ctx)
		if err != nil || ctx.Err() != nil {
			break
		}
		log.Warn("somebody has unmounted or aborted the pool, so there is a new one", "pool", lay.Pool)
		_ = dev.Close()
		dev = poolOrNone(cfg, false, log)
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	free, rerr := releaseVolumes(cfg, log)
	err = errors.Join(err, rerr, vols.close(), release(cfg, log))
	if free {
		err = errors.Join(err, poolfs.Teardown(lay.Volumes))
	}
	return err
}

// busyUntil returns a function that reports whether containers use files of the agent.
// The function returns false once stop has ended.
func busyUntil(stop context.Context, cfg *config.Agent, log *slog.Logger) func() bool {
	told := false
	return func() bool {
		users := usersOf(cfg.Root) + volumeUsers(layoutOf(cfg).VolumeMounts)
		if users == 0 || stop.Err() != nil {
			return false
		}
		if !told {
			told = true
			log.Warn("containers still use files of the agent, which continues until they are gone; a second signal ends it at once", "containers", users)
		}
		return true
	}
}

// release unmounts the pool and the trees if no container uses them.
func release(cfg *config.Agent, log *slog.Logger) error {
	if n := usersOf(cfg.Root); n > 0 {
		log.Warn("the pool stays mounted, as containers use it; they fetch no further files", "containers", n)
		return nil
	}
	lay := layoutOf(cfg)
	return errors.Join(poolfs.Teardown(lay.Pool), view.UnmountBelow(lay.Views))
}

// usersOf counts the overlays of an agent, which are the root file systems of containers.
func usersOf(root string) int {
	list, err := overlaysOf(root)
	if err != nil {
		return 1 // unknown, so it assumes a user
	}
	return len(list)
}

// overlaysOf lists the overlays of an agent.
func overlaysOf(root string) ([]view.Mount, error) {
	list, err := view.Mounts("/")
	cache := filepath.Join(root, "cache") + "/"
	return slices.DeleteFunc(list, func(m view.Mount) bool {
		return m.Type != "overlay" || !slices.ContainsFunc(m.Layers().Data, func(d string) bool { return strings.HasPrefix(d, cache) })
	}), err
}
