package tasks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Ctr runs tasks through containerd's command-line client.
type Ctr struct {
	// Program is the path of ctr. Socket is the path of containerd's socket.
	Program, Socket string
	// Snapshotter is the snapshotter that holds the images.
	Snapshotter string
	// Env is the environment of ctr itself; nil means this process's.
	Env []string
	// Dir is an existing directory for small files of the runs.
	Dir string
	// Done, if set, is called when a task is done, before its container is stopped and removed.
	Done func()
	// Running, if set, is called when a service has answered. It gets the first process of the
	// service's container, which runs until Running returns.
	Running func(pid int) error
}

// Result is the outcome of one task.
type Result struct {
	// Output is the output of the command, or the answer of the service.
	Output string
	// Took is the time from the start of ctr to the end of the command, or to the service's correct
	// answer.
	Took time.Duration
}

// Run starts a container of a pulled image, waits until the task is done, and removes the
// container. It checks the output. The container gets the name id, which must be free. Extra
// arguments go to ctr run.
func (c *Ctr) Run(ctx context.Context, image, id string, task Task, extra ...string) (r Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*task.Timeout+time.Minute)
	defer cancel()
	// Docker gives a container such a file; postgres looks up localhost in it.
	hosts := filepath.Join(c.Dir, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		return r, err
	}
	pidFile := filepath.Join(c.Dir, id+".pid")
	defer os.Remove(pidFile)
	args := append([]string{"-a", c.Socket, "run", "--rm", "--snapshotter", c.Snapshotter, "--pid-file", pidFile,
		"--mount", "type=bind,src=" + hosts + ",dst=/etc/hosts,options=rbind:ro"}, extra...)
	args = append(append(args, image, id), task.Args...)
	cmd := exec.Command(c.Program, args...)
	cmd.Env = c.Env
	out := &buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return r, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if task.Probe == nil {
		return c.command(ctx, id, task, begin, ended, out)
	}
	r, err = c.service(ctx, pidFile, task, begin, ended)
	err = errors.Join(err, c.end(id, ended))
	if err != nil {
		return r, fmt.Errorf("%w; the container printed:\n%s", err, out.String())
	}
	return r, task.Check(r.Output)
}

// command waits for the end of a task that runs a command.
func (c *Ctr) command(ctx context.Context, id string, task Task, begin time.Time, ended <-chan error, out *buffer) (Result, error) {
	select {
	case err := <-ended:
		r := Result{Output: out.String(), Took: time.Since(begin)}
		c.done()
		if err != nil {
			return r, fmt.Errorf("task %s: %w; it printed:\n%s", task, err, r.Output)
		}
		return r, task.Check(r.Output)
	case <-ctx.Done():
		err := fmt.Errorf("task %s: %w", task, ctx.Err())
		return Result{Output: out.String()}, errors.Join(err, c.end(id, ended))
	}
}

// service sends requests to a service until it answers one.
func (c *Ctr) service(ctx context.Context, pidFile string, task Task, begin time.Time, ended chan error) (Result, error) {
	pid, err := waitForPid(ctx, pidFile, ended)
	if err != nil {
		return Result{}, fmt.Errorf("task %s: %w", task, err)
	}
	dial, done, err := DialIn(pid)
	if err != nil {
		return Result{}, fmt.Errorf("task %s: %w", task, err)
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a service that ends by itself never answers
		select {
		case err := <-ended:
			ended <- err
			cancel()
		case <-ctx.Done():
		}
	}()
	answer, err := task.Probe(ctx, dial)
	r := Result{Output: answer, Took: time.Since(begin)}
	c.done()
	if err == nil && c.Running != nil {
		err = c.Running(pid)
	}
	if err != nil {
		return r, fmt.Errorf("task %s: %w", task, err)
	}
	return r, nil
}

func (c *Ctr) done() {
	if c.Done != nil {
		c.Done()
	}
}

// waitForPid waits for the id of a container's process and returns it.
func waitForPid(ctx context.Context, file string, ended chan error) (int, error) {
	for {
		b, err := os.ReadFile(file)
		if pid, convErr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && convErr == nil {
			return pid, nil
		}
		select {
		case err := <-ended:
			ended <- err
			return 0, fmt.Errorf("the container ended before it had begun: %v", err)
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// end kills a container and waits until ctr has removed it.
func (c *Ctr) end(id string, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		kill := exec.CommandContext(ctx, c.Program, "-a", c.Socket, "task", "kill", "--all", "--signal", strconv.Itoa(int(syscall.SIGKILL)), id)
		kill.Env = c.Env
		said, killErr := kill.CombinedOutput()
		select {
		case <-ended: // ctr does not report success, because the container was killed
			return nil
		case <-time.After(2 * time.Second): // the container had not started when the signal came
		case <-ctx.Done():
			return fmt.Errorf("end container %s: %w: %v: %s", id, ctx.Err(), killErr, said)
		}
	}
}

// buffer is a bytes.Buffer that two streams can write to.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
