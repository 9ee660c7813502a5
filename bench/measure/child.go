package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spent is what a run of the slipway program used.
type Spent struct {
	Times
	// PeakRSS is its largest resident set, in bytes.
	PeakRSS int64 `json:"peak_rss"`
	// OtherCPUs is the number of CPUs that everything else on the machine kept busy.
	OtherCPUs float64 `json:"other_cpus"`
}

// Slipway runs the binary on the given number of CPUs (0: all) and returns what it printed. An
// error whose exit status is not 1 comes with the output, because the program has then done its
// work and judges it.
func (b *Bench) Slipway(ctx context.Context, cpus int, args ...string) (out []byte, u Spent, err error) {
	cmd := exec.CommandContext(ctx, b.Binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Dir = b.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.Dir, "TMPDIR=" + b.Dir}
	if cpus > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprint("GOMAXPROCS=", cpus))
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	m, err := NewMeter()
	if err != nil {
		return nil, Spent{}, err
	}
	began := time.Now()
	err = RunOn(cmd, cpus)
	u.Wall = time.Since(began).Seconds()
	rest, merr := m.Stop()
	if st := cmd.ProcessState; st != nil {
		u.CPU = (st.UserTime() + st.SystemTime()).Seconds()
		if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
			u.PeakRSS = ru.Maxrss << 10 // this process's own peak counts until exec, and is smaller
		}
		u.OtherCPUs = max(0, rest.OtherCPUs-u.CPU/u.Wall)
	}
	if err != nil {
		return stdout.Bytes(), u, fmt.Errorf("slipway %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, tail(stderr.String()))
	}
	return stdout.Bytes(), u, merr
}

// Judged reports whether an error is the program's verdict on its own work.
func Judged(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() >= 3
}

// tail returns the end of a program's output.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-1000):]
}

// FirstLine returns the first line of a text.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// LastLine returns the last line of a program's output, or its end if it is long.
func LastLine(out []byte) string {
	s := tail(string(out))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// RunOn runs a command on the first of the CPUs that this process may use, as many as given; 0
// means all of them. The kernel kills the command when this process ends.
func RunOn(cmd *exec.Cmd, cpus int) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	go func() {
		// The thread, whose CPUs are changed, is never unlocked. It ends with the goroutine, and
		// not before the command, because the kernel would then kill the command.
		runtime.LockOSThread()
		done <- func() error {
			if cpus > 0 {
				if err := bind(cpus); err != nil {
					return err
				}
			}
			return cmd.Run()
		}()
	}()
	return <-done
}

// bind restricts this thread, and what it starts, to the given number of CPUs.
func bind(cpus int) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("find the CPUs of this process: %w", err)
	}
	if all.Count() < cpus {
		return fmt.Errorf("this process may use %d CPUs, not %d", all.Count(), cpus)
	}
	for cpu := 0; some.Count() < cpus; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		return fmt.Errorf("choose CPUs: %w", err)
	}
	return nil
}

// CPUs returns the number of CPUs that this process may use.
func CPUs() int {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return runtime.NumCPU()
	}
	return all.Count()
}

// Answer runs the binary and reads the JSON it prints.
func (b *Bench) Answer(ctx context.Context, cpus int, into any, args ...string) (Spent, error) {
	out, u, err := b.Slipway(ctx, cpus, args...)
	if err != nil && !Judged(err) {
		return u, err
	}
	if jerr := json.Unmarshal(out, into); jerr != nil {
		return u, errors.Join(err, fmt.Errorf("parse what slipway %s prints: %w", strings.Join(args[:min(2, len(args))], " "), jerr))
	}
	return u, nil
}
