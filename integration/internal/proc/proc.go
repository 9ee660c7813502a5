// Package proc runs the long-lived child processes of a test: servers and container
// daemons.
//
// A process is a direct child, and the package waits for it. The end of a process is
// never guessed from signal 0, because an ended process may remain a zombie for seconds.
// Its output goes to a file, so that a grandchild that inherits the descriptor cannot
// keep Wait from returning. The output is printed if the test fails. The kernel kills the
// child when the test process dies.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a started child process. Its methods may be called concurrently.
type Process struct {
	// Name is the program's base name.
	Name string

	pid  int
	log  string
	done chan struct{} // closed when the process has been waited for
	err  error         // result of Wait; read only after done is closed
}

// Start starts cmd with its output appended to logFile. At the end of the test it kills the process
// if it still runs, and prints the end of the log if the test has failed.
func Start(t testing.TB, cmd *exec.Cmd, logFile string) *Process {
	t.Helper()
	p, err := Launch(cmd, logFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("output of %s (pid %d, %s):\n%s", p.Name, p.pid, p.State(), p.Log(8<<10))
		}
	})
	return p
}

// Launch starts cmd with its output appended to logFile. The caller ends it.
func Launch(cmd *exec.Cmd, logFile string) (*Process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", cmd.Path, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p := &Process{Name: filepath.Base(cmd.Path), log: logFile, done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run starts the command and waits for it on one locked thread, because the kernel sends Pdeathsig
// when the thread that started the child ends.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	started <- nil
	p.err = cmd.Wait()
	close(p.done)
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.pid }

// Exited returns a channel that is closed when the process has ended and has been waited for.
func (p *Process) Exited() <-chan struct{} { return p.done }

// State says in words whether the process runs or how it ended.
func (p *Process) State() string {
	select {
	case <-p.done:
		if p.err != nil {
			return p.err.Error()
		}
		return "exited with status 0"
	default:
		return "running"
	}
}

// Signal sends a signal unless the process has ended.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done: // the pid may belong to another process by now
	default:
		_ = syscall.Kill(p.pid, s) // ESRCH: the process ended meanwhile, which Wait will notice
	}
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the process to end with SIGTERM and returns how it ended. It kills a process that still
// runs after the grace period, and returns an error.
func (p *Process) Stop(grace time.Duration) error {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, grace)
	}
}

// AwaitURL asks every few milliseconds until the address answers with status 200, or until the
// timeout.
func (p *Process) AwaitURL(ctx context.Context, url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("it ended: %s", p.State())
		case <-ctx.Done():
			return errors.New("it was not ready in time")
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Log returns the last n bytes of the process's output. If output is left out, Log puts
// the warnings and errors of that part in front, up to n bytes of them. These matter
// because much other output often follows an error.
func (p *Process) Log(n int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return excerpt(b, n)
}

// trouble matches the marks that the tests' servers put on a warning or an error: level=WARN,
// "level":"error", [warn], a panic.
var trouble = regexp.MustCompile(`(?i)\blevel"?[=:] ?"?(warn|error|fatal|panic)|\[(warn|error|crit|alert|emerg)|^(panic|fatal error): |WARNING: DATA RACE`)

func excerpt(b []byte, n int) string {
	if len(b) <= n {
		return string(b)
	}
	var out []byte
	// A line that the tail would cut in two is printed whole here.
	start := len(b) - n
	if i := bytes.IndexByte(b[start:], '\n'); i >= 0 && i+1 < n {
		start += i + 1
	}
	for line := range bytes.Lines(b[:start]) {
		if trouble.Match(line) {
			if len(out)+len(line) > n {
				break
			}
			out = append(out, line...)
		}
	}
	out = append(out, "[...]\n"...)
	return string(append(out, b[start:]...))
}

// PeakRSS returns the largest resident set that the process has had, in bytes.
func (p *Process) PeakRSS() (int64, error) { return p.status("VmHWM:") }

// RSS returns the process's resident set, in bytes.
func (p *Process) RSS() (int64, error) { return p.status("VmRSS:") }

func (p *Process) status(key string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == key {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in the status of pid %d", key, p.pid)
}

// CPU returns the processor time that the process with an id has taken, with that of its children
// that have ended. It is 0 for a process that is gone.
func CPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	const first, last, perSecond = 11, 15, 100 // utime to cstime, after the name; in ticks
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < last {
		return 0, fmt.Errorf("the state of pid %d is %q", pid, b)
	}
	sum := int64(0)
	for _, s := range f[first:last] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the state of pid %d is %q", pid, b)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / perSecond, nil
}

// OpenFiles returns the number of descriptors that the process has open.
func (p *Process) OpenFiles() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
	return len(entries), err
}

// Gone reports whether the process with the id has ended. A zombie, which only waits for its parent
// to notice, counts as ended.
func Gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// pid (name) state ...: the name may hold spaces and parentheses.
	if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) {
		return b[i+2] == 'Z' || b[i+2] == 'X'
	}
	return false
}

// Poll calls ok every few milliseconds until ok returns true. If the deadline passes
// first, it fails the test and says what it was waiting for.
func Poll(t testing.TB, deadline time.Duration, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(deadline)
	for wait := 2 * time.Millisecond; !ok(); wait = min(wait*2, 100*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, deadline)
		}
		<-time.After(wait)
	}
}
