// Package backendtest starts the real servers that tests talk to: registries, object
// stores and databases. Only tests import it. Every server listens on 127.0.0.1, keeps
// its files in directories of the test, and ends with the test.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is how long a server may take until it answers, on a machine that is busy
// with other tests.
const startTimeout = 2 * time.Minute

// Daemon is a server process that a test started. It is a direct child, and its end is
// waited for. The kernel kills it when the process of the test ends.
type Daemon struct {
	t    testing.TB
	make func() *exec.Cmd
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed after the process has been waited for
}

// start runs the command that command returns, and waits until ready returns nil. The
// process is killed at the end of the test. If the test has failed, the end of the output
// is printed. command is called for each start; see Start.
func start(t testing.TB, dir string, command func() *exec.Cmd, ready func(context.Context) error) *Daemon {
	t.Helper()
	d := &Daemon{t: t, make: command}
	d.log = filepath.Join(dir, filepath.Base(command().Path)+".log")
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("output of %s:\n%s", d.log, d.output())
		}
	})
	d.Start(ready)
	return d
}

// Start starts the server, again if it has ended, and waits until ready returns nil.
func (d *Daemon) Start(ready func(context.Context) error) {
	d.t.Helper()
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer out.Close()
	d.cmd, d.done = d.make(), make(chan struct{})
	d.cmd.Stdout, d.cmd.Stderr = out, out
	started := make(chan error)
	go d.run(started)
	if err := <-started; err != nil {
		close(d.done)
		d.t.Fatalf("start %s: %v", d.cmd.Path, err)
	}
	d.await(ready)
}

// run starts the process and waits for it on one locked thread. The kernel sends
// Pdeathsig when the thread that started the child ends.
func (d *Daemon) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if d.cmd.SysProcAttr == nil {
		d.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	d.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	err := d.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = d.cmd.Wait() // the output shows how it ended
	close(d.done)
}

func (d *Daemon) await(ready func(context.Context) error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-d.done:
			d.t.Fatalf("%s ended at its start:\n%s", d.cmd.Path, d.output())
		case <-ctx.Done():
			d.t.Fatalf("%s does not answer: %v\n%s", d.cmd.Path, err, d.output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Pid returns the process id.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Signal sends a signal unless the process has ended.
func (d *Daemon) Signal(s syscall.Signal) {
	select {
	case <-d.done: // another process may have the pid by now
	default:
		_ = syscall.Kill(d.Pid(), s) // ESRCH: it ended in the meantime
	}
}

// Kill ends the server with SIGKILL and returns when it is gone.
func (d *Daemon) Kill() { d.end(syscall.SIGKILL) }

// Stop asks the server to end and returns when it is gone.
func (d *Daemon) Stop() { d.end(syscall.SIGTERM) }

func (d *Daemon) end(s syscall.Signal) {
	if d.done == nil {
		return
	}
	d.Signal(s)
	select {
	case <-d.done:
	case <-time.After(20 * time.Second):
		d.Signal(syscall.SIGKILL)
		<-d.done
	}
}

// output returns the end of the server's output.
func (d *Daemon) output() string {
	b, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	const most = 8 << 10
	if len(b) > most {
		b = append([]byte("[...]\n"), b[len(b)-most:]...)
	}
	return string(b)
}

// FreePort returns a TCP port of 127.0.0.1 on which nothing listens. The port is below
// the ports that the kernel assigns, because another test that asks for any port must not
// get this one before its server has started. FreePort does not return the same port
// again while this process lives.
func FreePort() (int, error) {
	for range 100 {
		port := 10000 + rand.IntN(10000)
		ours, err := claim(port)
		if err != nil {
			return 0, fmt.Errorf("look for a free port: %w", err)
		}
		if !ours {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look for a free port: %w", err)
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port found")
}

// claims holds a socket without a file for each port. The kernel closes the sockets when
// the process ends.
var claims struct {
	sync.Mutex
	held []net.Listener // keeps the listeners reachable: the garbage collector would close them
}

// claim reports whether no other process has claimed a port, and claims it.
func claim(port int) (bool, error) {
	l, err := net.Listen("unix", fmt.Sprintf("@slipway-test-port-%d", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	claims.Lock()
	defer claims.Unlock()
	claims.held = append(claims.held, l)
	return true, nil
}

func freePort(t testing.TB) int {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// answers returns a ready function: something accepts connections at the address.
func answers(network, addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		return c.Close()
	}
}

// shortDir returns a directory of the test. Its path is short enough for Unix sockets,
// and any user may pass through it.
func shortDir(t testing.TB) string { return shortDirIn(t, "") }

func shortDirIn(t testing.TB, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "swb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
