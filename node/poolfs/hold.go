package poolfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/node/fuse"
)

// WorkerFD is the number of the descriptor of the pool in a worker; see [Inherited].
const WorkerFD = 3

// HolderOptions are the options of [NewHolder]. The zero value works.
type HolderOptions struct {
	// State is the workers' Options.State. By default there is none, and then nobody
	// answers while no worker runs.
	State string
	// Refuse answers requests in place of a worker until its context ends. It fails
	// requests that would need a worker. By default, the holder does this itself if State
	// is set, and nobody does otherwise.
	Refuse func(ctx context.Context) error
	// Healthy is how long a worker must have run for its successor to be started at once
	// when it dies. The default is 500 ms, so that a worker that is killed every second
	// still serves.
	Healthy time.Duration
	// MaxBackoff bounds the pause before a worker is started after others died early. The
	// pause starts at 20 ms and doubles. The default is 2 s. Every open of a new file
	// waits during the pause.
	MaxBackoff time.Duration
	// Bound is how long no worker may have been healthy before the holder fails requests.
	// Between attempts to start a worker, the holder then answers with EIO all requests
	// that would need one. So no process waits forever for an agent that cannot start.
	// Files that the kernel reads itself keep working. The default is 60 s.
	Bound time.Duration
	// Grace is how long a worker may take to end after SIGTERM before it is killed. The
	// default is 10 s.
	Grace time.Duration
	// Busy reports whether the mount is still in use. The holder does not end while Busy
	// returns true. By default the mount is never busy.
	Busy func() bool
	// Started is called with the process id of each worker. By default nothing is called.
	Started func(pid int)
	// Log logs events for operators. By default nothing is logged.
	Log *slog.Logger
}

// Holder keeps the descriptor of a pool and runs a worker that serves the pool. It is
// meant for a separate process that does nothing else and so has no reason to die.
type Holder struct {
	dev     *os.File
	command func() *exec.Cmd
	o       HolderOptions

	mu     sync.Mutex
	worker *os.Process
}

// NewHolder returns a holder of dev. The caller still owns dev. If dev is nil, the holder
// runs a worker that has no pool; the worker learns this from [Inherited]. command
// returns the command of a worker. Its program must not lie on the pool. It gets dev from
// [Inherited], serves until SIGTERM, and then exits. The holder adds the descriptor to
// the command.
func NewHolder(dev *os.File, command func() *exec.Cmd, o *HolderOptions) *Holder {
	h := &Holder{dev: dev, command: command}
	if o != nil {
		h.o = *o
	}
	def := func(p *time.Duration, d time.Duration) {
		if *p <= 0 {
			*p = d
		}
	}
	def(&h.o.Healthy, 500*time.Millisecond)
	def(&h.o.MaxBackoff, 2*time.Second)
	def(&h.o.Bound, 60*time.Second)
	def(&h.o.Grace, 10*time.Second)
	if h.o.Refuse == nil && h.o.State != "" && dev != nil {
		h.o.Refuse = h.refuse
	}
	if h.o.Log == nil {
		h.o.Log = slog.New(slog.DiscardHandler)
	}
	return h
}

// firstBackoff is the first pause after a worker died early.
const firstBackoff = 20 * time.Millisecond

// Run keeps a worker running. It returns nil when the file system is gone. When ctx has
// ended and nothing uses the mount, Run ends the worker and returns ctx's error. When no
// process holds the descriptor any more, the mount is dead.
func (h *Holder) Run(ctx context.Context) error {
	pause := time.Duration(0)
	healthy := time.Now()
	for {
		began := time.Now()
		err := h.runWorker(ctx)
		if h.Gone() {
			return nil
		}
		if h.finished(ctx) {
			return context.Cause(ctx)
		}
		if time.Since(began) >= h.o.Healthy {
			healthy, pause = time.Now(), 0
			h.o.Log.Warn("pool worker ended; starting the next", "err", err)
			continue
		}
		pause = min(max(2*pause, firstBackoff), h.o.MaxBackoff)
		h.o.Log.Error("pool worker died early", "err", err, "pause", pause)
		h.wait(ctx, pause, time.Since(healthy) > h.o.Bound)
	}
}

// finished reports whether the holder may end.
func (h *Holder) finished(ctx context.Context) bool {
	return ctx.Err() != nil && (h.o.Busy == nil || !h.o.Busy())
}

// Gone reports whether the file system is unmounted and unused, or aborted.
func (h *Holder) Gone() bool {
	if h.dev == nil {
		return false
	}
	fd, err := fuse.RawFD(h.dev)
	if err != nil {
		return true
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&unix.POLLERR != 0
}

// busyPoll is how often a holder that got a signal to end checks whether it may end.
const busyPoll = 500 * time.Millisecond

// runWorker runs one worker until the worker ends.
func (h *Holder) runWorker(ctx context.Context) error {
	cmd := h.command()
	cmd.ExtraFiles = append([]*os.File{h.dev}, cmd.ExtraFiles...)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a pool worker: %w", err)
	}
	h.setWorker(cmd.Process)
	defer h.setWorker(nil)
	if h.o.Started != nil {
		h.o.Started(cmd.Process.Pid)
	}
	h.o.Log.Info("pool worker", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(busyPoll)
	defer tick.Stop()
	done := ctx.Done()
	var kill <-chan time.Time
	for {
		select {
		case err := <-ended:
			return err
		case <-kill:
			h.Signal(unix.SIGKILL)
		case <-done:
			done = nil
		case <-tick.C:
		}
		if kill == nil && done == nil && h.finished(ctx) {
			h.Signal(unix.SIGTERM)
			kill = time.After(h.o.Grace)
		}
	}
}

func (h *Holder) setWorker(p *os.Process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.worker = p
}

// Signal sends a signal to the worker, if there is one.
func (h *Holder) Signal(sig os.Signal) {
	h.mu.Lock()
	p := h.worker
	h.mu.Unlock()
	if p == nil {
		return
	}
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.o.Log.Error("signal the pool worker", "signal", sig, "err", err)
	}
}

// wait pauses. If there was no worker for too long, it meanwhile fails requests that need
// one.
func (h *Holder) wait(ctx context.Context, d time.Duration, refuse bool) {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx) // the holder was asked to end, but the mount is in use
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if refuse && h.o.Refuse != nil {
		err := h.o.Refuse(ctx)
		if err != nil && ctx.Err() == nil {
			h.o.Log.Error("fail waiting requests", "err", err)
		}
	}
	<-ctx.Done()
}

// refuse serves in place of a worker. It knows only what the last worker left in its
// state.
func (h *Holder) refuse(ctx context.Context) error {
	s, err := New(h.dev, nil, nothing{}, &Options{State: h.o.State, Log: h.o.Log, Drain: time.Millisecond})
	if err != nil {
		return err
	}
	s.refuse = true
	return errors.Join(s.Serve(ctx), s.Close())
}

// nothing is the [Resolver] of a server that refuses every request: it knows no contents.
type nothing struct{}

// Resolve implements [Resolver].
func (nothing) Resolve(uint64) (k Key, size int64, ok bool) { return k, 0, false }

// Views implements [Resolver].
func (nothing) Views() []uint64 { return nil }

// passedOn is the environment variable through which a program gets descriptors from the
// program that its process executed before. It holds the process id and NAME=NUMBER for
// each descriptor.
const passedOn = "SLIPWAY_POOLS"

// PassOn leaves copies of the named descriptors to the program that this process executes
// next. That program finds them with [Inherited].
func PassOn(devs map[string]*os.File) error {
	list := []string{strconv.Itoa(os.Getpid())}
	for name, dev := range devs {
		fd, err := fuse.RawFD(dev)
		if err != nil {
			return err
		}
		if fd, err = unix.Dup(fd); err != nil { // the copy stays open when a program is executed
			return fmt.Errorf("pass on %s: %w", name, err)
		}
		list = append(list, name+"="+strconv.Itoa(fd))
	}
	return os.Setenv(passedOn, strings.Join(list, ":"))
}

// passed returns the number of a descriptor that was passed on under name.
func passed(name string) (fd int, found bool) {
	list := strings.Split(os.Getenv(passedOn), ":")
	if list[0] != strconv.Itoa(os.Getpid()) { // the variable is from another process, whose child this is
		return 0, false
	}
	for _, entry := range list[1:] {
		if n, ok := strings.CutPrefix(entry, name+"="); ok {
			fd, err := strconv.Atoi(n)
			return fd, err == nil
		}
	}
	return 0, false
}

// Inherited returns the descriptor of a pool that this process was started with. It tries
// three sources in turn: a descriptor that was passed on under name ([PassOn]), a
// descriptor that systemd keeps under name (LISTEN_FDS, after [Store]), and a descriptor
// from a [Holder]. If there is none, Inherited returns os.ErrNotExist, and the caller
// should mount the pool.
func Inherited(name string) (*os.File, error) {
	if fd, found := passed(name); found {
		return poolAt(fd)
	}
	fd := WorkerFD
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		found := false
		for i, v := range strings.Split(os.Getenv("LISTEN_FDNAMES"), ":") {
			if i < n && v == name {
				fd, found = WorkerFD+i, true
			}
		}
		if !found {
			return nil, fmt.Errorf("systemd keeps no descriptor %q: %w", name, os.ErrNotExist)
		}
	}
	return poolAt(fd)
}

// poolAt returns a file for the descriptor of a pool.
func poolAt(fd int) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) {
		return nil, fmt.Errorf("descriptor %d does not belong to a pool: %w", fd, os.ErrNotExist)
	}
	unix.CloseOnExec(fd)
	// The descriptor is blocking for now, so that NewFile does not add it to Go's poller,
	// which every request would wake.
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, fmt.Errorf("descriptor of the pool: %w", err)
	}
	return os.NewFile(uintptr(fd), fuse.Device), nil
}

// Store gives a copy of the descriptor to systemd, which passes it under name to the next
// process of the unit. FileDescriptorStoreMax= of the unit must allow this. systemd then
// serves as a holder, and no separate process is needed. Store returns false if systemd
// did not start this process.
func Store(dev *os.File, name string) (bool, error) {
	return notify("FDSTORE=1\nFDNAME="+name, dev)
}

func notify(message string, f *os.File) (bool, error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return false, nil
	}
	var rights []byte
	if f != nil {
		fd, err := fuse.RawFD(f)
		if err != nil {
			return false, err
		}
		rights = unix.UnixRights(fd)
	}
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("notify systemd: %w", err)
	}
	// A leading @ denotes an abstract address, here as in the variable.
	err = unix.Sendmsg(s, []byte(message), rights, &unix.SockaddrUnix{Name: path}, unix.MSG_NOSIGNAL)
	if err = errors.Join(err, unix.Close(s)); err != nil {
		return false, fmt.Errorf("notify systemd: %w", err)
	}
	return true, nil
}
